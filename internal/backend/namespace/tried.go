package namespace

import (
	"bytes"
	"os"
	"strconv"

	"github.com/pando-dev/pando/internal/cell"
)

// Tried implements keeper.Seeker: packets that found no way out of a cell's
// network namespace, and those that found nobody on its loopback, where a
// program without a resolver looks for one. Both are the kernel's counters.
func (d *Driver) Tried(id cell.ID) int64 {
	c, err := d.cell(id)
	if err != nil {
		return 0
	}
	n := int64(0)
	for _, x := range []struct{ file, group, field string }{
		{"net/snmp", "Ip:", "OutNoRoutes"}, {"net/snmp", "Udp:", "NoPorts"},
	} {
		b, err := os.ReadFile(procPath(c.init.PID, x.file))
		if err == nil {
			n += counter(b, x.group, x.field)
		}
	}
	if b, err := os.ReadFile(procPath(c.init.PID, "net/snmp6")); err == nil {
		for line := range bytes.Lines(b) {
			if f := bytes.Fields(line); len(f) == 2 && (string(f[0]) == "Ip6OutNoRoutes" || string(f[0]) == "Udp6NoPorts") {
				v, _ := strconv.ParseInt(string(f[1]), 10, 64)
				n += v
			}
		}
	}
	return n
}

// counter finds a field in a file such as /proc/net/snmp, in which a line of
// names is followed by one of values.
func counter(b []byte, group, field string) int64 {
	var names [][]byte
	for line := range bytes.Lines(b) {
		f := bytes.Fields(line)
		if len(f) == 0 || string(f[0]) != group {
			continue
		}
		if names == nil {
			names = f
			continue
		}
		for i, n := range names {
			if string(n) == field && i < len(f) {
				v, _ := strconv.ParseInt(string(f[i]), 10, 64)
				return v
			}
		}
	}
	return 0
}
