package cache

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/mod/module"
	"golang.org/x/mod/sumdb/dirhash"
	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/workspace"
)

// Files of some caches are named by what they hold:
//
//   - npm: content-v2/ALGORITHM/aa/bb/…, the digest in hexadecimal (npm's package cacache);
//   - pnpm: vN/files/aa/…, SHA-512, with "-exec" behind it for what is executable;
//   - Go's build cache: aa/…-d, SHA-256 of an output (cmd/go/internal/cache, DiskCache.fileName);
//   - Go's modules: cache/download/MODULE/@v/VERSION.zip, and what was unpacked from it into
//     MODULE@VERSION, are what VERSION.ziphash says (h1 of golang.org/x/mod/sumdb/dirhash). go
//     compares that file alone with go.sum, and nothing if there is none.
//
// What is found by other means can't be verified: Go's build cache, for example, says in a file of its own
// which output an action has.

var (
	npmContent  = regexp.MustCompile(`(?:^|/)content-v2/(sha1|sha256|sha512)/([0-9a-f]{2})/([0-9a-f]{2})/([0-9a-f]+)$`)
	pnpmContent = regexp.MustCompile(`^v[0-9]+/files/([0-9a-f]{2})/([0-9a-f]{126})(?:-exec)?$`)
	goOutput    = regexp.MustCompile(`^([0-9a-f]{2})/([0-9a-f]{64})-d$`)
	goZip       = regexp.MustCompile(`^(cache/download/.+/@v/[^/]+)\.zip$`)
	goZipHash   = regexp.MustCompile(`^cache/download/.+/@v/[^/]+\.ziphash$`)
	goModule    = regexp.MustCompile(`^((?:[^/@]+/)*[^/@]+)@(v[^/@]+)$`)
)

// maxZip bounds what a module unpacks to, as go does; and how many files it has.
const (
	maxZip      = 500 << 20
	maxZipFiles = 1 << 17
	maxHash     = 1 << 10
)

// checked is what was found in a layer.
type checked struct {
	Files int      // that were compared with their names
	Bad   []string // paths of those that are something else
}

// checkLayer compares the files of a layer of a cache that are named by their content with their names. below are
// the directories that it lies above, topmost first. most bounds what is read of it, in bytes: what is beyond is wrong.
func checkLayer(ctx context.Context, name, dir string, below []string, most int64) (out checked, err error) {
	k := checker{cache: name, left: most}
	if k.cache != "go" && k.cache != "npm" && k.cache != "pnpm" {
		return out, nil
	}
	defer func() {
		for _, d := range k.dirs {
			d.Close()
		}
	}()
	for _, at := range append([]string{dir}, below...) {
		d, err := workspace.OpenRoot(at)
		if errors.Is(err, unix.ENOENT) && at != dir {
			continue
		}
		if err != nil {
			return out, err
		}
		k.dirs = append(k.dirs, d)
	}
	if k.all, err = workspace.Collect(ctx, k.dirs[0]); err != nil {
		return out, err
	}
	for i := range k.all {
		if err := ctx.Err(); err != nil {
			return out, err
		}
		f := &k.all[i]
		known, good, err := k.entry(f)
		if err != nil {
			return out, err
		}
		if known {
			out.Files++
		}
		if known && !good {
			out.Bad = append(out.Bad, f.Path)
		}
	}
	return out, nil
}

type checker struct {
	cache string            // its name
	left  int64             // how many bytes may still be read
	dirs  []*linux.Dir      // the layer, and what is below
	all   []workspace.Found // of the layer, sorted by path
}

// entry compares one entry with its name. known: its name says what it holds.
func (k *checker) entry(f *workspace.Found) (known, good bool, err error) {
	if f.Type() == workspace.File {
		return k.file(f)
	}
	if k.cache != "go" {
		return false, false, nil
	}
	switch f.Type() {
	case workspace.Folder:
		if m := goModule.FindStringSubmatch(f.Path); m != nil && !strings.HasPrefix(f.Path, "cache/") {
			return true, k.module(f.Path, m[1], m[2]), nil
		}
	case workspace.CharDev: // it hides what is below, without which go compares nothing
		return strings.HasPrefix(f.Path, "cache/download/"), false, nil
	}
	return false, false, nil
}

func (k *checker) file(f *workspace.Found) (known, good bool, err error) {
	var h hash.Hash
	want := ""
	switch k.cache {
	case "npm":
		if m := npmContent.FindStringSubmatch(f.Path); m != nil {
			h, want = map[string]func() hash.Hash{"sha1": sha1.New, "sha256": sha256.New, "sha512": sha512.New}[m[1]](), m[2]+m[3]+m[4]
		}
	case "pnpm":
		if m := pnpmContent.FindStringSubmatch(f.Path); m != nil {
			h, want = sha512.New(), m[1]+m[2]
		}
	case "go":
		if m := goOutput.FindStringSubmatch(f.Path); m != nil {
			h, want = sha256.New(), m[2]
		}
		if m := goZip.FindStringSubmatch(f.Path); m != nil {
			sum, err := k.zipHash(f.Path)
			return true, err == nil && sum == k.text(0, m[1]+".ziphash"), nil
		}
		if m := goZipHash.FindStringSubmatch(f.Path); m != nil { // it takes the place of none that says something else: modules are below
			was := k.text(1, f.Path)
			return true, was == "" || was == k.text(0, f.Path), nil
		}
	}
	if h == nil {
		return false, false, nil
	}
	if k.left -= f.Stat.Size; k.left < 0 {
		return true, false, nil
	}
	good, err = k.is(f.Path, h, want)
	return true, good, err
}

func (k *checker) open(name string) (*os.File, error) { return k.openIn(0, name) }

// openIn opens a regular file. What is below the layer may be the host's: nothing changes there so that it can be read.
func (k *checker) openIn(i int, name string) (*os.File, error) {
	var fd int
	var err error
	if i == 0 {
		fd, err = workspace.OpenReadable(k.dirs[0], name, false)
	} else {
		fd, err = k.dirs[i].Open(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	}
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = &os.PathError{Op: "read", Path: name, Err: unix.EINVAL}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (k *checker) is(name string, h hash.Hash, want string) (bool, error) {
	f, err := k.open(name)
	if err != nil {
		return false, err
	}
	defer f.Close()
	if _, err := io.Copy(h, f); err != nil {
		return false, err
	}
	return hex.EncodeToString(h.Sum(nil)) == want, nil
}

// text is a short text of the layer, or of what is below: first says where it is looked for first. "": there is none.
func (k *checker) text(first int, name string) string {
	for i := first; i < len(k.dirs); i++ {
		f, err := k.openIn(i, name)
		if err != nil {
			continue
		}
		b, err := io.ReadAll(io.LimitReader(f, maxHash))
		f.Close()
		if err == nil {
			return string(bytes.TrimSpace(b))
		}
	}
	return ""
}

// module reports whether an unpacked module is what its hash says. Its paths are escaped, and the hash is of
// names that are not.
func (k *checker) module(dir, escaped, escapedVersion string) bool {
	want := k.text(0, "cache/download/"+escaped+"/@v/"+escapedVersion+".ziphash")
	name, err := module.UnescapePath(escaped)
	version, verr := module.UnescapeVersion(escapedVersion)
	if want == "" || err != nil || verr != nil {
		return false
	}
	var names []string
	first, _ := slices.BinarySearchFunc(k.all, dir+"/", func(f workspace.Found, at string) int { return strings.Compare(f.Path, at) })
	for _, f := range k.all[first:] {
		rel, below := strings.CutPrefix(f.Path, dir+"/")
		if !below {
			break
		}
		switch f.Type() {
		case workspace.Folder:
		case workspace.File:
			if k.left -= f.Stat.Size; k.left < 0 {
				return false
			}
			names = append(names, name+"@"+version+"/"+rel)
		default: // nothing else is in a module
			return false
		}
	}
	sum, err := dirhash.Hash1(names, func(at string) (io.ReadCloser, error) {
		return k.open(dir + strings.TrimPrefix(at, name+"@"+version))
	})
	return err == nil && sum == want
}

func (k *checker) zipHash(name string) (string, error) {
	f, err := k.open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return "", err
	}
	if err := boundZip(f, st.Size()); err != nil {
		return "", err
	}
	z, err := zip.NewReader(io.NewSectionReader(f, 0, st.Size()), st.Size())
	if err != nil {
		return "", err
	}
	files := map[string]*zip.File{}
	left := min(int64(maxZip), k.left)
	defer func() { k.left -= min(int64(maxZip), k.left) - max(left, 0) }()
	for _, e := range z.File {
		files[e.Name] = e
	}
	if len(z.File) > maxZipFiles || len(files) != len(z.File) {
		return "", zip.ErrFormat
	}
	return dirhash.Hash1(slices.Collect(maps.Keys(files)), func(name string) (io.ReadCloser, error) {
		r, err := files[name].Open()
		if err != nil {
			return nil, err
		}
		return bounded{r, &left}, nil
	})
}

// boundZip refuses an archive with a larger directory than a module's can have: all of it comes into memory. It has to lie
// directly before the record that ends it, as zip.NewReader reads headers until there is none, whatever that says (APPNOTE.TXT,
// 4.3.16: the end of central directory record). Archives of 64 bits are refused.
func boundZip(f io.ReaderAt, size int64) error {
	const length, longest, most = 22, 22 + 1<<16, 8 << 20
	tail := make([]byte, min(size, longest))
	if _, err := f.ReadAt(tail, size-int64(len(tail))); err != nil && err != io.EOF {
		return err
	}
	at := bytes.LastIndex(tail, []byte("PK\x05\x06"))
	if at < 0 || len(tail)-at < length {
		return zip.ErrFormat
	}
	count, long, offset := binary.LittleEndian.Uint16(tail[at+10:]), int64(binary.LittleEndian.Uint32(tail[at+12:])), int64(binary.LittleEndian.Uint32(tail[at+16:]))
	if count == 1<<16-1 || long > most || offset+long != size-int64(len(tail))+int64(at) {
		return zip.ErrFormat
	}
	return nil
}

// bounded ends with an error when more is read of all that share left.
type bounded struct {
	io.ReadCloser
	left *int64
}

func (b bounded) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if *b.left -= int64(n); *b.left < 0 {
		return n, zip.ErrFormat
	}
	return n, err
}
