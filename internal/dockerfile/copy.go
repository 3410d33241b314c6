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
	"github.com/moby/patternmatcher"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/oci"
)

// An item is one name that a COPY makes.
type item struct {
	to    string      // in the image: relative, and real
	from  string      // in src
	src   files       // nil: content is the text
	of    cell.Digest // the image that src is; zero: the context
	text  string
	info  info
	owned bool // the owner was asked for
	// archive says that it is one, and its files are put below to.
	archive bool
}

// copies are what one layer is made of, in their order: folders, files and links. Where they go follows BuildKit's copies
// (github.com/tonistiigi/fsutil, copy/copy.go): symlinks of the destination are followed, those of names below it are replaced; neither does
// a file replace a folder nor a folder what is none.
type copies struct {
	ctx   context.Context
	below files                // the image below; nil: there is none
	made  map[string]madeThing // by real path
	items []item
	// flush makes a layer of the items, and returns the files of the image with that. It is asked for after an archive, the names of which
	// are not known.
	flush    func() (files, error)
	archived bool // the last item is an archive
	flushed  int  // items of layers that were made before
}

// A madeThing is what a layer has made at a path.
type madeThing struct {
	info
	fresh bool // a folder that the image below does not have: nothing of it is below this one
}

func newCopies(ctx context.Context, below files) *copies {
	return &copies{ctx: ctx, below: below, made: map[string]madeThing{}}
}

// more refuses to go on when the build ends, or when there are more items than an image can have.
func (c *copies) more() error {
	if c.ctx.Err() != nil {
		return context.Cause(c.ctx)
	}
	if c.flushed+len(c.items) > oci.DefaultLimits.Files {
		return cell.Errorf(cell.Unsupported, "dockerfile.Build", "copy less", "it copies more than %d files", oci.DefaultLimits.Files)
	}
	return nil
}

// The bounds of a path in an image, as for layers, in bytes and components.
const (
	maxPath  = 4095
	maxDepth = 200
	maxName  = 255
)

// possible refuses a path that no image has.
func possible(p string) error {
	p = strings.Trim(p, "/")
	if len(p) > maxPath || strings.Count(p, "/") >= maxDepth {
		return wrong("the path %s is too long", cell.Clip(p))
	}
	for name := range strings.SplitSeq(p, "/") {
		if name == ".." {
			return wrong("the path %s leads out of the image", cell.Clip(p))
		}
		if len(name) > maxName {
			return wrong("the name %s is too long", cell.Clip(name))
		}
		if err := namable(name); err != nil {
			return err
		}
	}
	if strings.ContainsRune(p, 0) {
		return wrong("the path %s has a NUL in it", cell.Clip(p))
	}
	return nil
}

// stat says what is at a real path: what the layer has made, or the image below has.
func (c *copies) stat(p string) (info, error) {
	if m, ok := c.made[p]; ok {
		return m.info, nil
	}
	if p == "" {
		return info{kind: fs.ModeDir}, nil
	}
	if c.below == nil || c.made[parentOf(p)].fresh {
		return info{}, fs.ErrNotExist
	}
	return c.below.stat(p)
}

func (c *copies) names(string) ([]string, error)           { return nil, errors.ErrUnsupported }
func (c *copies) open(string, info) (io.ReadCloser, error) { return nil, errors.ErrUnsupported }

func parentOf(p string) string {
	if dir := path.Dir(p); dir != "." {
		return dir
	}
	return ""
}

// place follows a path of the image: where it leads, and whether that is a folder. What is not there is no error.
func (c *copies) place(p string) (real string, there, folder bool, err error) {
	if err := possible(p); err != nil {
		return "", false, false, err
	}
	real, i, err := resolve(c, p)
	if errors.Is(err, fs.ErrNotExist) {
		return real, false, false, possible(real)
	}
	return real, err == nil, i.kind == fs.ModeDir, err
}

// A dress gives an item its owner and its mode.
type dress func(*item)

// folder adds a folder by its real path, and those above it, unless they are there.
func (c *copies) folder(real string, as dress) error {
	i, err := c.stat(real)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case i.kind != fs.ModeDir:
		return wrong("/%s is no folder", cell.Clip(real))
	default:
		return nil
	}
	if err := c.folder(parentOf(real), as); err != nil {
		return err
	}
	return c.put(item{to: real, info: info{kind: fs.ModeDir, mode: 0o755}}, as)
}

// put adds an item, in a folder that is there.
func (c *copies) put(i item, as dress) error {
	if err := c.more(); err != nil {
		return err
	}
	if err := possible(i.to); err != nil {
		return err
	}
	was, err := c.stat(i.to)
	there := err == nil
	switch isDir := i.info.kind == fs.ModeDir || i.archive; {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	case there && isDir && was.kind != fs.ModeDir:
		return wrong("/%s is no folder, and one is copied to it", cell.Clip(i.to))
	case there && !isDir && was.kind == fs.ModeDir:
		return wrong("/%s is a folder, and none is copied to it", cell.Clip(i.to))
	}
	as(&i)
	if !i.archive {
		m := madeThing{info: i.info, fresh: i.info.kind == fs.ModeDir && !there}
		if old, ok := c.made[i.to]; ok {
			m.fresh = old.fresh
		}
		c.made[i.to] = m
	}
	c.items, c.archived = append(c.items, i), i.archive
	return nil
}

// known makes a layer of what there is after an archive, so that its names are known.
func (c *copies) known() error {
	if !c.archived {
		return nil
	}
	below, err := c.flush()
	if err != nil {
		return err
	}
	c.flushed += len(c.items)
	c.below, c.items, c.made, c.archived = below, nil, map[string]madeThing{}, false
	return nil
}

// makeFolder adds the folder of a WORKDIR.
func (c *copies) makeFolder(p string) error {
	real, _, _, err := c.place(p)
	if err == nil {
		err = c.folder(real, func(*item) {})
	}
	return err
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
	exclude, err := newPatterns("--exclude", k.exclude)
	if err != nil {
		return fail(err)
	}
	as := func(i *item) {
		i.of, i.owned = of, k.chown != ""
		if i.owned {
			i.info.uid, i.info.gid = uid, gid
		}
		if mode >= 0 && i.info.kind != fs.ModeSymlink {
			i.info.mode = mode
		}
	}
	slash := strings.HasSuffix(k.dest, "/")
	var dest string
	var into bool
	locate := func() (err error) {
		var there bool
		if dest, there, into, err = c.place(k.dest); err == nil && slash && there && !into {
			err = wrong("%s is no folder", cell.Clip(k.dest))
		}
		into = into || slash
		return err
	}
	if err := locate(); err != nil {
		return fail(err)
	}
	prepare := func() error { // for each that is copied
		if c.archived {
			if err := c.known(); err != nil {
				return err
			}
			if err := locate(); err != nil {
				return err
			}
		}
		if into {
			return c.folder(dest, as)
		}
		return c.folder(parentOf(dest), as)
	}
	at := func(name string) string {
		if into {
			return join(dest, name)
		}
		return dest
	}
	for _, in := range k.inline {
		if err := prepare(); err != nil {
			return fail(err)
		}
		name := path.Base(path.Clean("/" + in.name)) // as in a folder that holds it alone
		if name == "/" {
			return fail(wrong("%q is no name of a file", cell.Clip(in.name)))
		}
		if err := c.put(item{to: at(name), text: in.text, info: info{mode: 0o644, size: int64(len(in.text))}}, as); err != nil {
			return fail(err)
		}
	}
	for _, pattern := range k.sources {
		found, err := match(src, pattern)
		if err != nil {
			return fail(err)
		}
		if len(found) > 1 && !into {
			return fail(wrong("%s matches %d files: the destination must be a folder, and end with /", cell.Clip(pattern), len(found)))
		}
		for _, name := range found {
			if err := c.more(); err != nil {
				return err
			}
			real, i, err := resolve(src, name)
			if err == nil {
				if err := prepare(); err != nil {
					return fail(err)
				}
			}
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return missing(k, name)
			case err != nil:
				return fail(err)
			case i.kind == fs.ModeDir:
				if err = c.folder(dest, as); err == nil {
					n := len(c.items)
					t := &treeCopy{c: c, src: src, dir: real, dest: dest, exclude: exclude, as: as}
					err = t.folder("", patternmatcher.MatchInfo{}, func() error { return nil })
					if err == nil && i.ignored && len(c.items) == n { // nothing of it is excepted
						return missing(k, name)
					}
				}
			case i.kind != 0:
				err = wrong("%s is no file and no folder", cell.Clip(name))
			default:
				var out bool // as Docker documents it; BuildKit copies it
				if out, _, err = exclude.match(path.Base(name), patternmatcher.MatchInfo{}); err != nil || out {
					break
				}
				err = c.file(k, item{to: at(path.Base(name)), from: real, src: src, info: i}, dest, mode, as)
			}
			if err != nil {
				return fail(err)
			}
		}
	}
	return nil
}

// file adds a file that an instruction names, or what is in it if it is an archive to be unpacked into the destination.
func (c *copies) file(k *copying, i item, dest string, mode int64, as dress) error {
	if k.unpack {
		archive, err := isArchive(c.ctx, i.src, i.from, i.info)
		if err != nil {
			return err
		}
		if archive && mode >= 0 {
			return unsupported(k.line, "change modes in a RUN instruction", "--chmod of an archive that is unpacked is not supported")
		}
		if archive {
			i.to, i.archive = dest, true
			if err := c.folder(dest, as); err != nil {
				return err
			}
		}
	}
	return c.put(i, as)
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

// A treeCopy copies what is in a folder into another, which is there.
type treeCopy struct {
	c         *copies
	src       files
	dir, dest string // real
	exclude   *patterns
	as        dress
}

// folder copies what is in a folder. rel is its path below dir, matched what the patterns said of it. A folder of which only what is excepted
// is copied is made by the first of that: ensure makes it, and those above it.
func (t *treeCopy) folder(rel string, matched patternmatcher.MatchInfo, ensure func() error) error {
	names, err := t.src.names(join(t.dir, rel))
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := t.c.more(); err != nil {
			return err
		}
		at := join(rel, n)
		from := join(t.dir, at)
		i, err := t.src.stat(from)
		if _, ok := t.src.(*contextFiles); ok && errors.Is(err, fs.ErrNotExist) { // ignored
			continue
		}
		if err != nil {
			return err
		}
		out, said, err := t.exclude.match(at, matched)
		if err != nil {
			return err
		}
		switch i.kind {
		case fs.ModeDir:
			if out && !t.exclude.exceptions() {
				continue
			}
			done := false
			make := func() error {
				if done {
					return nil
				}
				done = true
				if err := ensure(); err != nil {
					return err
				}
				if was, err := t.c.stat(join(t.dest, at)); out && err == nil && was.kind == fs.ModeDir { // it gets the mode alone
					was.mode, was.mtime = i.mode, i.mtime
					return t.c.put(item{to: join(t.dest, at), info: was}, func(*item) {})
				}
				return t.c.put(item{to: join(t.dest, at), info: i}, t.as)
			}
			if !out && !i.ignored {
				err = make()
			}
			if err == nil {
				err = t.folder(at, said, make)
			}
		case 0, fs.ModeSymlink:
			if out {
				continue
			}
			if err = ensure(); err == nil {
				err = t.c.put(item{to: join(t.dest, at), from: from, src: t.src, info: i}, t.as)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func join(dir, name string) string { return strings.Trim(path.Join(dir, name), "/") }

// digest adds to a hash what the layer is made of.
func (c *copies) digest(h hash.Hash) {
	for _, i := range c.items {
		fmt.Fprintf(h, "%q %o %o %d %d %q %q %q %v\n", i.to, i.info.kind, i.info.mode, i.info.uid, i.info.gid, i.info.id, i.info.target, i.text, i.archive)
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
	mtime := i.info.mtime
	if mtime.IsZero() {
		mtime = time.Unix(0, 0)
	}
	h := &tar.Header{Typeflag: tar.TypeReg, Name: i.to, Mode: i.info.mode, Uid: i.info.uid, Gid: i.info.gid, Size: i.info.size, ModTime: mtime, Format: tar.FormatPAX}
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
		if was.Typeflag != tar.TypeDir && path.Clean("/"+was.Name) == "/" && was.Typeflag != tar.TypeXGlobalHeader {
			return wrong("cannot unpack %s: its root is no folder", cell.Clip(i.from))
		}
		below := func(name string) string { return strings.TrimPrefix(path.Join(i.to, path.Clean("/"+name)), "/") }
		h := &tar.Header{Typeflag: was.Typeflag, Name: below(was.Name), Size: was.Size, Mode: was.Mode, Uid: was.Uid, Gid: was.Gid, ModTime: was.ModTime, Format: tar.FormatPAX}
		switch {
		case was.Typeflag == tar.TypeXGlobalHeader, h.Name == "": // the root of the image stays as it is
			continue
		case (was.Typeflag == tar.TypeChar || was.Typeflag == tar.TypeBlock) && strings.HasPrefix(h.Name, "dev/"): // /dev is no part of images
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
			h.Uid, h.Gid = i.info.uid, i.info.gid
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
