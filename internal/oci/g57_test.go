package oci

import (
	"archive/tar"
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pando-dev/pando/internal/bound/boundtest"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
)

// hostileLayers are layers that no image has by accident. The last layer of each
// is the hostile one.
var hostileLayers = map[string][][]item{
	"absolute name":                      {{{name: "/etc/passwd", text: "x"}}},
	"name with ..":                       {{{name: "../escaped", text: "x"}}},
	"name with .. in the middle":         {{{name: "a/../../escaped", text: "x"}}},
	"name that only passes through ..":   {{{name: "a/../b", text: "x"}}},
	"symlink, then through it":           {{{name: "l", kind: tar.TypeSymlink, link: "../outside"}, {name: "l/escaped", text: "x"}}},
	"absolute symlink, then through it":  {{{name: "l", kind: tar.TypeSymlink, link: "/tmp"}, {name: "l/escaped", text: "x"}}},
	"symlink inside, then through it":    {{{name: "d", kind: tar.TypeDir}, {name: "l", kind: tar.TypeSymlink, link: "d"}, {name: "l/f", text: "x"}}},
	"two symlinks":                       {{{name: "a", kind: tar.TypeSymlink, link: ".."}, {name: "b", kind: tar.TypeSymlink, link: "a"}, {name: "b/escaped", text: "x"}}},
	"hard link to a symlink, through it": {{{name: "a", kind: tar.TypeSymlink, link: ".."}, {name: "b", kind: tar.TypeLink, link: "a"}, {name: "b/escaped", text: "x"}}},
	"symlink replaces a directory":       {{{name: "d/f", text: "x"}, {name: "d", kind: tar.TypeSymlink, link: "../outside"}, {name: "d/escaped", text: "x"}}},
	"symlink of a layer below, dangling": {{{name: "l", kind: tar.TypeSymlink, link: "../outside"}}, {{name: "l/escaped", text: "x"}}},
	"symlink of a layer below, a loop":   {{{name: "l", kind: tar.TypeSymlink, link: "l"}}, {{name: "l/escaped", text: "x"}}},
	"symlink to nothing":                 {{{name: "l", kind: tar.TypeSymlink, link: ""}}},
	"hard link outside":                  {{{name: "h", kind: tar.TypeLink, link: "../outside"}}},
	"absolute hard link":                 {{{name: "h", kind: tar.TypeLink, link: "/etc/passwd"}}},
	"hard link through a symlink":        {{{name: "l", kind: tar.TypeSymlink, link: ".."}, {name: "h", kind: tar.TypeLink, link: "l/outside"}}},
	"hard link to what is not there":     {{{name: "h", kind: tar.TypeLink, link: "later"}, {name: "later", text: "x"}}},
	"hard link to a directory":           {{{name: "d", kind: tar.TypeDir}, {name: "h", kind: tar.TypeLink, link: "d"}}},
	"hard link to itself":                {{{name: "h", kind: tar.TypeLink, link: "h"}}},
	"hard link to the root":              {{{name: "h", kind: tar.TypeLink, link: "."}}},
	"character device":                   {{{name: "dev/mem", kind: tar.TypeChar}}},
	"block device":                       {{{name: "dev/sda", kind: tar.TypeBlock}}},
	"unknown kind":                       {{{name: "f", kind: 'Z'}}},
	"contiguous file":                    {{{name: "f", kind: tar.TypeCont}}},
	"file through a file":                {{{name: "f", text: "x"}, {name: "f/g", text: "x"}}},
	"root as a file":                     {{{name: ".", kind: tar.TypeSymlink, link: "/"}}},
	"whiteout of ..":                     {{{name: "d/.wh...", text: ""}}},
	"whiteout of .":                      {{{name: "d/.wh..", text: ""}}},
	"whiteout of nothing":                {{{name: "d/.wh.", text: ""}}},
	"name below a whiteout":              {{{name: ".wh.d/f", text: "x"}}},
	"whiteout through a new symlink":     {{{name: "l", kind: tar.TypeSymlink, link: ".."}, {name: "l/.wh.outside"}}},
	"name too long":                      {{{name: strings.Repeat("a", 256), text: "x"}}},
	"path too deep":                      {{{name: strings.Repeat("a/", 300) + "f", text: "x"}}},
	"path too long":                      {{{name: strings.Repeat(strings.Repeat("a", 100)+"/", 50) + "f", text: "x"}}},
	"too many names":                     {{{name: "1"}, {name: "2"}, {name: "3"}, {name: "4"}, {name: "5"}, {name: "6"}, {name: "7"}, {name: "8"}, {name: "9"}, {name: "10"}, {name: "11"}}},
	"too many names in two layers":       {{{name: "1"}, {name: "2"}, {name: "3"}, {name: "4"}, {name: "5"}, {name: "6"}}, {{name: ".wh.1"}, {name: ".wh.1"}, {name: ".wh.1"}, {name: ".wh.1"}, {name: ".wh.1"}}},
	"a file that is too large":           {{{name: "f", text: strings.Repeat("x", 1<<16+1)}}},
	"files that are too large together":  {{{name: "f", text: strings.Repeat("x", 1<<15)}}, {{name: "f", text: strings.Repeat("x", 1<<15)}, {name: "f", text: "x"}}},
}

// smallLimits make bombs of small tests.
var smallLimits = Limits{Bytes: 1 << 16, Files: 10}

// TestG57HostileLayersAreRefused pulls each of them into a store that lies beside
// what they reach for: nothing of it lands, nothing outside changes, nothing is
// left behind.
func TestG57HostileLayersAreRefused(t *testing.T) {
	for name, layers := range hostileLayers {
		t.Run(name, func(t *testing.T) {
			var tars [][]byte
			for _, l := range layers {
				tars = append(tars, tarOf(t, l...))
			}
			refused(t, buildImage(t, tars...), cell.Denied)
		})
	}
}

// refused pulls an image that must be refused.
func refused(t *testing.T, b *built, kinds ...cell.Kind) {
	t.Helper()
	dir := b.layout(t)
	s := newStore(t)
	s.lim = smallLimits
	s.lim.Bytes = 1 << 16
	outside := filepath.Join(filepath.Dir(s.dir), "outside")
	must(t, os.WriteFile(outside, []byte("untouched"), 0o640))
	before := listing(t, filepath.Dir(s.dir))
	_, err := pull(t, s, dir)
	ok := false
	for _, k := range kinds {
		ok = ok || cell.KindOf(err) == k
	}
	if !ok {
		t.Errorf("the pull says %v (%s), want %v", err, cell.KindOf(err), kinds)
	}
	if err != nil && !strings.HasPrefix(err.Error(), "cannot ") {
		t.Errorf("%q does not begin with cannot", err)
	}
	os.Remove(filepath.Join(s.dir, "refs.json"))
	nothingLeft(t, s)
	os.Remove(s.dir)
	if d := cmp.Diff(before, listing(t, filepath.Dir(s.dir))); d != "" {
		t.Errorf("the pull changed what lies outside (-before +after):\n%s", d)
	}
	for _, at := range []string{"/tmp/escaped", "/escaped"} {
		if _, err := os.Lstat(at); err == nil {
			t.Errorf("%s is there", at)
		}
	}
}

// TestG57WhatIsNotWhatItSays covers digests, sizes, types and what describes an
// image.
func TestG57WhatIsNotWhatItSays(t *testing.T) {
	good := tarOf(t, item{name: "f", text: strings.Repeat("good", 100)})
	first := func(b *built) map[string]any { return b.manifest["layers"].([]any)[0].(map[string]any) }
	swap := func(b *built, old, with []byte) { b.blobs[cell.Sum(old)] = with }
	for name, c := range map[string]struct {
		bend  func(t *testing.T, b *built)
		kinds []cell.Kind
	}{
		"another layer": {func(t *testing.T, b *built) {
			swap(b, gz(t, good), gz(t, tarOf(t, item{name: "f", text: strings.Repeat("evil", 100)})))
		}, []cell.Kind{cell.Corrupt}},
		"a layer with one bit changed": {func(t *testing.T, b *built) {
			z := bytes.Clone(gz(t, good))
			z[len(z)-1] ^= 1
			swap(b, gz(t, good), z)
		}, []cell.Kind{cell.Corrupt}},
		"a layer that was compressed again": {func(t *testing.T, b *built) {
			z := bytes.Clone(gz(t, good))
			z[4] ^= 1 // the time in its header
			swap(b, gz(t, good), z)
		}, []cell.Kind{cell.Corrupt}},
		"another config": {func(t *testing.T, b *built) {
			b.note = func(b *built) {
				for d, raw := range b.blobs {
					b.blobs[d] = bytes.Replace(raw, []byte(`"A=1"`), []byte(`"A=2"`), 1)
				}
			}
		}, []cell.Kind{cell.Corrupt}},
		"a truncated layer": {func(t *testing.T, b *built) { z := gz(t, good); swap(b, z, z[:len(z)/2]) }, []cell.Kind{cell.Corrupt}},
		"a layer that ends in the middle": {func(t *testing.T, b *built) {
			z := gz(t, good)[:40]
			b.blobs[cell.Sum(z)] = z
			b.manifest["layers"] = []any{blobDesc(typeLayer+"+gzip", z)}
		}, []cell.Kind{cell.Corrupt}},
		"a tar that ends in the middle": {func(t *testing.T, b *built) {
			z := gz(t, good[:700])
			b.blobs[cell.Sum(z)] = z
			b.manifest["layers"] = []any{blobDesc(typeLayer+"+gzip", z)}
		}, []cell.Kind{cell.Corrupt}},
		"no tar": {func(t *testing.T, b *built) {
			z := gz(t, bytes.Repeat([]byte("no tar "), 200))
			b.blobs[cell.Sum(z)] = z
			b.manifest["layers"] = []any{blobDesc(typeLayer+"+gzip", z)}
		}, []cell.Kind{cell.Corrupt}},
		"a layer that is not compressed as it says":      {func(t *testing.T, b *built) { first(b)["mediaType"] = typeLayer + "+zstd" }, []cell.Kind{cell.Corrupt}},
		"a layer that is compressed and does not say so": {func(t *testing.T, b *built) { first(b)["mediaType"] = typeLayer }, []cell.Kind{cell.Corrupt}},
		"a layer larger than it says":                    {func(t *testing.T, b *built) { first(b)["size"] = 10 }, []cell.Kind{cell.Corrupt}},
		"a layer smaller than it says":                   {func(t *testing.T, b *built) { first(b)["size"] = 10000 }, []cell.Kind{cell.Corrupt}},
		"a layer of a negative size":                     {func(t *testing.T, b *built) { first(b)["size"] = -1 }, []cell.Kind{cell.Denied, cell.Corrupt}},
		"a layer of an unknown type":                     {func(t *testing.T, b *built) { first(b)["mediaType"] = "application/vnd.oci.image.layer.v1.tar+xz" }, []cell.Kind{cell.Unsupported}},
		"a layer without a type":                         {func(t *testing.T, b *built) { first(b)["mediaType"] = "" }, []cell.Kind{cell.Unsupported}},
		"a layer from somewhere else":                    {func(t *testing.T, b *built) { first(b)["urls"] = []string{"https://example.com/layer"} }, []cell.Kind{cell.Unsupported}},
		"a foreign layer": {func(t *testing.T, b *built) {
			first(b)["mediaType"] = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip"
		}, []cell.Kind{cell.Unsupported}},
		"a layer with another digest's algorithm": {func(t *testing.T, b *built) { first(b)["digest"] = "md5:d41d8cd98f00b204e9800998ecf8427e" }, []cell.Kind{cell.Corrupt}},
		"a layer whose digest is a path":          {func(t *testing.T, b *built) { first(b)["digest"] = "sha256:../../../../../etc/passwd" }, []cell.Kind{cell.Corrupt}},
		"a layer without a digest":                {func(t *testing.T, b *built) { first(b)["digest"] = "" }, []cell.Kind{cell.Corrupt}},
		"a config that names another layer": {func(t *testing.T, b *built) {
			b.config["rootfs"].(map[string]any)["diff_ids"] = []string{cell.Sum(nil).String()}
		}, []cell.Kind{cell.Corrupt}},
		"a config that names more layers": {func(t *testing.T, b *built) {
			b.config["rootfs"].(map[string]any)["diff_ids"] = []string{cell.Sum(good).String(), cell.Sum(good).String()}
		}, []cell.Kind{cell.Corrupt}},
		"a config without layers":        {func(t *testing.T, b *built) { delete(b.config, "rootfs") }, []cell.Kind{cell.Unsupported}},
		"a config for another processor": {func(t *testing.T, b *built) { b.config["architecture"] = "s390x" }, []cell.Kind{cell.Unsupported}},
		"a config for another system":    {func(t *testing.T, b *built) { b.config["os"] = "windows" }, []cell.Kind{cell.Unsupported}},
		"an artifact that is no image": {func(t *testing.T, b *built) {
			b.manifest["config"] = b.put(t, "application/vnd.oci.empty.v1+json", map[string]any{})
		}, []cell.Kind{cell.Unsupported}},
		"a manifest without a config":              {func(t *testing.T, b *built) { b.manifest["config"] = map[string]any{} }, []cell.Kind{cell.Unsupported, cell.Corrupt}},
		"a manifest that is an index, too":         {func(t *testing.T, b *built) { b.manifest["manifests"] = []any{blobDesc(typeManifest, good)} }, []cell.Kind{cell.Corrupt}},
		"a manifest that says that it is an index": {func(t *testing.T, b *built) { b.manifest["mediaType"] = typeIndex }, []cell.Kind{cell.Corrupt}},
		"a manifest of an unknown type":            {func(t *testing.T, b *built) { b.manifest["mediaType"] = "application/vnd.example+json" }, []cell.Kind{cell.Unsupported}},
		"Docker's first schema":                    {func(t *testing.T, b *built) { b.manifest["schemaVersion"] = 1 }, []cell.Kind{cell.Unsupported}},
		"too many layers": {func(t *testing.T, b *built) {
			var many []any
			for range maxLayers + 1 {
				many = append(many, first(b))
			}
			b.manifest["layers"] = many
		}, []cell.Kind{cell.Unsupported}},
		"another manifest": {func(t *testing.T, b *built) {
			b.note = func(b *built) {
				for d, raw := range b.blobs {
					if bytes.Contains(raw, []byte(typeManifest)) {
						b.blobs[d] = bytes.Replace(raw, []byte("schemaVersion"), []byte("schemaversion"), 1)
					}
				}
			}
		}, []cell.Kind{cell.Corrupt}},
		"a manifest that is missing": {func(t *testing.T, b *built) {
			b.note = func(b *built) {
				for d, raw := range b.blobs {
					if bytes.Contains(raw, []byte(typeManifest)) {
						delete(b.blobs, d)
					}
				}
			}
		}, []cell.Kind{cell.Corrupt}},
		"a layer that is missing": {func(t *testing.T, b *built) { delete(b.blobs, cell.Sum(gz(t, good))) }, []cell.Kind{cell.Corrupt}},
		"an index for other processors": {func(t *testing.T, b *built) {
			b.top = func(d map[string]any) map[string]any {
				d["platform"] = map[string]any{"os": "linux", "architecture": "s390x"}
				return map[string]any{"schemaVersion": 2, "manifests": []any{d, d}}
			}
		}, []cell.Kind{cell.Unsupported}},
		"an index that leads to itself": {func(t *testing.T, b *built) {
			b.top = func(d map[string]any) map[string]any {
				in := d
				for range 5 {
					in = b.put(t, typeIndex, map[string]any{"schemaVersion": 2, "mediaType": typeIndex, "manifests": []any{in}})
				}
				return map[string]any{"schemaVersion": 2, "manifests": []any{in}}
			}
		}, []cell.Kind{cell.Corrupt}},
		"a bomb": {func(t *testing.T, b *built) {
			z := gz(t, tarOf(t, item{name: "f", text: strings.Repeat("\x00", 1<<22)}))
			b.blobs[cell.Sum(z)] = z
			b.manifest["layers"] = []any{blobDesc(typeLayer+"+gzip", z)}
		}, []cell.Kind{cell.Denied}},
		"a bomb after the last file": {func(t *testing.T, b *built) {
			z := gz(t, append(bytes.Clone(good), make([]byte, 1<<20)...))
			b.blobs[cell.Sum(z)] = z
			b.manifest["layers"] = []any{blobDesc(typeLayer+"+gzip", z)}
		}, []cell.Kind{cell.Denied}},
		"a bomb of zstd": {func(t *testing.T, b *built) {
			z := zst(t, tarOf(t, item{name: "f", text: strings.Repeat("\x00", 1<<24)}))
			b.blobs[cell.Sum(z)] = z
			b.manifest["layers"] = []any{blobDesc(typeLayer+"+zstd", z)}
		}, []cell.Kind{cell.Denied}},
		"more after the compressed layer": {func(t *testing.T, b *built) {
			z := append(gz(t, good), "more"...)
			b.blobs[cell.Sum(z)] = z
			b.manifest["layers"] = []any{blobDesc(typeLayer+"+gzip", z)}
		}, []cell.Kind{cell.Corrupt}},
	} {
		t.Run(name, func(t *testing.T) {
			b := buildImage(t, good)
			c.bend(t, b)
			refused(t, b, c.kinds...)
		})
	}
	t.Run("none of it", func(t *testing.T) { // the images above are refused for what they say
		s := newStore(t)
		s.lim = smallLimits
		if _, err := pull(t, s, buildImage(t, good).layout(t)); err != nil {
			t.Error(err)
		}
	})
}

// TestG57HostileArchives covers the archive around an image.
func TestG57HostileArchives(t *testing.T) {
	for name, c := range map[string]struct {
		items []item
		says  string
	}{
		"absolute name":                     {[]item{{name: "/index.json", text: "{}"}}, "is absolute"},
		"name with ..":                      {[]item{{name: "../index.json", text: "{}"}}, "leads out"},
		"a name twice":                      {[]item{{name: "index.json", text: "{}"}, {name: "index.json", text: "{}"}}, "is in it twice"},
		"no image":                          {[]item{{name: "hello", text: "x"}}, "neither index.json nor manifest.json"},
		"no JSON":                           {[]item{{name: "index.json", text: "{"}}, "cannot read a manifest"},
		"a link as index":                   {[]item{{name: "index.json", kind: tar.TypeSymlink, link: "/etc/passwd"}}, "neither index.json nor manifest.json"},
		"a link to a link":                  {[]item{{name: "manifest.json", kind: tar.TypeSymlink, link: "a"}, {name: "a", kind: tar.TypeSymlink, link: "manifest.json"}}, "neither index.json nor manifest.json"},
		"Docker's, with a config elsewhere": {[]item{{name: "manifest.json", text: `[{"Config":"../../etc/passwd","Layers":[]}]`}}, "its config is missing"},
		"Docker's, with a layer elsewhere":  {[]item{{name: "c.json", text: "{}"}, {name: "manifest.json", text: `[{"Config":"c.json","Layers":["/etc/passwd"]}]`}}, "layer /etc/passwd is missing"},
		"Docker's, with another config":     {[]item{{name: strings.Repeat("a", 64) + ".json", text: "{}"}, {name: "manifest.json", text: `[{"Config":"` + strings.Repeat("a", 64) + `.json","Layers":[]}]`}}, "the config is called"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t)
			at := filepath.Join(t.TempDir(), "a.tar")
			must(t, os.WriteFile(at, tarOf(t, c.items...), 0o644))
			if _, err := pull(t, s, at); cell.KindOf(err) == cell.Internal || err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("the pull says %v, want %q", err, c.says)
			}
			nothingLeft(t, s)
		})
	}
}

// TestG57InterruptedPull ends a pull in the middle of a layer.
func TestG57InterruptedPull(t *testing.T) {
	s := newStore(t)
	var items []item
	for i := range 2000 {
		items = append(items, item{name: "f" + itoa(i), text: "x"})
	}
	r, err := Parse(buildImage(t, tarOf(t, items...)).layout(t), "/")
	must(t, err)
	ctx, stop := context.WithCancelCause(t.Context())
	why := cell.Errorf(cell.Interrupted, "test", "", "cannot go on")
	_, err = s.Pull(ctx, r, PullOptions{Report: func(p Progress) {
		if p.Step == "unpacking" {
			stop(why)
		}
	}})
	if cell.KindOf(err) != cell.Interrupted {
		t.Errorf("the pull says %v", err)
	}
	nothingLeft(t, s)

	// What a killed one has left is gone when the store is opened again.
	must(t, os.MkdirAll(filepath.Join(s.dir, "abc"+partial, "image/root/d"), 0o700))
	must(t, os.Chmod(filepath.Join(s.dir, "abc"+partial, "image/root/d"), 0o500))
	if _, err := OpenStore(s.dir, false, "test"); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, s)
}

// FuzzLayer unpacks what may be a layer. Whatever it is, nothing outside
// changes, and nothing inside is what a cell must not have.
func FuzzLayer(f *testing.F) {
	for _, layers := range hostileLayers {
		for _, l := range layers {
			f.Add(tarOf(f, l...))
		}
	}
	f.Add(tarOf(f, item{name: "d", kind: tar.TypeDir}, item{name: "d/.wh..wh..opq"}, item{name: ".wh.lower"}, item{name: "link/x", text: "1"}))
	f.Fuzz(func(t *testing.T, b []byte) {
		boundtest.AllocatesBeside(t, len(b), 2*plainWindow, func() {
			top := t.TempDir()
			root := filepath.Join(top, "root")
			must(t, os.Mkdir(root, 0o700))
			must(t, os.WriteFile(filepath.Join(top, "outside"), []byte("untouched"), 0o644))
			before := listing(t, filepath.Dir(root))
			u, err := newUnpacker(root, Limits{Bytes: 1 << 20, Files: 200}, false)
			must(t, err)
			defer u.close()
			lower := tarOf(t, item{name: "lower/f", text: "1"}, item{name: "link", kind: tar.TypeSymlink, link: "lower"}, item{name: "out", kind: tar.TypeSymlink, link: "../outside"}, item{name: "up", kind: tar.TypeSymlink, link: "../.."})
			if _, err := u.layer(t.Context(), bytes.NewReader(lower), descriptor{MediaType: typeLayer}); err != nil {
				t.Fatal(err)
			}
			_, err = u.layer(t.Context(), bytes.NewReader(b), descriptor{MediaType: typeAnyLayer, Size: int64(len(b))})
			if err == nil {
				err = u.finish()
			}
			if err != nil && cell.KindOf(err) == cell.Internal && !strings.Contains(err.Error(), "file name too long") {
				t.Errorf("%v", err)
			}
			for _, l := range listing(t, root) {
				mode, name, _ := strings.Cut(l, " ")
				if strings.HasPrefix(mode, "d") { // of a directory setgid gives its group to new files
					mode = strings.ReplaceAll(mode, "g", "")
				}
				if strings.ContainsAny(mode, "DcpSug") {
					t.Errorf("%s %s", mode, name)
				}
			}
			must(t, linux.RemoveTree(root))
			must(t, os.Mkdir(root, 0o700))
			if d := cmp.Diff(before, listing(t, filepath.Dir(root))); d != "" {
				t.Errorf("what lies outside was changed:\n%s", d)
			}
		})
	})
}
