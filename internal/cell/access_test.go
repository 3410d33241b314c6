package cell

import (
	"net/netip"
	"testing"
)

func TestWantSaysWhatAnAccessIs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a    Access
		want string
	}{
		{Access{Act: Resolve, Host: "x.example"}, "resolve x.example"},
		{Access{Act: Connect, Host: "x.example", Port: 443, Transport: "tcp"}, "connect x.example:443"},
		{Access{Act: Connect, Addr: netip.MustParseAddr("2001:db8::1"), Port: 22}, "connect [2001:db8::1]:22"},
		{Access{Act: Connect, Addr: netip.MustParseAddr("192.0.2.1"), Port: 443, Transport: "udp"}, "udp 192.0.2.1:443"},
		{Access{Act: Connect, Addr: netip.MustParseAddr("192.0.2.1"), Transport: "icmp"}, "icmp 192.0.2.1"},
		{Access{Act: Request, Host: "x.example", Port: 443, Scheme: "https", Method: "POST", Path: "/a"}, "POST https://x.example/a"},
		{Access{Act: Request, Host: "x.example", Port: 8080, Scheme: "http", Method: "GET", Path: "/"}, "GET http://x.example:8080/"},
		{Access{Act: Execute, Program: "/usr/bin/ssh"}, "execute /usr/bin/ssh"},
		{Access{Act: Sign, Host: "git.example", Key: "SHA256:abc"}, "sign for git.example with SHA256:abc"},
	} {
		if got := c.a.Want(); got != c.want {
			t.Errorf("%+v is %q, want %q", c.a, got, c.want)
		}
	}
}
