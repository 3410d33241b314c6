package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

const handshakeTimeout = 30 * time.Second

// openTLS terminates a TLS connection that the policy has to look into.
func (c *conn) openTLS(in *prefixed) {
	l := c.g.inForce.Load()
	if l.signer == nil {
		c.deny("https", never("tls", "a rule looks into this connection, and the cell has no certificate authority to open it with"), alertAccessDenied)
		return
	}
	t := tls.Server(in, &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return l.signer.leaf(c.host())
		},
	})
	ctx, cancel := context.WithTimeout(c.g.ctx, handshakeTimeout)
	err := t.HandshakeContext(ctx)
	cancel()
	if err != nil {
		// This is how a cell that doesn't trust its authority looks from here.
		c.fail(errors.New("the cell broke off TLS: " + err.Error()))
		c.recorder().missed(cell.NotTrusted)
		return
	}
	c.speaks("https", true)
	c.web(t)
}
