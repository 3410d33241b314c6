package isolation

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/backend/backendtest"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/server"
	"github.com/pando-dev/pando/internal/linux"
)

// lax names a driver without a seccomp filter for commands.
const lax = "lax"

func laxDriver() (server.Driver, error) {
	d, err := NewDriver(nil)
	if err != nil {
		return nil, err
	}
	d.seccomp, err = linux.NewSeccompProgram([]unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0x7fff0000}}) // SECCOMP_RET_ALLOW
	return d, err
}

// refused asserts that a cell was not made, that the error says why and what
// to do, and that nothing of it is there.
func refused(t *testing.T, cfg Config, b *Host, id cell.ID, err error, words ...string) {
	t.Helper()
	if k := cell.KindOf(err); k != cell.Unsupported && k != cell.NotFound {
		t.Errorf("refused as %q: %v", k, err)
	}
	if err == nil {
		return
	}
	if cell.HintOf(err) == "" {
		t.Errorf("no remedy in: %v", err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("no %q in: %v", w, err)
		}
	}
	if _, err := b.Attach(t.Context(), id, ""); cell.KindOf(err) != cell.NotFound {
		t.Errorf("the cell is there: %v", err)
	}
	if list := backendtest.Left(t, cfg.Keepers, cfg.Installation); len(list) > 0 {
		t.Errorf("left over: %v", list)
	}
}

// A mount that can't be made fails the start: whatever it was to show, or to
// hide, the cell is not made without.
func TestF65MountThatCannotBeMade(t *testing.T) {
	cfg := config(t)
	b := NewHost(cfg)
	defer b.Close()
	for name, m := range map[string]cell.Mount{
		"a source that is not there":   {Kind: cell.Bind, Source: "/no/such/source", Target: "/work/m", ReadOnly: true},
		"a layer that is not there":    {Kind: cell.Overlay, Lower: []string{"/no/such/layer"}, Upper: "/no/such/upper", Work: "/no/such/work", Target: "/m", Owned: true},
		"a place below a file":         {Kind: cell.Bind, Source: "/usr", Target: "/work/file/m", ReadOnly: true},
		"a cover below a file":         {Kind: cell.Tmpfs, Target: "/work/file/m", ReadOnly: true},
		"a cover where nobody may":     {Kind: cell.Tmpfs, Target: "/usr/no-such-folder/m", ReadOnly: true},
		"a link where nobody may":      {Kind: cell.Link, Source: "x", Target: "/usr/no-such-link"},
		"a mount in a read-only place": {Kind: cell.Bind, Source: "/usr", Target: "/usr/no-such-folder/m", ReadOnly: true},
		"a kind that there is not":     {Kind: "wormhole", Source: "/usr", Target: "/work/m"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := backendtest.Little(t)
			if err := os.WriteFile(filepath.Join(spec.Writes[0], "file"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			spec.Mounts = append(spec.Mounts, m)
			i, err := b.Create(t.Context(), spec)
			if err == nil {
				i.Remove(t.Context(), "done")
				t.Fatal("the cell was made")
			}
			refused(t, cfg, b, spec.ID, err)
		})
	}
}

// A limit that was asked for and that nothing here can apply fails the start,
// with the reason; one that was not is a named downgrade.
func TestF65LimitThatCannotBeApplied(t *testing.T) {
	cfg := config(t)
	b := NewHost(cfg)
	defer b.Close()
	b.cgroups, b.noCg = nil, "the test has taken them away"
	caps, err := b.Probe(t.Context())
	if err != nil {
		t.Skipf("needs user namespaces: %v", err)
	}
	if caps.MemoryLimit != b.noCg || caps.CPULimit != b.noCg || caps.ProcessLimit != "" {
		t.Errorf("caps %+v", caps)
	}
	for _, limit := range []string{"memory", "cpus"} {
		spec := backendtest.Little(t)
		spec.Asked = []string{limit}
		i, err := b.Create(t.Context(), spec)
		if err == nil {
			i.Remove(t.Context(), "done")
			t.Errorf("a cell without the %s limit that was asked for was made", limit)
			continue
		}
		refused(t, cfg, b, spec.ID, err, limit, b.noCg)
		if !strings.Contains(cell.HintOf(err), "--"+limit) {
			t.Errorf("the remedy for %s: %s", limit, cell.HintOf(err))
		}
	}
	spec := backendtest.Little(t)
	spec.Asked = []string{"pids"} // the user namespace counts them
	i, err := b.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer i.Remove(t.Context(), "done")
	downgrades := strings.Join(i.Assurance().Downgrades, "\n")
	for _, l := range []string{"memory", "cpus"} {
		if !strings.Contains(downgrades, l+" is not limited: "+b.noCg) {
			t.Errorf("nobody says that %s is not limited: %s", l, downgrades)
		}
	}
}

// A command is not started where the isolation does not hold: a canary that is
// not stopped ends it before its first instruction.
func TestF65CanaryThatIsNotStopped(t *testing.T) {
	cfg := config(t)
	b := NewHost(cfg)
	defer b.Close()
	b.keepers.Backend = lax
	spec := backendtest.Little(t)
	i, err := b.Create(t.Context(), spec)
	if err != nil {
		if _, perr := NewHost(cfg).Probe(t.Context()); perr != nil {
			t.Skipf("needs user namespaces: %v", perr)
		}
		t.Fatal(err)
	}
	defer i.Remove(t.Context(), "done")
	_, err = i.Start(t.Context(), "p", cell.Start{Process: cell.Process{Args: []string{"sh", "-c", "echo ran > ran"}, Env: []string{"PATH=/usr/bin"},
		Path: []string{"/usr/bin/sh"}, Workdir: "/work"}}, [3]*os.File{})
	if cell.KindOf(err) != cell.Denied || !strings.Contains(err.Error(), "canary") || cell.HintOf(err) == "" {
		t.Errorf("started: %v", err)
	}
	time.Sleep(50 * time.Millisecond)
	if _, err := os.Stat(filepath.Join(spec.Writes[0], "ran")); err == nil {
		t.Error("the command ran")
	}
	if list, err := i.List(t.Context()); err != nil || len(list) > 0 {
		t.Errorf("in the cell: %+v, %v", list, err)
	}
}

// insideEnv makes this test's executable one that lives in a user namespace
// in which no further one may be made, and says what becomes of a cell there.
const insideEnv = "PANDO_TEST_WITHOUT_NAMESPACES"

type outcome struct {
	Made              bool
	Kind              cell.Kind
	Text, Hint        string
	Probe             cell.Kind
	ProbeText         string
	ProbeHint         string
	Before, Remaining []string
}

// Where user namespaces are switched off nothing starts, and both Probe and
// Create say so and what would help.
func TestF65UserNamespacesSwitchedOff(t *testing.T) {
	if dir := os.Getenv(insideEnv); dir != "" {
		withoutNamespaces(t, dir)
		return
	}
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	id := max(os.Getuid(), 1000) // the backend of an ordinary user
	cmd := exec.Command("/proc/self/exe", "-test.run", "^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), insideEnv+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: id, HostID: os.Getuid(), Size: 1}}, GidMappings: []syscall.SysProcIDMap{{ContainerID: id, HostID: os.Getgid(), Size: 1}}}
	for c := range linux.LastCap() + 1 {
		cmd.SysProcAttr.AmbientCaps = append(cmd.SysProcAttr.AmbientCaps, uintptr(c))
	}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) {
		t.Skipf("needs user namespaces: %v", err)
	}
	b, rerr := os.ReadFile(filepath.Join(dir, "outcome"))
	if err != nil || rerr != nil {
		t.Fatalf("%v, %v\n%s", err, rerr, out)
	}
	var o outcome
	if err := json.Unmarshal(b, &o); err != nil {
		t.Fatal(err)
	}
	for what, x := range map[string][3]string{"Create": {string(o.Kind), o.Text, o.Hint}, "Probe": {string(o.Probe), o.ProbeText, o.ProbeHint}} {
		if x[0] != string(cell.Unsupported) || !strings.Contains(x[1], "user namespace") || !strings.Contains(x[2], "doctor") {
			t.Errorf("%s: kind %q: %s; hint: %s", what, x[0], x[1], x[2])
		}
	}
	if o.Made || len(o.Remaining) > 0 {
		t.Errorf("made: %v; left over: %v", o.Made, o.Remaining)
	}
}

func withoutNamespaces(t *testing.T, dir string) {
	if err := os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	cfg := Config{Backend: plain, Keepers: filepath.Join(dir, "keepers"), Scratch: filepath.Join(dir, "scratch"), IDBase: 1 << 30, Installation: "test" + fmt.Sprint(os.Getpid()), Log: slog.New(slog.DiscardHandler)}
	for _, d := range []string{cfg.Keepers, cfg.Scratch} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	b := NewHost(cfg)
	defer b.Close()
	var o outcome
	_, err := b.Probe(t.Context())
	o.Probe, o.ProbeHint = cell.KindOf(err), cell.HintOf(err)
	if err != nil {
		o.ProbeText = err.Error()
	}
	i, err := b.Create(t.Context(), backendtest.Little(t))
	o.Kind, o.Hint, o.Made = cell.KindOf(err), cell.HintOf(err), err == nil
	if err != nil {
		o.Text = err.Error()
	} else {
		i.Remove(t.Context(), "done")
	}
	o.Remaining = backendtest.Left(t, cfg.Keepers, cfg.Installation)
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "outcome"), text, 0o644); err != nil {
		t.Fatal(err)
	}
}

// A cell that makes an image is not copied with its processes: it has the image's root directory for itself.
func TestCellsThatMakeImagesAreNotCopied(t *testing.T) {
	b := &Host{}
	_, err := b.Prepare(t.Context(), nil, cell.Spec{ID: "c-1", Mounts: []cell.Mount{{Kind: cell.Bind, Source: t.TempDir(), Target: "/", Owned: true, Role: cell.RoleTop}}}, nil)
	if cell.KindOf(err) != cell.Unsupported || cell.HintOf(err) == "" {
		t.Errorf("%v", err)
	}
}
