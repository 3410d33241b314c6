package workspacetest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/workspace"
)

// A View says what is at each path of a directory, "" for the top, in words
// that can be compared.
type View map[string]Seen

// Seen is one thing of a View.
type Seen struct {
	Type   string
	Mode   uint32
	MTime  int64
	Size   int64
	Sum    string // of a file's content
	Target string
	XAttrs string
	Names  string // all names of a file that has several
}

// Look reads a directory into a View. It shares no code with what computes
// trees, so that the two can be held against each other.
func Look(dir string) (View, error) { return look(dir, false) }

// look is Look. ghosts: names are left out that are listed and are not there. The kernel lists whiteouts as
// names in a folder that one layer alone has.
func look(dir string, ghosts bool) (View, error) {
	v := View{}
	names := map[string][]string{}
	err := filepath.WalkDir(dir, func(at string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(at, &st); err != nil {
			if ghosts && err == unix.ENOENT {
				return nil
			}
			return err
		}
		p := relative(dir, at)
		s := Seen{Type: kinds[st.Mode&unix.S_IFMT], Mode: st.Mode & 0o7777, MTime: unix.TimespecToNsec(st.Mtim)}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			b, err := os.ReadFile(at)
			if err != nil {
				return err
			}
			sum := sha256.Sum256(b)
			s.Size, s.Sum = int64(len(b)), hex.EncodeToString(sum[:])
			key := fmt.Sprint(st.Dev, ".", st.Ino)
			names[key] = append(names[key], p)
			s.XAttrs, err = attributes(at)
			if err != nil {
				return err
			}
		case unix.S_IFDIR:
			if s.XAttrs, err = attributes(at); err != nil {
				return err
			}
		case unix.S_IFLNK:
			if s.Target, err = os.Readlink(at); err != nil {
				return err
			}
		}
		v[p] = s
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, group := range names {
		v.name(group)
	}
	return v, nil
}

var kinds = map[uint32]string{unix.S_IFREG: "file", unix.S_IFDIR: "folder", unix.S_IFLNK: "symlink", unix.S_IFIFO: "fifo",
	unix.S_IFSOCK: "socket", unix.S_IFCHR: "device", unix.S_IFBLK: "device"}

// name notes that the paths of a group are one file.
func (v View) name(group []string) {
	if len(group) < 2 {
		return
	}
	sort.Strings(group)
	for _, p := range group {
		s := v[p]
		s.Names = strings.Join(group, "\x00")
		v[p] = s
	}
}

// attributes gives the user's own attributes.
func attributes(at string) (string, error) {
	buf := make([]byte, 64<<10)
	n, err := unix.Llistxattr(at, buf)
	if err != nil {
		return "", fmt.Errorf("list attributes of %s: %w", at, err)
	}
	var out []string
	for _, name := range strings.Split(string(buf[:n]), "\x00") {
		if !strings.HasPrefix(name, "user.") || strings.HasPrefix(name, "user.overlay.") {
			continue
		}
		val := make([]byte, 64<<10)
		m, err := unix.Lgetxattr(at, name, val)
		if err != nil {
			return "", err
		}
		out = append(out, name+"="+string(val[:m]))
	}
	sort.Strings(out)
	return strings.Join(out, "\n"), nil
}

// ViewOf says the same of a tree.
func ViewOf(t *workspace.Tree) (View, error) {
	v := View{}
	see := func(p string, e workspace.Entry) error {
		s := Seen{Type: e.Type.String(), Mode: e.Mode, MTime: e.MTime, Target: e.Target}
		if e.Type == workspace.File {
			s.Size, s.Sum = e.Size, hex.EncodeToString(e.Digest[:])
		}
		var xs []string
		for _, x := range e.XAttrs {
			xs = append(xs, x.Name+"="+x.Value)
		}
		s.XAttrs = strings.Join(xs, "\n")
		v[p] = s
		return nil
	}
	if err := see("", t.Root); err != nil {
		return nil, err
	}
	if err := t.Walk("", see); err != nil {
		return nil, err
	}
	for _, g := range t.Links {
		v.name(append([]string(nil), g...))
	}
	return v, nil
}

// Timeless returns v without times: what two providers must agree on when the
// same was done to both, one after the other.
func (v View) Timeless() View {
	out := View{}
	for p, s := range v {
		s.MTime = 0
		out[p] = s
	}
	return out
}

func relative(dir, at string) string {
	if at == dir {
		return ""
	}
	if dir == "." { // WalkDir leaves the dot out
		return at
	}
	return strings.TrimPrefix(at, dir+"/")
}

// Differ says how two views differ, "" for not at all. Which names a file has together is left out.
func Differ(a, b View) string {
	a, b = a.nameless(), b.nameless()
	var out []string
	for p := range a {
		if a[p] != b[p] {
			out = append(out, fmt.Sprintf("%q: %+v, %+v", p, a[p], b[p]))
		}
	}
	for p := range b {
		if _, ok := a[p]; !ok {
			out = append(out, fmt.Sprintf("%q: nothing, %+v", p, b[p]))
		}
	}
	sort.Strings(out)
	return strings.Join(out, "\n")
}
