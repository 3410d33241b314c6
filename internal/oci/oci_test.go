package oci

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
)

// item is one name in a layer.
type item struct {
	name, text string
	kind       byte // tar's; 0: a file
	link       string
	mode       int64
	uid        int
	pax        map[string]string
}

func tarOf(t testing.TB, items ...item) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, i := range items {
		h := &tar.Header{Name: i.name, Typeflag: i.kind, Linkname: i.link, Mode: i.mode, Uid: i.uid, Gid: i.uid, Size: int64(len(i.text)), ModTime: time.Unix(1700000000, 0), PAXRecords: i.pax}
		if i.kind == 0 {
			h.Typeflag = tar.TypeReg
		}
		if i.mode == 0 {
			h.Mode = 0o644
			if i.kind == tar.TypeDir {
				h.Mode = 0o755
			}
		}
		if i.kind == tar.TypeChar || i.kind == tar.TypeBlock {
			h.Devmajor, h.Devminor = 1, 3
		}
		must(t, w.WriteHeader(h))
		_, err := w.Write([]byte(i.text))
		must(t, err)
	}
	must(t, w.Close())
	return b.Bytes()
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func gz(t testing.TB, b []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	w.Write(b)
	must(t, w.Close())
	return out.Bytes()
}

func zst(t testing.TB, b []byte) []byte {
	w, err := zstd.NewWriter(nil)
	must(t, err)
	return w.EncodeAll(b, nil)
}

// built is an image in parts, which tests bend before it is written.
type built struct {
	blobs    map[cell.Digest][]byte
	manifest map[string]any
	config   map[string]any
	top      func(desc map[string]any) map[string]any // makes the index
	note     func(b *built)                           // last change before it is written
}

func blobDesc(mediaType string, b []byte) map[string]any {
	return map[string]any{"mediaType": mediaType, "digest": cell.Sum(b).String(), "size": len(b)}
}

// buildImage makes an image of layers (tars), compressed with gzip.
func buildImage(t testing.TB, tars ...[]byte) *built {
	b := &built{blobs: map[cell.Digest][]byte{}}
	var layers []any
	var diffs []string
	for _, x := range tars {
		z := gz(t, x)
		b.blobs[cell.Sum(z)] = z
		layers = append(layers, blobDesc(typeLayer+"+gzip", z))
		diffs = append(diffs, cell.Sum(x).String())
	}
	b.config = map[string]any{"os": "linux", "architecture": runtime.GOARCH, "created": "2026-01-02T03:04:05Z",
		"config": map[string]any{"Env": []string{"PATH=/bin", "A=1"}, "User": "app", "WorkingDir": "/srv"},
		"rootfs": map[string]any{"type": "layers", "diff_ids": diffs}}
	b.manifest = map[string]any{"schemaVersion": 2, "mediaType": typeManifest, "layers": layers}
	return b
}

func (b *built) put(t testing.TB, mediaType string, v any) map[string]any {
	raw, err := json.Marshal(v)
	must(t, err)
	b.blobs[cell.Sum(raw)] = raw
	return blobDesc(mediaType, raw)
}

// finish returns the bytes of index.json.
func (b *built) finish(t testing.TB) []byte {
	if b.manifest["config"] == nil {
		b.manifest["config"] = b.put(t, typeConfig, b.config)
	}
	desc := b.put(t, b.manifest["mediaType"].(string), b.manifest)
	if b.note != nil {
		b.note(b)
	}
	index := map[string]any{"schemaVersion": 2, "manifests": []any{desc}}
	if b.top != nil {
		index = b.top(desc)
	}
	raw, err := json.Marshal(index)
	must(t, err)
	return raw
}

// layout writes the image as a layout directory.
func (b *built) layout(t testing.TB) string {
	dir := t.TempDir()
	index := b.finish(t)
	must(t, os.WriteFile(filepath.Join(dir, "index.json"), index, 0o644))
	must(t, os.WriteFile(filepath.Join(dir, "oci-layout"), []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644))
	must(t, os.MkdirAll(filepath.Join(dir, "blobs/sha256"), 0o755))
	for d, raw := range b.blobs {
		must(t, os.WriteFile(filepath.Join(dir, blobName(descriptor{Digest: d})), raw, 0o644))
	}
	return dir
}

func newStore(t testing.TB) *Store {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "images")
	s, err := OpenStore(dir, os.Getuid() == 0, "test")
	must(t, err)
	t.Cleanup(func() { linux.RemoveTree(dir) })
	return s
}

func pull(t testing.TB, s *Store, ref string) (Image, error) {
	t.Helper()
	r, err := Parse(ref, "/")
	must(t, err)
	return s.Pull(context.Background(), r, PullOptions{})
}

// listing is a tree as lines: mode, name, and what a link says or a file has.
func listing(t testing.TB, root string) (out []string) {
	t.Helper()
	must(t, filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == root {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, p)
		line := fmt.Sprintf("%v %s", st.Mode(), rel)
		switch {
		case d.Type() == fs.ModeSymlink:
			to, _ := os.Readlink(p)
			line += " -> " + to
		case d.Type().IsRegular():
			b, err := os.ReadFile(p)
			if err != nil && !os.IsPermission(err) {
				return err
			}
			line += " " + string(b)
		}
		out = append(out, line)
		return nil
	}))
	return out
}

// nothingLeft fails the test unless a store holds nothing at all.
func nothingLeft(t testing.TB, s *Store) {
	t.Helper()
	entries, err := os.ReadDir(s.dir)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for _, e := range entries {
		t.Errorf("%s was left behind", e.Name())
	}
}

func wantListing(t *testing.T, root string, want ...string) {
	t.Helper()
	got := listing(t, root)
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("the image has\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func readAll(t testing.TB, r io.Reader) string {
	b, err := io.ReadAll(r)
	must(t, err)
	return string(b)
}

// What an image says of its program is read with bounds; what is no port or directory is none.
func TestService(t *testing.T) {
	t.Parallel()
	var c config
	err := json.Unmarshal([]byte(`{"config":{"Entrypoint":["/e"],"Cmd":["a"],"StopSignal":"SIGINT","Healthcheck":{"Test":["CMD-SHELL","ask it"],"Interval":5},"ExposedPorts":{"5432/tcp":{},"53/udp":{},"80":{},"0":{},"x":{},"90-92":{},"70000":{}},"Volumes":{"/b/":{},"/a":{},"rel":{}}}}`), &c)
	if err != nil {
		t.Fatal(err)
	}
	want := Service{Entrypoint: []string{"/e"}, Command: []string{"a"}, Ports: []int{80, 90, 91, 92, 5432}, Volumes: []string{"/a", "/b"}, StopSignal: "SIGINT", Ready: []string{"ask it"}, ReadyShell: true}
	if got := c.service(); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	var many Service
	many.AddPort("1-65535")
	if n := len(many.Ports); n != maxPorts {
		t.Errorf("a range has %d ports", n)
	}
}
