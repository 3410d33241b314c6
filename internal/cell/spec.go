package cell

import (
	"slices"
	"strings"
	"time"
)

// Spec is everything a backend needs to make a cell ready for processes. It
// is plain data: it goes to the keeper as JSON, and its policy part is what
// the policy digest covers.
type Spec struct {
	ID ID `json:"id"`
	// Family is the cell whose keeper holds this one; "": its own. (A cell that
	// comes to life anew while branches of it live in the keeper of its name
	// gets a family with a name of its own.) Layer is its
	// workspace's writable layer, for whoever attaches to it later.
	Family   ID      `json:"family,omitempty"`
	Layer    string  `json:"layer,omitempty"`
	Hostname string  `json:"hostname"`
	User     User    `json:"user"`
	Mounts   []Mount `json:"mounts"` // in the order they are made
	Workdir  string  `json:"workdir"`
	Limits   Limits  `json:"limits"`
	// Asked names the limits that the user gave: those must hold, or the
	// start fails. The others are defaults.
	Asked []string `json:"asked,omitempty"`
	// Writes are the host directories that count against Limits.Disk.
	Writes []string `json:"writes,omitempty"`

	// Sized says that Writes lie in a file system of their own, of
	// Limits.Disk bytes: nothing has to be counted.
	Sized bool `json:"sized,omitempty"`
	// Private is a folder of the host that belongs to this cell alone.
	Private string `json:"private"`

	// Memory is a directory with an image of a cell's memory (backend.Capturer):
	// this one goes on as that one was. "": it begins with no processes.
	Memory string `json:"memory,omitempty"`
	// Ahead says that this cell waits for its adoption, maybe for long: what can be done
	// for that beforehand may be.
	Ahead bool `json:"ahead,omitempty"`

	// Kernel is what a cell boots that has a Linux of its own: the path of an image, or
	// with a colon those of an image and of the directory of its modules
	// (/lib/modules/VERSION). "": what the backend chooses.
	Kernel string `json:"kernel,omitempty"`

	// Network is what the gateway of a cell goes by that may talk; nil: the cell
	// has loopback alone. It holds secrets: a spec is written nowhere.
	Network *Governance `json:"network,omitempty"`
}

// fileMargin is how much smaller than the disk's limit a file of an interpreter stays at
// most, in bytes.
const fileMargin = 16 << 20

// MaxFile is how large a file of one process may be, in bytes; 0: there is no limit. A file
// that comes to the limit of a disk that is counted ends the cell: the command that wrote
// it has failed, whatever it makes of its error. An interpreter would be lost with all that
// it has: its files stay below, and what fills one has an error (EFBIG), as on a disk that
// is full.
func (s *Spec) MaxFile(interpreter bool) int64 {
	if !interpreter || s.Limits.Disk <= 0 {
		return s.Limits.Disk
	}
	return s.Limits.Disk - min(s.Limits.Disk/16, fileMargin)
}

// WritesOutside reports whether the cell can write to files of the host that are not
// its own: what it leaves there the host finds, with mode and all.
func (s *Spec) WritesOutside() bool { return slices.ContainsFunc(s.Mounts, s.Outside) }

// Outside reports whether a mount shows such files of the host. Whatever can be
// written and is in none of the cell's own directories is one.
func (s *Spec) Outside(m Mount) bool {
	own := func(dir string) bool {
		return dir != "" && (m.Source == dir || strings.HasPrefix(m.Source, strings.TrimSuffix(dir, "/")+"/"))
	}
	return m.Kind == Bind && !m.ReadOnly && !own(s.Private) && !slices.ContainsFunc(s.Writes, own)
}

// User is who commands run as, in the cell's own numbering.
type User struct {
	UID  int    `json:"uid"`
	GID  int    `json:"gid"`
	Name string `json:"name"`
	Home string `json:"home"`
}

// MountKind says where the content of a mount comes from.
type MountKind string

// The kinds of mounts. /proc and /dev are the backend's own and never listed.
const (
	Bind    MountKind = "bind"    // Source is a host file or directory
	Cache   MountKind = "cache"   // Source is a host directory below a writable layer that is thrown away
	Overlay MountKind = "overlay" // Lower and Upper, Work are layers of a workspace
	Tmpfs   MountKind = "tmpfs"   // empty, in memory
	Link    MountKind = "link"    // a symlink to Source
	Protect MountKind = "protect" // what the cell has at Target already, read-only
)

// Mount is one thing that is visible in a cell.
type Mount struct {
	Kind     MountKind `json:"kind"`
	Target   string    `json:"target"` // absolute and clean
	Source   string    `json:"source,omitempty"`
	ReadOnly bool      `json:"read_only,omitempty"`
	Lower    []string  `json:"lower,omitempty"` // overlay: lower directories, topmost first
	Upper    string    `json:"upper,omitempty"` // overlay: writable layer; cache: made by the backend
	Work     string    `json:"work,omitempty"`
	// Owned says that the content belongs to the caller, so that its ids are
	// shown as the cell's own where the backend can (workspaces, the caller's
	// toolchains); other binds keep the host's ids.
	Owned bool   `json:"owned,omitempty"`
	Why   string `json:"why,omitempty"` // for people: "workspace", "toolchain go", "cache npm"
	// Denies is the rule by which this file stands in the place of a program
	// that the policy denies: whoever executes it is counted.
	Denies *Denial `json:"denies,omitempty"`
}

// Denial is a rule that denies a program.
type Denial struct {
	Rule   string `json:"rule"`   // "deny program curl"
	Origin string `json:"origin"` // where it stands
}

// Limits bound what a cell may use. Zero is never "unlimited": it means that
// nothing was asked and the default applies.
type Limits struct {
	CPUs    float64       `json:"cpus,omitempty"`   // cores
	Memory  int64         `json:"memory,omitempty"` // bytes
	PIDs    int64         `json:"pids,omitempty"`   // processes and threads
	Disk    int64         `json:"disk,omitempty"`   // bytes the cell may write and keep
	Timeout time.Duration `json:"timeout,omitempty"`
}
