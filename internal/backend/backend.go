// Package backend is the isolation contract: what every technology that runs
// cells promises. The conformance suite is in backend/backendtest; the
// shortest implementation is backend/mem.
package backend

import (
	"context"
	"io"
	"net"
	"os"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// A Backend runs cells with one isolation technology. All methods are safe
// for concurrent use. Backends keep no state that Attach cannot rebuild from
// the host after the daemon was killed.
type Backend interface {
	// Name is the backend's word in flags, records and errors.
	Name() string

	// Probe reports what works on this host and, for each thing that does
	// not, why. It fails when the backend can't run at all here, with the
	// reason and the remedy.
	Probe(ctx context.Context) (Caps, error)

	// Create makes spec ready for processes. When it fails, nothing remains
	// on the host. A second Create of a living ID fails with cell.Exists. A
	// limit that was asked for (spec.Asked) and can't be applied fails with
	// cell.Unsupported; one that is only a default becomes a downgrade. A cell
	// with spec.Network whose gateway can't be had is Unsupported, too: it is
	// never made with less, nor with more.
	Create(ctx context.Context, spec cell.Spec) (Instance, error)

	// Attach returns the instance an earlier process created, or fails with
	// cell.NotFound when it is gone. family is its spec's.
	Attach(ctx context.Context, id, family cell.ID) (Instance, error)

	// Living lists the cells that there are, whoever made them, so that those of
	// whom nobody knows any more can be ended. A keeper that holds none is listed
	// as the first of its family.
	Living(ctx context.Context) ([]cell.Held, error)

	// Leftovers removes what dead instances left on the host, and says what
	// it was; with dry it only says.
	Leftovers(ctx context.Context, dry bool) ([]string, error)
}

// Instance is one living cell.
type Instance interface {
	ID() cell.ID

	// Assurance is what was measured when the cell was made.
	Assurance() cell.Assurance

	// Alive reports whether the process that holds the cell is there. It is asked
	// before each command, and so quick. It is false only when that process is
	// known to have ended: a cell for which it is false is taken down, and a shortage
	// of descriptors or a late answer are no reason for that.
	Alive(ctx context.Context) bool

	// Start runs a process. logs are files for stdout, stderr and events,
	// each may be nil; they are duplicated. name is new in this instance,
	// else cell.Exists. A program that is not there fails with
	// cell.NoSuchBinary, one that can't be executed with cell.NotRunnable, and a
	// working directory that is not there with cell.NotFound.
	Start(ctx context.Context, name string, s cell.Start, logs [3]*os.File) (Process, error)

	// Do is Start, Wait, reading what is kept of both streams (up to
	// s.LogLimit each), and Forget, in one exchange where that is possible. The
	// process's input is empty. It goes on when ctx ends: find it by its name.
	Do(ctx context.Context, name string, s cell.Start) (Done, error)

	// Process returns one that was started earlier and not forgotten, or
	// fails with cell.NotFound.
	Process(ctx context.Context, name string) (Process, error)

	// KillAll ends all processes, for cause, and returns how many there were.
	KillAll(ctx context.Context, cause string) (int, error)

	// Freeze stops all processes where they are; Thaw lets them go on. Both
	// may be repeated.
	Freeze(ctx context.Context) error
	Thaw(ctx context.Context) error

	// ReadFiles sends what lies at a path inside the cell as a tar archive,
	// and WriteFiles extracts one below a directory inside it. No symlink of
	// the cell leads out of it.
	ReadFiles(ctx context.Context, path string, w io.Writer) error
	WriteFiles(ctx context.Context, path string, u cell.User, r io.Reader) error

	// List returns all processes of the cell, or fails: a list that could not be read
	// to its end is an error. NotFound says that the cell is gone.
	List(ctx context.Context) ([]cell.ProcessInfo, error)

	// Names are those of processes that were started and not forgotten, in no
	// order.
	Names(ctx context.Context) ([]string, error)
	Stats(ctx context.Context) (cell.Stats, error)

	// Govern replaces what the gateway of a cell goes by, as a whole and at
	// once, also for connections that are open. A cell that was made without
	// spec.Network has no gateway: Unsupported, as with backends that can't
	// have one (Caps.Network); the same with Asked and Answer.
	Govern(ctx context.Context, g cell.Governance) error

	// Asked returns the requests that wait for a person, and the version of
	// that list, which grows with each change. It returns when the version is
	// above since, and after half a minute at the latest, with what there is
	// then; when ctx ends, with its cause.
	Asked(ctx context.Context, since int64) (list []cell.Asked, version int64, err error)

	// Answer tells the gateway what a person said. An answer to what is not
	// asked (any more) is NotFound, one to something else than was asked (by
	// its digest) Conflict.
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

	// Manage looks at single files of the cell, or changes them. in has the bytes of
	// cell.FileWrite, out gets those of cell.FileRead, else JSON: a cell.FileInfo, or lines
	// of them, or of cell.FileEvents. No symlink of the cell leads out of it.
	Manage(ctx context.Context, a cell.FileAct, in io.Reader, out io.Writer) error

	// Dial connects to a port of the cell's own loopback; Unavailable: nothing listens
	// there. Ports lists those on which something does.
	Dial(ctx context.Context, port int) (net.Conn, error)
	Ports(ctx context.Context) ([]cell.Listening, error)

	// Remove ends everything for cause. Afterwards nothing remains on the
	// host but files under the spec's paths. Removing twice is no error.
	Remove(ctx context.Context, cause string) error

	// Close lets go of the instance, which lives on.
	Close()
}

// Process is one process of a cell.
type Process interface {
	PID() int      // on the host; 0 if it has no number there
	InnerPID() int // in the cell; 0 if that is not known

	// Assurance adds what was measured in the process itself.
	Assurance() cell.Assurance

	// Attach returns the stream of the process, in frames of package api.
	Attach(ctx context.Context, a Attach) (net.Conn, error)

	Signal(ctx context.Context, sig string) error

	// End asks the process to end, and makes it after a grace. Its exit will
	// have this cause.
	End(ctx context.Context, cause string) error

	// Status says how it stands. Wait returns when it has ended.
	Status(ctx context.Context) (cell.Status, error)
	Wait(ctx context.Context) (cell.Status, error)

	// Forget drops the record of an ended process.
	Forget(ctx context.Context) error
}

// Done is a process that has ended, and what is kept of its output.
type Done struct {
	Status         cell.Status
	Stdout, Stderr []byte
}

// Offsets are positions in a process's output.
type Offsets struct{ Stdout, Stderr int64 }

// Attach says what a client that attaches to a process wants.
type Attach struct {
	Offsets        // from where it wants output
	Input   bool   // its frames are passed on
	Client  string // see proto.AttachRequest; "": it has no name

	// Of a process with a terminal, where the backend can (else there is none of it):
	Screen bool        // begin with what is on the screen, instead of at Offsets
	Size   *api.Resize // of the client's own
}

// A Connector is a backend that can tell by what the cells that talk would be
// connected to their gateways here: "tun", "veth", "socket". It fails as Create would.
type Connector interface {
	Link(ctx context.Context) (string, error)
}

// A Trier is a backend whose Probe, which is asked often, doesn't start all that a
// cell needs. Try does: it makes a cell, runs a command in it and removes it, within
// half a minute. When it fails, cells can't be had, and the error says why.
type Trier interface {
	Try(ctx context.Context) error
}

// Caps has one entry per optional ability: "" means present, anything else is
// the sentence shown to the user.
type Caps struct {
	Isolation    string // separates cells from the host at all
	Mounts       string // shows files at other places than they lie
	Refuses      string // says so when it does not change a mode on a read-only mount
	Files        string // ReadFiles, WriteFiles and Manage
	Terminal     string // cell.Process.TTY
	Memory       string // captures memory: Capturer
	Eval         string // keeps an interpreter: Warmer
	Fork         string // forks a sealed one
	LiveBranch   string // forks a running one: Warmer.Branch
	Freeze       string
	MemoryLimit  string
	CPULimit     string
	ProcessLimit string
	DiskLimit    string // by a file system of limited size
	ManyIDs      string // more users than the caller's own inside
	Landlock     string
	Network      string // spec.Network: cells that talk through a gateway
}

// A Booter is a backend whose cells boot a kernel that can be chosen (cell.Spec.Kernel).
type Booter interface {
	// CheckKernel says why a cell can't boot a kernel, before one is made.
	CheckKernel(kernel string) error
}
