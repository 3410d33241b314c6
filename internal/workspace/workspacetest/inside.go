package workspacetest

import (
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
)

// role is the name under which a test's binary is a process inside a
// workspace.
const role = "workspace-inside"

// Main is the main function of tests that use Inside: the same binary is
// started again as the process that has the workspace mounted.
func Main(m *testing.M) {
	if os.Args[0] == role {
		if err := inside(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// request and reply go between a test and the process inside, as gob: paths
// may be any bytes.
type request struct {
	Ops  []Op
	Look bool
}

type reply struct {
	Errs []string // one for each Op, "" for success
	View View
	Err  string
}

// hello is the first message.
type hello struct {
	Mount     cell.Mount
	Scratch   string
	UserXAttr bool
	Plain     bool
}

// Inside is a process that has a generation mounted, as a cell's would: with
// overlayfs's marks of root, or of a user namespace for an ordinary user.
type Inside struct {
	t    testing.TB
	cmd  *exec.Cmd
	in   io.WriteCloser
	enc  *gob.Encoder
	dec  *gob.Decoder
	dead bool
}

// Enter mounts m for a new process. It ends with the test, if not before.
func Enter(t testing.TB, m cell.Mount) *Inside {
	t.Helper()
	return enter(t, m, false)
}

// EnterPlain is Enter for layers that mean the same above any others. Names that are listed, and are not there,
// are no part of its views.
func EnterPlain(t testing.TB, m cell.Mount) *Inside {
	t.Helper()
	return enter(t, m, true)
}

func enter(t testing.TB, m cell.Mount, plain bool) *Inside {
	t.Helper()
	scratch, err := os.MkdirTemp("", "pando-inside")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{role}
	cmd.Stderr = os.Stderr
	root := os.Geteuid() == 0
	if !root {
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
		}
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		os.Remove(scratch)
		if !root && (errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC)) {
			t.Skipf("needs user namespaces: %v", err)
		}
		t.Fatal(err)
	}
	i := &Inside{t: t, cmd: cmd, in: in, enc: gob.NewEncoder(in), dec: gob.NewDecoder(out)}
	t.Cleanup(func() {
		i.Leave()
		os.Remove(scratch)
	})
	var r reply
	if err := i.enc.Encode(hello{m, scratch, !root, plain}); err != nil {
		t.Fatal(err)
	}
	if err := i.dec.Decode(&r); err != nil {
		t.Fatalf("the process inside ended: %v", err)
	}
	if r.Err != "" {
		t.Fatal(r.Err)
	}
	return i
}

// Try does the operations and returns the error of each, "" for success.
func (i *Inside) Try(ops ...Op) []string {
	i.t.Helper()
	return i.call(request{Ops: ops}).Errs
}

// Do does operations that must succeed.
func (i *Inside) Do(ops ...Op) {
	i.t.Helper()
	for n, err := range i.Try(ops...) {
		if err != "" {
			i.t.Fatalf("%s %q: %s", ops[n].Do, ops[n].Path, err)
		}
	}
}

// Look is what the process sees of the workspace.
func (i *Inside) Look() View {
	i.t.Helper()
	return i.call(request{Look: true}).View
}

func (i *Inside) call(q request) reply {
	i.t.Helper()
	var r reply
	if err := i.enc.Encode(q); err != nil {
		i.t.Fatal(err)
	}
	if err := i.dec.Decode(&r); err != nil {
		i.t.Fatalf("the process inside ended: %v", err)
	}
	if r.Err != "" {
		i.t.Fatal(r.Err)
	}
	return r
}

// Leave ends the process, and with it its mount.
func (i *Inside) Leave() {
	if i.dead {
		return
	}
	i.dead = true
	i.in.Close()
	if err := i.cmd.Wait(); err != nil {
		i.t.Errorf("the process inside: %v", err)
	}
}

// inside is the process's life.
func inside(in io.Reader, out io.Writer) error {
	enc, dec := gob.NewEncoder(out), gob.NewDecoder(in)
	var h hello
	if err := dec.Decode(&h); err != nil {
		return err
	}
	unix.Umask(0o022)
	close, err := mount(h)
	if err != nil {
		return enc.Encode(reply{Err: err.Error()})
	}
	defer close()
	// Random operations follow random symlinks: none may lead out.
	if err := unix.Chroot("."); err != nil {
		return enc.Encode(reply{Err: "chroot: " + err.Error()})
	}
	if err := enc.Encode(reply{}); err != nil {
		return err
	}
	for {
		var q request
		if err := dec.Decode(&q); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return err
		}
		var r reply
		for _, o := range q.Ops {
			text := ""
			if err := Act(o); err != nil {
				text = err.Error()
			}
			r.Errs = append(r.Errs, text)
		}
		if q.Look {
			r.View, err = look(".", h.Plain)
			if err != nil {
				r.Err = err.Error()
			}
		}
		if err := enc.Encode(r); err != nil {
			return err
		}
	}
}

// mount makes the workspace the process's directory.
func mount(h hello) (close func(), err error) {
	if h.Mount.Kind != cell.Overlay {
		return func() {}, os.Chdir(h.Mount.Source)
	}
	ns, err := linux.NewMountNS(h.Scratch, 0)
	if err != nil {
		return nil, err
	}
	top := filepath.Dir(h.Mount.Upper)
	f, err := ns.Overlay(linux.OverlayOptions{Lower: h.Mount.Lower, Top: top, Upper: filepath.Base(h.Mount.Upper),
		Work: filepath.Base(h.Mount.Work), UserXAttr: h.UserXAttr, Plain: h.Plain})
	if err != nil {
		ns.Close()
		return nil, err
	}
	if err := f.Chdir(); err != nil {
		ns.Close()
		return nil, err
	}
	return func() { f.Close(); ns.Close() }, nil
}
