// Package upload brings a source from one host to another: Pack writes a directory as
// a tar archive, without what import leaves out, and Unpack makes a directory of one.
//
// Pack promises that no byte of files that package secret leaves out is written: names are
// checked first, and files that need a search are read to the end before they are sent. If
// a token gets into a large file in between, the archive breaks off after a part of it.
// Pack reads nothing outside the directory, and works on every system that the command
// line is built for. Unpack promises to write nothing outside its directory, whatever the
// archive contains.
//
// The transfer of the archive and limits on its size are left to the caller, and further
// rules of the policy to the import of the unpacked directory.
//
//	pack.go    packing
//	links.go   files with several names: links_unix.go, links_other.go
//	unpack.go  unpacking
package upload

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gitdir"
	"github.com/pando-dev/pando/internal/secret"
)

// A Request configures Pack.
type Request struct {
	Dir  string      // the directory
	With secret.With // files to include although they look secret
	Mask bool        // also leave out secrets that git tracks
	// Progress is called from time to time with the numbers packed so far; bytes are of
	// contents. It may be nil.
	Progress func(files int, bytes int64)
}

// Packed is the result of Pack.
type Packed struct {
	Files   int
	Bytes   int64 // of contents
	LeftOut []LeftOut
	Notes   []string // for people
}

// LeftOut is a path that was left out, or a file with left-out fields.
type LeftOut struct {
	Path   string
	Why    string
	Fields []string // left-out fields of the file; nil for all of it
}

// Limits of files that are read as a whole.
const (
	maxScrub = 4 << 20 // as in package workspace
	maxIndex = 64 << 20
	maxConf  = 1 << 20
)

// Pack writes the directory as a tar archive.
func Pack(ctx context.Context, req Request, w io.Writer) (Packed, error) {
	root, err := os.OpenRoot(req.Dir)
	if err != nil {
		return Packed{}, cell.Errorf(cell.NotFound, "upload.Pack", "give the path of a directory with --from", "cannot read the source: %w", err)
	}
	defer root.Close()
	p := &packer{ctx: ctx, req: req, root: root, t: tar.NewWriter(w), links: map[fileID]*linkGroup{}}
	p.lookAtGit()
	if err := p.folder(""); err != nil {
		return p.out, err
	}
	if err := p.linked(); err != nil {
		return p.out, err
	}
	slices.SortFunc(p.out.LeftOut, func(a, b LeftOut) int { return strings.Compare(a.Path, b.Path) })
	p.progress()
	return p.out, p.t.Close()
}

// CheckSource refuses a home directory and the directories above it as a source, on systems
// without package image.
func CheckSource(dir, home string) error {
	if dir != filepath.Dir(dir) && home != "" {
		rel, err := filepath.Rel(dir, home)
		if err != nil || !filepath.IsLocal(rel) {
			return nil
		}
	}
	return cell.Errorf(cell.Denied, "upload.CheckSource", "name a project's directory with --from", "cannot use %s as the source: it is a home directory, or contains one", dir)
}

type packer struct {
	ctx     context.Context
	req     Request
	root    *os.Root
	t       *tar.Writer
	tracked *gitdir.Set
	links   map[fileID]*linkGroup // files with several names, which are sent last
	out     Packed
}

func (p *packer) leave(path, why string, fields ...string) {
	p.out.LeftOut = append(p.out.LeftOut, LeftOut{path, why, fields})
}

func (p *packer) progress() {
	if p.req.Progress != nil {
		p.req.Progress(p.out.Files, p.out.Bytes)
	}
}

// lookAtGit finds out what git tracks. An unreadable repository tracks nothing.
func (p *packer) lookAtGit() {
	st, err := p.root.Lstat(".git")
	if err != nil {
		return
	}
	if !st.IsDir() {
		p.out.Notes = append(p.out.Notes, ".git: the repository that it points to stays here, so git does not work in the cell")
		return
	}
	conf, err := p.read(".git/config", maxConf)
	var size int
	if err == nil {
		size, err = gitdir.HashLen(conf)
	}
	var index []byte
	if err == nil {
		index, err = p.read(".git/index", maxIndex)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return // an empty index
	}
	if err == nil {
		p.tracked, err = gitdir.ReadIndex(bytes.NewReader(index), int64(len(index)), size)
	}
	if err != nil {
		p.tracked = nil
		p.out.Notes = append(p.out.Notes, fmt.Sprintf("cannot read git's index: %v: every file is treated as untracked", err))
	}
}

// read reads a regular file of at most limit bytes.
func (p *packer) read(name string, limit int64) ([]byte, error) {
	f, _, err := p.open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		return nil, errTooLarge
	}
	return b, err
}

var errTooLarge = errors.New("it is too large")

// open opens a regular file. It checks the type before and after, since opening a fifo blocks.
func (p *packer) open(name string) (*os.File, fs.FileInfo, error) {
	st, err := p.root.Lstat(name)
	if err == nil && !st.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: name, Err: errors.New("it is no regular file")}
	}
	if err != nil {
		return nil, nil, err
	}
	f, err := p.root.Open(name)
	if err != nil {
		return nil, nil, err
	}
	now, err := f.Stat()
	if err == nil && !os.SameFile(st, now) {
		err = &fs.PathError{Op: "open", Path: name, Err: errors.New("it was replaced meanwhile")}
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, now, nil
}

// decide returns import's decision on a path.
func (p *packer) decide(name string, mode fs.FileMode) secret.Decision {
	d := secret.Decide(name, mode.IsDir(), p.tracked.Has(name), p.req.With)
	if p.req.Mask {
		d.Tracked = false
	}
	if d.Tracked && d.Action == secret.LeaveOut || mode.Type() == fs.ModeSymlink && d.Action != secret.LeaveOut {
		d.Action = secret.Keep
	}
	return d
}

// folder packs the contents of a folder, "" for the top.
func (p *packer) folder(dir string) error {
	list, err := p.list(dir)
	if err != nil {
		return err
	}
	for _, name := range list {
		if err := context.Cause(p.ctx); err != nil {
			return err
		}
		at := path.Join(dir, name)
		st, err := p.root.Lstat(at)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return failed(at, err)
		}
		if err := p.one(at, st); err != nil {
			return err
		}
	}
	return nil
}

// list lists a folder in order. An unreadable one is left out.
func (p *packer) list(dir string) ([]string, error) {
	f, err := p.root.Open(path.Join(".", dir))
	if err == nil {
		defer f.Close()
		var names []string
		if names, err = f.Readdirnames(-1); err == nil {
			slices.Sort(names)
			return names, nil
		}
	}
	if dir != "" && errors.Is(err, fs.ErrPermission) {
		p.leave(dir, "not readable")
		return nil, nil
	}
	if dir != "" && errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return nil, failed(path.Join(".", dir), err)
}

func failed(name string, err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		err = at.Err
	}
	return fmt.Errorf("cannot pack %s: %w", name, err)
}

func (p *packer) one(at string, st fs.FileInfo) error {
	mode := st.Mode()
	if at == ".git" && !mode.IsDir() {
		return nil // see lookAtGit
	}
	d := p.decide(at, mode)
	if d.Action == secret.LeaveOut {
		p.leave(at, d.Why)
		return p.stays(at, st, d.Why)
	}
	h := &tar.Header{Name: at, Mode: int64(mode.Perm()), ModTime: st.ModTime(), Format: tar.FormatPAX}
	switch mode.Type() {
	case fs.ModeDir:
		h.Typeflag, h.Name = tar.TypeDir, at+"/"
		if err := p.t.WriteHeader(h); err != nil {
			return err
		}
		return p.folder(at)
	case fs.ModeSymlink:
		to, err := p.root.Readlink(at)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return failed(at, err)
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, to
		return p.t.WriteHeader(h)
	case 0:
		if id, ok := idOf(st); ok {
			p.group(id).take(at, d)
			return nil
		}
		_, err := p.file(at, d)
		return err
	}
	p.leave(at, "only files, folders and symlinks are sent")
	return nil
}

// file sends a file, or leaves it out.
func (p *packer) file(at string, d secret.Decision) (sent bool, err error) {
	f, st, err := p.open(at)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case errors.Is(err, fs.ErrPermission):
		p.leave(at, "not readable")
		return false, nil
	case err != nil:
		return false, failed(at, err)
	}
	defer f.Close()
	h := &tar.Header{Typeflag: tar.TypeReg, Name: at, Mode: int64(st.Mode().Perm()), ModTime: st.ModTime(), Size: st.Size(), Format: tar.FormatPAX}
	if d.Action == secret.Scrub && st.Size() > maxScrub {
		if !d.Tracked {
			p.leave(at, "too large to be searched for credentials")
			return false, nil
		}
		d.Action = secret.Keep
	}
	switch d.Action {
	case secret.Scrub:
		return p.scrubbed(f, h, d)
	case secret.ScanContent:
		if d.Tracked {
			break // it is included whatever it contains
		}
		if st.Size() <= maxScrub { // it is searched while it is sent
			b, err := io.ReadAll(io.LimitReader(f, maxScrub))
			if err != nil {
				return false, failed(at, err)
			}
			if found := secret.Scan(at, b); len(found) > 0 {
				p.leave(at, found[0].Why())
				return false, nil
			}
			h.Size = int64(len(b))
			return true, p.send(h, bytes.NewReader(b), nil)
		}
		why, err := scan(at, f, st.Size())
		if err != nil {
			return false, failed(at, err)
		}
		if why != "" {
			p.leave(at, why)
			return false, nil
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return false, failed(at, err)
		}
		return true, p.send(h, f, secret.NewScanner(1))
	}
	return true, p.send(h, f, nil)
}

// scan searches a file for live tokens.
func scan(at string, f io.Reader, size int64) (why string, err error) {
	s := secret.NewScanner(1)
	s.Reset(at)
	if _, err := io.Copy(s, io.LimitReader(f, size)); err != nil {
		return "", err
	}
	if found := s.Findings(); len(found) > 0 {
		return found[0].Why(), nil
	}
	return "", nil
}

// scrubbed sends a small file without its credential fields.
func (p *packer) scrubbed(f io.Reader, h *tar.Header, d secret.Decision) (sent bool, err error) {
	b, err := io.ReadAll(io.LimitReader(f, maxScrub+1))
	if err != nil {
		return false, failed(h.Name, err)
	}
	if !d.Tracked {
		without, fields, ok := secret.ScrubFields(h.Name, b)
		switch {
		case len(b) > maxScrub:
			p.leave(h.Name, "too large to be searched for credentials")
			return false, nil
		case !ok:
			p.leave(h.Name, "may hold credentials and could not be read")
			return false, nil
		case len(fields) > 0:
			p.leave(h.Name, "credential fields", fields...)
			b = without
		}
	}
	h.Size = int64(len(b))
	return true, p.send(h, bytes.NewReader(b), nil)
}

// send sends a file of known size: one that changes meanwhile is cut or padded. The scanner, if
// any, sees the sent bytes: a token that appeared since the search is an error before the file
// is complete.
func (p *packer) send(h *tar.Header, r io.Reader, again *secret.Scanner) error {
	if err := p.t.WriteHeader(h); err != nil {
		return err
	}
	left, buf := h.Size, make([]byte, 64<<10)
	if again != nil {
		again.Reset(h.Name)
	}
	for left > 0 {
		if err := context.Cause(p.ctx); err != nil {
			return err
		}
		n, err := io.ReadFull(r, buf[:min(left, int64(len(buf)))])
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			clear(buf[n:])
			n = int(min(left, int64(len(buf))))
		} else if err != nil {
			return failed(h.Name, err)
		}
		if again != nil {
			again.Write(buf[:n])
		}
		if _, err := p.t.Write(buf[:n]); err != nil {
			return err
		}
		left -= int64(n)
		p.out.Bytes += int64(n)
		p.progress()
	}
	if again != nil && len(again.Findings()) > 0 {
		return cell.Errorf(cell.Conflict, "upload.Pack", "try again", "cannot pack %s: it changed while it was sent, and contains a secret now", h.Name)
	}
	p.out.Files++
	p.progress()
	return nil
}
