package api

import "time"

// File is one file of a cell.
type File struct {
	Path   string    `json:"path"`             // absolute, in the cell
	Type   string    `json:"type"`             // file, directory, symlink, other
	Size   int64     `json:"size"`             // bytes
	Mode   uint32    `json:"mode"`             // permissions, with the bits 04000, 02000 and 01000; 420 is 0644
	UID    int       `json:"uid"`              // owner
	GID    int       `json:"gid"`              // group
	MTime  time.Time `json:"mtime"`            // modification time, as the cell reports it
	Target string    `json:"target,omitempty"` // target of a symlink
	Leads  string    `json:"leads,omitempty"`  // type of a symlink's target; absent: the link is dangling
	Digest string    `json:"digest,omitempty"` // digest of its bytes, "sha256:…": on request, and of written files
}

// FileRequest names a file of a cell.
type FileRequest struct {
	Path string `json:"path"`         // absolute, or relative to the workspace
	To   string `json:"to,omitempty"` // the new path of a rename
}

// FileEvent is a change in a directory of a cell. The first one is empty: no later change is
// missed.
type FileEvent struct {
	Path string `json:"path"`           // absolute
	What string `json:"what,omitempty"` // create, write, remove, rename, chmod, overflow
}

// Port is a TCP port on which a process of a cell listens.
type Port struct {
	Port    int    `json:"port"`    // its number
	Address string `json:"address"` // the address in the cell: 127.0.0.1, 0.0.0.0, ::1, ::
}

// SignalRequest sends a signal to a command in a cell.
type SignalRequest struct {
	Signal string `json:"signal"` // SIGTERM, SIGKILL, SIGINT, …
}
