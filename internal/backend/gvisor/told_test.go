package gvisor

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/bound/boundtest"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/server"
)

// toldOf is of a cell in which one program is denied.
func toldOf() *told {
	return &told{denies: map[string]cell.Denial{"/usr/bin/env": {Rule: "deny program env"}}, missing: map[string]int64{}, denied: map[string]int64{}, watched: map[int64]*watched{}}
}

func TestToldOfExecutionsAndConnections(t *testing.T) {
	m := toldOf()
	text := "exec \"/usr/bin/env\"\naway\nexec \"/usr/bin/true\"\nexec /usr/bin/env\nexec \"/usr/bin/env\nexec \"\\x2fusr/bin/env\"\naway \n" +
		"exec \"" + strings.Repeat("/usr/bin/env", toldLine) + "\"\naway\nexec \"/usr/bin/env\""
	for i := range text {
		m.take([]byte{text[i]})
	}
	if d := cmp.Diff(map[string]int64{"/usr/bin/env": 2}, m.denied); d != "" || m.away != 2 || len(m.missing) > 0 {
		t.Error(d, m.away, m.missing)
	}
}

func TestMissingCallsAreNamed(t *testing.T) {
	call := func(nr int, args ...uint64) string {
		return fmt.Sprintf("%d %d %d %d\n", nr, args[0], args[1], args[2])
	}
	m := toldOf()
	text := `{"msg":"Unsupported syscall vmsplice(` + strings.Repeat("0x0,", 50) + `","level":"info"}` + "\n" +
		call(unix.SYS_VMSPLICE, 0, 0, 0) + call(unix.SYS_RSEQ, 1, 2, 3) + call(unix.SYS_PRCTL, 59, 0, 0) + call(unix.SYS_IOCTL, 3, 0x8914, 0) +
		call(unix.SYS_SETSOCKOPT, 3, 1, 1<<40|62) + call(unix.SYS_VMSPLICE, 9, 9, 9) + call(1<<20, 0, 0, 0) + "278\n278 0 0\n278 0 0 0 0\n-1 0 0 0\nx y z a\n\n" +
		strings.Repeat("1", 4*missingLine) + "\n" + call(unix.SYS_MSEAL, 0, 0, 0) + "278 0 0" // what is not ended yet
	want := map[string]int64{"vmsplice": 2, "prctl 0x3b": 1, "ioctl 0x8914": 1, "setsockopt 0x1 0x3e": 1, "mseal": 1}
	for i := range text { // whatever comes at a time
		m.take([]byte{text[i]})
	}
	if d := cmp.Diff(want, m.missing); d != "" {
		t.Error(d)
	}
	m = toldOf()
	m.take([]byte(text))
	if d := cmp.Diff(want, m.missing); d != "" {
		t.Error("at once:", d)
	}
	for i := range 1000 {
		m.take([]byte(call(unix.SYS_PRCTL, uint64(i), 0, 0)))
	}
	m.take([]byte(call(unix.SYS_PRCTL, 59, 0, 0)))
	if len(m.missing) != missingKinds+1 || m.missing[server.MissingOthers] < 900 {
		t.Errorf("%d kinds, %d others", len(m.missing), m.missing[server.MissingOthers])
	}
	if m.missing["prctl 0x3b"] < 2 {
		t.Error("what has a name is not counted by it any more")
	}
}

// FuzzTold simulates code that has broken out of the application kernel.
func FuzzTold(f *testing.F) {
	f.Add([]byte("278 0 0 0\n157 59 0 0\n"))
	f.Add([]byte("exec \"/usr/bin/env\"\naway\nexec \"\\x00\"\n"))
	f.Add([]byte("{\"msg\":\"Unsupported\"}\n334 18446744073709551615 1 2\n99999999999999999999 0 0 0\n"))
	f.Add([]byte("part {\"kind\":\"exec\",\"command\":7,\npart \"argv\":[\"a\",\"\"],\nproc \"pid\":3}\nproc {\"kind\":\"end\",\"command\":7,\"status\":4294967295}\nproc {}\n"))
	f.Add([]byte("proc {\"kind\":\"lost\",\"command\":7,\"starts\":-5}\nproc {\"argv\":[" + strings.Repeat("0,", 6000) + "\nproc {\"argv\":[" + strings.Repeat(`"",`, 5000) + `""]}` + "\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		boundtest.Allocates(t, len(b), func() {
			m := toldOf()
			m.watched[7] = &watched{starts: &toldStarts{t: t}}
			m.take(b[:len(b)/2])
			m.take(b[len(b)/2:])
			if len(m.missing) > missingKinds+1 || len(m.line) > toldLine+1 || len(m.denied) > 1 || len(m.parts) > reportSize+1 || len(m.watched) != 1 {
				t.Fatalf("%d kinds, a line of %d", len(m.missing), len(m.line))
			}
			for name := range m.missing {
				if len(name) > 64 {
					t.Fatalf("%q", name)
				}
			}
		})
	})
}
