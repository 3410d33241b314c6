package cell

import (
	"slices"
	"strings"
	"time"
)

// Spec is everything a backend needs to make a cell ready for processes. It is plain data:
// it goes to the keeper as JSON, and the policy digest covers its policy part.
type Spec struct {
	ID ID `json:"id"`
	// Family is the cell with the keeper that holds this one; "": this cell. (A cell that
	// is started again while branches of it live in the keeper of its name gets a family
	// with a name of its own.) Layer is the writable layer of its workspace, for later
	// attaches.
	Family   ID      `json:"family,omitempty"`
	Layer    string  `json:"layer,omitempty"`
	Hostname string  `json:"hostname"`
	User     User    `json:"user"`
	Mounts   []Mount `json:"mounts"` // in the order they are made
	Workdir  string  `json:"workdir"`
	Limits   Limits  `json:"limits"`
	// Asked names the limits that the user gave: if one cannot be applied, the start
	// fails. The others are defaults.
	Asked []string `json:"asked,omitempty"`
	// Writes are the host directories that count towards Limits.Disk.
	Writes []string `json:"writes,omitempty"`

	// Sized says that Writes lie in a file system of their own, of Limits.Disk bytes, so
	// that nothing has to be counted.
	Sized bool `json:"sized,omitempty"`
	// Private is a folder of the host for this cell alone.
	Private string `json:"private"`

	// Memory is a directory with a memory image of a cell (backend.Capturer), which this
	// cell continues. "": it begins without processes.
	Memory string `json:"memory,omitempty"`
	// Ahead says that this cell waits for its adoption, maybe for long, and that
	// preparations for it may be made beforehand.
	Ahead bool `json:"ahead,omitempty"`

	// Kernel is the kernel that a cell with its own Linux boots: the path of an image, or
	// an image and its directory of modules (/lib/modules/VERSION) with a colon between
	// them. "": the backend chooses.
	Kernel string `json:"kernel,omitempty"`

	// Network is the configuration of the gateway; nil: the cell has loopback alone. It
	// holds secrets, so a spec is written nowhere.
	Network *Governance `json:"network,omitempty"`
}

// fileMargin is the distance in bytes that a file of an interpreter keeps from the disk's
// limit.
const fileMargin = 16 << 20

// MaxFile returns the maximum size of a file of one process, in bytes; 0: no limit. A file
// that reaches the limit of a counted disk ends the cell: its command has failed, whatever
// it makes of the error. That would lose an interpreter with all its state. Its files
// therefore stay below the limit, and a larger one gets EFBIG, as if the disk were full.
func (s *Spec) MaxFile(interpreter bool) int64 {
	if !interpreter || s.Limits.Disk <= 0 {
		return s.Limits.Disk
	}
	return s.Limits.Disk - min(s.Limits.Disk/16, fileMargin)
}

// Top returns the mount of the root directory itself; nil: it is read-only, and holds mount points alone. A
// cell with one can't be copied with its processes, and has no Landlock domain, which could not except what lies below.
func (s *Spec) Top() *Mount {
	for i := range s.Mounts {
		if s.Mounts[i].Target == "/" {
			return &s.Mounts[i]
		}
	}
	return nil
}

// WritesOutside reports whether the cell can write to files of the host that are not its
// own. The host finds what the cell leaves there, modes included.
func (s *Spec) WritesOutside() bool { return slices.ContainsFunc(s.Mounts, s.Outside) }

// Outside reports whether a mount shows such files of the host: it is writable, and in none
// of the cell's own directories.
func (s *Spec) Outside(m Mount) bool {
	own := func(dir string) bool {
		return dir != "" && (m.Source == dir || strings.HasPrefix(m.Source, strings.TrimSuffix(dir, "/")+"/"))
	}
	return m.Kind == Bind && !m.ReadOnly && !own(s.Private) && !slices.ContainsFunc(s.Writes, own)
}

// User is the identity of commands, in the cell's own numbering.
type User struct {
	UID  int    `json:"uid"`
	GID  int    `json:"gid"`
	Name string `json:"name"`
	Home string `json:"home"`
}

// MountKind is the origin of a mount's content.
type MountKind string

// The kinds of mounts. The backend makes /proc and /dev itself; they are never listed.
const (
	Bind    MountKind = "bind"    // Source is a host file or directory
	Cache   MountKind = "cache"   // Source is a host directory below a writable layer, which the backend makes in Upper
	Overlay MountKind = "overlay" // Lower and Upper, Work are layers of a workspace
	Tmpfs   MountKind = "tmpfs"   // empty, in memory
	Link    MountKind = "link"    // a symlink to Source
	Protect MountKind = "protect" // makes what the cell has at Target read-only
)

// Role is what a mount is for. Most have none.
type Role string

// The roles.
const (
	RoleWorkspace Role = "workspace"
	RoleHome      Role = "home"
	RoleTmp       Role = "tmp"
	RoleImage     Role = "image"     // of an image other than the host; overlays have a layer of the cell's own
	RoleTop       Role = "top"       // the root directory itself, of a cell that makes an image
	RoleNetwork   Role = "network"   // what a cell is told of its network
	RoleDenied    Role = "denied"    // stands in place of a denied program
	RoleSetID     Role = "set-id"    // covers a program with the rights of another user
	RoleHidden    Role = "hidden"    // covers a path of the workspace
	RoleReadOnly  Role = "read-only" // makes a path of the workspace read-only
)

// Mount is one mount of a cell.
type Mount struct {
	Kind     MountKind `json:"kind"`
	Target   string    `json:"target"` // absolute and clean
	Source   string    `json:"source,omitempty"`
	ReadOnly bool      `json:"read_only,omitempty"`
	Lower    []string  `json:"lower,omitempty"` // lower directories, topmost first; of a cache: above Source
	Upper    string    `json:"upper,omitempty"` // overlay: writable layer; cache: made by the backend
	Work     string    `json:"work,omitempty"`
	// Part is, of an overlay, the folder of it that is shown, as a relative path; "": all of it. Mounts with the same
	// Upper are parts of one file system.
	Part string `json:"part,omitempty"`
	// Plain says, of an overlay, that its writable layer is to mean the same above any other lower layers, at the
	// cost of copies where a folder of a lower layer is renamed.
	Plain bool `json:"plain,omitempty"`
	// Owned says that the content belongs to the caller: the backend shows its ids as the
	// cell's own where it can (workspaces, the caller's toolchains). Other binds keep the
	// host's ids.
	Owned bool   `json:"owned,omitempty"`
	Role  Role   `json:"role,omitempty"` // for programs, which tell the mounts of a cell apart by it
	Why   string `json:"why,omitempty"`  // for people: "workspace", "toolchain go", "cache npm"
	// Kept is, of a cache, the name of the kept cache of the source that it is a directory of:
	// "go". "": what is written there is thrown away.
	Kept string `json:"kept,omitempty"`
	// Denies is the rule that put this file in place of a denied program; each execution
	// of the file is counted.
	Denies *Denial `json:"denies,omitempty"`
}

// Denial is a rule that denies a program.
type Denial struct {
	Rule   string `json:"rule"`   // "deny program curl"
	Origin string `json:"origin"` // where the rule is written
}

// Limits bound the resource use of a cell. Zero is never "unlimited": it means that no
// value was requested and the default applies.
type Limits struct {
	CPUs    float64       `json:"cpus,omitempty"`   // cores
	Memory  int64         `json:"memory,omitempty"` // bytes
	PIDs    int64         `json:"pids,omitempty"`   // processes and threads
	Disk    int64         `json:"disk,omitempty"`   // bytes the cell may write and keep
	Timeout time.Duration `json:"timeout,omitempty"`
}
