package workspace

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"sort"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gitdir"
)

// Index is the record of a source at an import: enough to find changes at the next import
// without reading files.
type Index struct {
	source  string
	top     Stat
	records []indexRecord // sorted by path
	leftOut []LeftOut
	taken   int64
}

type indexRecord struct {
	path    string
	stat    Stat
	tracked bool // by git
}

func newIndex(source string, top Found, seen []Found, tracked *gitdir.Set, left []LeftOut, taken int64) *Index {
	ix := &Index{source: source, top: top.Stat, leftOut: left, taken: taken, records: make([]indexRecord, len(seen))}
	for i := range seen {
		ix.records[i] = indexRecord{seen[i].Path, seen[i].Stat, tracked.Has(seen[i].Path)}
	}
	sort.Slice(ix.records, func(i, j int) bool { return ix.records[i].path < ix.records[j].path })
	return ix
}

// count returns the number of files and their bytes.
func (ix *Index) count() (files int, bytes int64) {
	for i := range ix.records {
		f := Found{Stat: ix.records[i].stat}
		if f.Type() == File {
			files++
			bytes += f.Stat.Size
		}
	}
	return files, bytes
}

// Fingerprint is the digest of the names, types, modes, sizes and times of a source, and of what
// git tracks in it. A write to the source changes it.
func (ix *Index) Fingerprint() cell.Digest {
	h := sha256.New()
	b := appendStat([]byte("pando source 2\n"), &ix.top)
	for i := range ix.records {
		r := &ix.records[i]
		b = appendString(b, r.path)
		b = appendStat(b, &r.stat)
		b = appendBool(b, r.tracked)
		if len(b) > 64<<10 {
			h.Write(b)
			b = b[:0]
		}
	}
	h.Write(b)
	return cell.Digest(h.Sum(nil))
}

// same reports whether a file has the version in the record.
func (ix *Index) same(r *indexRecord, now *Stat) bool {
	return r.stat == *now && now.CTime < ix.taken-RacySlack
}

// Encode returns the stored form.
func (ix *Index) Encode() []byte {
	left, _ := json.Marshal(ix.leftOut) // plain strings: cannot fail
	b := []byte("pando index 2\n")
	b = appendString(b, ix.source)
	b = binary.AppendVarint(b, ix.taken)
	b = appendStat(b, &ix.top)
	b = appendString(b, string(left))
	b = binary.AppendUvarint(b, uint64(len(ix.records)))
	for i := range ix.records {
		b = appendString(b, ix.records[i].path)
		b = appendStat(b, &ix.records[i].stat)
		b = appendBool(b, ix.records[i].tracked)
	}
	sum := cell.Sum(b)
	return append(b, sum[:]...)
}

// DecodeIndex decodes the result of Encode; a damaged index is a Corrupt error.
func DecodeIndex(b []byte) (*Index, error) {
	const head = "pando index 2\n"
	if len(b) < len(head)+32 || string(b[:len(head)]) != head {
		return nil, corrupt("source index")
	}
	body := b[:len(b)-32]
	if cell.Sum(body) != cell.Digest(b[len(body):]) {
		return nil, corrupt("source index")
	}
	r := reader{b: body[len(head):]}
	ix := &Index{source: r.str(), taken: r.varint()}
	ix.top = r.stat()
	if err := json.Unmarshal([]byte(r.str()), &ix.leftOut); err != nil {
		return nil, corrupt("source index")
	}
	n := r.count()
	ix.records = make([]indexRecord, 0, n)
	for ; n > 0 && r.err == nil; n-- {
		ix.records = append(ix.records, indexRecord{r.str(), r.stat(), r.uvarint() != 0})
	}
	if r.err != nil || len(r.b) != 0 {
		return nil, corrupt("source index")
	}
	return ix, nil
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

func appendStat(b []byte, s *Stat) []byte {
	b = binary.AppendUvarint(b, s.Ino)
	b = binary.AppendUvarint(b, s.Dev)
	b = binary.AppendVarint(b, s.Size)
	b = binary.AppendVarint(b, s.MTime)
	b = binary.AppendVarint(b, s.CTime)
	b = binary.AppendUvarint(b, uint64(s.Mode))
	return binary.AppendUvarint(b, uint64(s.Nlink))
}

func (r *reader) stat() Stat {
	return Stat{Ino: r.uvarint(), Dev: r.uvarint(), Size: r.varint(), MTime: r.varint(), CTime: r.varint(),
		Mode: uint32(r.uvarint()), Nlink: uint32(r.uvarint())}
}
