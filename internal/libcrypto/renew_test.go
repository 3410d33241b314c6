package libcrypto

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/testenv"
)

// copier is a program that is process 1 of a pid namespace, and copies itself into others:
// its copies have its memory and its number, as those of a whole sandbox have. Each waits
// for commands in a fifo of its name.
const copier = `
import ctypes, os, ssl, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
ssl.RAND_bytes(8)
def serve(name):
    with open(name) as fifo:
        while True:
            what, _, arg = fifo.readline().strip().partition(" ")
            if what == "copy":
                if libc.syscall(*map(ctypes.c_long, (56, 0x20000000 | 17, 0, 0, 0, 0))) == 0:
                    return arg
                continue
            os.write(1, b"%s %d\n" % (ssl.RAND_bytes(8).hex().encode(), os.getpid()))
name = "source"
while True:
    name = serve(name)
    os.write(1, b"copied\n")
`

// family is a copier and its copies.
type family struct {
	t     *testing.T
	dir   string
	says  *bufio.Reader
	fifos map[string]*os.File
	pids  map[string]int // here
	file  string
}

func newFamily(t *testing.T) *family {
	testenv.Root(t)
	const python = "/usr/bin/python3"
	testenv.Program(t, python)
	f := &family{t: t, dir: t.TempDir(), fifos: map[string]*os.File{}, pids: map[string]int{}}
	f.fifo("source")
	cmd := exec.Command(python, "-c", copier)
	cmd.Dir, cmd.Stderr = f.dir, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // with it, all in namespaces below
		cmd.Process.Kill()
		cmd.Wait()
	})
	f.says, f.pids["source"] = bufio.NewReader(out), cmd.Process.Pid
	f.draw("source")
	for _, m := range f.maps("source") {
		if strings.HasPrefix(filepath.Base(m.file), "libcrypto.so.") {
			f.file = m.file
		}
	}
	if f.file == "" {
		t.Skip("needs a Python with a shared libcrypto")
	}
	return f
}

func (f *family) fifo(name string) {
	path := filepath.Join(f.dir, name)
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		f.t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { file.Close() })
	f.fifos[name] = file
}

func (f *family) ask(name, what string) string {
	f.t.Helper()
	if _, err := f.fifos[name].WriteString(what + "\n"); err != nil {
		f.t.Fatal(err)
	}
	line, err := f.says.ReadString('\n')
	if err != nil {
		f.t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// draw is what one draws next. Its own process number is 1.
func (f *family) draw(name string) string {
	f.t.Helper()
	value, pid, _ := strings.Cut(f.ask(name, "draw"), " ")
	if pid != "1" {
		f.t.Fatalf("%s is process %s", name, pid)
	}
	return value
}

func (f *family) copy(of, name string) {
	f.t.Helper()
	f.fifo(name)
	if got := f.ask(of, "copy "+name); got != "copied" {
		f.t.Fatal(got)
	}
	all, err := linux.Processes("/proc")
	if err != nil {
		f.t.Fatal(err)
	}
	for _, p := range all {
		known := false
		for _, pid := range f.pids {
			known = known || pid == p.PID
		}
		if p.PPID == f.pids[of] && !known {
			f.pids[name] = p.PID
		}
	}
	if f.pids[name] == 0 {
		f.t.Fatalf("%s is not found", name)
	}
}

func (f *family) renew(name string) {
	f.t.Helper()
	if err := Renew("/proc", f.pids[name], f.file); err != nil {
		f.t.Fatalf("%s: %v", name, err)
	}
}

func (f *family) maps(name string) []mapping {
	f.t.Helper()
	b, err := os.Open("/proc/" + strconv.Itoa(f.pids[name]) + "/maps")
	if err != nil {
		f.t.Fatal(err)
	}
	defer b.Close()
	list, err := parseMaps(b)
	if err != nil {
		f.t.Fatal(err)
	}
	return list
}

func (f *family) memory(name string) *os.File {
	f.t.Helper()
	mem, err := os.OpenFile("/proc/"+strconv.Itoa(f.pids[name])+"/mem", os.O_RDWR, 0)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { mem.Close() })
	return mem
}

func distinct(t *testing.T, what string, values ...string) {
	t.Helper()
	for i, v := range values {
		if slices.Contains(values[:i], v) {
			t.Errorf("%s: %q", what, values)
		}
	}
}

// A copy that keeps its number draws what its source draws, unless it was renewed. So it is
// with copies of copies, again and again.
func TestX09RenewedCopiesDrawOtherNumbers(t *testing.T) {
	f := newFamily(t)
	f.copy("source", "same")
	f.copy("source", "one")
	f.copy("source", "two")
	f.renew("one")
	f.renew("two")
	source := f.draw("source")
	if same := f.draw("same"); same != source {
		t.Fatalf("this way of copying shows nothing: %s, %s", source, same)
	}
	distinct(t, "copies of the source", source, f.draw("one"), f.draw("two"))
	before := source
	of := "one"
	for i := range 3 {
		a, b, c := of+"a", of+"b", of+"c"
		f.copy(of, a)
		f.copy(of, b)
		f.copy(of, c)
		f.renew(b)
		f.renew(c)
		source := f.draw(of)
		if same := f.draw(a); same != source {
			t.Fatalf("generation %d: %s, %s", i, source, same)
		}
		next := f.draw(b)
		distinct(t, "copies of a copy", before, source, next, f.draw(c))
		before, of = next, b
	}
	// One that has drawn nothing since it was renewed is renewed again.
	f.copy("two", "idle")
	f.renew("idle")
	f.copy("idle", "idler")
	f.renew("idler")
	distinct(t, "copies that have drawn nothing", f.draw("two"), f.draw("idle"), f.draw("idler"))
}

// Where anything is not as expected, nothing is written.
func TestX09ProcessesThatDifferAreLeftAlone(t *testing.T) {
	f := newFamily(t)
	le := func(n uint64) []byte {
		return []byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24), byte(n >> 32), byte(n >> 40), byte(n >> 48), byte(n >> 56)}
	}
	var x image
	for _, m := range f.maps("source") {
		if m.file == f.file && m.offset == 0 {
			var err error
			if x, err = readImage(f.memory("source"), f.maps("source"), f.file, m.start); err != nil {
				t.Fatal(err)
			}
		}
	}
	end := x.text.pageEnd()
	for _, c := range []struct {
		what string
		at   uint64
		b    []byte
		want string
	}{
		{"used-padding", end - 1, []byte{1}, "is used"},
		{"used-before", x.text.end, []byte{0x90}, "is used"},
		{"unlinked", x.slot, le(x.text.start + 16), "no code of another library"},
		{"nowhere", x.slot, le(8), "no code of another library"},
		{"data", x.slot, le(x.slot), "no code of another library"},
		{"other-code", x.slot, le(end - functionSize), "other code"},
		{"no-header", x.base, []byte{0}, "not the header"},
	} {
		f.copy("source", c.what)
		mem := f.memory(c.what)
		if _, err := mem.WriteAt(c.b, int64(c.at)); err != nil {
			t.Fatal(err)
		}
		f.unchanged(c.what, x, c.want)
	}
	was := measured
	measured = nil
	f.unchanged("source", x, "was not measured")
	measured = was
	if err := Renew("/proc", f.pids["source"], "/usr/bin/python3.11"); err == nil {
		t.Error("the program itself was changed")
	}
	// A write that fails, or that changes nothing, is undone.
	mem := f.memory("source")
	before := contents(t, mem, x)
	for _, silent := range []bool{false, true} {
		for n := range 2 {
			if err := renew(&failing{mem, n, silent}, f.maps("source"), f.file); err == nil {
				t.Errorf("write %d failed, silently: %v", n, silent)
			}
			if !bytes.Equal(before, contents(t, mem, x)) {
				t.Errorf("after write %d failed, silently: %v, something is changed", n, silent)
			}
		}
	}
	f.copy("source", "good")
	f.renew("good")
	for _, at := range []uint64{20, keyAt, keyAt + 3, markAt} {
		mem := f.memory("good")
		was, err := read(mem, end-functionSize+at, 1)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := mem.WriteAt([]byte{^was[0]}, int64(end-functionSize+at)); err != nil {
			t.Fatal(err)
		}
		f.unchanged("good", x, "other code")
		if _, err := mem.WriteAt(was, int64(end-functionSize+at)); err != nil {
			t.Fatal(err)
		}
	}
	f.renew("good")
	distinct(t, "the source and a copy that was renewed twice", f.draw("source"), f.draw("good"))
}

// failing is memory in which one write fails, or has no effect.
type failing struct {
	memory
	after  int // that many succeed before
	silent bool
}

func (m *failing) WriteAt(b []byte, at int64) (int, error) {
	if len(b) == 1 { // of claim, which changes nothing
		return m.memory.WriteAt(b, at)
	}
	if m.after--; m.after != -1 {
		return m.memory.WriteAt(b, at)
	}
	if m.silent {
		return len(b), nil
	}
	return 0, io.ErrShortWrite
}

// unchanged asks for a renewal that must be refused.
func (f *family) unchanged(name string, x image, want string) {
	f.t.Helper()
	mem := f.memory(name)
	before := contents(f.t, mem, x)
	err := Renew("/proc", f.pids[name], f.file)
	if err == nil || !strings.Contains(err.Error(), want) {
		f.t.Errorf("%s: %v, not %q", name, err, want)
	}
	if !bytes.Equal(before, contents(f.t, mem, x)) {
		f.t.Errorf("%s was changed", name)
	}
}

// contents are what Renew may write to.
func contents(t *testing.T, mem *os.File, x image) []byte {
	t.Helper()
	code, err := read(mem, x.text.start, int(x.text.pageEnd()-x.text.start))
	if err != nil {
		t.Fatal(err)
	}
	slot, err := read(mem, x.slot&^(pageSize-1), pageSize)
	if err != nil {
		t.Fatal(err)
	}
	return append(code, slot...)
}

// bytesAt is memory that begins at an address.
type bytesAt struct {
	base uint64
	b    []byte
}

func (m bytesAt) ReadAt(b []byte, at int64) (int, error) {
	if uint64(at) < m.base || uint64(at)-m.base > uint64(len(m.b)) || uint64(len(b)) > uint64(len(m.b))-(uint64(at)-m.base) {
		return 0, io.ErrUnexpectedEOF
	}
	return copy(b, m.b[uint64(at)-m.base:]), nil
}

// Whatever a process has in its memory, preparing ends, and with a plan that writes into
// the image alone.
func FuzzImage(f *testing.F) {
	const base, file = 0x7f0000000000, "/lib/libcrypto.so.3"
	if lib, err := os.ReadFile("/usr/lib/x86_64-linux-gnu/libcrypto.so.3"); err == nil {
		f.Add(lib[:64<<10])
	}
	f.Add([]byte("\x7fELF\x02\x01\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		end := base + uint64(len(b)+pageSize)&^(pageSize-1)
		var maps []mapping
		for i, perms := range []string{"r--p", "r-xp", "r--p", "rw-p"} {
			maps = append(maps, mapping{base + uint64(i)*pageSize, base + uint64(i+1)*pageSize, uint64(i) * pageSize, perms, file})
		}
		p, err := prepare(bytesAt{base, b}, maps, file, base)
		if err != nil {
			return
		}
		for _, c := range p.changes {
			if c.at < base || c.at+uint64(len(c.is)) > end || len(c.is) != len(c.was) {
				t.Errorf("%#x, %d bytes", c.at, len(c.is))
			}
		}
	})
}

func TestMapsAreParsedOrRefused(t *testing.T) {
	list, err := parseMaps(strings.NewReader("7f00-7f10 r-xp 00001000 fd:00 12   /lib/a b.so (deleted)\n7f10-7f20 rw-p 00000000 00:00 0 \n"))
	want := []mapping{{0x7f00, 0x7f10, 0x1000, "r-xp", "/lib/a b.so (deleted)"}, {0x7f10, 0x7f20, 0, "rw-p", ""}}
	if err != nil || !slices.Equal(list, want) {
		t.Errorf("%+v, %v", list, err)
	}
	for _, bad := range []string{"7f00 r-xp 0 0 0\n", "7f10-7f00 r-xp 0 0:0 0 /x\n", "xx-7f r-xp 0 0:0 0 /x\n", "\n"} {
		if _, err := parseMaps(strings.NewReader(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}
