package oci

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// files is a source in files of this host: a layout directory, or an archive.
type files struct {
	what string // for messages
	tree tree
	lim  Limits
}

// A tree has files by name. Names come from images: a tree gives nothing that
// lies outside.
type tree interface {
	open(name string) (io.ReadCloser, int64, error) // fs.ErrNotExist if there is none
	close() error
}

// openFiles opens what is at a path. scratch makes a file for what has to be
// decompressed first.
func openFiles(p string, lim Limits, scratch func() (*os.File, error)) (*files, error) {
	f, err := os.OpenFile(p, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, cell.Errorf(cell.NotFound, "oci.Pull", "name a layout directory, or an archive that `docker save` has made", "cannot open the image %s: %w", p, err)
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	if st.IsDir() {
		f.Close()
		root, err := os.OpenRoot(p)
		if err != nil {
			return nil, err
		}
		return &files{p, folder{root}, lim}, nil
	}
	if !st.Mode().IsRegular() {
		f.Close()
		return nil, cell.Errorf(cell.Invalid, "oci.Pull", "name a layout directory, or an archive that `docker save` has made", "cannot use the image %s: it is neither a file nor a directory", p)
	}
	if f, err = plain(f, lim, scratch); err != nil {
		return nil, err
	}
	a, err := indexArchive(f, lim)
	if err != nil {
		f.Close()
		return nil, err
	}
	return &files{p, a, lim}, nil
}

// plain decompresses an archive that was compressed as a whole.
func plain(f *os.File, lim Limits, scratch func() (*os.File, error)) (*os.File, error) {
	var magic [2]byte
	if _, err := f.ReadAt(magic[:], 0); err != nil || magic != [2]byte{0x1f, 0x8b} {
		return f, nil
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, corrupt("cannot read the archive: %w", err)
	}
	out, err := scratch()
	if err != nil {
		return nil, err
	}
	n, err := io.Copy(out, io.LimitReader(z, lim.Bytes+1))
	if err == nil && n > lim.Bytes {
		err = tooMuch("the archive has more than %d bytes", lim.Bytes)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, gzip.ErrChecksum) || errors.Is(err, gzip.ErrHeader) {
		err = corrupt("cannot read the archive: %w", err)
	}
	if err != nil {
		out.Close()
		return nil, err
	}
	return out, nil
}

func (f *files) remote() bool { return false }
func (f *files) close() error { return f.tree.close() }

// read reads a small file whole.
func (f *files) read(name string, bound int64) ([]byte, error) {
	r, size, err := f.tree.open(name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if size > bound {
		return nil, corrupt("cannot use %s: %s has %d bytes", f.what, name, size)
	}
	return io.ReadAll(io.LimitReader(r, bound))
}

// find implements source.
func (f *files) find(_ context.Context, r Reference) (*found, error) {
	b, err := f.read("index.json", maxManifest)
	if err == nil {
		return f.inLayout(b, r.Tag)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if b, err = f.read("manifest.json", maxManifest); err == nil {
		return f.inDocker(b, r.Tag)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return nil, cell.Errorf(cell.Invalid, "oci.Pull", "name a layout directory, or an archive that `docker save` has made; a plain root file system is dir:PATH", "cannot use %s: there is neither index.json nor manifest.json in it", f.what)
}

// refName is how a layout says which tag a manifest has (image-spec,
// annotations.md).
const refName = "org.opencontainers.image.ref.name"

// inLayout finds an image in a layout, by the tag if there is one.
func (f *files) inLayout(b []byte, tag string) (*found, error) {
	if v, err := f.read("oci-layout", 4096); err == nil {
		var l struct {
			Version string `json:"imageLayoutVersion"`
		}
		if json.Unmarshal(v, &l) != nil || !strings.HasPrefix(l.Version, "1.") {
			return nil, unsupported("cannot use %s: its layout is of version %q", f.what, cell.Clip(l.Version))
		}
	}
	m, err := readManifest(b, typeIndex)
	if err != nil {
		return nil, err
	}
	if tag != "" || len(m.Manifests) > 1 {
		if b, err = f.tagged(b, m, tag); err != nil {
			return nil, err
		}
	}
	return resolve(b, typeIndex, f.lim, func(d descriptor) ([]byte, string, error) {
		b, err := f.read(blobName(d), maxManifest)
		if errors.Is(err, fs.ErrNotExist) {
			err = corrupt("cannot use %s: manifest %s is missing", f.what, d.Digest)
		}
		return b, "", err
	})
}

// tagged is an index of those manifests that have a tag.
func (f *files) tagged(b []byte, m manifest, tag string) ([]byte, error) {
	var names []string
	var with []descriptor
	for _, d := range m.Manifests {
		name := d.Annotations[refName]
		if _, short, ok := strings.Cut(name, ":"); ok && tag == short {
			name = short
		}
		if name == tag && tag != "" {
			with = append(with, d)
		} else if name != "" {
			names = append(names, cell.Clip(name))
		}
	}
	if tag == "" { // perhaps one image for several platforms
		if len(names) == 0 {
			return b, nil
		}
		return nil, cell.Errorf(cell.Invalid, "oci.Pull", "name one of them: oci:"+f.what+":TAG", "cannot choose an image in %s: there are %s", f.what, strings.Join(names, ", "))
	}
	if len(with) == 0 {
		return nil, cell.Errorf(cell.NotFound, "oci.Pull", "choose one that is there", "cannot find an image with tag %s in %s: there are %s", tag, f.what, orNone(strings.Join(names, ", ")))
	}
	for i := range with {
		if len(with) == 1 {
			with[i].Platform = nil // the only one there is
		}
	}
	return json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": typeIndex, "manifests": with})
}

// inDocker finds an image in what `docker save` writes beside, or instead of, a
// layout. Nothing but the config's digests says what its layers are.
func (f *files) inDocker(b []byte, tag string) (*found, error) {
	var list []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := unmarshal(b, "manifest.json", &list); err != nil {
		return nil, corrupt("cannot read manifest.json of %s: %w", f.what, err)
	}
	at := -1
	for i, m := range list {
		for _, t := range m.RepoTags {
			if tag != "" && (t == tag || strings.HasSuffix(t, ":"+tag)) {
				at = i
			}
		}
	}
	if at < 0 && len(list) == 1 && tag == "" {
		at = 0
	}
	if at < 0 {
		return nil, cell.Errorf(cell.NotFound, "oci.Pull", "name an image of it: oci:"+f.what+":TAG", "cannot choose an image in %s: there are %d", f.what, len(list))
	}
	m := list[at]
	if len(m.Layers) > maxLayers {
		return nil, unsupported("cannot use %s: it has %d layers, at most %d are allowed", f.what, len(m.Layers), maxLayers)
	}
	conf, err := f.read(m.Config, maxConfig)
	if err != nil {
		return nil, corrupt("cannot use %s: its config is missing", f.what)
	}
	d := descriptor{MediaType: typeDockerConfig, Digest: cell.Sum(conf), Size: int64(len(conf)), file: m.Config}
	// Its name is its digest. An archive with a changed config is another image than the
	// one it claims to be.
	if name := strings.TrimSuffix(path.Base(m.Config), ".json"); len(name) == 64 && "sha256:"+name != d.Digest.String() {
		return nil, corrupt("cannot use %s: the config is called %s, and is %s", f.what, cell.Clip(name), d.Digest)
	}
	out := &found{digest: d.Digest, config: d}
	for _, l := range m.Layers {
		r, size, err := f.tree.open(l)
		if err != nil {
			return nil, corrupt("cannot use %s: layer %s is missing", f.what, cell.Clip(l))
		}
		r.Close()
		out.layers = append(out.layers, descriptor{MediaType: typeAnyLayer, Size: size, file: l})
	}
	return out, nil
}

func blobName(d descriptor) string {
	if d.file != "" {
		return d.file
	}
	return "blobs/sha256/" + strings.TrimPrefix(d.Digest.String(), "sha256:")
}

// open implements source.
func (f *files) open(_ context.Context, d descriptor) (io.ReadCloser, error) {
	r, size, err := f.tree.open(blobName(d))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, corrupt("cannot use %s: blob %s is missing", f.what, d.short())
	}
	if err != nil {
		return nil, err
	}
	if size != d.Size {
		r.Close()
		return nil, corrupt("cannot use %s: blob %s has %d bytes instead of %d", f.what, d.short(), size, d.Size)
	}
	return r, nil
}

// folder is a tree in a directory. Symlinks in it lead nowhere else.
type folder struct{ root *os.Root }

func (d folder) open(name string) (io.ReadCloser, int64, error) {
	if name == "" || !fs.ValidPath(name) {
		return nil, 0, fs.ErrNotExist
	}
	f, err := d.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, st.Size(), nil
}

func (d folder) close() error { return d.root.Close() }

// archive is a tree in a tar: where each file begins, and how long it is.
type archive struct {
	f  *os.File
	at map[string]span
}

type span struct {
	from, size int64
	link       string // another name, as older `docker save` shares layers
}

// maxArchived bounds the names in an archive.
const maxArchived = 10000

func indexArchive(f *os.File, lim Limits) (*archive, error) {
	a := &archive{f, map[string]span{}}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	t := tar.NewReader(f)
	for {
		h, err := t.Next()
		if err == io.EOF {
			return a, nil
		}
		if err != nil {
			return nil, corrupt("cannot read the archive: %w", err)
		}
		if len(a.at) == maxArchived {
			return nil, tooMuch("the archive has more than %d names", maxArchived)
		}
		name, why := clean(h.Name)
		if why != "" {
			return nil, cell.Errorf(cell.Denied, "oci.Pull", "don't use this archive", "cannot use the archive: %q %s", cell.Clip(h.Name), why)
		}
		switch h.Typeflag {
		case tar.TypeReg:
			// The reader stands at the first byte of the content, and reads no
			// further ahead.
			from, err := f.Seek(0, io.SeekCurrent)
			if err != nil {
				return nil, err
			}
			if _, twice := a.at[name]; twice {
				return nil, cell.Errorf(cell.Denied, "oci.Pull", "don't use this archive", "cannot use the archive: %q is in it twice", cell.Clip(h.Name))
			}
			a.at[name] = span{from: from, size: h.Size}
		case tar.TypeSymlink:
			if to, why := clean(path.Join(path.Dir(name), h.Linkname)); why == "" {
				a.at[name] = span{link: to}
			}
		case tar.TypeLink:
			if to, why := clean(h.Linkname); why == "" {
				a.at[name] = span{link: to}
			}
		}
	}
}

func (a *archive) open(name string) (io.ReadCloser, int64, error) {
	s, ok := a.at[name]
	if ok && s.link != "" {
		s, ok = a.at[s.link]
	}
	if !ok || s.link != "" {
		return nil, 0, fs.ErrNotExist
	}
	return io.NopCloser(io.NewSectionReader(a.f, s.from, s.size)), s.size, nil
}

func (a *archive) close() error { return a.f.Close() }
