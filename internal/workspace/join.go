package workspace

import (
	"cmp"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Bounds on the hard links that each cell preserves: joining them (see Provider.Join) costs time
// whenever a cell gets a writable layer. In bytes, each name counts with the size of its file.
const (
	MaxJoinedNames = 256
	MaxJoinedBytes = int64(16 << 20)
)

// The bounds for forks of a warm template, many of which begin at once.
const (
	MaxForkedNames = 64
	MaxForkedBytes = int64(1 << 20)
)

// A LinkGroup is one file of a tree that has several names.
type LinkGroup struct {
	Names []string // sorted
	Size  int64    // bytes
}

// Joinable splits the hard links of t into the groups that a cell can join within the bounds on
// names and bytes, each name counted, smallest files first, and the rest.
func (t *Tree) Joinable(maxNames int, maxBytes int64) (join, rest []LinkGroup, err error) {
	all := make([]LinkGroup, 0, len(t.Links))
	f := t.Finder()
	for _, names := range t.Links {
		e, err := f.Lookup(names[0])
		if err != nil {
			return nil, nil, err
		}
		all = append(all, LinkGroup{names, e.Size})
	}
	slices.SortStableFunc(all, func(a, b LinkGroup) int { return cmp.Compare(a.Size, b.Size) })
	names, bytes := 0, int64(0)
	for i, g := range all {
		names += len(g.Names)
		bytes += g.Size * int64(len(g.Names)) // it counts against a disk limit
		if names > maxNames || bytes > maxBytes {
			return all[:i], all[i:], nil
		}
	}
	return all, nil, nil
}

// CopyFound makes at a copy of the open file in, which f describes, with the attributes that accept
// accepts, as CopyTree does.
func CopyFound(in *os.File, at string, f *Found, accept func(string) bool) error {
	return copyFile(in, at, f, accept)
}

// WriteFound makes at a file with this data, and with the attributes and what else f describes.
func WriteFound(data []byte, xs []XAttr, at string, f *Found) error {
	out, err := os.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	if _, err := out.Write(data); err != nil {
		return err
	}
	return dressFile(out, f, xs)
}

// FoundOf converts a stat of a path.
func FoundOf(path string, st *unix.Stat_t) Found {
	return Found{Path: path, Stat: StatOf(st), Rdev: uint64(st.Rdev), Blocks: st.Blocks, UID: st.Uid, GID: st.Gid}
}
