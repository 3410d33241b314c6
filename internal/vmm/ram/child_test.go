package ram

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// asChild makes this program one that has mapped descriptor 3 as a machine would.
const asChild = "PANDO_RAM_CHILD"

func TestMain(m *testing.M) {
	if how := os.Getenv(asChild); how != "" {
		if err := beChild(how); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// deviceSize is how much a child maps of a device, in bytes.
const deviceSize = 64 << 20

// beChild answers lines with lines until there are no more.
func beChild(how string) error {
	size := int64(deviceSize)
	if st, err := os.NewFile(3, "base").Stat(); err != nil {
		return err
	} else if st.Mode().IsRegular() {
		size = st.Size()
	}
	kind := unix.MAP_PRIVATE
	if how == "shared" {
		kind = unix.MAP_SHARED
	}
	mem, err := unix.Mmap(3, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, kind)
	if err != nil {
		return err
	}
	if how == "huge" {
		if err := unix.Madvise(mem, unix.MADV_HUGEPAGE); err != nil {
			return err
		}
	}
	var turn sync.Mutex
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var verb string
		var off, n, seed int
		fmt.Sscan(in.Text(), &verb, &off, &n, &seed)
		answer := "done"
		switch verb {
		case "write": // every byte of every page
			for i := range mem[off : off+n] {
				mem[off+i] = byte(seed + i>>12)
			}
		case "touch": // a byte of every page
			for i := off; i < off+n; i += pageSize {
				mem[i] = byte(seed)
			}
		case "zero":
			clear(mem[off : off+n])
		case "read":
			var sum byte
			for i := off; i < off+n; i += pageSize {
				sum += mem[i]
			}
			answer = fmt.Sprint(sum)
		case "exec": // another program, with memory of its own
			err = unix.Exec("/proc/self/exe", os.Args, os.Environ())
		case "protect": // so that the mapping is more than one
			err = unix.Mprotect(mem[off:off+n], unix.PROT_READ)
		case "loop": // writes everywhere in there, until stopped
			go func() {
				for round := 1; ; round++ {
					for i := off; i < off+n; i += pageSize {
						turn.Lock()
						mem[i], mem[i+pageSize-1] = byte(round), byte(round)
						turn.Unlock()
					}
				}
			}()
		case "stop":
			turn.Lock()
		case "go":
			turn.Unlock()
		case "digest":
			answer = fmt.Sprintf("%x", sha256.Sum256(mem))
		}
		if err != nil {
			return err
		}
		fmt.Println(answer)
	}
	return nil
}

// child is a process that has mapped a file.
type child struct {
	testing.TB
	pid  int
	base *os.File
	size int64
	in   io.Writer
	out  *bufio.Reader
	cmd  *exec.Cmd
	gone chan struct{} // closed when it has ended
}

// newChild starts a process that has mapped base, privately as a rule.
func newChild(t testing.TB, base *os.File, how string) *child {
	t.Helper()
	st, err := base.Stat()
	must(t, err)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{asChild + "=" + how}
	cmd.ExtraFiles = []*os.File{base}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	c := &child{t, cmd.Process.Pid, base, st.Size(), in, bufio.NewReader(out), cmd, make(chan struct{})}
	if !st.Mode().IsRegular() {
		c.size = deviceSize
	}
	go func() { // like the keeper of a machine
		cmd.Wait()
		close(c.gone)
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-c.gone
	})
	if got := c.hear(); got != "ready" {
		t.Fatalf("the child says %q", got)
	}
	return c
}

// end kills the process, and returns when it has ended and was reaped.
func (c *child) end() {
	c.Helper()
	if err := c.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		c.Fatal(err)
	}
	<-c.gone
}

func (c *child) hear() string {
	c.Helper()
	line, err := c.out.ReadString('\n')
	if err != nil {
		c.Fatalf("cannot hear the child: %v", err)
	}
	return strings.TrimSpace(line)
}

func (c *child) say(format string, args ...any) string {
	c.Helper()
	_, err := fmt.Fprintf(c.in, format+"\n", args...)
	must(c, err)
	return c.hear()
}

// same fails unless an image is the child's memory.
func (c *child) same(image *os.File) {
	c.Helper()
	h := sha256.New()
	n, err := io.Copy(h, io.NewSectionReader(image, 0, 1<<62))
	must(c, err)
	if got, want := fmt.Sprintf("%x", h.Sum(nil)), c.say("digest"); n != c.size || got != want {
		c.Fatalf("the image of %d bytes is %s, the memory of %d bytes is %s", n, got, c.size, want)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// memfd is a file of that size in memory.
func memfd(t testing.TB, size int64) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("ram", unix.MFD_CLOEXEC)
	must(t, err)
	f := os.NewFile(uintptr(fd), "ram")
	t.Cleanup(func() { f.Close() })
	must(t, f.Truncate(size))
	return f
}
