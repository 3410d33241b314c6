package diff

import (
	"context"
	"hash/maphash"
	"path"
	"sort"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/workspace"
)

// Limits on the search for files that were renamed and modified, as git's
// diff.renameLimit: the work is at most the product of both numbers.
const (
	renameFiles  = 1000     // deleted or added files; with more, only exact renames are found
	renameSize   = 1 << 20  // bytes of one file
	renameBudget = 64 << 20 // bytes of all files
	renameMin    = 50       // per cent that must be common
)

// findRenames joins deleted and added files that are equal or similar. It never joins empty
// files and symlinks: git apply -R (2.39) does not see that a renamed symlink is removed, and
// refuses what then lies below its name.
func (d *Diff) findRenames(ctx context.Context) error {
	var gone, came []*FileChange
	for i := range d.Files {
		c := &d.Files[i]
		switch {
		case c.Status == StatusDeleted && c.old.Type == workspace.File && c.old.Size > 0:
			gone = append(gone, c)
		case c.Status == StatusAdded && c.new.Type == workspace.File && c.new.Size > 0:
			came = append(came, c)
		}
	}
	if len(gone) == 0 || len(came) == 0 {
		return nil
	}
	exactRenames(gone, came)
	if err := d.similarRenames(ctx, unmatched(gone), unmatched(came)); err != nil {
		return err
	}
	kept := d.Files[:0]
	for _, c := range d.Files {
		if c.Status != "" {
			kept = append(kept, c)
		}
	}
	d.Files = kept
	return nil
}

// rename makes to the renamed file and from nothing.
func rename(from, to *FileChange, similarity int) {
	to.Status, to.OldPath, to.Similarity = StatusRenamed, from.Path, similarity
	to.old, to.OldMode, to.OldDigest = from.old, from.OldMode, from.OldDigest
	from.Status = ""
}

func unmatched(files []*FileChange) (out []*FileChange) {
	for _, c := range files {
		if c.Status == StatusDeleted || c.Status == StatusAdded {
			out = append(out, c)
		}
	}
	return out
}

// exactRenames joins files of equal content: first those that also
// kept their base name, then the others, in order of paths.
func exactRenames(gone, came []*FileChange) {
	type key struct {
		digest cell.Digest
		base   string
	}
	for _, byName := range []bool{true, false} {
		at := func(p string, digest cell.Digest) key {
			if !byName {
				return key{digest, ""}
			}
			return key{digest, path.Base(p)}
		}
		free := map[key][]*FileChange{}
		for _, c := range unmatched(gone) {
			k := at(c.Path, c.OldDigest)
			free[k] = append(free[k], c)
		}
		for _, c := range unmatched(came) {
			k := at(c.Path, c.NewDigest)
			if from := free[k]; len(from) > 0 {
				rename(from[0], c, 100)
				free[k] = from[1:]
			}
		}
	}
}

// A chunk is a line, or 64 bytes of a longer one, by hash; bytes is how much
// of a file consists of it. This is how git measures similarity.
type chunk struct {
	hash  uint64
	bytes int
}

// similarRenames joins files with at least renameMin per cent in common, the
// most similar first. An index from chunk to files keeps it from comparing
// each file with each.
func (d *Diff) similarRenames(ctx context.Context, gone, came []*FileChange) error {
	if len(gone) == 0 || len(came) == 0 || len(gone) > renameFiles || len(came) > renameFiles {
		return nil
	}
	budget := int64(renameBudget)
	seed := maphash.MakeSeed()
	read := func(s workspace.Side, p string, e *workspace.Entry) ([]chunk, error) {
		if e.Size > renameSize || e.Size > budget {
			return nil, nil
		}
		budget -= e.Size
		text, err := readContent(ctx, s.Contents, p, *e)
		return chunks(seed, text), err
	}
	type holder struct{ file, bytes int }
	index := map[uint64][]holder{}
	for i, c := range gone {
		cs, err := read(d.a, c.Path, c.old)
		if err != nil {
			return err
		}
		for _, k := range cs {
			index[k.hash] = append(index[k.hash], holder{i, k.bytes})
		}
	}
	type pair struct{ from, to, score int }
	var pairs []pair
	for j, c := range came {
		cs, err := read(d.b, c.Path, c.new)
		if err != nil {
			return err
		}
		both := make([]int, len(gone))
		for _, k := range cs {
			for _, h := range index[k.hash] {
				both[h.file] += min(k.bytes, h.bytes)
			}
		}
		for i, n := range both {
			size := max(gone[i].old.Size, c.new.Size)
			if score := int(int64(n) * 100 / size); score >= renameMin {
				pairs = append(pairs, pair{i, j, min(score, 99)})
			}
		}
	}
	sameBase := func(p pair) bool { return path.Base(gone[p.from].Path) == path.Base(came[p.to].Path) }
	sort.Slice(pairs, func(i, j int) bool {
		p, q := pairs[i], pairs[j]
		switch {
		case p.score != q.score:
			return p.score > q.score
		case sameBase(p) != sameBase(q):
			return sameBase(p)
		case p.to != q.to:
			return p.to < q.to
		}
		return p.from < q.from
	})
	for _, p := range pairs {
		if gone[p.from].Status == StatusDeleted && came[p.to].Status == StatusAdded {
			rename(gone[p.from], came[p.to], p.score)
		}
	}
	return nil
}

// chunks cuts text into its chunks, sorted by hash, each once.
func chunks(seed maphash.Seed, text string) []chunk {
	var all []chunk
	for start, i := 0, 0; i < len(text); i++ {
		if text[i] == '\n' || i-start == 63 || i == len(text)-1 {
			all = append(all, chunk{maphash.String(seed, text[start:i+1]), i + 1 - start})
			start = i + 1
		}
	}
	sort.Slice(all, func(i, j int) bool { return all[i].hash < all[j].hash })
	out := all[:0]
	for _, c := range all {
		if n := len(out); n > 0 && out[n-1].hash == c.hash {
			out[n-1].bytes += c.bytes
		} else {
			out = append(out, c)
		}
	}
	return out
}
