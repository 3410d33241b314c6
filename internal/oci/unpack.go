package oci

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/cell"
)

// idRange is how many users and groups the files of an image may belong to: as
// many as a cell of root's has.
const idRange = 65536

// unmapped owns files with a uid or gid outside the mapped range.
const unmapped = 65534

// The bounds of names, in bytes and components.
const (
	maxName  = 255
	maxPath  = 4095
	maxDepth = 200

	// maxNames is how many bytes all names together have: names that differ in their
	// ends alone take nothing in a compressed layer, and all of it in memory.
	maxNames = 256 << 20
)

// Counts say what of an image is different on this host.
type Counts struct {
	Files   int   `json:"files"`             // names, after the last layer
	Bytes   int64 `json:"bytes"`             // of their contents, as they were written
	SetID   int   `json:"set_id,omitempty"`  // setuid and setgid bits that were taken off
	Owners  int   `json:"owners,omitempty"`  // files that belong to others in the image
	XAttrs  int   `json:"xattrs,omitempty"`  // extended attributes that were left out
	Special int   `json:"special,omitempty"` // pipes that were left out
}

// unpacker writes the layers of one image into a directory, lowest first. It must have the
// directory for itself.
type unpacker struct {
	root  int // O_PATH
	under *os.Root
	lim   Limits
	own   bool              // owners can be given
	spare func(int64) error // whether the disk has room for so many bytes
	count Counts
	names int           // in all layers
	text  *bound.Budget // bytes of names in all layers, which are kept until it is unpacked
	raw   int64         // bytes of all tars
	dirs  map[string]rights

	// of the present layer, by real paths
	mine   map[string]bool // what it has made
	holds  map[string]bool // directories that hold something of it
	links  map[string]bool // symlinks that it has made
	opaque map[string]bool // directories with their lower content removed already

	last struct { // the directory that was opened last
		asked, real string
		fd          int
	}
}

// rights are what a directory gets when all layers are unpacked: until then it
// must be writable.
type rights struct {
	mode     uint32
	uid, gid int
	mtime    time.Time
}

func newUnpacker(dir string, lim Limits, own bool) (*unpacker, error) {
	under, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		under.Close()
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	u := &unpacker{root: fd, under: under, lim: lim, own: own, dirs: map[string]rights{"": {mode: 0o755, mtime: time.Unix(0, 0)}}, spare: func(int64) error { return nil },
		text: bound.NewBudget("the image's names", maxNames, "bytes")}
	u.last.fd = -1
	return u, nil
}

func (u *unpacker) close() {
	u.forget()
	unix.Close(u.root)
	u.under.Close()
}

// forget closes the directory that was opened last.
func (u *unpacker) forget() {
	if u.last.fd >= 0 {
		unix.Close(u.last.fd)
		u.last.fd = -1
	}
}

// layer unpacks one layer: r is its compressed bytes. It returns the digest of
// its tar.
func (u *unpacker) layer(ctx context.Context, r io.Reader, d descriptor) (diff cell.Digest, err error) {
	u.mine, u.holds, u.links, u.opaque = map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}
	l, err := openLayer(r, d, u.lim.Bytes+int64(u.lim.Files)*2048-u.raw)
	if err != nil {
		return diff, err
	}
	defer l.done()
	for {
		if ctx.Err() != nil {
			return diff, context.Cause(ctx)
		}
		h, err := l.next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return diff, err
		}
		if u.names++; u.names > u.lim.Files {
			return diff, tooMuch("it has more than %d names", u.lim.Files)
		}
		if err := u.text.Spend(int64(len(h.Name))); err != nil {
			return diff, tooMuch("%w", err)
		}
		if err := u.entry(l, h); err != nil {
			return diff, err
		}
	}
	diff, err = l.finish()
	u.raw += l.raw.n
	return diff, err
}

// hostile is the error for what no image has by accident.
func hostile(l *layer, name, why string) error {
	return cell.Errorf(cell.Denied, "oci.Pull", "don't use this image", "cannot unpack layer %s: %q %s", l.name, cell.Clip(name), why)
}

// clean takes the name of a tar apart: "" is the root itself.
func clean(name string) (real, why string) {
	if strings.HasPrefix(name, "/") {
		return "", "is absolute"
	}
	if strings.ContainsRune(name, 0) {
		return "", "has a NUL in it"
	}
	parts := make([]string, 0, 16)
	for _, p := range strings.Split(name, "/") {
		switch {
		case p == "" || p == ".":
		case p == "..":
			return "", "leads out of the image"
		case len(p) > maxName:
			return "", "is too long"
		default:
			parts = append(parts, p)
		}
	}
	real = strings.Join(parts, "/")
	if len(real) > maxPath || len(parts) > maxDepth {
		return "", "is too deep"
	}
	return real, ""
}

const whiteout = ".wh."

// entry makes what one header of a layer says.
func (u *unpacker) entry(l *layer, h *tar.Header) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	name, why := clean(h.Name)
	if why != "" {
		return hostile(l, h.Name, why)
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse, tar.TypeDir, tar.TypeSymlink, tar.TypeLink:
	case tar.TypeFifo:
		u.count.Special++
		return nil
	case tar.TypeChar, tar.TypeBlock:
		return cell.Errorf(cell.Denied, "oci.Pull", "leave it out of the image: a cell has devices of its own", "cannot unpack layer %s: %q is a device", l.name, cell.Clip(h.Name))
	default:
		return hostile(l, h.Name, "is of a kind that no file has")
	}
	if h.Size < 0 || h.Size > u.lim.Bytes-u.count.Bytes {
		return tooMuch("its files have more than %d bytes", u.lim.Bytes)
	}
	if name == "" {
		if h.Typeflag != tar.TypeDir {
			return hostile(l, h.Name, "stands for the root, and is no directory")
		}
		u.dirs[""] = u.rights(h)
		return nil
	}
	dir, base := path.Split(name)
	dir = strings.TrimSuffix(dir, "/")
	for _, p := range strings.Split(dir, "/") {
		switch {
		case strings.HasPrefix(p, whiteout+whiteout):
			return nil // what aufs kept its own records in
		case strings.HasPrefix(p, whiteout):
			return hostile(l, h.Name, "lies below what is hidden")
		}
	}
	fd, in, err := u.parent(l, dir)
	if err != nil {
		return err
	}
	if gone, ok := strings.CutPrefix(base, whiteout); ok {
		return u.white(l, h, in, gone)
	}
	return u.make(l, h, fd, join(in, base), base)
}

func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// parent opens a directory of the image, and makes it if it isn't there. It
// returns its real path. A symlink on the way must be a lower layer's: then it
// means what it means in the image, and not even a hostile one leads out.
func (u *unpacker) parent(l *layer, dir string) (fd int, real string, err error) {
	if dir == "" {
		return u.root, "", nil
	}
	if u.last.fd >= 0 && u.last.asked == dir {
		return u.last.fd, u.last.real, nil
	}
	fd, err = u.open(dir, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS)
	if err == nil {
		return u.remember(dir, dir, fd), dir, nil
	}
	if err != unix.ENOENT && err != unix.ELOOP && err != unix.ENOTDIR {
		return 0, "", &os.PathError{Op: "open", Path: dir, Err: err}
	}
	up, base := path.Split(dir)
	upFD, in, err := u.parent(l, strings.TrimSuffix(up, "/"))
	if err != nil {
		return 0, "", err
	}
	real = join(in, base)
	var st unix.Stat_t
	switch err := unix.Fstatat(upFD, base, &st, unix.AT_SYMLINK_NOFOLLOW); {
	case err == unix.ENOENT:
		if err := u.mkdir(upFD, real, base); err != nil {
			return 0, "", err
		}
		u.dirs[real] = rights{mode: 0o755, mtime: time.Unix(0, 0)}
	case err != nil:
		return 0, "", &os.PathError{Op: "stat", Path: real, Err: err}
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		if u.links[real] {
			return 0, "", hostile(l, dir, "goes through a symlink of the same layer")
		}
		if fd, err = u.open(real, unix.RESOLVE_IN_ROOT); err != nil {
			return 0, "", hostile(l, dir, "goes through a symlink that leads to no directory")
		}
		if real, err = u.where(fd); err != nil {
			unix.Close(fd)
			return 0, "", err
		}
		return u.remember(dir, real, fd), real, nil
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return 0, "", hostile(l, dir, "goes through what is no directory")
	}
	if fd, err = u.open(real, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS); err != nil {
		return 0, "", &os.PathError{Op: "open", Path: real, Err: err}
	}
	return u.remember(dir, real, fd), real, nil
}

func (u *unpacker) open(dir string, how uint64) (int, error) {
	return unix.Openat2(u.root, dir, &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: how | unix.RESOLVE_NO_MAGICLINKS})
}

func (u *unpacker) remember(asked, real string, fd int) int {
	u.forget()
	u.last.asked, u.last.real, u.last.fd = asked, real, fd
	return fd
}

// where returns the path of an open directory, below the root.
func (u *unpacker) where(fd int) (string, error) {
	at, err := os.Readlink("/proc/self/fd/" + itoa(fd))
	if err != nil {
		return "", err
	}
	top, err := os.Readlink("/proc/self/fd/" + itoa(u.root))
	if err != nil {
		return "", err
	}
	if at == top {
		return "", nil
	}
	rel, ok := strings.CutPrefix(at, top+"/")
	if !ok {
		return "", cell.Errorf(cell.Internal, "oci.Pull", "", "cannot unpack: %s lies outside", at)
	}
	return rel, nil
}

func (u *unpacker) mkdir(fd int, real, base string) error {
	if err := unix.Mkdirat(fd, base, 0o700); err != nil {
		return &os.PathError{Op: "mkdir", Path: real, Err: err}
	}
	u.made(real)
	return nil
}

// made notes what this layer has made.
func (u *unpacker) made(real string) {
	u.mine[real] = true
	for dir := path.Dir(real); dir != "." && !u.holds[dir]; dir = path.Dir(dir) {
		u.holds[dir] = true
	}
}

// white hides what lower layers have: one name, or all of a directory.
func (u *unpacker) white(l *layer, h *tar.Header, in, gone string) error {
	switch {
	case gone == whiteout+".opq": // .wh..wh..opq
		if u.opaque[in] {
			return nil
		}
		u.opaque[in] = true
		return u.hideAll(in)
	case strings.HasPrefix(gone, whiteout):
		return nil // what aufs kept its own records in
	case gone == "" || gone == "." || gone == "..":
		return hostile(l, h.Name, "hides a directory from inside")
	}
	return u.hide(join(in, gone))
}

func (u *unpacker) hideAll(dir string) error {
	f, err := u.under.Open(orDot(dir))
	if err != nil {
		return err
	}
	names, err := f.Readdirnames(-1)
	f.Close()
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := u.hide(join(dir, n)); err != nil {
			return err
		}
	}
	return nil
}

// hide removes what lower layers have at a path, and leaves what this one has.
func (u *unpacker) hide(real string) error {
	st, err := u.under.Lstat(real)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case st.IsDir() && (u.mine[real] || u.holds[real]):
		return u.hideAll(real)
	case u.mine[real] || u.holds[real]:
		return nil
	}
	return u.remove(real)
}

// remove takes away what is at a path, with all that is below it. What the
// directories there were to get stays noted: one that comes again is noted anew.
func (u *unpacker) remove(real string) error {
	u.forget()
	return u.under.RemoveAll(real)
}

// make makes one file, directory or link.
func (u *unpacker) make(l *layer, h *tar.Header, fd int, real, base string) error {
	var st unix.Stat_t
	switch err := unix.Fstatat(fd, base, &st, unix.AT_SYMLINK_NOFOLLOW); {
	case err == unix.ENOENT:
	case err != nil:
		return &os.PathError{Op: "stat", Path: real, Err: err}
	case h.Typeflag == tar.TypeDir && st.Mode&unix.S_IFMT == unix.S_IFDIR:
		u.made(real)
		u.dirs[real] = u.rights(h)
		return nil
	default:
		if err := u.replace(fd, real, base, st.Mode); err != nil {
			return err
		}
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if err := u.mkdir(fd, real, base); err != nil {
			return err
		}
		u.dirs[real] = u.rights(h)
		return nil
	case tar.TypeSymlink:
		if h.Linkname == "" || len(h.Linkname) > maxPath || strings.ContainsRune(h.Linkname, 0) {
			return hostile(l, h.Name, "is a symlink to nothing")
		}
		if err := unix.Symlinkat(h.Linkname, fd, base); err != nil {
			return &os.PathError{Op: "symlink", Path: real, Err: err}
		}
		u.made(real)
		u.links[real] = true
		return u.dressLink(h, fd, real, base)
	case tar.TypeLink:
		return u.hardLink(l, h, real, base)
	}
	if err := u.file(l, h, fd, real, base); err != nil {
		return err
	}
	u.made(real)
	return nil
}

// replace takes away what a layer replaces. fd, the directory that holds it,
// stays open.
func (u *unpacker) replace(fd int, real, base string, mode uint32) error {
	if mode&unix.S_IFMT != unix.S_IFDIR {
		if err := unix.Unlinkat(fd, base, 0); err != nil {
			return &os.PathError{Op: "unlink", Path: real, Err: err}
		}
		return nil
	}
	if fd != u.last.fd {
		return u.remove(real)
	}
	return u.under.RemoveAll(real)
}

// hardLink gives a file that was unpacked before another name.
func (u *unpacker) hardLink(l *layer, h *tar.Header, real, base string) error {
	target, why := clean(h.Linkname)
	if why != "" || target == "" {
		return hostile(l, h.Name, "is a link to "+cell.Clip(h.Linkname)+", which "+orWhy(why))
	}
	dir, tbase := path.Split(target)
	_, tin, err := u.parentThere(l, strings.TrimSuffix(dir, "/"))
	if err != nil {
		return err
	}
	tfd, err := u.openReal(tin)
	if err != nil {
		return err
	}
	defer unix.Close(tfd)
	var st unix.Stat_t
	err = unix.Fstatat(tfd, tbase, &st, unix.AT_SYMLINK_NOFOLLOW)
	kind := st.Mode & unix.S_IFMT
	if err != nil || kind != unix.S_IFREG && kind != unix.S_IFLNK {
		return hostile(l, h.Name, "is a link to "+cell.Clip(h.Linkname)+", which is no file of the image")
	}
	in := path.Dir(real)
	if in == "." {
		in = ""
	}
	fd, err := u.openReal(in)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Linkat(tfd, tbase, fd, base, 0); err != nil {
		return &os.PathError{Op: "link", Path: real, Err: err}
	}
	u.made(real)
	if kind == unix.S_IFLNK {
		u.links[real] = true
	}
	return nil
}

// parentThere is parent for a directory that must be there.
func (u *unpacker) parentThere(l *layer, dir string) (int, string, error) {
	if dir != "" {
		fd, err := u.open(dir, unix.RESOLVE_IN_ROOT)
		if err != nil {
			return 0, "", hostile(l, dir, "is where a link leads to, and is not there")
		}
		unix.Close(fd)
	}
	return u.parent(l, dir)
}

// openReal opens a directory by its real path.
func (u *unpacker) openReal(real string) (int, error) {
	fd, err := u.open(orDot(real), unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: real, Err: err}
	}
	return fd, nil
}

// file writes one file.
func (u *unpacker) file(l *layer, h *tar.Header, fd int, real, base string) error {
	if err := u.spare(h.Size); err != nil {
		return err
	}
	n, err := unix.Openat(fd, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return &os.PathError{Op: "create", Path: real, Err: err}
	}
	f := os.NewFile(uintptr(n), real)
	defer f.Close()
	written, err := io.Copy(f, io.LimitReader(l, u.lim.Bytes-u.count.Bytes+1))
	if u.count.Bytes += written; err == nil && u.count.Bytes > u.lim.Bytes {
		err = tooMuch("its files have more than %d bytes", u.lim.Bytes)
	}
	if err != nil {
		return err
	}
	if written != h.Size {
		return corrupt("cannot unpack layer %s: %q has %d bytes instead of %d", l.name, cell.Clip(h.Name), written, h.Size)
	}
	r := u.rights(h)
	if u.own {
		if err := unix.Fchown(n, r.uid, r.gid); err != nil {
			return &os.PathError{Op: "chown", Path: real, Err: err}
		}
	}
	if r.mode&(unix.S_ISUID|unix.S_ISGID) != 0 {
		u.count.SetID++
		r.mode &^= unix.S_ISUID | unix.S_ISGID
	}
	if err := unix.Fchmod(n, r.mode); err != nil {
		return &os.PathError{Op: "chmod", Path: real, Err: err}
	}
	if err := u.xattrs(h, n, real); err != nil {
		return err
	}
	if err := unix.UtimesNanoAt(fd, base, times(r.mtime), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &os.PathError{Op: "utimes", Path: real, Err: err}
	}
	return f.Close()
}

// xattrs sets the extended attributes that have a meaning in a cell. Those of
// overlays would hide what is below; those of security are rights.
func (u *unpacker) xattrs(h *tar.Header, fd int, real string) error {
	for key, value := range h.PAXRecords {
		name, ok := strings.CutPrefix(key, "SCHILY.xattr.")
		if !ok {
			continue
		}
		if !strings.HasPrefix(name, "user.") || strings.HasPrefix(name, "user.overlay.") || len(name) > maxName || len(value) > 4096 {
			u.count.XAttrs++
			continue
		}
		switch err := unix.Fsetxattr(fd, name, []byte(value), 0); {
		case errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.ENOSPC), errors.Is(err, unix.E2BIG):
			u.count.XAttrs++
		case err != nil:
			return &os.PathError{Op: "setxattr", Path: real, Err: err}
		}
	}
	return nil
}

func (u *unpacker) dressLink(h *tar.Header, fd int, real, base string) error {
	r := u.rights(h)
	if u.own {
		if err := unix.Fchownat(fd, base, r.uid, r.gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return &os.PathError{Op: "chown", Path: real, Err: err}
		}
	}
	if err := unix.UtimesNanoAt(fd, base, times(r.mtime), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &os.PathError{Op: "utimes", Path: real, Err: err}
	}
	return nil
}

// rights are what a header gives, as far as it can be given.
func (u *unpacker) rights(h *tar.Header) rights {
	r := rights{mode: uint32(h.Mode) & 0o7777, uid: h.Uid, gid: h.Gid, mtime: h.ModTime}
	if h.Typeflag == tar.TypeDir {
		r.mode &^= unix.S_ISUID
	}
	if !u.own {
		// A process that is not root must be able to read what it keeps. In a cell they belong to its root, which may anyway.
		if r.mode |= unix.S_IRUSR; h.Typeflag == tar.TypeDir {
			r.mode |= unix.S_IRWXU
		}
		if r.uid != 0 || r.gid != 0 {
			u.count.Owners++
		}
		return r
	}
	if r.uid < 0 || r.uid >= idRange || r.gid < 0 || r.gid >= idRange {
		u.count.Owners++
	}
	if r.uid < 0 || r.uid >= idRange {
		r.uid = unmapped
	}
	if r.gid < 0 || r.gid >= idRange {
		r.gid = unmapped
	}
	return r
}

// maxTime is the last time that file systems of today can keep: in 2446.
var maxTime = time.Unix(15032385535, 0)

func times(t time.Time) []unix.Timespec {
	if t.Before(time.Unix(0, 0)) {
		t = time.Unix(0, 0)
	}
	if t.After(maxTime) {
		t = maxTime
	}
	ts := unix.NsecToTimespec(0)
	ts.Sec, ts.Nsec = t.Unix(), int64(t.Nanosecond())
	return []unix.Timespec{ts, ts}
}

// finish gives the directories their rights, deepest first, and counts what
// there is.
func (u *unpacker) finish() error {
	u.forget()
	return u.finishDir("")
}

func (u *unpacker) finishDir(real string) error {
	f, err := u.under.Open(orDot(real))
	if err != nil {
		return err
	}
	entries, err := f.ReadDir(-1)
	f.Close()
	if err != nil {
		return err
	}
	for _, e := range entries {
		u.count.Files++
		if e.Type() == fs.ModeDir {
			if err := u.finishDir(join(real, e.Name())); err != nil {
				return err
			}
		}
	}
	r, ok := u.dirs[real]
	if !ok {
		r = rights{mode: 0o755, mtime: time.Unix(0, 0)}
	}
	if f, err = u.under.Open(orDot(real)); err != nil {
		return err
	}
	defer f.Close()
	n := int(f.Fd())
	if u.own {
		if err := unix.Fchown(n, r.uid, r.gid); err != nil {
			return &os.PathError{Op: "chown", Path: real, Err: err}
		}
	}
	if err := unix.Fchmod(n, r.mode); err != nil {
		return &os.PathError{Op: "chmod", Path: real, Err: err}
	}
	if err := unix.Futimes(n, timevals(r.mtime)); err != nil {
		return &os.PathError{Op: "utimes", Path: real, Err: err}
	}
	return nil
}

func timevals(t time.Time) []unix.Timeval {
	ts := times(t)
	tv := unix.NsecToTimeval(ts[0].Nano())
	tv.Sec, tv.Usec = ts[0].Sec, ts[0].Nsec/1000
	return []unix.Timeval{tv, tv}
}

func orDot(dir string) string {
	if dir == "" {
		return "."
	}
	return dir
}

func orWhy(why string) string {
	if why == "" {
		return "is the root"
	}
	return why
}
