package gateway_test

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/pando-dev/pando/internal/gateway/gatewaytest"
)

// TestX40RefusalsAreBounded: what says nothing, or a request that has no end, is cut
// off, and only so many are listened to at once.
func TestX40RefusalsAreBounded(t *testing.T) {
	b := gatewaytest.Join(t, gatewaytest.Stack(t), gatewaytest.With(gatewaytest.Allow("a.test")))
	most := b.Gateway.RefuseFor(50 * time.Millisecond)
	for _, text := range []string{"", "GET / HTTP/1.1\r\nHost: b.te", "GET / HTTP/1.1\r\nHost: b.test\r\nX: "} {
		c, err := gatewaytest.DialHost(b.Ctx(), b.Cell, b.Link, "b.test:80")
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(10 * time.Second))
		io.WriteString(c, text)
		if _, err := io.ReadAll(c); err != nil && strings.Contains(err.Error(), "timeout") {
			t.Errorf("%q: the connection lives on", text)
		}
		c.Close()
	}
	b.Gateway.RefuseFor(time.Minute)
	var open []net.Conn
	refused := 0
	for range most + 10 {
		c, err := gatewaytest.DialHost(b.Ctx(), b.Cell, b.Link, "b.test:80")
		if err != nil {
			refused++
			continue
		}
		open = append(open, c)
	}
	if len(open) > most || refused < 10 {
		t.Errorf("%d connections at once, %d refused", len(open), refused)
	}
	for _, c := range open {
		c.Close()
	}
}

// TestX40QuestionsTakeNoMemory: a cell may ask for a denied name by all types that there
// are, and nothing is kept of them but those of one attempt of a program.
func TestX40QuestionsTakeNoMemory(t *testing.T) {
	b := gatewaytest.Join(t, gatewaytest.Stack(t), gatewaytest.With(gatewaytest.Allow("a.test")))
	for kind := range uint16(400) {
		b.Ask("udp", new(dns.Msg).SetQuestion("b.test.", 1000+kind))
	}
	if n := b.Gateway.RefusedTypes(); n == 0 || n > 8 {
		t.Errorf("%d types are kept", n)
	}
}
