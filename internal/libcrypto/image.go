package libcrypto

import (
	"bufio"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// Bounds of what is read of one process, in bytes or entries.
const (
	maxMaps     = 16 << 20
	maxSegments = 64
	maxDynamic  = 64 << 10
	maxTable    = 4 << 20
	maxReadOnly = 8 << 20 // of all its segments
	maxImages   = 8       // of one file: dlmopen(3) maps it once more
)

// pageSize is that of amd64.
const pageSize = 4096

// mapping is a line of proc_pid_maps(5).
type mapping struct {
	start, end, offset uint64
	perms, file        string
}

func (m mapping) has(at uint64) bool { return at >= m.start && at < m.end }

func parseMaps(r io.Reader) (list []mapping, err error) {
	b := bufio.NewScanner(io.LimitReader(r, maxMaps))
	b.Buffer(nil, 64<<10)
	for b.Scan() {
		// address perms offset dev inode path
		f := strings.SplitN(b.Text(), " ", 6)
		if len(f) < 5 {
			return nil, errors.New("cannot parse the mappings")
		}
		from, to, ok := strings.Cut(f[0], "-")
		m := mapping{perms: f[1]}
		var e [3]error
		m.start, e[0] = strconv.ParseUint(from, 16, 64)
		m.end, e[1] = strconv.ParseUint(to, 16, 64)
		m.offset, e[2] = strconv.ParseUint(f[2], 16, 64)
		if err := errors.Join(e[:]...); !ok || err != nil || m.start >= m.end || len(m.perms) != 4 {
			return nil, errors.New("cannot parse the mappings")
		}
		if len(f) == 6 {
			m.file = strings.TrimLeft(f[5], " ")
		}
		list = append(list, m)
	}
	return list, b.Err()
}

// image is a shared object as a process has mapped it.
type image struct {
	base     uint64 // what is added to its addresses
	low, end uint64 // of all its segments, in the process
	text     segment
	readOnly []segment
	slot     uint64 // of getpid in the global offset table, in the process
}

// segment is a part of an image, in the process. end is that of its content; its last page
// may go on.
type segment struct{ start, end uint64 }

// pageEnd is where the last page of a segment ends.
func (s segment) pageEnd() uint64 { return (s.end + pageSize - 1) &^ (pageSize - 1) }

// readImage reads the headers and the dynamic section of the shared object that is mapped
// at base, and finds the one entry for getpid. Any deviation is an error.
func readImage(mem io.ReaderAt, maps []mapping, file string, base uint64) (x image, err error) {
	x.base = base
	var head elf.Header64
	b, err := read(mem, base, 64)
	if err != nil {
		return x, err
	}
	if err := decode(b, &head); err != nil {
		return x, err
	}
	if !bytes.Equal(head.Ident[:6], []byte("\x7fELF\x02\x01")) || elf.Type(head.Type) != elf.ET_DYN || elf.Machine(head.Machine) != elf.EM_X86_64 ||
		head.Phentsize != 56 || head.Phnum == 0 || head.Phnum > maxSegments || head.Phoff > pageSize {
		return x, errors.New("not the header of a shared object of amd64")
	}
	if b, err = read(mem, base+head.Phoff, 56*int(head.Phnum)); err != nil {
		return x, err
	}
	progs := make([]elf.Prog64, head.Phnum)
	if err := decode(b, progs); err != nil {
		return x, err
	}
	var dynamic, relro segment
	var data []segment
	for _, p := range progs {
		if p.Vaddr > 1<<40 || p.Memsz > 1<<32 || p.Filesz > p.Memsz || base > 1<<48 {
			return x, errors.New("the segments are out of bounds")
		}
		s := segment{base + p.Vaddr, base + p.Vaddr + p.Filesz}
		switch elf.ProgType(p.Type) {
		case elf.PT_DYNAMIC:
			dynamic = s
		case elf.PT_GNU_RELRO:
			relro = s
		case elf.PT_LOAD:
			first := s.start &^ (pageSize - 1)
			if x.end == 0 {
				x.low = first
			} else if first < x.end { // no page has two segments
				return x, errors.New("two segments are in one page")
			}
			if p.Filesz == 0 || p.Off%pageSize != p.Vaddr%pageSize {
				return x, errors.New("a segment has no content")
			}
			x.end = (s.start + p.Memsz + pageSize - 1) &^ (pageSize - 1)
			switch flags := elf.ProgFlag(p.Flags); flags {
			case elf.PF_R | elf.PF_X:
				if x.text.start != 0 || p.Filesz != p.Memsz {
					return x, errors.New("it has not one segment of code")
				}
				x.text = s
			case elf.PF_R:
				x.readOnly = append(x.readOnly, s)
			case elf.PF_R | elf.PF_W:
				data = append(data, s)
			default:
				return x, errors.New("a segment has other rights")
			}
			if err := isMapped(maps, file, s, p.Off, elf.ProgFlag(p.Flags)); err != nil {
				return x, err
			}
		}
	}
	if x.low != base || x.text.start == 0 || dynamic.start == 0 {
		return x, errors.New("it lacks a segment")
	}
	if relro.start != 0 {
		data = append(data, relro)
	}
	if x.slot, err = findSlot(mem, x, dynamic); err != nil {
		return x, err
	}
	for _, s := range data {
		if x.slot >= s.start && x.slot+8 <= s.end && x.slot%8 == 0 {
			return x, nil
		}
	}
	return x, errors.New("the entry for getpid is not in its data")
}

// isMapped reports an error unless the pages of a segment are mappings of the file, private
// and with the segment's rights. Those of data may be read-only by now.
func isMapped(maps []mapping, file string, s segment, offset uint64, flags elf.ProgFlag) error {
	at := s.start &^ (pageSize - 1)
	offset &^= pageSize - 1
	for _, m := range maps {
		if at >= s.end || !m.has(at) {
			continue
		}
		want := map[elf.ProgFlag][]string{elf.PF_R: {"r--p"}, elf.PF_R | elf.PF_X: {"r-xp"}, elf.PF_R | elf.PF_W: {"rw-p", "r--p"}}[flags]
		ok := false
		for _, w := range want {
			ok = ok || m.perms == w
		}
		if !ok || m.file != file || m.offset+(at-m.start) != offset {
			return fmt.Errorf("the mapping at %#x is not as the segment says", at)
		}
		offset += m.end - at
		at = m.end
	}
	if at < s.end {
		return fmt.Errorf("the mapping at %#x is missing", at)
	}
	return nil
}

// findSlot finds the entry of the global offset table through which getpid is called.
func findSlot(mem io.ReaderAt, x image, dynamic segment) (uint64, error) {
	b, err := x.read(mem, dynamic.start, dynamic.end-dynamic.start, maxDynamic)
	if err != nil {
		return 0, err
	}
	tags := make([]elf.Dyn64, len(b)/16)
	if err := decode(b[:len(tags)*16], tags); err != nil {
		return 0, err
	}
	d := map[elf.DynTag]uint64{}
	for _, t := range tags {
		if t.Tag == int64(elf.DT_NULL) {
			break
		}
		tag := elf.DynTag(t.Tag)
		if _, twice := d[tag]; twice && tag != elf.DT_NEEDED {
			return 0, errors.New("the dynamic section has an entry twice")
		}
		d[tag] = t.Val
	}
	if d[elf.DT_SYMENT] != 24 || d[elf.DT_TEXTREL] != 0 || (d[elf.DT_PLTRELSZ] > 0 && elf.DynTag(d[elf.DT_PLTREL]) != elf.DT_RELA) ||
		(d[elf.DT_RELASZ] > 0 && d[elf.DT_RELAENT] != 24) || d[elf.DT_REL] != 0 {
		return 0, errors.New("the dynamic section is not of amd64")
	}
	words, err := x.read(mem, x.address(d[elf.DT_STRTAB]), d[elf.DT_STRSZ], maxTable)
	if err != nil {
		return 0, err
	}
	soname := text(words, d[elf.DT_SONAME])
	if !strings.HasPrefix(soname, "libcrypto.so.") && !strings.HasPrefix(soname, "libcrypto-") {
		return 0, fmt.Errorf("it calls itself %q", soname)
	}
	var relocations []elf.Rela64
	for _, table := range [][2]elf.DynTag{{elf.DT_JMPREL, elf.DT_PLTRELSZ}, {elf.DT_RELA, elf.DT_RELASZ}} {
		size := d[table[1]]
		if size == 0 {
			continue
		}
		b, err := x.read(mem, x.address(d[table[0]]), size, maxTable)
		if err != nil {
			return 0, err
		}
		for ; len(b) >= 24; b = b[24:] {
			r := elf.Rela64{Off: le.Uint64(b), Info: le.Uint64(b[8:]), Addend: int64(le.Uint64(b[16:]))}
			if elf.R_X86_64(uint32(r.Info)) != elf.R_X86_64_RELATIVE { // thousands
				relocations = append(relocations, r)
			}
		}
	}
	var last uint64
	for _, r := range relocations {
		last = max(last, r.Info>>32)
	}
	if b, err = x.read(mem, x.address(d[elf.DT_SYMTAB]), 24*(last+1), maxTable); err != nil {
		return 0, err
	}
	var slot uint64
	for _, r := range relocations {
		s := b[24*(r.Info>>32):] // an elf.Sym64
		if text(words, uint64(le.Uint32(s))) != "getpid" {
			continue
		}
		kind := elf.R_X86_64(uint32(r.Info))
		if slot != 0 || le.Uint16(s[6:]) != uint16(elf.SHN_UNDEF) || r.Addend != 0 || (kind != elf.R_X86_64_JMP_SLOT && kind != elf.R_X86_64_GLOB_DAT) {
			return 0, errors.New("getpid is not imported once, as a function")
		}
		slot = x.base + r.Off
	}
	if slot == 0 {
		return 0, errors.New("it does not import getpid")
	}
	return slot, nil
}

// address is that of an entry of the dynamic section, which glibc relocates and musl does
// not.
func (x image) address(at uint64) uint64 {
	if at < x.base {
		at += x.base
	}
	return at
}

// read reads n bytes inside the image, and limit at most.
func (x image) read(mem io.ReaderAt, at, n, limit uint64) ([]byte, error) {
	if n == 0 || n > limit || at < x.low || at >= x.end || n > x.end-at {
		return nil, errors.New("a table is out of bounds")
	}
	return read(mem, at, int(n))
}

// release is how OpenSSL names itself. LibreSSL, BoringSSL and AWS-LC have other words.
var release = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\x00OpenSSL ([0-9]+\.[0-9]+\.[0-9]+[a-z]*)  ?[0-9]{1,2} [A-Z][a-z]{2} 20[0-9]{2}\x00`)
})

// version is the release of OpenSSL that the library says it is.
func (x image) version(mem io.ReaderAt) (string, error) {
	found, left := "", uint64(maxReadOnly)
	for _, s := range x.readOnly {
		b, err := x.read(mem, s.start, s.end-s.start, left)
		left -= uint64(len(b))
		if err != nil {
			return "", err
		}
		for _, m := range release().FindAllSubmatch(b, -1) {
			if v := string(m[1]); found != "" && found != v {
				return "", errors.New("it names two releases of OpenSSL")
			} else {
				found = v
			}
		}
	}
	if found == "" {
		return "", errors.New("it names no release of OpenSSL")
	}
	return found, nil
}

func read(mem io.ReaderAt, at uint64, n int) ([]byte, error) {
	b := make([]byte, n)
	if _, err := mem.ReadAt(b, int64(at)); err != nil {
		return nil, fmt.Errorf("cannot read %d bytes at %#x: %w", n, at, err)
	}
	return b, nil
}

var le = binary.LittleEndian

func decode(b []byte, v any) error {
	_, err := binary.Decode(b, le, v)
	return err
}

// text is a string of a table.
func text(table []byte, at uint64) string {
	if at >= uint64(len(table)) {
		return ""
	}
	b := table[at:]
	if n := bytes.IndexByte(b[:min(len(b), 128)], 0); n >= 0 {
		return string(b[:n])
	}
	return ""
}
