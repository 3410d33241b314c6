// Package workspacetest makes workspaces for tests: models of directories, at
// hand or at random, as trees and as files. It promises that a model gives the
// same tree each time; it leaves to the tests what they do with it.
package workspacetest

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/workspace"
)

// A Model is a workspace as a map: what tests make trees and directories of.
// Folders need an entry only when they are empty.
type Model map[string]Thing

// Thing is a file unless link or fifo says otherwise; mode 0 is 0644, of a
// folder 0755.
type Thing struct {
	Text   string
	Link   string
	Mode   uint32
	Folder bool
	Fifo   bool
	MTime  int64
	XAttrs []workspace.XAttr
}

// Plain is a file with that text.
func Plain(s string) Thing { return Thing{Text: s} }

// Script is an executable file.
func Script(s string) Thing { return Thing{Text: s, Mode: 0o755} }

// Link is a symlink.
func Link(to string) Thing { return Thing{Link: to} }

// With returns a copy of m that also has t at p.
func (m Model) With(p string, t Thing) Model {
	n := Model{}
	for k, v := range m {
		n[k] = v
	}
	n[p] = t
	return n
}

// Paths lists what m has, in order.
func (m Model) Paths() []string {
	out := make([]string, 0, len(m))
	for p := range m {
		out = append(out, p)
	}
	sort.Strings(out)
	return out
}

// Objects holds directories in memory.
type Objects struct {
	mu sync.Mutex
	m  map[cell.Digest][]byte
}

// NewObjects returns an empty set.
func NewObjects() *Objects { return &Objects{m: map[cell.Digest][]byte{}} }

// Put implements workspace.Objects.
func (o *Objects) Put(d cell.Digest, b []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.m[d] = bytes.Clone(b)
	return nil
}

// Get implements workspace.Objects.
func (o *Objects) Get(d cell.Digest) ([]byte, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	b, ok := o.m[d]
	if !ok {
		return nil, cell.Errorf(cell.NotFound, "workspacetest.Get", "", "no object %s", d.Short())
	}
	return b, nil
}

// contents holds files by digest.
type contents map[cell.Digest]string

func (c contents) Open(path string, e workspace.Entry) (io.ReadCloser, error) {
	s, ok := c[e.Digest]
	if !ok {
		return nil, fmt.Errorf("no content for %s", path)
	}
	return io.NopCloser(strings.NewReader(s)), nil
}

// Side makes the tree of m.
func (m Model) Side(t testing.TB, objs workspace.Objects) workspace.Side {
	t.Helper()
	if objs == nil {
		objs = NewObjects()
	}
	tree, err := workspace.EmptyTree(objs)
	if err != nil {
		t.Fatal(err)
	}
	contents := contents{}
	ed := tree.Edit()
	made := map[string]bool{"": true}
	var folder func(p string)
	folder = func(p string) {
		if made[p] {
			return
		}
		made[p] = true
		folder(workspace.Parent(p))
		e := workspace.Entry{Type: workspace.Folder, Mode: 0o755}
		if f := m[p]; f.Folder {
			e.MTime, e.XAttrs = f.MTime, f.XAttrs
			if f.Mode != 0 {
				e.Mode = f.Mode
			}
		}
		if err := ed.Put(p, e); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range m.Paths() {
		f := m[p]
		folder(workspace.Parent(p))
		e := workspace.Entry{Mode: f.Mode, MTime: f.MTime, XAttrs: f.XAttrs}
		switch {
		case f.Folder:
			folder(p)
			continue
		case f.Link != "":
			e.Type, e.Target, e.Mode = workspace.Symlink, f.Link, 0o777
		case f.Fifo:
			e.Type = workspace.Fifo
		default:
			e.Type, e.Size, e.Digest = workspace.File, int64(len(f.Text)), cell.Sum([]byte(f.Text))
			contents[e.Digest] = f.Text
		}
		if e.Mode == 0 {
			e.Mode = 0o644
		}
		if err := ed.Put(p, e); err != nil {
			t.Fatal(err)
		}
	}
	if tree, err = ed.Commit(); err != nil {
		t.Fatal(err)
	}
	return workspace.Side{Tree: tree, Contents: contents}
}

// Write makes dir hold m.
func (m Model) Write(t testing.TB, dir string) {
	t.Helper()
	for _, p := range m.Paths() {
		f, at := m[p], filepath.Join(dir, p)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		mode := os.FileMode(f.Mode)
		if mode == 0 {
			mode = 0o644
		}
		var err error
		switch {
		case f.Folder:
			err = os.MkdirAll(at, 0o755)
		case f.Link != "":
			err = os.Symlink(f.Link, at)
		case f.Fifo:
			err = unix.Mkfifo(at, 0o644)
		default:
			if err = os.WriteFile(at, []byte(f.Text), 0o644); err == nil {
				err = os.Chmod(at, mode)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Read gives what dir holds, ".git" at its top left out.
func Read(t testing.TB, dir string) Model {
	t.Helper()
	m := Model{}
	err := filepath.WalkDir(dir, func(at string, d os.DirEntry, err error) error {
		if err != nil || at == dir {
			return err
		}
		p, _ := filepath.Rel(dir, at)
		if p == ".git" {
			return filepath.SkipDir
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		f := Thing{Mode: uint32(fi.Mode().Perm()), MTime: fi.ModTime().UnixNano()}
		switch {
		case d.IsDir():
			f.Folder = true
		case fi.Mode()&os.ModeSymlink != 0:
			f.Link, err = os.Readlink(at)
		case fi.Mode()&os.ModeNamedPipe != 0:
			f.Fifo = true
		default:
			var b []byte
			b, err = os.ReadFile(at)
			f.Text = string(b)
		}
		m[p] = f
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// ContentDigest gives the content digest of a directory.
func ContentDigest(t testing.TB, dir string) cell.Digest {
	return Read(t, dir).Side(t, nil).Tree.ContentDigest()
}
