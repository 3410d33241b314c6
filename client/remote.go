package client

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"encoding/hex"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
)

// remote is a daemon that is reached by TCP.
type remote struct {
	addr string      // host:port
	tls  *tls.Config // nil for plain HTTP
	err  error       // the reason why Config.Host can't be used
}

// parseHost parses Config.Host: http://HOST:PORT or https://HOST:PORT, the latter with the
// fingerprint of a self-signed certificate behind it:
// #sha256=HEX.
func parseHost(host string) *remote {
	bad := func(why string) *remote {
		return &remote{err: &api.Error{Kind: "invalid", Message: "cannot use " + host + " as the daemon's address: " + why,
			Hint: "PANDO_HOST is http://HOST:PORT or https://HOST:PORT, with #sha256=FINGERPRINT behind it where pando serve prints one"}}
	}
	u, err := url.Parse(host)
	if err != nil || u.Host == "" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || strings.Trim(u.Path, "/") != "" {
		return bad("it is no such URL")
	}
	r := &remote{addr: u.Host}
	pin, pinned := strings.CutPrefix(u.Fragment, "sha256=")
	switch {
	case u.Fragment != "" && !pinned:
		return bad("what follows # is no fingerprint")
	case u.Scheme == "http" && pinned:
		return bad("without TLS there is no certificate to compare")
	case u.Scheme == "http":
		// The token would be readable on the way.
		if a := net.ParseIP(u.Hostname()); u.Hostname() != "localhost" && (a == nil || !a.IsLoopback()) {
			return bad("plain HTTP is for this host alone")
		}
		if u.Port() == "" {
			r.addr = net.JoinHostPort(u.Hostname(), "80")
		}
		return r
	case u.Scheme != "https":
		return bad("it is no such URL")
	}
	if u.Port() == "" {
		r.addr = net.JoinHostPort(u.Hostname(), "443")
	}
	r.tls = &tls.Config{ServerName: u.Hostname(), MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	if pinned {
		want, err := hex.DecodeString(strings.ReplaceAll(pin, ":", ""))
		if err != nil || len(want) != sha256.Size {
			return bad("the fingerprint is not 64 hexadecimal digits")
		}
		// The fingerprint takes the place of names and authorities.
		r.tls.InsecureSkipVerify = true
		r.tls.VerifyConnection = func(s tls.ConnectionState) error {
			got := sha256.Sum256(s.PeerCertificates[0].Raw)
			if subtle.ConstantTimeCompare(got[:], want) != 1 {
				return &api.Error{Kind: "denied", Message: "cannot trust the daemon at " + u.Host + ": its certificate has the fingerprint sha256=" + hex.EncodeToString(got[:]),
					Hint: "if it was made anew, compare with what pando serve prints there, and change PANDO_HOST"}
			}
			return nil
		}
	}
	return r
}

// connect opens a connection.
func (r *remote) connect(ctx context.Context) (net.Conn, error) {
	if r.err != nil {
		return nil, r.err
	}
	d := net.Dialer{Timeout: 30 * time.Second}
	var conn net.Conn
	var err error
	if r.tls == nil {
		conn, err = d.DialContext(ctx, "tcp", r.addr)
	} else {
		conn, err = (&tls.Dialer{NetDialer: &d, Config: r.tls}).DialContext(ctx, "tcp", r.addr)
	}
	if err != nil {
		if e := asAPI(err); e != nil {
			return nil, e
		}
		return nil, &api.Error{Kind: "unavailable", Message: "cannot reach the daemon at " + r.addr + ": " + err.Error(), Hint: "see whether pando serve runs there, and PANDO_HOST"}
	}
	return conn, nil
}
