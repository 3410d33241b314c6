package microvm

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/backend/namespace"
	"github.com/pando-dev/pando/internal/backend/staged"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/fault"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/vmm"
	"github.com/pando-dev/pando/internal/vmm/qemu"
)

// monitorGrace is how long a machine's monitor may take to answer.
const monitorGrace = 10 * time.Second

// machine is the virtual machine of a cell. It implements staged.Kernel.
type machine struct {
	spec    cell.Spec
	program vmm.Program
	files   []*os.File
	ram     *os.File // its memory
	console *os.File // what its kernel and its programs say
	now     vmm.Machine
}

func newMachine(m staged.Made) (staged.Kernel, namespace.Scene, error) {
	scene := namespace.Scene{Moved: map[string]string{}}
	for _, top := range []string{"/usr", "/lib", "/lib64"} {
		scene.Moved[top] = programDir + top
	}
	v := &machine{spec: m.Spec, files: m.Files}
	if err := json.Unmarshal(m.More, &v.program); err != nil {
		v.Close()
		return nil, scene, cell.Errorf(cell.Invalid, "microvm.Create", "", "cannot read which program runs machines: %w", err)
	}
	return v, scene, nil
}

// Boot implements staged.Kernel.
func (m *machine) Boot(st *namespace.Stage, conn, image *os.File) (_ <-chan error, err error) {
	m.end()
	if m.console, err = memfd("console"); err != nil {
		return nil, err
	}
	if m.ram, err = memfd("memory"); err != nil {
		return nil, err
	}
	size := (m.spec.Limits.Memory + kernelMemory) &^ (1<<20 - 1)
	if err := m.ram.Truncate(size); err != nil {
		return nil, err
	}
	console, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", m.console.Fd()), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return nil, err
	}
	defer console.Close()
	gofer, files, err := pair()
	if err != nil {
		return nil, err
	}
	defer gofer.Close()
	defer files.Close()
	monitor, theirs, err := pair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	defer monitor.Close()

	fault.Step("start a gofer")
	served, err := st.Start(m.files[fileGofer], []string{"pando-gofer", namespace.StageRoot}, [3]*os.File{gofer, console, console})
	if err != nil {
		return nil, fmt.Errorf("cannot start a machine: %w", err)
	}
	go reap(served)
	s := &vmm.Spec{
		Kernel: m.files[fileKernel], Initramfs: m.files[fileInitramfs], Append: "pando=1", Accel: vmm.Emulated,
		CPUs: processors(m.spec.Limits.CPUs), Memory: size, RAM: m.ram,
		Ports:   []vmm.Port{{Name: "guest", Socket: conn}, {Name: "files", Socket: files}},
		Monitor: theirs, Console: console,
	}
	driver := &qemu.Driver{}
	args, more, err := driver.Command(&m.program, s)
	if err != nil {
		return nil, err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	program, err := st.Open(m.program.Path)
	if err != nil {
		return nil, fmt.Errorf("cannot start a machine: %w", err)
	}
	defer program.Close()
	fault.Step("start a machine")
	child, err := st.Start(program, args, [3]*os.File{null, console, console}, more...)
	if err != nil {
		return nil, fmt.Errorf("cannot start a machine: %w", err)
	}
	go reap(child)
	theirs.Close()
	c, err := net.FileConn(monitor)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), monitorGrace)
	defer cancel()
	if m.now, err = driver.Open(ctx, c); err != nil {
		return nil, lost(err.Error(), m.Said())
	}
	failed := make(chan error, 1)
	go func() {
		<-m.now.Done()
		failed <- lost(cmp.Or(m.now.Why(), "it ended"), m.Said())
	}()
	return failed, nil
}

// processors is how many a machine has for a limit.
func processors(limit float64) int {
	n := runtime.NumCPU()
	if limit > 0 {
		n = min(n, int(limit+0.999))
	}
	return max(n, 1)
}

// reap waits for a program of the stage, which ends with its cell.
func reap(c *linux.Child) {
	c.Wait()
	c.PIDFD.Close()
}

// Said implements staged.Kernel: the end of what was on the console.
func (m *machine) Said() string {
	st, err := m.console.Stat()
	if err != nil {
		return ""
	}
	b := make([]byte, min(st.Size(), 2048))
	m.console.ReadAt(b, st.Size()-int64(len(b)))
	if text := strings.TrimSpace(string(b)); text != "" {
		return text
	}
	return "it does not say why"
}

// stillGrace is how long a machine may take to stop or go on.
const stillGrace = 10 * time.Second

// Pause implements staged.Kernel.
func (m *machine) Pause() error { return m.do((vmm.Machine).Stop) }

// Resume implements staged.Kernel.
func (m *machine) Resume() error { return m.do((vmm.Machine).Continue) }

func (m *machine) do(what func(vmm.Machine, context.Context) error) error {
	if m.now == nil {
		return cell.Errorf(cell.Unavailable, "microvm", "", "the cell's machine is gone")
	}
	ctx, cancel := context.WithTimeout(context.Background(), stillGrace)
	defer cancel()
	return what(m.now, ctx)
}

// Capture implements staged.Kernel.
func (m *machine) Capture(files []*os.File) error {
	return cell.Errorf(cell.Unsupported, "microvm.Capture", "", "a machine's memory can't be kept yet")
}

// quitGrace is how long a machine may take to end.
const quitGrace = 5 * time.Second

// end ends the machine that there was.
func (m *machine) end() {
	if m.now != nil {
		ctx, cancel := context.WithTimeout(context.Background(), quitGrace)
		m.now.Quit(ctx)
		cancel()
		m.now.Close()
		m.now = nil
	}
	for _, f := range []*os.File{m.ram, m.console} {
		if f != nil {
			f.Close()
		}
	}
	m.ram, m.console = nil, nil
}

// Close implements staged.Kernel.
func (m *machine) Close() {
	m.end()
	for _, f := range m.files {
		f.Close()
	}
}

func memfd(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate("pando-"+name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// pair is two ends of a stream.
func pair() (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	return os.NewFile(uintptr(fds[0]), "stream"), os.NewFile(uintptr(fds[1]), "stream"), nil
}
