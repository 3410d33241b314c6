// Package vmm is the contract of virtual machine monitors: programs that run one
// machine each, whose memory is a file and whose devices are few. A driver knows
// one such program. It says what to execute and with which open files; who runs
// the program, where, and within which limits is the caller's business (a keeper,
// on a cell's stage). The machine is then driven over a connected socket, its
// monitor, which nothing in the machine can see.
//
//	spec ── Command ──> arguments, files         the caller starts the program with them
//	monitor's other end ── Open ──> Machine      Stop, Continue, Save, Load, Quit
//
// # Memory
//
// A machine's memory is a file of the caller's (a memfd, as a rule), mapped shared
// or privately. Save writes what the devices and processors know and leaves the
// memory where it is: who stops a machine, saves it and takes its memory before it
// goes on has all of it, as of one instant. What its memory is, is the caller's to
// know: the file, if it is mapped shared; the file and the process's own pages, if
// it is mapped privately (package ram takes these). A machine that boots with memory of
// its own to be taken later has /dev/zero mapped privately.
//
// A copy is a machine that begins with Incoming, has memory of that content, and
// loads those devices. It must have the same processors, memory, accelerator,
// ports (in the same order), kind of network and version of the monitor. A file that
// copies map privately must not change any more: its machine stays stopped, or has
// ended.
//
// Nothing may be sent to a port of a stopped machine between Save and the moment its
// memory has been taken: a device writes to memory what arrives, also then.
package vmm

import (
	"context"
	"io"
	"net"
	"os"
)

// Accel says what executes the machine's instructions.
type Accel string

// What can execute instructions.
const (
	KVM      Accel = "kvm"      // the processor; the program must find /dev/kvm
	Emulated Accel = "emulated" // the program
)

// Spec is a machine. Files are open ones of the caller's, who closes them when the
// program has been started. Kernel, Initramfs and RAM are opened once more by the
// program through /proc/self/fd, so it must be allowed to.
type Spec struct {
	Kernel    *os.File // a kernel's image; nil with Incoming
	Initramfs *os.File // nil with Incoming
	Append    string   // words of the caller's on the kernel's command line; a driver adds what its machine needs

	CPUs    int
	Memory  int64    // in bytes, whole MiB
	RAM     *os.File // of at least that size, or, with Private, /dev/zero; nil is memory of the program's own
	Private bool     // what the machine writes stays the program's own, instead of going to RAM

	Ports   []Port
	Monitor *os.File         // one end of a connected stream socket of unix's; the other is for Open
	Net     *os.File         // one end of connected datagram sockets, a frame each; nil is none
	MAC     net.HardwareAddr // of the machine on it; nil is one that the program makes up
	Console *os.File         // what the kernel says is written there; opened for writing only; may be nil

	Incoming bool // begin stopped and empty, waiting for Load
	Accel    Accel
}

// Port is a stream between the machine and the caller. The guest finds it by its
// name, in /sys/class/virtio-ports/*/name.
type Port struct {
	Name   string   // letters, digits, dots and dashes
	Socket *os.File // one end of a connected stream socket; the other is the caller's
}

// A Driver knows one monitor program. Its methods are safe for concurrent use.
type Driver interface {
	// Name is the program's, as receipts have it.
	Name() string
	// Probe finds the program on this host. It fails with cell.Unavailable and a
	// hint if it isn't there, and with cell.Unsupported where it can't be.
	Probe(ctx context.Context) (*Program, error)
	// Modules are the names of the kernel modules that a guest needs for the
	// devices of such a machine. Others that these depend on aren't named.
	Modules(s *Spec) []string
	// Command is what is executed, the program first, and the files that it needs
	// as descriptors 3, 4, … It fails with cell.Invalid for what can't be a machine,
	// and with cell.Unsupported for what this driver has no machine for.
	Command(p *Program, s *Spec) (args []string, files []*os.File, err error)
	// Open takes the other end of Monitor, also when it fails, and waits until the
	// program answers, for as long as ctx allows.
	Open(ctx context.Context, monitor net.Conn) (Machine, error)
}

// Program is a monitor program as it lies on this host.
type Program struct {
	Path    string   // absolute
	Version string   // "7.2.22": devices are loaded by the version that saved them
	Files   []string // all files and directories that it reads, itself among them, by absolute path
}

// State is what a machine is doing.
type State string

// What machines do.
const (
	Running State = "running"
	Stopped State = "stopped"
	Waiting State = "waiting" // for Load
)

// A Machine is one that runs. Methods are safe for concurrent use. Once the program
// has ended they fail with cell.Unavailable. A method that gives up because of its
// context leaves it open whether what it asked for is still done.
type Machine interface {
	// Status asks what it is doing.
	Status(ctx context.Context) (State, error)
	// Stop returns when no processor and no device changes anything any more.
	// Stopping a stopped machine is nothing.
	Stop(ctx context.Context) error
	// Continue lets a stopped machine go on. It fails with cell.Conflict if the
	// machine waits to be loaded.
	Continue(ctx context.Context) error
	// Save writes what processors and devices know, some ten KB, and changes
	// nothing. It fails with cell.Conflict unless the machine is stopped, and with
	// w's error if that takes not all.
	Save(ctx context.Context, w io.Writer) error
	// Load reads what Save wrote, to r's end; the machine is stopped then. It fails with
	// cell.Conflict unless the machine waits for it. If it fails otherwise, the
	// machine can only be ended.
	Load(ctx context.Context, r io.Reader) error
	// Quit ends the program and waits for that.
	Quit(ctx context.Context) error
	// Done is closed when the program has ended, however it did.
	Done() <-chan struct{}
	// Why is what the program said about its end, as a sentence's end ("the guest
	// shut down"); "" if it said nothing, as when it was killed.
	Why() string
	// Close lets go of the monitor. The machine goes on, and can't be driven any
	// more.
	Close() error
}
