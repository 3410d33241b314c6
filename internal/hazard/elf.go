package hazard

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"

	"github.com/pando-dev/pando/internal/bound"
)

// symbols are what an ELF file says of itself.
type symbols struct {
	dynamic          bool // it has a table of dynamic symbols
	golang           bool // Go's linker made it
	exports, imports map[string]bool
}

// Bounds of what is read of one file, in bytes. Node's tables take 12 MiB.
const (
	maxSections = 4096
	maxTables   = 64 << 20 // together
)

var errNoELF = errors.New("no ELF file that can be read")

// readELF reads the dynamic symbols of an ELF file of 64 bits and this machine's byte
// order, which is little-endian wherever pando runs.
func readELF(r io.ReaderAt, size int64) (x symbols, err error) {
	var head [64]byte
	if _, err := r.ReadAt(head[:], 0); err != nil {
		return x, errNoELF
	}
	if !bytes.Equal(head[:6], []byte("\x7fELF\x02\x01")) {
		return x, errNoELF
	}
	le := binary.LittleEndian
	at, each, count, names := le.Uint64(head[40:]), int64(le.Uint16(head[58:])), int64(le.Uint16(head[60:])), int64(le.Uint16(head[62:]))
	if each != 64 || count == 0 || count > maxSections || names >= count {
		return x, errNoELF
	}
	left := bound.NewBudget("the tables of an ELF file", maxTables, "bytes")
	part := func(at, n uint64) ([]byte, error) {
		if at > uint64(size) || n > uint64(size)-at || left.Spend(int64(n)) != nil {
			return nil, errNoELF
		}
		b := make([]byte, n)
		if _, err := r.ReadAt(b, int64(at)); err != nil {
			return nil, errNoELF
		}
		return b, nil
	}
	sections, err := part(at, uint64(each*count))
	if err != nil {
		return x, err
	}
	section := func(i int64) (name, kind uint32, at, n uint64, link uint32) {
		b := sections[i*each:]
		return le.Uint32(b), le.Uint32(b[4:]), le.Uint64(b[24:]), le.Uint64(b[32:]), le.Uint32(b[40:])
	}
	_, _, nat, nlen, _ := section(names)
	titles, err := part(nat, nlen)
	if err != nil {
		return x, err
	}
	x.exports, x.imports = map[string]bool{}, map[string]bool{}
	const dynsym = 11 // SHT_DYNSYM
	for i := range count {
		name, kind, at, n, link := section(i)
		if text(titles, name) == ".go.buildinfo" {
			x.golang = true
		}
		if kind != dynsym {
			continue
		}
		x.dynamic = true
		table, err := part(at, n)
		if err != nil {
			return x, err
		}
		if int64(link) >= count {
			return x, errNoELF
		}
		_, _, sat, slen, _ := section(int64(link))
		words, err := part(sat, slen)
		if err != nil {
			return x, err
		}
		for ; len(table) >= 24; table = table[24:] {
			where := x.exports
			if le.Uint16(table[6:]) == 0 { // SHN_UNDEF
				where = x.imports
			}
			if w := text(words, le.Uint32(table)); w != "" && interesting(w) {
				where[w] = true
			}
		}
	}
	return x, nil
}

// text is a string of a table.
func text(table []byte, at uint32) string {
	if uint64(at) >= uint64(len(table)) {
		return ""
	}
	b := table[at:]
	if n := bytes.IndexByte(b[:min(len(b), longest)], 0); n >= 0 {
		return string(b[:n])
	}
	return ""
}

// longest bounds the names that are looked at.
const longest = 128
