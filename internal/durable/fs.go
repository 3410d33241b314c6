package durable

import (
	"io"
	"io/fs"
)

// An FS is one directory and what is below it. Names are relative, with
// slashes, and never lead out of it; "." is the directory itself.
//
// Errors can be asked with errors.Is for fs.ErrNotExist, fs.ErrExist and the
// system's error numbers. All methods are safe for concurrent use. Nothing
// survives power loss before the matching sync: a file's content needs the
// file's Sync or SyncData, its name (new, renamed or removed) the SyncDir of
// its directory.
type FS interface {
	// CreateTemp makes a new empty file in name's directory. It is called
	// name plus an ending that IsPartial knows, and has exactly perm.
	CreateTemp(name string, perm fs.FileMode) (File, error)
	// OpenAppend opens an existing file for writing at its end.
	OpenAppend(name string) (File, error)
	// Open opens an existing file for reading.
	Open(name string) (Reader, error)
	// Rename moves a file within its directory, replacing what is there.
	Rename(from, to string) error
	// Remove removes a file or an empty directory.
	Remove(name string) error
	// Mkdir makes one directory in an existing one.
	Mkdir(name string, perm fs.FileMode) error
	// SyncDir makes the names in a directory survive power loss.
	SyncDir(name string) error
	// List returns what is in a directory, sorted by name.
	List(name string) ([]Info, error)
}

// A File is open for writing at its end.
type File interface {
	io.Writer
	// Name is the name that the file was opened by.
	Name() string
	// Sync makes the file's content and attributes survive power loss.
	Sync() error
	// SyncData does so for the content and the size.
	SyncData() error
	// Truncate cuts the file; the next write goes to the new end.
	Truncate(size int64) error
	Close() error
}

// A Reader is open for reading.
type Reader interface {
	io.ReaderAt
	Info() (Info, error)
	Close() error
}

// Info describes a file or a directory.
type Info struct {
	Name string // without its directory
	Size int64  // bytes
	Perm fs.FileMode
	Dir  bool
}

// ReadFile returns the content of a file.
func ReadFile(fsys FS, name string) ([]byte, error) {
	b, _, err := ReadInfo(fsys, name)
	return b, err
}

// ReadInfo returns the content of a file and what Info says about the very
// same file.
func ReadInfo(fsys FS, name string) ([]byte, Info, error) {
	r, err := fsys.Open(name)
	if err != nil {
		return nil, Info{}, fail("durable.ReadFile", "read "+name, err)
	}
	defer r.Close()
	info, err := r.Info()
	if err != nil {
		return nil, Info{}, fail("durable.ReadFile", "read "+name, err)
	}
	b := make([]byte, info.Size)
	n, err := r.ReadAt(b, 0)
	if err != nil && err != io.EOF {
		return nil, Info{}, fail("durable.ReadFile", "read "+name, err)
	}
	return b[:n], info, nil
}
