package cell

import "time"

// FileAct is something to be done with files of a cell, beside copying them out
// and in.
type FileAct struct {
	Act   string `json:"act"`             // one of those below
	Path  string `json:"path"`            // absolute, in the cell
	To    string `json:"to,omitempty"`    // move: the new path
	Depth int    `json:"depth,omitempty"` // list: how many levels; watch: 0 for the directory alone, else all below it, too
	UID   int    `json:"uid,omitempty"`   // who owns what is made
	GID   int    `json:"gid,omitempty"`
	Size  int64  `json:"size,omitempty"` // read: at most so many bytes; 0: all
}

// The acts.
const (
	FileStat   = "stat"   // one FileInfo
	FileList   = "list"   // what is in a directory
	FileMkdir  = "mkdir"  // a directory, and those above it; Exists if there is one
	FileMove   = "move"   // what is at To is replaced
	FileRemove = "remove" // with all that is in it
	FileRead   = "read"   // the bytes of a regular file
	FileWrite  = "write"  // the bytes that follow become a regular file's
	FileWatch  = "watch"  // FileEvents until the caller hangs up
)

// FileInfo is one file of a cell.
type FileInfo struct {
	Path   string    `json:"path"` // absolute
	Type   string    `json:"type"` // one of those below
	Size   int64     `json:"size"` // bytes
	Mode   uint32    `json:"mode"` // permissions, with the bits 04000, 02000 and 01000
	UID    int       `json:"uid"`
	GID    int       `json:"gid"`
	MTime  time.Time `json:"mtime"`
	Target string    `json:"target,omitempty"` // of a symlink: what it says
	Leads  string    `json:"leads,omitempty"`  // of a symlink: the type of what it leads to; "": nowhere
}

// Listening is a TCP port on which something in a cell listens.
type Listening struct {
	Port    int    `json:"port"`
	Address string `json:"address"` // in the cell: 127.0.0.1, 0.0.0.0, ::1, ::
}

// The types of files.
const (
	TypeFile      = "file"
	TypeDirectory = "directory"
	TypeSymlink   = "symlink"
	TypeOther     = "other" // sockets, fifos, devices
)

// FileEvent is a change in a directory that is watched. The first is empty: from
// there on nothing is missed.
type FileEvent struct {
	Path string `json:"path"`           // absolute
	What string `json:"what,omitempty"` // "create", "write", "remove", "rename", "chmod", "overflow"
}
