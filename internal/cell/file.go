package cell

import "time"

// FileAct is an operation on files of a cell, other than copying them out and in.
type FileAct struct {
	Act   string `json:"act"`             // one of the constants below
	Path  string `json:"path"`            // absolute, in the cell
	To    string `json:"to,omitempty"`    // move: the new path
	Depth int    `json:"depth,omitempty"` // list: number of levels; watch: 0 for the directory alone, else all below it, too
	UID   int    `json:"uid,omitempty"`   // owner of a created file
	GID   int    `json:"gid,omitempty"`
	Size  int64  `json:"size,omitempty"` // read: at most this many bytes; 0: all
}

// The operations.
const (
	FileStat   = "stat"   // one FileInfo
	FileList   = "list"   // the entries of a directory
	FileMkdir  = "mkdir"  // a directory and its missing parents; Exists if it is there
	FileMove   = "move"   // replaces the file at To
	FileRemove = "remove" // with everything in it
	FileRead   = "read"   // the bytes of a regular file
	FileWrite  = "write"  // the bytes that follow become the content of a regular file
	FileWatch  = "watch"  // FileEvents until the caller closes the connection
)

// Writes reports whether an operation changes files.
func (a *FileAct) Writes() bool {
	return a.Act == FileMkdir || a.Act == FileMove || a.Act == FileRemove || a.Act == FileWrite
}

// FileInfo is one file of a cell.
type FileInfo struct {
	Path   string    `json:"path"` // absolute
	Type   string    `json:"type"` // one of the constants below
	Size   int64     `json:"size"` // bytes
	Mode   uint32    `json:"mode"` // permissions, with the bits 04000, 02000 and 01000
	UID    int       `json:"uid"`
	GID    int       `json:"gid"`
	MTime  time.Time `json:"mtime"`
	Target string    `json:"target,omitempty"` // of a symlink: its text
	Leads  string    `json:"leads,omitempty"`  // of a symlink: the type of the file that it leads to; "": nowhere
}

// MappedFile is a file that a process can write through shared memory.
type MappedFile struct {
	// Path is its path as the kernel has it: at its end is that in the cell, unless the name is gone. A
	// line break in it is "\012".
	Path string
	// Inode is its number, or, of a file of a lower layer of overlayfs that was copied up, that of the
	// lower one.
	Inode uint64
}

// Listening is a TCP port that a process in a cell listens on.
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

// FileEvent is a change in a watched directory. The first event is empty: from then on no
// change is missed.
type FileEvent struct {
	Path string `json:"path"`           // absolute
	What string `json:"what,omitempty"` // "create", "write", "remove", "rename", "chmod", "overflow"
}
