package durable

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"github.com/pando-dev/pando/internal/cell"
)

// fail says what could not be done. The kind comes from the cause; paths in
// it are left out, because doing names the file.
func fail(op, doing string, err error) error {
	if e, ok := errors.AsType[*cell.Error](err); ok {
		return e
	}
	kind, hint := cell.Internal, ""
	switch {
	case errors.Is(err, fs.ErrNotExist):
		kind = cell.NotFound
	case errors.Is(err, fs.ErrExist):
		kind = cell.Exists
	case errors.Is(err, fs.ErrPermission):
		kind = cell.Denied
	case errors.Is(err, fs.ErrInvalid):
		kind = cell.Invalid
	case IsFull(err):
		kind, hint = cell.Unavailable, "free some space on the disk that holds pando's state"
	case errors.Is(err, syscall.EROFS):
		kind, hint = cell.Unavailable, "make the disk that holds pando's state writable"
	case errors.Is(err, syscall.EIO):
		kind, hint = cell.Unavailable, "check the disk that holds pando's state"
	}
	return cell.Errorf(kind, op, hint, "cannot %s: %w", doing, cause(err))
}

// cause strips the names of calls and paths from an error of the system.
func cause(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	if e, ok := errors.AsType[*os.LinkError](err); ok {
		return e.Err
	}
	return err
}

// IsFull reports whether an error says that a disk is full, or that a quota is used up.
func IsFull(err error) bool { return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) }

// Full says what a full disk means to the caller that waits.
func Full(err error) error {
	if IsFull(err) {
		return cell.Errorf(cell.Unavailable, "durable", "free some space (`pando gc` shows what pando can free), then try again", "cannot go on: %w", err)
	}
	return err
}
