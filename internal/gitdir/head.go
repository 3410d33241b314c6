//go:build linux

package gitdir

import (
	"bufio"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/cell"
)

// A Head is the checked out branch and commit of a work tree.
type Head struct {
	Branch string `json:"branch,omitempty"` // without refs/heads/; "" when HEAD is detached
	Commit string `json:"commit,omitempty"` // its object id in hex; "" on a branch without commits
}

// A ReadFile returns a file of a repository's ".git" by its name there, "refs/heads/main" for
// example. A missing file is fs.ErrNotExist.
type ReadFile func(name string) ([]byte, error)

// MaxRefs bounds one file with refs, in bytes: packed-refs of 200,000 refs has 14 MB.
const MaxRefs = 16 << 20

// Head returns the checked out branch and commit.
func (r *Repo) Head() (Head, error) {
	return ReadHead(func(name string) ([]byte, error) {
		dir := r.common
		if name == "HEAD" {
			dir = r.dir
		}
		return readRegular(filepath.Join(dir, name), MaxRefs)
	})
}

// ReadHead returns the checked out branch and commit of a repository. Refs that are not stored
// in files (reftable) are an Unsupported error.
func ReadHead(read ReadFile) (Head, error) {
	b, err := read("HEAD")
	if err != nil {
		return Head{}, fmt.Errorf("cannot read git's HEAD: %w", err)
	}
	text := strings.TrimSpace(string(b))
	ref, symbolic := strings.CutPrefix(text, "ref:")
	if !symbolic {
		if !isID(text) {
			return Head{}, unreadableRef("HEAD")
		}
		return Head{Commit: text}, nil
	}
	ref = strings.TrimSpace(ref)
	if ref == "refs/heads/.invalid" {
		return Head{}, cell.Errorf(cell.Unsupported, "gitdir.ReadHead", "", "cannot read git's refs: they are in a reftable")
	}
	if !refName(ref) {
		return Head{}, unreadableRef("HEAD")
	}
	h := Head{Branch: strings.TrimPrefix(ref, "refs/heads/")}
	b, err = read(ref)
	if err == nil {
		if h.Commit = strings.TrimSpace(string(b)); !isID(h.Commit) {
			return Head{}, unreadableRef(ref)
		}
		return h, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return Head{}, fmt.Errorf("cannot read git's %s: %w", ref, err)
	}
	packed, err := ReadPacked(read)
	h.Commit = packed[ref]
	return h, err
}

// ReadPacked returns the refs in packed-refs, by name: none if there is no such file.
func ReadPacked(read ReadFile) (map[string]string, error) {
	b, err := read("packed-refs")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read git's packed-refs: %w", err)
	}
	refs := map[string]string{}
	for line := range strings.Lines(string(b)) {
		id, ref, ok := strings.Cut(strings.TrimRight(line, "\r\n"), " ")
		if ok && isID(id) && refName(ref) {
			refs[ref] = id
		}
	}
	return refs, nil
}

// ParseRef returns the object id in a file of refs; "" for a symbolic ref, and for a name that
// git refuses.
func ParseRef(name string, content []byte) string {
	if id := strings.TrimSpace(string(content)); isID(id) && refName(name) {
		return id
	}
	return ""
}

func unreadableRef(name string) error {
	return cell.Errorf(cell.Invalid, "gitdir.ReadHead", "", "cannot read git's %s: it is no ref", name)
}

// isID reports whether s is the id of an object: 40 hex digits, or 64 with SHA-256.
func isID(s string) bool {
	return (len(s) == 40 || len(s) == 64) && strings.Trim(s, "0123456789abcdef") == ""
}

// refName reports whether git accepts name as the full name of a ref (git-check-ref-format).
func refName(name string) bool {
	if !strings.HasPrefix(name, "refs/") || strings.ContainsAny(name, " ~^:?*[\\") || strings.Contains(name, "..") || strings.Contains(name, "@{") ||
		strings.HasSuffix(name, ".") || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return false
	}
	return !slices.ContainsFunc(strings.Split(name, "/"), func(part string) bool {
		return part == "" || strings.HasPrefix(part, ".") || strings.HasSuffix(part, ".lock")
	})
}

// LooseObject returns the name in ".git" of an object that is in no pack.
func LooseObject(id string) string { return "objects/" + id[:2] + "/" + id[2:] }

// maxParents bounds the part of a commit that is read, in bytes: its parents come before its
// message.
const maxParents = 64 << 10

// Parents reads the parents of a commit from the file of its object.
func Parents(r io.Reader) ([]string, error) {
	z, err := zlib.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("cannot read a commit: %w", err)
	}
	in := bufio.NewReader(bound.Reader(z, "the parents of a commit", maxParents))
	if head, err := in.ReadString(0); err != nil || !strings.HasPrefix(head, "commit ") {
		return nil, cell.Errorf(cell.Invalid, "gitdir.Parents", "", "cannot read a commit: the object is none")
	}
	var parents []string
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return nil, fmt.Errorf("cannot read a commit: %w", err)
		}
		switch key, id, _ := strings.Cut(strings.TrimRight(line, "\n"), " "); {
		case key == "parent" && isID(id):
			parents = append(parents, id)
		case key != "tree":
			return parents, nil
		}
	}
}

// HeadAt is what the repository that a directory is in has checked out. It is zero when
// there is no repository, or when its refs can't be read.
func HeadAt(dir string) Head {
	r, err := Find(dir)
	if r == nil || err != nil {
		return Head{}
	}
	h, err := r.Head()
	if err != nil {
		return Head{}
	}
	return h
}
