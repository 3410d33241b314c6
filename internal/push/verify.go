package push

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/receipt"
)

// IsCopy reports whether a directory has a copy.
func IsCopy(dir string) bool {
	st, err := os.Lstat(filepath.Join(dir, headName))
	return err == nil && st.Mode().IsRegular()
}

// NoteOf is the signed head of a copy in a directory, of which nothing is checked.
func NoteOf(dir string) ([]byte, error) { return os.ReadFile(filepath.Join(dir, headName)) }

// KeysOf is the history of the keys of a copy, as its newest bundle has it. key has to be one of them.
func KeysOf(dir string, key receipt.PublicKey) (*receipt.Keys, error) {
	alone := func() (*receipt.Keys, error) { return receipt.ReadKeys(key, nil) }
	text, err := NoteOf(dir)
	if err != nil {
		return nil, err
	}
	head, err := receipt.ReadHead(text)
	if err != nil {
		return alone()
	}
	ends, err := bundles(dir)
	if err != nil {
		return nil, err
	}
	for from, list := range ends {
		if !slices.Contains(list, head.Size) {
			continue
		}
		f, err := os.Open(filepath.Join(dir, bundleName(from, head.Size)))
		if err != nil {
			return nil, err
		}
		b, err := receipt.ArchiveExport(f)
		f.Close()
		if err == nil && b.Head == string(text) {
			return receipt.ReadKeys(key, b.Keys)
		}
	}
	return alone()
}

// Verify checks a copy in a directory with the public key alone: each bundle, that each goes on from the one before it, and
// that they are all that the copy's head says. It returns the report of all, and how many files were compared.
func Verify(dir string, key receipt.PublicKey, known *receipt.Head) (*receipt.Report, int, error) {
	text, err := NoteOf(dir)
	if err != nil {
		return nil, 0, err
	}
	all, files := &receipt.Report{Head: receipt.Head{Size: -1}}, 0
	add := func(reason receipt.Reason, file, what string) {
		all.Problems = append(all.Problems, receipt.Problem{Reason: reason, Index: -1, File: file, What: what})
	}
	ends, err := bundles(dir)
	if err != nil {
		return nil, 0, err
	}
	keys, err := KeysOf(dir, key)
	if cell.KindOf(err) == cell.Corrupt {
		add(receipt.WrongKey, headName, err.Error())
		return all, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	head, err := receipt.ParseHead(text, keys)
	if err != nil {
		add(receipt.Edited, headName, "it is not a head that this key signed")
		return all, 0, nil
	}
	all.Head = head
	var stretches receipt.Stretches
	last := receipt.Head{Root: head.Root}
	next := chain(ends, head.Size)
	for from := int64(0); from < head.Size; from = next[from] {
		end := next[from]
		if end == 0 {
			add(receipt.Missing, bundleName(from, from+1), fmt.Sprintf("no bundle begins with receipt %d, the head signs %d", from, head.Size))
			break
		}
		name := bundleName(from, end)
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			return nil, files, err
		}
		rep, n, err := stretches.Verify(f, keys, from, end)
		f.Close()
		if err != nil {
			return nil, files, err
		}
		all.Join(rep, func(file string) string { return filepath.Join(name, file) })
		files, last = files+n, rep.Head
	}
	if all.OK() && last.Root != head.Root {
		add(receipt.Forked, headName, "the last bundle has another head")
	}
	switch {
	case known == nil:
		all.Unproven = append(all.Unproven, "that no newer receipts were cut off: no newer head is known")
	case known.Size > head.Size:
		add(receipt.Truncated, headName, fmt.Sprintf("the head has %d receipts, a head of %d is known", head.Size, known.Size))
	case known.Size == head.Size && known.Root != head.Root:
		add(receipt.Forked, headName, fmt.Sprintf("there are two signed heads of %d receipts", known.Size))
	}
	return all, files, nil
}

// chain is the bundles that lead from the first receipt to the head, as the end of each by its beginning. There can be others:
// those of calls that did not end, or of two at once. Without such a chain it is one that leads as far as it does.
func chain(ends map[int64][]int64, size int64) map[int64]int64 {
	next := map[int64]int64{}
	for _, from := range slices.Backward(slices.Sorted(maps.Keys(ends))) {
		for _, end := range ends[from] {
			if end == size || end < size && next[end] > 0 {
				next[from] = max(next[from], end)
			}
		}
	}
	if next[0] > 0 {
		return next
	}
	for from, list := range ends {
		for _, end := range list {
			if end <= size {
				next[from] = max(next[from], end)
			}
		}
	}
	return next
}

// bundles are the ends of the bundles of a copy, by their beginnings.
func bundles(dir string) (map[int64][]int64, error) {
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	ends := map[int64][]int64{}
	for _, e := range list {
		name, _ := strings.CutPrefix(e.Name(), "receipts-")
		first, rest, _ := strings.Cut(name, "-")
		from, err1 := strconv.ParseInt(first, 10, 64)
		last, err2 := strconv.ParseInt(strings.TrimSuffix(rest, ".tar"), 10, 64)
		if err1 == nil && err2 == nil && last >= from && e.Name() == bundleName(from, last+1) {
			ends[from] = append(ends[from], last+1)
		}
	}
	return ends, nil
}
