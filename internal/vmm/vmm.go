// Package vmm is the contract of virtual machine monitors: programs that run one machine each,
// with a file as its memory and few devices. A driver implements it for one such program. It
// determines the command and the open files to execute. The caller runs the program, in an
// environment of its choice and within its limits (a keeper, on a cell's stage). The machine is
// then driven over a connected socket, its monitor, which the machine cannot access.
//
//	spec ── Command ──> arguments, files         the caller starts the program with them
//	monitor's other end ── Open ──> Machine      Stop, Continue, Save, Load, Quit
//
// # Memory
//
// A machine's memory is a file of the caller (usually a memfd), mapped shared or privately.
// Save writes the state of devices and processors, without the memory. To capture a machine,
// the caller stops it, saves it, and takes its memory before it continues: all of one instant.
// The memory is the file, if it is mapped shared; it is the file and the process's own pages,
// if it is mapped privately (package ram takes these). A machine that boots with its own
// memory, to be taken later, has /dev/zero mapped privately.
//
// A copy is a machine that starts with Incoming, has memory of that content, and loads that
// state. It must have the same processors, memory, accelerator, ports (in the same order), kind
// of network and version of the monitor. A file that copies map privately must not change any
// more: its machine stays stopped, or has ended.
//
// Nothing may be sent to a port of a stopped machine between Save and the end of the capture of
// its memory: a device writes incoming data to memory even then.
package vmm

import (
	"context"
	"io"
	"net"
	"os"
)

// Accel is what executes the machine's instructions.
type Accel string

// Accelerators.
const (
	KVM      Accel = "kvm"      // the processor; the program needs /dev/kvm
	Emulated Accel = "emulated" // the program
)

// Spec describes a machine. Files are open; the caller closes them after the program has
// started. The program reopens Kernel, Initramfs and RAM through /proc/self/fd, so it must have
// the rights for that.
type Spec struct {
	Kernel    *os.File // kernel image; nil with Incoming
	Initramfs *os.File // nil with Incoming
	Append    string   // kernel command line of the caller; a driver adds the words for its machine

	CPUs    int
	Memory  int64    // in bytes, a multiple of 1 MiB
	RAM     *os.File // of at least that size, or, with Private, /dev/zero; nil is the program's own memory
	Private bool     // writes stay in the program's memory instead of RAM

	Ports   []Port
	Monitor *os.File         // one end of a connected Unix stream socket; the other is for Open
	Net     *os.File         // one end of connected datagram sockets, one frame each; nil is none
	MAC     net.HardwareAddr // MAC address of the machine; nil for a random one
	Console *os.File         // receives the kernel's output; opened for writing only; may be nil

	Incoming bool // start stopped and empty, and wait for Load
	Accel    Accel
}

// Port is a stream between the machine and the caller. The guest finds it by its
// name, in /sys/class/virtio-ports/*/name.
type Port struct {
	Name   string   // letters, digits, dots and dashes
	Socket *os.File // one end of a connected stream socket; the other is the caller's
}

// A Driver supports one monitor program. Its methods are safe for concurrent use.
type Driver interface {
	// Name returns the program's name, for receipts.
	Name() string
	// Probe finds the program on this host. It fails with cell.Unavailable and a hint if it is
	// not installed, and with cell.Unsupported if it cannot run.
	Probe(ctx context.Context) (*Program, error)
	// Modules returns the kernel modules that a guest needs for the devices of s, without their
	// dependencies.
	Modules(s *Spec) []string
	// Command returns the arguments, the program first, and the files that it needs as
	// descriptors 3, 4, … It fails with cell.Invalid for an invalid machine, and with
	// cell.Unsupported for one that this driver cannot make.
	Command(p *Program, s *Spec) (args []string, files []*os.File, err error)
	// Open takes ownership of the other end of Monitor, even if it fails. It waits until the
	// program answers, for as long as ctx allows.
	Open(ctx context.Context, monitor net.Conn) (Machine, error)
}

// Program is an installed monitor program.
type Program struct {
	Path    string   // absolute
	Version string   // "7.2.22"; only the version that saved devices can load them
	Files   []string // absolute paths of all files and directories that it reads, including itself
}

// State is the state of a machine.
type State string

// States of machines.
const (
	Running State = "running"
	Stopped State = "stopped"
	Waiting State = "waiting" // for Load
)

// A Machine is a running machine. Methods are safe for concurrent use. After the program has
// ended they fail with cell.Unavailable. If a method returns because its context ended, the
// request may still take effect.
type Machine interface {
	// Status returns the state of the machine.
	Status(ctx context.Context) (State, error)
	// Stop returns when no processor and no device changes anything any more. Stopping a
	// stopped machine has no effect.
	Stop(ctx context.Context) error
	// Continue resumes a stopped machine. It fails with cell.Conflict if the machine waits for
	// Load.
	Continue(ctx context.Context) error
	// Save writes the state of processors and devices, some ten KB, without side effects. It
	// fails with cell.Conflict unless the machine is stopped, and with the error of w.
	Save(ctx context.Context, w io.Writer) error
	// Load reads the output of Save up to the end of r; the machine is stopped then. It fails
	// with cell.Conflict unless the machine waits for it. After another failure the machine can
	// only be ended.
	Load(ctx context.Context, r io.Reader) error
	// Quit ends the program and waits for its end.
	Quit(ctx context.Context) error
	// Done is closed when the program has ended.
	Done() <-chan struct{}
	// Why returns the program's reason for its end, as the end of a sentence ("the guest shut
	// down"), or "" if it gave none, such as when it was killed.
	Why() string
	// Close closes the monitor. The machine continues, and cannot be driven any more.
	Close() error
}
