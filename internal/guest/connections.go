package guest

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
)

// connections says which TCP connections to others are open: the source goes on
// with the same ones. "" is none.
func connections() string {
	var open []string
	for _, f := range []string{"tcp", "tcp6"} {
		b, err := os.ReadFile("/proc/1/net/" + f)
		if err != nil {
			continue
		}
		for l := range bytes.Lines(b) {
			if to, ok := established(string(l)); ok {
				open = append(open, "socket "+to)
			}
		}
	}
	if len(open) == 0 {
		return ""
	}
	return fmt.Sprintf("%d open: %s", len(open), strings.Join(open, ", "))
}

// established reads one line of proc_net_tcp(5), and returns whom a connection
// that is open leads to, unless that is the sandbox itself.
func established(line string) (string, bool) {
	f := strings.Fields(line)
	if len(f) < 4 || f[3] != "01" {
		return "", false
	}
	host, port, ok := strings.Cut(f[2], ":")
	b, err := hex.DecodeString(host)
	if !ok || err != nil || len(b)%4 != 0 {
		return "", false
	}
	for i := 0; i < len(b); i += 4 { // words of the host's order
		slices.Reverse(b[i : i+4])
	}
	addr, ok := netip.AddrFromSlice(b)
	n, err := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil || addr.Unmap().IsLoopback() {
		return "", false
	}
	return netip.AddrPortFrom(addr.Unmap(), uint16(n)).String(), true
}
