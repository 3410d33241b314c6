package image

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/linux"
)

// etcVersion changes whenever the same host would give another directory.
const etcVersion = "etc 2"

// An etcNote is what is kept of a prepared /etc: where it is, and the state of
// all that went into it. It holds for one boot: preparing it again is cheaper
// than making it survive power loss.
type etcNote struct {
	Dir   string    `json:"dir"`
	Boot  string    `json:"boot"`
	Names []string  `json:"names"` // of /etc, that were taken
	Seen  []etcSeen `json:"seen"`
	Left  []string  `json:"left,omitempty"` // files left out for what they hold
	// Shared are directories of which nothing had to be left out, and that are
	// too large to copy: they are mounted as they are.
	Shared []string `json:"shared,omitempty"`
}

type etcSeen struct {
	Path  string `json:"path"`
	Dev   uint64 `json:"dev"`
	Ino   uint64 `json:"ino"`
	Mode  uint32 `json:"mode"`
	UID   uint32 `json:"uid"`
	Size  int64  `json:"size"`
	MTime int64  `json:"mtime"`
	CTime int64  `json:"ctime"`
}

func (s etcSeen) info() info {
	return info{dev: s.Dev, ino: s.Ino, mode: s.Mode, uid: s.UID, size: s.Size, mtime: s.MTime, ctime: s.CTime}
}

// etc mounts the filtered /etc and makes it if there is none for this host's
// files as they are now.
func (p *planner) etc() error {
	shell := "/bin/sh"
	if p.t.resolve("/bin/bash").isProgram() {
		shell = "/bin/bash"
	}
	own := generated(p.req.User, shell)
	n, err := prepareEtc(p.t, p.g, p.req.EtcDir, own)
	if err != nil {
		return err
	}
	dir := filepath.Join(p.req.EtcDir, n.Dir)
	p.slots["/etc"] = slot{Mount: cell.Mount{Kind: cell.Bind, Target: "/etc", Source: dir, ReadOnly: true, Why: "filtered /etc"}}
	for _, at := range n.Shared {
		p.slots[at] = slot{own: true, fixed: true, Mount: cell.Mount{Kind: cell.Bind, Target: at, Source: p.t.disk(at), ReadOnly: true, Why: "part of /etc"}}
	}
	p.empty = filepath.Join(dir, "environment")
	for _, at := range n.Left {
		p.note(at, "is left out of the cell: it holds what looks like a secret", "")
	}
	return nil
}

func prepareEtc(t *tree, g *guard, dir string, own map[string]string) (*etcNote, error) {
	fail := func(err error) (*etcNote, error) {
		return nil, cell.Errorf(cell.Internal, "image.Host", "", "cannot prepare a filtered /etc: %w", err)
	}
	if !filepath.IsAbs(dir) {
		return fail(fmt.Errorf("%q is not absolute", dir))
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s\x00%s\x00", etcVersion, t.prefix)
	for _, name := range sortedKeys(own) {
		fmt.Fprintf(h, "%s\x00%s\x00", name, own[name])
	}
	file := "etc-" + hex.EncodeToString(h.Sum(nil)[:8]) + ".json"
	names := etcPresent(t)
	if n := readEtcNote(filepath.Join(dir, file)); n != nil && n.holds(t, dir, names) {
		return n, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fail(err)
	}
	tmp, err := os.MkdirTemp(dir, "etc-*.partial")
	if err != nil {
		return fail(err)
	}
	defer os.RemoveAll(tmp) // gone already when it was renamed
	b := etcBuilder{t: t, g: g, to: tmp, owner: t.lstat("/etc").uid, note: &etcNote{Boot: linux.BootID(), Names: names}}
	if err := b.build(names, own); err != nil {
		return fail(err)
	}
	for _, s := range b.note.Seen {
		fmt.Fprintf(h, "%+v\x00", s)
	}
	fmt.Fprintf(h, "%q\x00%s", names, b.note.Boot)
	b.note.Dir = "etc-" + hex.EncodeToString(h.Sum(nil)[:12])
	if err := os.Rename(tmp, filepath.Join(dir, b.note.Dir)); err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, unix.ENOTEMPTY) {
		return fail(err)
	}
	body, err := json.Marshal(b.note)
	if err != nil {
		return fail(err)
	}
	if err := durable.WriteFile(durable.Disk(dir), file, body, 0o600); err != nil {
		return nil, err
	}
	return b.note, nil
}

// etcPresent returns the names in /etc that a cell may have, sorted.
func etcPresent(t *tree) []string {
	return remember("etc names", t.disk("/etc"), t.lstat("/etc"), func() (names []string) {
		for _, e := range t.list("/etc") {
			if etcAllows(e.name) {
				names = append(names, e.name)
			}
		}
		slices.Sort(names)
		return names
	})
}

func readEtcNote(file string) *etcNote {
	t := newTree("/")
	i := t.lstat(file)
	if !i.isFile() {
		return nil
	}
	return remember("etc note", file, i, func() *etcNote {
		var n etcNote
		if b := t.read(file, 16<<20); b == nil || json.Unmarshal(b, &n) != nil || n.Dir != filepath.Base(n.Dir) || !strings.HasPrefix(n.Dir, "etc-") {
			return nil
		}
		return &n
	})
}

// holds reports whether the prepared directory is still what would be made.
func (n *etcNote) holds(t *tree, dir string, names []string) bool {
	if n.Boot != linux.BootID() || !slices.Equal(n.Names, names) || !newTree("/").lstat(filepath.Join(dir, n.Dir)).isDir() {
		return false
	}
	for _, s := range n.Seen {
		if t.lstat(s.Path) != s.info() {
			return false
		}
	}
	return true
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// PruneEtc removes the prepared /etc directories below dir that no plan made
// in the last hour could use and that are not in use, which lists their
// paths. It returns what it removed; with dry it only says.
func PruneEtc(dir string, use []string, dry bool) (removed []string, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	current := map[string]bool{}
	for _, e := range entries {
		if n := readEtcNote(filepath.Join(dir, e.Name())); n != nil && n.Boot == linux.BootID() {
			current[n.Dir] = true
		}
	}
	for _, e := range entries {
		at := filepath.Join(dir, e.Name())
		st, err := e.Info()
		if err != nil || !e.IsDir() || !strings.HasPrefix(e.Name(), "etc-") || current[e.Name()] || slices.Contains(use, at) || time.Since(st.ModTime()) < time.Hour {
			continue
		}
		if !dry {
			if err := os.RemoveAll(at); err != nil {
				return removed, err
			}
		}
		removed = append(removed, at)
	}
	return removed, nil
}
