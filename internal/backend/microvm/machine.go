package microvm

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/fuseproxy"
	"github.com/pando-dev/pando/internal/isolation"
	"github.com/pando-dev/pando/internal/isolation/guestkernel"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/linux/kvm"
	"github.com/pando-dev/pando/internal/vmm"
	"github.com/pando-dev/pando/internal/vmm/qemu"
	"github.com/pando-dev/pando/internal/vmm/ram"
)

// monitorGrace is the time limit for a machine's monitor to answer.
const monitorGrace = 10 * time.Second

// machine is the virtual machine of a cell. It implements guestkernel.Kernel.
type machine struct {
	spec    cell.Spec
	program vmm.Program
	accel   vmm.Accel
	files   []*os.File
	like    like
	// unrecorded: writes are not recorded, so the memory is copied during the pause.
	unrecorded bool
	ram        *os.File // its memory, or its initial memory in a copy
	proxy      *fuseproxy.Remote
	known      []byte // state of the fuseproxy when the machine was stopped

	mu     sync.Mutex // guards the fields below, and changes of ram and proxy
	taking *taking    // the capture in progress
	qemu   *program
	server *program // its fuseproxy

	closing sync.Mutex // held while a taking is closed
	console *os.File   // output of its kernel and programs
	now     vmm.Machine
}

func newMachine(m guestkernel.Made) (guestkernel.Kernel, isolation.Scene, error) {
	scene := isolation.Scene{Moved: map[string]string{}}
	for _, top := range programTops {
		scene.Moved[top] = programDir + top
	}
	v := &machine{spec: m.Spec, files: m.Files}
	told := given{Program: &v.program}
	err := json.Unmarshal(m.More, &told)
	v.accel, v.unrecorded = told.Accel, told.Unrecorded
	v.like = like{CPUs: processors(m.Spec.Limits.CPUs), Memory: (m.Spec.Limits.Memory + kernelMemory) &^ (1<<20 - 1)}
	if err == nil && len(m.Like) > 0 {
		err = json.Unmarshal(m.Like, &v.like)
	}
	if err != nil {
		v.Close()
		return nil, scene, cell.Errorf(cell.Invalid, "microvm.Create", "", "cannot read what machine to make: %w", err)
	}
	return v, scene, nil
}

// like is the state that a copy's machine must have in common with its source.
type like struct {
	CPUs   int   `json:"cpus"`
	Memory int64 `json:"memory"` // bytes
	// Own: the image's memory is the difference to the base that comes with it.
	Own bool `json:"own,omitempty"`
}

// programTops are the directories with the program's files.
var programTops = []string{"/usr", "/lib", "/lib64"}

// Boot implements guestkernel.Kernel.
func (m *machine) Boot(st *isolation.Stage, conn *os.File, image []*os.File) (_ <-chan error, err error) {
	m.end()
	if m.console, err = memfd("console"); err != nil {
		return nil, err
	}
	if image != nil {
		m.ram, err = m.base(image)
	} else {
		m.ram, err = os.OpenFile("/dev/zero", os.O_RDWR, 0)
	}
	if err != nil {
		return nil, err
	}
	console, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", m.console.Fd()), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return nil, err
	}
	defer console.Close()
	files, err := m.serve(st, console, image)
	if err != nil {
		return nil, fmt.Errorf("cannot start a machine: %w", err)
	}
	defer files.Close()
	if err := m.start(st, console, conn, files, image != nil); err != nil {
		return nil, err
	}
	if image != nil {
		if err := m.fill(image); err != nil {
			return nil, err
		}
		if err := m.load(image[imageDevices]); err != nil {
			return nil, err
		}
	}
	failed := make(chan error, 1)
	now := m.now
	go func() {
		<-now.Done()
		failed <- lost(cmp.Or(now.Why(), "it ended"), m.Said())
	}()
	return failed, nil
}

// serve starts a fuseproxy, and returns the other end of its connection.
func (m *machine) serve(st *isolation.Stage, console *os.File, image []*os.File) (files *os.File, err error) {
	its, files, err := pair()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			files.Close()
		}
	}()
	defer its.Close()
	control, theirs, err := pair()
	if err != nil {
		return files, err
	}
	defer control.Close()
	defer theirs.Close()
	args, more := []string{"pando-fuseproxy", isolation.StageRoot}, []*os.File{theirs}
	if image != nil {
		args, more = append(args, "going on"), append(more, image[imageFiles])
	}
	failpoint.Step("start a fuseproxy")
	served, err := st.Start(&fuseproxyJail, m.files[fileProxy], args, [3]*os.File{its, console, console}, more...)
	if err != nil {
		return files, err
	}
	m.mu.Lock()
	m.server = follow(served)
	m.mu.Unlock()
	c, err := net.FileConn(control)
	if err != nil {
		return files, err
	}
	m.mu.Lock()
	m.proxy = fuseproxy.NewRemote(c)
	m.mu.Unlock()
	m.executed(m.proxy) // starts the count
	return files, nil
}

// start starts the program that runs the machine, and waits until its monitor answers.
func (m *machine) start(st *isolation.Stage, console, guest, files *os.File, incoming bool) error {
	monitor, theirs, err := pair()
	if err != nil {
		return err
	}
	defer theirs.Close()
	defer monitor.Close()
	s := &vmm.Spec{
		Accel: m.accel, CPUs: m.like.CPUs, Memory: m.like.Memory, RAM: m.ram, Private: true, Incoming: incoming,
		Ports:   []vmm.Port{{Name: "guest", Socket: guest}, {Name: "files", Socket: files}},
		Monitor: theirs, Console: console,
	}
	if !incoming {
		s.Kernel, s.Initramfs, s.Append = m.files[fileKernel], m.files[fileInitramfs], "pando=1"
	}
	m.connect(s, st.Net())
	args, more, jail, err := m.command(s)
	if err != nil {
		return err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	program, err := st.Open(m.program.Path)
	if err != nil {
		return fmt.Errorf("cannot start a machine: %w", err)
	}
	defer program.Close()
	failpoint.Step("start a machine")
	child, err := st.Start(jail, program, args, [3]*os.File{null, console, console}, more...)
	if err != nil {
		return fmt.Errorf("cannot start a machine: %w", err)
	}
	m.mu.Lock()
	m.qemu = follow(child)
	m.mu.Unlock()
	theirs.Close()
	c, err := net.FileConn(monitor)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), monitorGrace)
	defer cancel()
	if m.now, err = (&qemu.Driver{}).Open(ctx, c); err != nil {
		return lost(err.Error(), m.Said())
	}
	return nil
}

// command returns the program's arguments, its files from descriptor 3 on, and its jail. The
// program opens KVM's device by a name that leads to the last of the files.
func (m *machine) command(s *vmm.Spec) (args []string, files []*os.File, jail *isolation.Jail, err error) {
	if args, files, err = (&qemu.Driver{}).Command(&m.program, s); err != nil {
		return nil, nil, nil, err
	}
	j := machineJail
	if s.Accel == vmm.KVM {
		j.Links = map[string]string{kvm.Device: fmt.Sprintf("/proc/self/fd/%d", 3+len(files))}
		files = append(files, m.files[fileDevice])
	}
	return args, files, &j, nil
}

// base returns the file of an image that a copy maps: its memory, or the base of that.
func (m *machine) base(image []*os.File) (*os.File, error) {
	which := imageMemory
	if m.like.Own {
		which = imageBase
	}
	if which >= len(image) {
		return nil, cell.Errorf(cell.Corrupt, "microvm.Create", "", "cannot read the image of the cell's memory: its base is missing")
	}
	return duplicate(image[which])
}

// fill adds to a copy's machine the memory that its source had beside the base.
func (m *machine) fill(image []*os.File) error {
	failpoint.Step("map the memory of a copy")
	_, err := ram.Blank(m.qemu.PID, m.ram, m.like.Memory)
	if err == nil && m.like.Own {
		_, err = ram.Fill(m.qemu.PID, m.ram, m.like.Memory, image[imageMemory])
	}
	if err != nil {
		return lost(err.Error(), m.Said())
	}
	return nil
}

// load restores the saved state of the devices, and resumes the machine.
func (m *machine) load(devices *os.File) error {
	ctx, cancel := context.WithTimeout(context.Background(), monitorGrace)
	defer cancel()
	failpoint.Step("load a machine")
	err := m.now.Load(ctx, io.NewSectionReader(devices, 0, 1<<40))
	if err == nil {
		err = m.now.Continue(ctx)
	}
	if err != nil {
		return lost(err.Error(), m.Said())
	}
	return nil
}

// connect adds the network interface to a machine, if its cell has one, and tells its guest.
func (m *machine) connect(s *vmm.Spec, link *os.File) {
	if link == nil {
		return
	}
	s.Net, s.MAC = link, cell.CellMAC
	s.Append += " pando_net=1"
}

// processors returns the number of processors for a CPU limit.
func processors(limit float64) int {
	n := runtime.NumCPU()
	if limit > 0 {
		n = min(n, int(limit+0.999))
	}
	return max(n, 1)
}

// program is a process on the stage. It ends with its cell at the latest.
type program struct {
	*linux.Child
	over chan struct{} // closed when it has ended
}

func follow(c *linux.Child) *program {
	p := &program{c, make(chan struct{})}
	go func() {
		defer close(p.over)
		c.Wait()
	}()
	return p
}

// end kills it, even if it is stuck.
func (p *program) end() {
	if p == nil {
		return
	}
	select {
	case <-p.over:
	default:
		p.Kill()
	}
	p.PIDFD.Close()
}

// Said implements guestkernel.Kernel. It returns the end of the console's output.
func (m *machine) Said() string {
	st, err := m.console.Stat()
	if err != nil {
		return ""
	}
	b := make([]byte, min(st.Size(), 2048))
	m.console.ReadAt(b, st.Size()-int64(len(b)))
	b = bytes.TrimPrefix(b, []byte("ftruncate: Invalid argument\n")) // from /dev/zero, which QEMU tries to enlarge
	if text := strings.TrimSpace(string(b)); text != "" {
		return text
	}
	return "it does not say why"
}

// stillGrace is the time limit for a machine to stop or resume.
const stillGrace = 10 * time.Second

// Pause implements guestkernel.Kernel. Files that are open and deleted have a name from then on
// until the machine resumes: see fuseproxy.Server.Save.
func (m *machine) Pause() error {
	if err := m.do((vmm.Machine).Stop); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), stillGrace)
	defer cancel()
	var err error
	if m.known, err = m.proxy.Save(ctx); err != nil {
		return errors.Join(err, m.Resume())
	}
	return nil
}

// Resume implements guestkernel.Kernel.
func (m *machine) Resume() error {
	m.known = nil
	err := m.do((vmm.Machine).Continue)
	go m.let()
	return err
}

// Programs implements guestkernel.Kernel.
func (m *machine) Programs() []int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.qemu == nil || m.server == nil {
		return nil
	}
	return []int{m.qemu.PID, m.server.PID}
}

// Rest implements guestkernel.Kernel.
func (m *machine) Rest() error { return m.do((vmm.Machine).Stop) }

// Wake implements guestkernel.Kernel.
func (m *machine) Wake() error { return m.do((vmm.Machine).Continue) }

func (m *machine) do(what func(vmm.Machine, context.Context) error) error {
	if m.now == nil {
		return cell.Errorf(cell.Unavailable, "microvm", "", "the cell's machine has ended")
	}
	ctx, cancel := context.WithTimeout(context.Background(), stillGrace)
	defer cancel()
	return what(m.now, ctx)
}

// Capture implements guestkernel.Kernel.
func (m *machine) Capture(files []*os.File) (c guestkernel.Captured, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), stillGrace)
	defer cancel()
	var parts errgroup.Group // saving devices writes no memory; QEMU's migrations rely on that too
	parts.Go(func() error { return m.now.Save(ctx, files[imageDevices]) })
	like := m.like
	parts.Go(func() (err error) {
		c.Taken, like.Own, err = m.take(files[imageMemory])
		return err
	})
	_, err = files[imageFiles].Write(m.known)
	if err = errors.Join(err, parts.Wait()); err != nil {
		return c, err
	}
	c.Like, err = json.Marshal(like)
	return c, err
}

// Refresh implements guestkernel.Kernel.
func (m *machine) Refresh(paths ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), stillGrace)
	defer cancel()
	return m.proxy.Refresh(ctx, paths...)
}

// quitGrace is the time limit for a machine to exit.
const quitGrace = 5 * time.Second

// end ends the previous machine.
func (m *machine) end() {
	m.let()
	if m.now != nil {
		ctx, cancel := context.WithTimeout(context.Background(), quitGrace)
		m.now.Quit(ctx)
		cancel()
		m.now.Close()
		m.now = nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, f := range []*os.File{m.ram, m.console} {
		if f != nil {
			f.Close()
		}
	}
	if m.proxy != nil {
		m.proxy.Close()
	}
	m.qemu.end()
	m.server.end()
	m.ram, m.console, m.proxy, m.qemu, m.server = nil, nil, nil, nil, nil
}

// Close implements guestkernel.Kernel.
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

func duplicate(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("dup", err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// pair returns two connected sockets.
func pair() (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	return os.NewFile(uintptr(fds[0]), "stream"), os.NewFile(uintptr(fds[1]), "stream"), nil
}
