package dockerfile

import (
	"archive/tar"
	"bufio"
	"compress/bzip2"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/oci"
)

// An item is one name that a COPY makes.
type item struct {
	to    string      // in the image: relative, as it is written
	from  string      // in src
	src   files       // nil: content is the text
	of    cell.Digest // the image that src is; zero: the context
	text  string
	info  info
	uid   int
	gid   int
	owned bool // uid and gid were asked for
	// archive says that it is one, and its files are put below to.
	archive bool
}

// A layer of copies is made of folders, files and links in their order. What it names in another image is resolved there.
type copies struct {
	ctx   context.Context
	below files // the image below; nil: there is none
	made  map[string]bool
	items []item
}

func newCopies(ctx context.Context, below files) *copies {
	return &copies{ctx: ctx, below: below, made: map[string]bool{}}
}

// more refuses to go on when the build ends, or when there are more items than an image can have.
func (c *copies) more() error {
	if c.ctx.Err() != nil {
		return context.Cause(c.ctx)
	}
	if len(c.items) > oci.DefaultLimits.Files {
		return cell.Errorf(cell.Unsupported, "dockerfile.Build", "copy less", "it copies more than %d files", oci.DefaultLimits.Files)
	}
	return nil
}

// folder adds a folder, unless it is there.
func (c *copies) folder(p string) error {
	p = strings.TrimPrefix(p, "/")
	if p == "" || c.made[p] {
		return nil
	}
	dir, err := c.isFolder(p)
	if err != nil || dir {
		return err
	}
	if up := path.Dir(p); up != "." {
		if err := c.folder(up); err != nil {
			return err
		}
	}
	c.made[p] = true
	c.items = append(c.items, item{to: p, info: info{kind: fs.ModeDir, mode: 0o755}})
	return nil
}

// isFolder reports whether the image has a folder at a path, perhaps by way of symlinks.
func (c *copies) isFolder(p string) (bool, error) {
	p = strings.Trim(p, "/")
	if p == "" || c.made[p] {
		return true, nil
	}
	if c.below == nil {
		return false, nil
	}
	_, i, err := resolve(c.below, p)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return i.kind == fs.ModeDir, err
}

// add adds what one instruction copies.
func (c *copies) add(k *copying, src files, of cell.Digest, accounts func(chown string) (uid, gid int, err error)) error {
	fail := func(err error) error { return atLine(k.line, err) }
	uid, gid, err := accounts(k.chown)
	if err != nil {
		return fail(err)
	}
	mode := int64(-1)
	if k.chmod != "" {
		if mode, err = strconv.ParseInt(k.chmod, 8, 32); err != nil || mode < 0 || mode > 0o7777 {
			return unsupported(k.line, "write it as an octal number", "--chmod=%s is not supported", cell.Clip(k.chmod))
		}
	}
	dress := func(i item) item {
		i.uid, i.gid, i.of, i.owned = uid, gid, of, k.chown != ""
		if mode >= 0 && i.info.kind != fs.ModeSymlink {
			i.info.mode = mode
		}
		return i
	}
	into := strings.HasSuffix(k.dest, "/")
	if !into {
		if into, err = c.isFolder(k.dest); err != nil {
			return fail(err)
		}
	}
	dest := strings.Trim(k.dest, "/")
	for _, in := range k.inline {
		to := dest
		if into {
			to = path.Join(dest, in.name)
		}
		if err := c.parent(to); err != nil {
			return fail(err)
		}
		c.items = append(c.items, dress(item{to: to, text: in.text, info: info{mode: 0o644, size: int64(len(in.text))}}))
	}
	for _, pattern := range k.sources {
		found, err := match(src, pattern)
		if err != nil {
			return fail(err)
		}
		if len(found) == 0 {
			return fail(wrong("nothing matches %s", cell.Clip(pattern)))
		}
		if len(found) > 1 && !into {
			return fail(wrong("%s matches %d files: the destination must be a folder, and end with /", cell.Clip(pattern), len(found)))
		}
		for _, at := range found {
			if err := c.more(); err != nil {
				return err
			}
			real, i, err := resolve(src, at)
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return missing(k, at)
			case err != nil:
				return fail(err)
			case i.kind == fs.ModeDir:
				err = c.tree(src, real, dest, "", k.exclude, dress)
			case i.kind != 0:
				err = wrong("%s is no file and no folder", cell.Clip(at))
			default:
				to := dest
				archive := false
				if k.unpack {
					if archive, err = isArchive(c.ctx, src, real, i); err != nil {
						return fail(err)
					}
				}
				if into && !archive {
					to = path.Join(dest, path.Base(at))
				}
				if archive && mode >= 0 {
					return unsupported(k.line, "change modes in a RUN instruction", "--chmod of an archive that is unpacked is not supported")
				}
				if archive {
					err = c.folder(to)
				} else {
					err = c.parent(to)
				}
				c.items = append(c.items, dress(item{to: to, from: real, src: src, info: i, archive: archive}))
			}
			if err != nil {
				return fail(err)
			}
		}
	}
	return nil
}

// missing says why a source of COPY is not there.
func missing(k *copying, at string) error {
	if k.on >= 0 || k.image != "" {
		return atLine(k.line, cell.Errorf(cell.NotFound, "dockerfile.Build", "", "%s is not in %s", cell.Clip(at), k.origin()))
	}
	return located{cell.Errorf(cell.NotFound, "dockerfile.Build", "check its name and .dockerignore; what looks like a secret comes along only with --with-secret PATH", "line %d of the Dockerfile: %s is not in the context", k.line, cell.Clip(at))}
}

// origin names what is copied from, for people.
func (k *copying) origin() string {
	if k.image != "" {
		return "image " + cell.Clip(k.image)
	}
	return "the stage it names"
}

// parent adds the folder that holds a path.
func (c *copies) parent(p string) error {
	if dir := path.Dir(p); dir != "." {
		return c.folder(dir)
	}
	return nil
}

// tree adds what is in a folder, below another.
func (c *copies) tree(src files, dir, dest, rel string, exclude []string, dress func(item) item) error {
	if at, err := src.stat(strings.TrimPrefix(path.Join(dir, rel), "/")); err != nil {
		return err
	} else if !at.ignored {
		if err := c.folder(path.Join(dest, rel)); err != nil {
			return err
		}
	}
	names, err := src.names(path.Join(dir, rel))
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := c.more(); err != nil {
			return err
		}
		at := path.Join(rel, n)
		if excluded(exclude, at) {
			continue
		}
		from := strings.TrimPrefix(path.Join(dir, at), "/")
		i, err := src.stat(from)
		if _, ok := src.(*contextFiles); ok && errors.Is(err, fs.ErrNotExist) { // ignored
			continue
		}
		if err != nil {
			return err
		}
		switch i.kind {
		case fs.ModeDir:
			if to := path.Join(dest, at); !c.made[to] && !i.ignored {
				if there, err := c.isFolder(to); err != nil {
					return err
				} else if !there {
					c.made[to] = true
					c.items = append(c.items, dress(item{to: to, info: info{kind: fs.ModeDir, mode: i.mode, mtime: i.mtime}}))
				}
			}
			err = c.tree(src, dir, dest, at, exclude, dress)
		case 0, fs.ModeSymlink:
			if err := c.parent(path.Join(dest, at)); err != nil { // of a folder that is ignored but for this
				return err
			}
			c.items = append(c.items, dress(item{to: path.Join(dest, at), from: from, src: src, info: i}))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func excluded(patterns []string, at string) bool {
	for _, p := range patterns {
		if ok, err := path.Match(strings.Trim(p, "/"), at); ok && err == nil {
			return true
		}
	}
	return false
}

// digest adds to a hash what the layer is made of.
func (c *copies) digest(h hash.Hash) {
	for _, i := range c.items {
		fmt.Fprintf(h, "%q %o %o %d %d %q %q %q %v\n", i.to, i.info.kind, i.info.mode, i.uid, i.gid, i.info.id, i.info.target, i.text, i.archive)
		if i.owned {
			fmt.Fprintln(h, "owned")
		}
		if !i.of.IsZero() { // files of images are known by the identity of these
			fmt.Fprintf(h, "%q of %s\n", i.from, i.of)
		}
	}
}

// write writes the layer.
func (c *copies) write(ctx context.Context, w *tar.Writer) error {
	for _, i := range c.items {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := i.write(ctx, w); err != nil {
			return err
		}
	}
	return nil
}

func (i *item) write(ctx context.Context, w *tar.Writer) error {
	if err := namable(i.to); err != nil {
		return err
	}
	mtime := i.info.mtime
	if mtime.IsZero() {
		mtime = time.Unix(0, 0)
	}
	h := &tar.Header{Typeflag: tar.TypeReg, Name: i.to, Mode: i.info.mode, Uid: i.uid, Gid: i.gid, Size: i.info.size, ModTime: mtime, Format: tar.FormatPAX}
	switch i.info.kind {
	case fs.ModeDir:
		h.Typeflag, h.Name, h.Size = tar.TypeDir, i.to+"/", 0
	case fs.ModeSymlink:
		h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, i.info.target, 0
	}
	if i.archive {
		return i.unpack(ctx, w)
	}
	if err := w.WriteHeader(h); err != nil || h.Typeflag != tar.TypeReg {
		return err
	}
	if i.src == nil {
		_, err := io.WriteString(w, i.text)
		return err
	}
	f, err := i.src.open(i.from, i.info)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.CopyN(w, f, i.info.size)
	return err
}

// namable refuses a name that a layer can't have: it would hide another.
func namable(name string) error {
	if strings.HasPrefix(path.Base(name), ".wh.") {
		return wrong("cannot copy %s: in an image such a name hides another", cell.Clip(name))
	}
	return nil
}

// unpack writes the files of an archive.
func (i *item) unpack(ctx context.Context, w *tar.Writer) error {
	f, err := i.src.open(i.from, i.info)
	if err != nil {
		return err
	}
	defer f.Close()
	plain, done, err := plainOf(f)
	if err != nil {
		return err
	}
	defer done()
	r := tar.NewReader(&meter{ctx: ctx, r: plain, left: oci.DefaultLimits.Bytes})
	for {
		was, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cannot unpack %s: %w", cell.Clip(i.from), err)
		}
		below := func(name string) string { return strings.TrimPrefix(path.Join(i.to, path.Clean("/"+name)), "/") }
		h := &tar.Header{Typeflag: was.Typeflag, Name: below(was.Name), Size: was.Size, Mode: was.Mode, Uid: was.Uid, Gid: was.Gid, ModTime: was.ModTime, Format: tar.FormatPAX}
		switch {
		case was.Typeflag == tar.TypeXGlobalHeader, h.Name == "": // the root of the image stays as it is
			continue
		case was.Typeflag == tar.TypeDir:
			h.Name += "/"
		case was.Typeflag == tar.TypeLink:
			h.Linkname = below(was.Linkname)
		case was.Typeflag == tar.TypeSymlink:
			h.Linkname = was.Linkname
		case was.Typeflag == tar.TypeGNUSparse, was.Typeflag == tar.TypeCont:
			h.Typeflag = tar.TypeReg
		}
		if err := namable(strings.TrimSuffix(h.Name, "/")); err != nil {
			return err
		}
		if i.owned {
			h.Uid, h.Gid = i.uid, i.gid
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(w, r); err != nil {
			return err
		}
	}
}

// isArchive reports whether a file is an archive that ADD unpacks, by its content.
func isArchive(ctx context.Context, src files, p string, i info) (bool, error) {
	f, err := src.open(p, i)
	if err != nil {
		return false, err
	}
	defer f.Close()
	in := bufio.NewReader(f)
	if b, _ := in.Peek(6); string(b) == "\xfd7zXZ\x00" {
		return false, cell.Errorf(cell.Unsupported, "dockerfile.Build", "unpack it in a RUN instruction", "cannot unpack %s: archives of xz are not supported", cell.Clip(p))
	}
	plain, done, err := plainOf(in)
	if err != nil {
		return false, nil
	}
	defer done()
	_, err = tar.NewReader(&meter{ctx: ctx, r: plain, left: maxHeaders}).Next()
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	return err == nil, nil
}

// maxHeaders bounds what is unpacked of an archive before its first file, in bytes.
const maxHeaders = 16 << 20

// A meter is a reader with a bound, which ends with a context.
type meter struct {
	ctx  context.Context
	r    io.Reader
	left int64 // bytes
}

func (m *meter) Read(p []byte) (int, error) {
	if m.ctx.Err() != nil {
		return 0, context.Cause(m.ctx)
	}
	if m.left <= 0 {
		return 0, wrong("it unpacks to more than is allowed")
	}
	n, err := m.r.Read(p[:min(int64(len(p)), m.left)])
	m.left -= int64(n)
	return n, err
}

// plainOf decompresses gzip, bzip2 and zstd, as their first bytes say.
func plainOf(r io.Reader) (plain io.Reader, done func(), err error) {
	in := bufio.NewReader(r)
	b, _ := in.Peek(6)
	switch {
	case strings.HasPrefix(string(b), "\x1f\x8b"):
		z, err := gzip.NewReader(in)
		return z, func() {}, err
	case strings.HasPrefix(string(b), "BZh"):
		return bzip2.NewReader(in), func() {}, nil
	case strings.HasPrefix(string(b), "\x28\xb5\x2f\xfd"):
		z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			return nil, nil, err
		}
		return z, z.Close, nil
	}
	return in, func() {}, nil
}
