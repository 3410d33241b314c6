package linux

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
)

// Tried counts the packets that found no way out of a network namespace, and those without
// a receiver on its loopback, where a program without a resolver looks for one. Both are
// the kernel's counters. dir is a process's net directory in a proc.
func Tried(dir string) (n int64) {
	b, err := os.ReadFile(filepath.Join(dir, "snmp"))
	if err == nil {
		n += counter(b, "Ip:", "OutNoRoutes") + counter(b, "Udp:", "NoPorts")
	}
	if b, err = os.ReadFile(filepath.Join(dir, "snmp6")); err != nil {
		return n
	}
	for line := range bytes.Lines(b) {
		if f := bytes.Fields(line); len(f) == 2 && (string(f[0]) == "Ip6OutNoRoutes" || string(f[0]) == "Udp6NoPorts") {
			v, _ := strconv.ParseInt(string(f[1]), 10, 64)
			n += v
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
