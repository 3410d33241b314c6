package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/linux/kvm"
	"github.com/pando-dev/pando/internal/vmm"
	"github.com/pando-dev/pando/internal/vmm/boot"
	"github.com/pando-dev/pando/internal/vmm/qemu"
)

// QEMU as one would use it without pando: the machine of a cell, started anew, or
// moved to a file and back.

const (
	// qemuInit is what machines of the peer run, which `make peers` builds: the guest of
	// the tests of machines. It answers a line with a line, and can have a heart.
	qemuInit = "machine-init"
	// qemuName is the program's.
	qemuName = "qemu-system-x86_64"
	// aMachine is how much memory a cell's machine has unless it is said, its kernel's
	// own included, in MiB.
	aMachine = 1024 + 128
	// asPython is how much an interpreter with numpy has written in a cell, in MiB.
	asPython = 32
	// bootsAgain is after how long a machine that says nothing is started once more, as
	// those of cells are: an emulated one may never come to an end.
	bootsAgain = 20 * time.Second
	kvmTried   = 2 * time.Second
)

// qemuLacks is what such a machine does not do beside our cells.
var qemuLacks = []string{lacksLimits, "no files of the host, no workspace, no Python: a program of 2 MB answers a line on a port",
	"no jail around QEMU but its own filter: code that breaks out of it has the rights of the user", "no network"}

// qemuPeer is what its machines are started with.
type qemuPeer struct {
	driver    qemu.Driver
	program   *vmm.Program
	kernel    string
	initramfs string
	dir       string // for streams
	accel     vmm.Accel
	n         int
}

// qemu prepares QEMU with the kernel and the devices of cells. It is nil, and said in
// out, where that can't be.
func (l *lab) qemu(ctx context.Context, out *AxisResult, name string) (*qemuPeer, error) {
	p := &qemuPeer{accel: vmm.Emulated}
	init, why := l.machineInit()
	if why != "" {
		out.absent(name, why)
		return nil, nil
	}
	var err error
	if p.program, err = p.driver.Probe(ctx); err != nil {
		out.absent(name, firstLine(err.Error()))
		return nil, nil
	}
	need := p.driver.Modules(&vmm.Spec{})
	k, err := boot.Find(boot.Images, boot.Modules, need...)
	if err != nil {
		out.absent(name, firstLine(err.Error()))
		return nil, nil
	}
	modules, err := k.Load(need...)
	if err != nil {
		return nil, err
	}
	if os.Getenv("PANDO_KVM") != "off" && kvm.Look(kvm.This(kvmTried)).State == kvm.Works {
		p.accel = vmm.KVM
	}
	if p.dir, err = l.fresh("qemu"); err != nil {
		return nil, err
	}
	p.kernel, p.initramfs = k.Image, filepath.Join(p.dir, "initramfs")
	f, err := os.Create(p.initramfs)
	if err != nil {
		return nil, err
	}
	l.programs[qemuName] = &program{path: p.program.Path, version: p.program.Version}
	l.programs["guest's kernel"] = &program{version: k.Version}
	return p, errors.Join(boot.Write(f, init, modules), f.Close())
}

// machineInit finds the program of the peer's machines: beside pando, or in the path. It
// runs in machines alone and has no version.
func (l *lab) machineInit() ([]byte, string) {
	for _, dir := range append([]string{filepath.Join(filepath.Dir(l.exe), "peers")}, filepath.SplitList(l.path)...) {
		if b, err := os.ReadFile(filepath.Join(dir, qemuInit)); err == nil {
			return b, ""
		}
	}
	return nil, "the program of its guest is not there: make peers"
}

// words is how a machine is told.
func (p *qemuPeer) words(how string) string {
	accel := "tcg"
	if p.accel == vmm.KVM {
		accel = "kvm"
	}
	return fmt.Sprintf("qemu-system-x86_64 -machine microvm -accel %s -m %dM %s", accel, aMachine, how)
}

// qemuMachine is one that runs.
type qemuMachine struct {
	qemu.Whole
	cmd   *exec.Cmd
	ended chan struct{}
	port  net.Conn
	in    *bufio.Reader
	said  bytes.Buffer // read when it has ended
}

// start starts a machine of so many MiB; one that comes in waits for what it is to
// be, and others boot.
func (p *qemuPeer) start(ctx context.Context, mib int, incoming bool) (_ *qemuMachine, err error) {
	s := &vmm.Spec{CPUs: 1, Memory: int64(mib) << 20, Accel: p.accel, Incoming: incoming}
	m := &qemuMachine{ended: make(chan struct{})}
	var its []*os.File
	defer func() {
		for _, f := range its {
			f.Close()
		}
	}()
	var monitor net.Conn
	if monitor, s.Monitor, err = socket(); err != nil {
		return nil, err
	}
	its = append(its, s.Monitor)
	port := vmm.Port{Name: "guest"}
	if m.port, port.Socket, err = socket(); err != nil {
		monitor.Close()
		return nil, err
	}
	its = append(its, port.Socket)
	s.Ports, m.in = []vmm.Port{port}, bufio.NewReader(m.port)
	for _, x := range []struct {
		to   **os.File
		path string
	}{{&s.Kernel, p.kernel}, {&s.Initramfs, p.initramfs}} {
		if incoming {
			break
		}
		if *x.to, err = os.Open(x.path); err != nil {
			break
		}
		its = append(its, *x.to)
	}
	var args []string
	var files []*os.File
	if err == nil {
		args, files, err = p.driver.Command(p.program, s)
	}
	if err == nil {
		m.cmd = exec.Command(args[0], args[1:]...)
		m.cmd.Env, m.cmd.Dir, m.cmd.ExtraFiles = []string{}, "/", files
		m.cmd.Stdout, m.cmd.Stderr = &m.said, &m.said
		err = m.cmd.Start()
	}
	if err != nil {
		monitor.Close()
		m.port.Close()
		return nil, err
	}
	go func() {
		m.cmd.Wait()
		close(m.ended)
	}()
	o, err := p.driver.Open(ctx, monitor)
	if err != nil {
		m.end()
		return nil, fmt.Errorf("%w: %s", err, firstLine(m.said.String()))
	}
	m.Whole = o.(qemu.Whole)
	return m, nil
}

// booted starts a machine and waits until its guest answers.
func (p *qemuPeer) booted(ctx context.Context, mib int) (m *qemuMachine, err error) {
	for again := range 2 {
		if m, err = p.start(ctx, mib, false); err != nil {
			return nil, err
		}
		patience := bootsAgain
		if again > 0 {
			patience = bootPatience
		}
		if err = m.ask(ctx, patience, "ping x", "pong x"); err == nil {
			return m, nil
		}
		m.end()
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
	}
	return nil, err
}

// restored starts a machine with what was written to a file, and waits until its
// guest answers.
func (p *qemuPeer) restored(ctx context.Context, mib int, image string) (_ *qemuMachine, err error) {
	f, err := os.Open(image)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	m, err := p.start(ctx, mib, true)
	if err != nil {
		return nil, err
	}
	if err = m.LoadAll(ctx, f); err == nil {
		if err = m.Continue(ctx); err == nil {
			err = m.ask(ctx, bootPatience, "ping y", "pong y")
		}
	}
	if err != nil {
		m.end()
		return nil, err
	}
	return m, nil
}

// save stops a machine, writes it to a new file, and lets it go on.
func (p *qemuPeer) save(ctx context.Context, m *qemuMachine) (image string, err error) {
	p.n++
	image = filepath.Join(p.dir, fmt.Sprintf("stream-%d", p.n))
	f, err := os.Create(image)
	if err != nil {
		return "", err
	}
	if err = m.Stop(ctx); err == nil {
		if err = m.SaveAll(ctx, f); err == nil {
			err = m.Continue(ctx)
		}
	}
	return image, errors.Join(err, f.Close())
}

// dirty has a guest write so many MiB, and its heart beat.
func (m *qemuMachine) dirty(ctx context.Context, mib int) error {
	if err := m.ask(ctx, bootPatience, fmt.Sprintf("dirty %d", mib), "dirty"); err != nil {
		return err
	}
	return m.ask(ctx, bootPatience, "beat", "beating")
}

// ask says a line to the guest, and wants that answer.
func (m *qemuMachine) ask(ctx context.Context, patience time.Duration, line, want string) error {
	got, err := m.say(ctx, patience, line)
	if err == nil && got == "pong b" && got != want { // it is a copy of that one
		got, err = m.hears(ctx, patience)
	}
	if err == nil && got != want {
		err = fmt.Errorf("the guest answers %q with %q", line, got)
	}
	return err
}

func (m *qemuMachine) say(ctx context.Context, patience time.Duration, line string) (string, error) {
	m.port.SetDeadline(time.Now().Add(patience))
	if _, err := fmt.Fprintln(m.port, line); err != nil {
		return "", fmt.Errorf("cannot ask the guest: %w", err)
	}
	return m.hears(ctx, patience)
}

// hears is the guest's next line.
func (m *qemuMachine) hears(ctx context.Context, patience time.Duration) (string, error) {
	m.port.SetDeadline(time.Now().Add(patience))
	defer context.AfterFunc(ctx, func() { m.port.SetDeadline(time.Now()) })()
	answer, err := m.in.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("cannot hear the guest: %w", err)
	}
	return strings.TrimSpace(answer), nil
}

// end ends a machine, whatever it does.
func (m *qemuMachine) end() {
	m.cmd.Process.Kill()
	<-m.ended
	m.port.Close()
	if m.Whole != nil {
		m.Whole.Close()
	}
}

// socket is a connected pair: an end of ours, and one that is a program's.
func socket() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	mine := os.NewFile(uintptr(fds[0]), "mine")
	defer mine.Close()
	its := os.NewFile(uintptr(fds[1]), "its")
	c, err := net.FileConn(mine)
	if err != nil {
		its.Close()
		return nil, nil, err
	}
	return c, its, nil
}
