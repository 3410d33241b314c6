package isolation

import (
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
)

// wire is the daemon's request to the driver to make a cell. The opened files of its mounts are
// sent with it.
type wire struct {
	Spec   cell.Spec `json:"spec"`
	Mounts []mount   `json:"mounts"` // parallel to Spec.Mounts
	// Cgroup is the cell's cgroup, or nil. The files for entering it are the last files of the
	// request.
	Cgroup   *linux.CgroupPlace `json:"cgroup,omitempty"`
	Into     bool               `json:"into,omitempty"`  // the first of them is for CLONE_INTO_CGROUP
	Tasks    int                `json:"tasks,omitempty"` // number of tasks files that follow
	Scratch  string             `json:"scratch"`         // directory for mount points, if the keeper mounts
	Landlock bool               `json:"landlock"`
	Talks    bool               `json:"talks,omitempty"`   // the cell gets an interface
	Link     string             `json:"link,omitempty"`    // required kind of link, as in Above
	Tun      *int               `json:"tun,omitempty"`     // index of the file from which TUN devices can be made
	Staged   bool               `json:"staged,omitempty"`  // its commands run on another kernel, see Stage
	UserNS   int                `json:"user_ns,omitempty"` // number of further user namespaces allowed
	// MaxProcs is the limit of processes if only RLIMIT_NPROC can apply it; 0 if a cgroup
	// applies it.
	MaxProcs int64 `json:"max_procs,omitempty"`
}

// mount is how the cell gets one of the spec's mounts.
type mount struct {
	File int  `json:"file"` // index of the file; -1 if the keeper opens it
	Dir  bool `json:"dir"`  // the mount point is a directory
}

// Made is what the driver measured of a new cell.
type Made struct {
	Init       int               `json:"init"`       // PID of the first process, on the host
	Namespaces map[string]string `json:"namespaces"` // of the first process: "pid" → "pid:[4026…]"
	UserNS     string            `json:"user_ns"`
	Link       string            `json:"link,omitempty"` // "tun", "veth", "socket"; "" for loopback alone
	// Untold is the reason why executions of denied programs are not counted, or "".
	Untold string `json:"untold,omitempty"`
}
