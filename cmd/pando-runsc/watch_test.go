package main

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestAway(t *testing.T) {
	v4 := func(port byte, ip ...byte) []byte { return append([]byte{unix.AF_INET, 0, 0, port}, ip...) }
	v6 := make([]byte, 28)
	v6[0], v6[3], v6[23] = unix.AF_INET6, 53, 1
	for _, c := range []struct {
		name    string
		address []byte
		errno   unix.Errno
		want    bool
	}{
		{"no way", v4(80, 192, 0, 2, 1), unix.ENETUNREACH, true},
		{"no way to the host", v4(80, 192, 0, 2, 1), unix.EHOSTUNREACH, true},
		{"a resolver", v4(53, 127, 0, 0, 1), 0, true},
		{"a resolver that is refused", v4(53, 127, 0, 0, 1), unix.ECONNREFUSED, true},
		{"a resolver, version 6", v6, 0, true},
		{"itself", v4(80, 127, 0, 0, 1), unix.ECONNREFUSED, false},
		{"another's resolver that answers", v4(53, 192, 0, 2, 1), 0, false},
		{"a unix socket", append([]byte{unix.AF_UNIX, 0}, "/some/path"...), unix.ENETUNREACH, false},
		{"half an address", v6[:20], unix.ENETUNREACH, false},
		{"nothing", nil, unix.ENETUNREACH, false},
	} {
		if got := away(c.address, c.errno); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
