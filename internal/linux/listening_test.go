package linux

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pando-dev/pando/internal/cell"
)

func TestListening(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	list, err := Listening("/proc/self/net")
	if err != nil {
		t.Fatal(err)
	}
	want, found := cell.Listening{Port: l.Addr().(*net.TCPAddr).Port, Address: "127.0.0.1"}, false
	for _, x := range list {
		found = found || x == want
	}
	if !found {
		t.Errorf("%v is not in %v", want, list)
	}
	const six = `  sl  local_address                         remote_address                        st tx_queue
   0: 00000000000000000000000001000000:0BB8 00000000000000000000000000000000:0000 0A 00000000:00000000
   1: 00000000000000000000000000000000:0050 00000000000000000000000000000000:0000 0A 00000000:00000000
   2: 0000000000000000FFFF00000100007F:1F90 0000000000000000FFFF00000100007F:A000 01 00000000:00000000
   3: zz:0050 x 0A
   4: 00:0050 x 0A
`
	if diff := cmp.Diff([]cell.Listening{{Port: 3000, Address: "::1"}, {Port: 80, Address: "::"}}, readListening(strings.NewReader(six))); diff != "" {
		t.Error(diff)
	}
}

// Packets without a receiver are counted, whether they had no route or no process listened
// at its end, and no others.
func TestTried(t *testing.T) {
	dir := t.TempDir()
	if n := Tried(dir); n != 0 {
		t.Errorf("%d without counters", n)
	}
	for name, text := range map[string]string{
		"snmp":  "Ip: Forwarding OutNoRoutes InHdrErrors\nIp: 1 20 300\nUdp: InDatagrams NoPorts\nUdp: 4000 50000\n",
		"snmp6": "Ip6OutNoRoutes\t600000\nUdp6NoPorts 7000000\nIp6InReceives 80000000\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if n := Tried(dir); n != 7650020 {
		t.Errorf("%d are counted", n)
	}
}
