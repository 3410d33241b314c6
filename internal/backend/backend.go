// Package backend is the isolation contract that every technology for running cells fulfils. The
// conformance suite is in backend/backendtest; the shortest implementation is backend/mem.
package backend

import (
	"context"
	"io"
	"net"
	"os"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// A Backend runs cells with one isolation technology. All methods are safe
// for concurrent use. Backends keep no state that Attach cannot rebuild from
// the host after the daemon was killed.
type Backend interface {
	// Name is the name of the backend in flags, records and errors.
	Name() string

	// Probe reports what works on this host and, for each ability that does not, why. It fails
	// when the backend can't run at all here, with the reason and the remedy.
	Probe(ctx context.Context) (Caps, error)

	// Create makes a cell for spec that is ready for processes. When it fails, nothing remains
	// on the host. A second Create of a living ID fails with cell.Exists. An explicit limit
	// (spec.Asked) that can't be applied fails with cell.Unsupported; a default one becomes a
	// downgrade. Without the gateway that spec.Network needs it is Unsupported, too: a cell
	// never gets less or more network.
	Create(ctx context.Context, spec cell.Spec) (Instance, error)

	// Attach returns the instance that an earlier process created, or fails with cell.NotFound
	// if it has ended. family is its spec's.
	Attach(ctx context.Context, id, family cell.ID) (Instance, error)

	// Living lists the existing cells of all daemons, so that cells without a record can be
	// ended. A keeper without cells is listed as the first cell of its family.
	Living(ctx context.Context) ([]cell.Held, error)

	// Leftovers removes the remains of dead instances from the host and names them; with dry it
	// only names them.
	Leftovers(ctx context.Context, dry bool) ([]string, error)
}

// Instance is one living cell.
type Instance interface {
	ID() cell.ID

	// Assurance returns the measurements made when the cell was created.
	Assurance() cell.Assurance

	// Alive reports whether the process that holds the cell exists. It runs before each command,
	// and so is quick. It is false only when that process is known to have ended, since the cell
	// is then removed: neither a shortage of descriptors nor a late answer makes it false.
	Alive(ctx context.Context) bool

	// Start runs a process. logs are files for stdout, stderr and events, each may be nil; they
	// are duplicated. name is new in this instance, else cell.Exists. A missing program fails
	// with cell.NoSuchBinary, one that can't be executed with cell.NotRunnable, and a missing
	// working directory with cell.NotFound.
	Start(ctx context.Context, name string, s cell.Start, logs [3]*os.File) (Process, error)

	// Do is Start, Wait, reading the kept output (up to s.LogLimit of each stream), and Forget,
	// in one exchange where possible. The process's input is empty. It continues when ctx ends:
	// find it by its name.
	Do(ctx context.Context, name string, s cell.Start) (Done, error)

	// Process returns a process that was started earlier and not forgotten, or fails with
	// cell.NotFound.
	Process(ctx context.Context, name string) (Process, error)

	// KillAll ends all processes, for cause, and returns their number.
	KillAll(ctx context.Context, cause string) (int, error)

	// Freeze pauses all processes; Thaw resumes them. Both may be repeated.
	Freeze(ctx context.Context) error
	Thaw(ctx context.Context) error

	// ReadFiles sends the file or directory at a path in the cell as a tar archive. WriteFiles
	// extracts one below a directory in it, through symlinks where files are. No symlink of the cell
	// leads out of it, or to what its processes find read-only.
	ReadFiles(ctx context.Context, path string, w io.Writer) error
	WriteFiles(ctx context.Context, path string, u cell.User, r io.Reader) error

	// List returns all processes of the cell, or fails: an incomplete list is an error. NotFound
	// says that the cell has ended.
	List(ctx context.Context) ([]cell.ProcessInfo, error)

	// Names returns the names of the processes that were started and not forgotten, in no order.
	Names(ctx context.Context) ([]string, error)
	Stats(ctx context.Context) (cell.Stats, error)

	// Govern atomically replaces what the gateway of a cell enforces, also for open connections.
	// A cell created without spec.Network has no gateway: Govern, Asked and Answer are
	// Unsupported then, as with backends without gateways (Caps.Network).
	Govern(ctx context.Context, g cell.Governance) error

	// Asked returns the requests that wait for a person, and the version of that list, which
	// grows with each change. It returns when the version is above since, after at most half a
	// minute, or with the cause of ctx when ctx ends.
	Asked(ctx context.Context, since int64) (list []cell.Asked, version int64, err error)

	// Answer passes a person's decision to the gateway. For a request that does not wait (any
	// more) it is NotFound, for another request than decided on (by its digest) Conflict.
	Answer(ctx context.Context, a cell.Answered) error

	// Refused counts what the cell was refused on the network since it was made.
	// Unsupported without a gateway, as are the next two.
	Refused(ctx context.Context) ([]cell.Refused, error)

	// LendAgent lends keys of the caller's SSH agent to the cell, as its governance says
	// (cell.LentKey). listener is the socket that the cell sees at path, alone in its
	// folder; upstream is a connection to the agent. Both are duplicated, and replace
	// earlier ones.
	LendAgent(ctx context.Context, path string, listener, upstream *os.File) error

	// ShowDenials has the cell's last refusals written to two files that the cell sees: for
	// people, and as JSON Lines. Both are duplicated, and replace earlier ones.
	ShowDenials(ctx context.Context, text, lines *os.File) error

	// ServeLink serves the end of a link (a connected stream socket) that leads to ports of the cell's own
	// loopback, and TakeLink has the cell's gateway connect to the service name by the other end, which its
	// governance has to name; Unsupported without a gateway. Both are duplicated; the link lasts as long as
	// both cells live, whatever becomes of the daemon.
	ServeLink(ctx context.Context, link *os.File) error
	TakeLink(ctx context.Context, name string, link *os.File) error

	// Manage looks at single files of the cell, or changes them. in has the bytes of
	// cell.FileWrite, out gets those of cell.FileRead, else JSON: a cell.FileInfo, or lines
	// of them, or of cell.FileEvents. No symlink of the cell leads out of it.
	Manage(ctx context.Context, a cell.FileAct, in io.Reader, out io.Writer) error

	// SFTP begins a session of the SSH File Transfer Protocol on the cell's files, as package sftpd
	// says. Relative paths begin in start, and what it makes belongs to u.
	SFTP(ctx context.Context, start string, u cell.User) (net.Conn, error)

	// Dial connects to a port of the cell's own loopback; Unavailable: nothing listens
	// there. Ports lists those on which something does.
	Dial(ctx context.Context, port int) (net.Conn, error)
	Ports(ctx context.Context) ([]cell.Listening, error)

	// Mapped lists the files that processes of the cell can write through shared memory, which their
	// times need not show. It is all of them, or an error.
	Mapped(ctx context.Context) ([]cell.MappedFile, error)

	// Remove ends everything for cause. Afterwards nothing remains on the
	// host but files under the spec's paths. Removing twice is no error.
	Remove(ctx context.Context, cause string) error

	// Close releases the instance, which continues.
	Close()
}

// Process is one process of a cell.
type Process interface {
	PID() int      // on the host; 0 if it has no number there
	InnerPID() int // in the cell; 0 if that is not known

	// Assurance returns the measurements made in the process itself, added to the cell's.
	Assurance() cell.Assurance

	// Attach returns the stream of the process, in frames of package api.
	Attach(ctx context.Context, a Attach) (net.Conn, error)

	Signal(ctx context.Context, sig string) error

	// End asks the process to end (SIGTERM), and kills it after grace; 0: after a few seconds. A
	// program at a terminal that is still there after half of grace is told that the terminal has
	// gone (SIGHUP), which shells obey. The exit will have this cause, and the status says whether
	// it was killed.
	End(ctx context.Context, cause string, grace time.Duration) error

	// Status returns the state of the process. Wait returns when it has ended.
	Status(ctx context.Context) (cell.Status, error)
	Wait(ctx context.Context) (cell.Status, error)

	// Forget drops the record of an ended process.
	Forget(ctx context.Context) error
}

// Done is an ended process with its kept output.
type Done struct {
	Status         cell.Status
	Stdout, Stderr []byte
}

// Offsets are positions in a process's output.
type Offsets struct{ Stdout, Stderr int64 }

// Attach configures a client's attachment to a process.
type Attach struct {
	Offsets        // from where it wants output
	Input   bool   // its frames are passed on
	Client  string // see proto.AttachRequest; "": it has no name

	// For a process with a terminal, where the backend can; otherwise ignored:
	Screen bool        // begin with the screen, instead of at Offsets
	Size   *api.Resize // of the client's own
}

// A Connector is a backend that can tell by what the cells that talk would be
// connected to their gateways here: "tun", "veth", "socket". It fails as Create would.
type Connector interface {
	Link(ctx context.Context) (string, error)
}

// A Trier is a backend with a frequent Probe that doesn't start everything a cell needs. Try
// makes a cell, runs a command in it and removes it, within half a minute. When it fails, cells
// can't be made, and the error says why.
type Trier interface {
	Try(ctx context.Context) error
}

// Caps has one entry per optional ability: "" means present, anything else is the sentence shown
// to the user.
type Caps struct {
	Isolation    string // separates cells from the host at all
	Mounts       string // shows files at other places than they lie
	Refuses      string // says so when it does not change a mode on a read-only mount
	Files        string // ReadFiles, WriteFiles and Manage
	Terminal     string // cell.Process.TTY
	Memory       string // captures memory: Capturer
	Eval         string // keeps an interpreter: Warmer
	Fork         string // forks a sealed interpreter
	LiveBranch   string // forks a running interpreter: Warmer.Branch
	Freeze       string
	MemoryLimit  string
	CPULimit     string
	ProcessLimit string
	DiskLimit    string // by a file system of limited size
	ManyIDs      string // more users than the caller's own inside
	Landlock     string
	Network      string // spec.Network: cells with a network, through a gateway
}

// A Booter is a backend with cells that boot a chosen kernel (cell.Spec.Kernel).
type Booter interface {
	// CheckKernel returns why a cell can't boot a kernel, before a cell is made.
	CheckKernel(kernel string) error
}
