package hazard

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/bound/boundtest"
	"github.com/pando-dev/pando/internal/cell"
)

// image is an ELF file with these dynamic symbols; nil, nil is one that has no table.
func image(exports, imports []string) []byte {
	le := binary.LittleEndian
	words := []byte{0}
	table := make([]byte, 24)
	for i, n := range append(slices.Clone(exports), imports...) {
		s := make([]byte, 24)
		le.PutUint32(s, uint32(len(words)))
		if i < len(exports) {
			le.PutUint16(s[6:], 1)
		}
		table = append(table, s...)
		words = append(append(words, n...), 0)
	}
	titles := []byte("\x00.dynsym\x00.dynstr\x00.shstrtab\x00")
	head := make([]byte, 64)
	copy(head, "\x7fELF\x02\x01\x01")
	body := append(append(append(head, table...), words...), titles...)
	at := uint64(len(body))
	section := func(kind uint32, at, n uint64, link uint32) {
		s := make([]byte, 64)
		le.PutUint32(s[4:], kind)
		le.PutUint64(s[24:], at)
		le.PutUint64(s[32:], n)
		le.PutUint32(s[40:], link)
		body = append(body, s...)
	}
	section(0, 0, 0, 0)
	if exports != nil || imports != nil {
		section(11, 64, uint64(len(table)), 2)
	} else {
		section(0, 0, 0, 0)
	}
	section(3, 64+uint64(len(table)), uint64(len(words)), 0)
	section(3, 64+uint64(len(table)+len(words)), uint64(len(titles)), 0)
	le.PutUint64(body[40:], at)
	le.PutUint16(body[58:], 64)
	le.PutUint16(body[60:], 4)
	le.PutUint16(body[62:], 3)
	return body
}

func TestX09FamiliesAreRecognizedByTheirSymbols(t *testing.T) {
	for _, x := range []struct {
		what             string
		exports, imports []string
		want             string
	}{
		{"OpenSSL under any name", []string{"RAND_bytes", "RAND_add"}, []string{"getentropy"}, "OpenSSL"},
		{"Node with its own OpenSSL", []string{"RAND_bytes", "napi_create_function"}, nil, "Node.js"},
		{"a JVM", []string{"JNI_CreateJavaVM"}, []string{"getrandom"}, "Java"},
		{"a program that links to OpenSSL", []string{}, []string{"RAND_bytes", "malloc"}, ""},
		{"a program that seeds something", []string{}, []string{"getrandom"}, Own},
		{"a program of C's random", []string{}, []string{"srandom", "random"}, Own},
		{"a program of C++'s", []string{}, []string{"_ZNSt13random_device7_M_initERKSs"}, Own},
		{"the C library", []string{"__libc_start_main", "getrandom", "random"}, nil, ""},
		{"C++'s library", []string{"_ZNSt13random_device9_M_getvalEv"}, []string{"arc4random"}, ""},
		{"a program that draws nothing", []string{}, []string{"malloc", "nanosleep"}, ""},
		{"a static program", nil, nil, Unknown},
	} {
		b := image(x.exports, x.imports)
		if got := familyOf(bytes.NewReader(b), int64(len(b))); got != x.want {
			t.Errorf("%s: %q, not %q", x.what, got, x.want)
		}
	}
	if got := familyOf(strings.NewReader("#!/bin/sh\n"), 10); got != Unknown {
		t.Errorf("what is no ELF file: %q", got)
	}
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Skip(err)
	}
	defer self.Close()
	st, err := self.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if got := familyOf(self, st.Size()); got != "Go" {
		t.Errorf("this test, which Go has linked: %q", got)
	}
}

// A process is looked at by what it has mapped, also when the file lies elsewhere now, is
// something else, or is gone.
func TestX09ProcessesAreLookedAtByTheirMaps(t *testing.T) {
	proc := t.TempDir()
	root := filepath.Join(proc, "root")
	put := func(name string, b []byte) {
		t.Helper()
		name = filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put("opt/sleep", image([]string{"napi_create_function"}, []string{"getrandom"})) // a Node that calls itself sleep
	put("lib/libwhatever.so", image([]string{"RAND_bytes"}, nil))
	put("lib/libc.so.6", image([]string{"__libc_start_main"}, nil))
	put("data/node", image([]string{"napi_create_function"}, nil)) // mapped as data alone
	if err := os.Symlink("/etc/passwd", filepath.Join(root, "lib/away.so")); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(proc, "7")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(root, filepath.Join(dir, "root")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/opt/sleep", filepath.Join(dir, "exe")); err != nil {
		t.Fatal(err)
	}
	maps := `00400000-00500000 r-xp 00000000 08:01 1 /opt/sleep
00600000-00700000 r--p 00000000 08:01 1 /data/node
7f0000000000-7f0000001000 r-xp 00000000 08:01 2                          /lib/libwhatever.so
7f0000002000-7f0000003000 r-xp 00000000 08:01 3                          /lib/libc.so.6
7f0000004000-7f0000005000 rwxp 00000000 00:00 0
7f0000006000-7f0000007000 r-xp 00000000 08:01 4                          /lib/old.so (deleted)
7f0000008000-7f0000009000 r-xp 00000000 08:01 5                          /lib/away.so
7ffff0000000-7ffff0001000 r-xp 00000000 00:00 0                          [vdso]
`
	if err := os.WriteFile(filepath.Join(dir, "maps"), []byte(maps), 0o644); err != nil {
		t.Fatal(err)
	}
	var s Scanner
	for range 2 { // the second time from what is remembered
		p, ok := s.Process(proc, 7)
		if !ok || p.Program != "/opt/sleep" {
			t.Fatalf("%+v, %v", p, ok)
		}
		want := []Generator{{Family: "Node.js", File: "/opt/sleep"}, {Family: "OpenSSL", File: "/lib/libwhatever.so"}, {Family: Unknown, File: "/lib/old.so (deleted)"}, {Family: Unknown, File: "/lib/away.so"}}
		if !slices.Equal(p.Generators, want) {
			t.Errorf("%+v", p.Generators)
		}
	}
	if _, ok := s.Process(proc, 8); ok {
		t.Error("a process that is gone was reported")
	}
}

func TestX09WhatAnInterpreterRenewedIsLeftOut(t *testing.T) {
	list := []Process{
		{PID: 2, Program: "/usr/bin/python3", Interpreter: true, Generators: []Generator{{Family: "Python", File: "/usr/bin/python3"}, {Family: "OpenSSL", File: "/lib/libcrypto.so.3"}, {Family: "OpenSSL", File: "/x/libcrypto-ab.so"}}},
		{PID: 5, Program: "/usr/bin/node", Generators: []Generator{{Family: "Node.js", File: "/usr/bin/node"}}},
		{PID: 9, Program: "/usr/bin/node", Generators: []Generator{{Family: "Node.js", File: "/usr/bin/node"}}},
		{PID: 6, Program: "/usr/bin/sleep"},
	}
	told := []cell.Hazard{{Name: "kernel randomness", Value: "fresh, sha256 aa"}, {Name: "ssl randomness", Value: "fresh, sha256 bb of libcrypto.so.3"}, {Name: "hash seed", Value: "inherited: sets"}}
	c := cell.Certificate{Hazards: append(slices.Clone(told), Report(list, cell.WarmPython, told, "inside")...)}
	want := []string{"Node.js in /usr/bin/node, processes 5, 9", "OpenSSL (libcrypto-ab.so) in /usr/bin/python3, process 2"}
	if got := c.Inherited(); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	// Another interpreter's word is no renewal of this one's, nor is a failed one.
	told[1].Value = "cannot be renewed: x"
	c.Hazards = append(slices.Clone(told), Report(list[:1], cell.WarmPython, told, "inside")...)
	if got := c.Inherited(); len(got) != 2 || got[0] != "ssl randomness: cannot be renewed: x" || !strings.Contains(got[1], "libcrypto.so.3") {
		t.Errorf("%q", got)
	}
	// Generators that code made itself are inherited, also where they can't be counted.
	for _, v := range []string{"inherited: 2 that code has made", "not counted: they go on from the same state"} {
		c.Hazards = []cell.Hazard{{Name: "seeded generators", Value: v}}
		if got := c.Inherited(); len(got) != 1 {
			t.Errorf("%q of %q", got, v)
		}
	}
	c.Hazards = []cell.Hazard{{Name: "seeded generators", Value: "none that code has made"}}
	if got := c.Inherited(); got != nil {
		t.Errorf("%q", got)
	}
	c.Hazards = Report(list[3:], cell.WarmPython, nil, "inside")
	if got := c.Inherited(); got != nil || len(c.Hazards) != 1 {
		t.Errorf("%q, %v", got, c.Hazards)
	}
}

func TestX09WhatWasRenewedFromOutsideIsNamed(t *testing.T) {
	ssl, php := Generator{Family: OpenSSL, File: "/lib/libcrypto.so.3", Renewed: true}, Generator{Family: "PHP", File: "/usr/bin/php"}
	old := ssl
	old.Renewed = false
	list := []Process{
		{PID: 3, Program: "/usr/bin/php", Generators: []Generator{php, ssl}},
		{PID: 4, Program: "/usr/bin/curl", Generators: []Generator{ssl}},
		{PID: 5, Program: "/usr/bin/curl", Generators: []Generator{ssl}},
		{PID: 6, Program: "/usr/bin/curl", Generators: []Generator{old}},
	}
	c := cell.Certificate{Hazards: Report(list, "", nil, "inside")}
	if got, want := c.Inherited(), []string{"OpenSSL (libcrypto.so.3) in /usr/bin/curl, process 6", "PHP in /usr/bin/php, process 3"}; !slices.Equal(got, want) {
		t.Errorf("inherited: %q", got)
	}
	if got, want := c.Renewed(), []string{"OpenSSL (libcrypto.so.3) in /usr/bin/curl, processes 4, 5", "OpenSSL (libcrypto.so.3) in /usr/bin/php, process 3"}; !slices.Equal(got, want) {
		t.Errorf("renewed: %q", got)
	}
	c.Hazards = Report(list[1:2], "", nil, "inside")
	if cell.Uncertified(c.Inherited()) != nil || len(c.Renewed()) != 1 {
		t.Errorf("%+v", c.Hazards)
	}
}

func FuzzELF(f *testing.F) {
	f.Add(image([]string{"RAND_bytes"}, []string{"getrandom"}))
	f.Add(image(nil, nil))
	f.Add([]byte("\x7fELF\x02\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		boundtest.Allocates(t, len(b), func() { readELF(bytes.NewReader(b), int64(len(b))) })
		boundtest.Allocates(t, len(b), func() { Mapped(bytes.NewReader(b)) })
	})
}
