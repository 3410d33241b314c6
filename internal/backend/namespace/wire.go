package namespace

import (
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
)

// wire is what the daemon's side tells the driver in the keeper to make a
// cell; the files of mounts that the daemon opened travel with it.
type wire struct {
	Spec   cell.Spec `json:"spec"`
	Mounts []mount   `json:"mounts"` // one for each of Spec.Mounts
	// Cgroup is where the cell's cgroup is; nil when there is none. The files
	// by which to enter it are the last of those passed.
	Cgroup   *linux.CgroupPlace `json:"cgroup,omitempty"`
	Into     bool               `json:"into,omitempty"`  // the first of them is for CLONE_INTO_CGROUP
	Tasks    int                `json:"tasks,omitempty"` // then so many tasks files
	Scratch  string             `json:"scratch"`         // a directory for mount points, when the keeper mounts
	Landlock bool               `json:"landlock"`
	Talks    bool               `json:"talks,omitempty"`   // it gets an interface
	Link     string             `json:"link,omitempty"`    // of which kind alone, as in Above
	Tun      *int               `json:"tun,omitempty"`     // index of the passed file that TUNs can be made from
	Staged   bool               `json:"staged,omitempty"`  // its commands run on another kernel, see Stage
	UserNS   int                `json:"user_ns,omitempty"` // how many more user namespaces there may be
	// MaxProcs is the limit on processes where only a resource limit can
	// apply it; 0 when a cgroup does.
	MaxProcs int64 `json:"max_procs,omitempty"`
}

// mount is how one of the spec's mounts reaches the cell.
type mount struct {
	File int  `json:"file"` // index of the passed file, -1: the keeper opens it itself
	Dir  bool `json:"dir"`  // the mount point is a directory
}

// madeCell is what the driver measured when it made a cell.
type madeCell struct {
	Init       int               `json:"init"`       // host pid of the first process
	Namespaces map[string]string `json:"namespaces"` // of the first process: "pid" → "pid:[4026…]"
	UserNS     string            `json:"user_ns"`
	Link       string            `json:"link,omitempty"` // "tun", "veth", "socket"; "" for loopback alone
	// Untold is why executions of denied programs are not counted here, "" if
	// they are.
	Untold string `json:"untold,omitempty"`
}
