package durable

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"path"
	"strings"
)

// partialSuffix ends the name of a file that is not complete.
const partialSuffix = ".partial"

// IsPartial reports whether a file of that name was being written by this
// package when the power or the process went away.
func IsPartial(name string) bool {
	rest, ok := strings.CutSuffix(path.Base(name), partialSuffix)
	if !ok || len(rest) < 10 || rest[len(rest)-9] != '.' {
		return false
	}
	return strings.Trim(rest[len(rest)-8:], "0123456789abcdef") == ""
}

// RemovePartial removes what interrupted writes left in a directory. It must
// not run while something is being written there.
func RemovePartial(fsys FS, dir string) error {
	return removePartial(fsys, dir, func(string) bool { return true })
}

func removePartial(fsys FS, dir string, which func(name string) bool) error {
	infos, err := fsys.List(dir)
	if err != nil {
		return fail("durable.RemovePartial", "list "+dir, err)
	}
	for _, i := range infos {
		if !i.Dir && IsPartial(i.Name) && which(i.Name) {
			name := path.Join(dir, i.Name)
			if err := fsys.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fail("durable.RemovePartial", "remove "+name, err)
			}
		}
	}
	return nil
}

// WriteFile makes name hold exactly data, with permissions perm. When it
// returns nil, that survives power loss; when it fails or the power goes away
// meanwhile, name holds either all of data or what it held before.
func WriteFile(fsys FS, name string, data []byte, perm fs.FileMode) error {
	f, err := replace(fsys, name, perm, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
	if f != nil {
		f.Close() // synced: nothing is lost with an error here
	}
	if err != nil {
		return fail("durable.WriteFile", "write "+name, err)
	}
	return nil
}

// errUnsure marks the failure after which name may be the old or the new file
// once the power has been away.
type errUnsure struct{ error }

func (e errUnsure) Unwrap() error { return e.error }

// replace puts a new file in name's place and returns it open for appending.
// When it fails, name is what it was and the temporary file is gone, except
// that after errUnsure the new file is there, returned, and not sure to stay.
func replace(fsys FS, name string, perm fs.FileMode, fill func(io.Writer) error) (_ File, err error) {
	f, err := fsys.CreateTemp(name, perm)
	if err != nil {
		return nil, err
	}
	renamed := false
	defer func() {
		if err != nil && !renamed {
			f.Close()
			err = errors.Join(err, fsys.Remove(f.Name()))
		}
	}()
	b := bufio.NewWriterSize(f, 1<<16)
	if err := fill(b); err != nil {
		return nil, err
	}
	if err := b.Flush(); err != nil {
		return nil, err
	}
	if err := f.Sync(); err != nil {
		return nil, err
	}
	if err := fsys.Rename(f.Name(), name); err != nil {
		return nil, err
	}
	renamed = true
	if err := fsys.SyncDir(path.Dir(name)); err != nil {
		return f, errUnsure{err}
	}
	return f, nil
}

// MakeDirs makes name and its missing parents, so that they survive power loss. It also
// syncs existing ones: the process that made them may have ended before its sync.
func MakeDirs(fsys FS, name string, perm fs.FileMode) error {
	name = path.Clean(name)
	if name == "." {
		return nil
	}
	if err := MakeDirs(fsys, path.Dir(name), perm); err != nil {
		return err
	}
	err := fsys.Mkdir(name, perm)
	if err == nil || errors.Is(err, fs.ErrExist) {
		err = fsys.SyncDir(path.Dir(name))
	}
	if err != nil {
		return fail("durable.MakeDirs", "make directory "+name, err)
	}
	return nil
}
