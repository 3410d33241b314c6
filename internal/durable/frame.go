package durable

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"strconv"
)

// A journal is text that people can read where its records are. The first
// line names the format, a random salt, and the salt's own sum:
//
//	pando-log 1 6f0c11aa92d3b7e4 01d8a3f2
//
// and each record is a line
//
//	CRC SEQ K/N LEN RECORD
//
// where CRC is the CRC-32C, in eight hexadecimal digits, of the salt and of
// all that follows CRC and its space in the line; SEQ counts records from 1;
// the record is the K-th of the N that were written together and count
// together or not at all; LEN is the record's length in bytes. The salt keeps
// records of other journals, quoted in this one or left on the disk, from
// being taken for its own.
type frame struct {
	seq, k, n int64
	rec       []byte
}

// first returns the number of the first record that was written together with
// this one.
func (f frame) first() int64 { return f.seq - f.k + 1 }

const (
	magic = "pando-log 1 "
	// saltLen and headLen are bytes of the first line.
	saltLen = 16
	headLen = len(magic) + saltLen + 1 + 8 + 1
	// maxHeader is more than the longest header of a record.
	maxHeader = 9 + 4*20
	// MaxRecord is the longest record a Log takes, in bytes.
	MaxRecord = 1 << 30
)

// castagnoli is the table of CRC-32C, which is made when it is first needed.
func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

func newHead() []byte {
	var random [saltLen / 2]byte
	rand.Read(random[:])
	salt := hex.EncodeToString(random[:])
	return fmt.Appendf(nil, "%s%s %08x\n", magic, salt, crc32.Checksum([]byte(salt), castagnoli()))
}

// parseHead returns the salt of a journal that begins with b.
func parseHead(b []byte) (salt []byte, ok bool) {
	if len(b) < headLen || !bytes.HasPrefix(b, []byte(magic)) {
		return nil, false
	}
	salt = bytes.Clone(b[len(magic) : len(magic)+saltLen])
	sum := fmt.Sprintf(" %08x\n", crc32.Checksum(salt, castagnoli()))
	return salt, string(b[len(magic)+saltLen:headLen]) == sum
}

// appendFrame writes f to the end of b.
func appendFrame(b, salt []byte, f frame) []byte {
	at := len(b)
	b = append(b, "00000000 "...)
	b = fmt.Appendf(b, "%d %d/%d %d ", f.seq, f.k, f.n, len(f.rec))
	b = append(b, f.rec...)
	sum := crc32.Update(crc32.Update(0, castagnoli(), salt), castagnoli(), b[at+9:])
	var digits [4]byte
	digits[0], digits[1], digits[2], digits[3] = byte(sum>>24), byte(sum>>16), byte(sum>>8), byte(sum)
	hex.Encode(b[at:], digits[:])
	return append(b, '\n')
}

// header is what precedes a record in its line.
type header struct {
	frame
	sum       uint32
	size, len int64 // of the header and of the record
}

// parseHeader reads the header that b begins with. Only the one way in which
// appendFrame writes it is accepted.
func parseHeader(b []byte) (h header, ok bool) {
	if len(b) < 9 || b[8] != ' ' {
		return h, false
	}
	for _, c := range b[:8] {
		v := bytes.IndexByte([]byte("0123456789abcdef"), c)
		if v < 0 {
			return h, false
		}
		h.sum = h.sum<<4 | uint32(v)
	}
	at := 9
	number := func(end byte) (v int64) {
		i := bytes.IndexByte(b[at:min(len(b), at+20)], end)
		if i < 1 || i > 1 && b[at] == '0' {
			return -1
		}
		v, err := strconv.ParseInt(string(b[at:at+i]), 10, 64)
		if err != nil || b[at] == '+' || b[at] == '-' {
			return -1
		}
		at += i + 1
		return v
	}
	for _, f := range []struct {
		into *int64
		end  byte
	}{{&h.seq, ' '}, {&h.k, '/'}, {&h.n, ' '}, {&h.len, ' '}} {
		if *f.into = number(f.end); *f.into < 0 {
			return h, false
		}
	}
	h.size = int64(at)
	return h, h.k >= 1 && h.k <= h.n && h.seq >= h.k && h.len <= MaxRecord
}

// lineSize is how long the whole line is.
func (h header) lineSize() int64 { return h.size + h.len + 1 }

// check reports whether line is the line that h was read from, undamaged.
func (h header) check(line, salt []byte) bool {
	end := len(line) - 1
	return int64(len(line)) == h.lineSize() && line[end] == '\n' &&
		crc32.Update(crc32.Update(0, castagnoli(), salt), castagnoli(), line[9:end]) == h.sum
}

// parseFrame reads the line that b begins with and returns its size.
func parseFrame(b, salt []byte) (f frame, size int64, ok bool) {
	h, ok := parseHeader(b)
	if !ok || h.lineSize() > int64(len(b)) || !h.check(b[:h.lineSize()], salt) {
		return frame{}, 0, false
	}
	f = h.frame
	f.rec = b[h.size : h.size+h.len]
	return f, h.lineSize(), true
}

// nextFrame looks in b, which lies at offset base of its file, for an intact
// line from position from on. After power loss a line may follow bytes that
// were never written; lines begin after a newline or, where that was lost, at
// a sector's start.
func nextFrame(b, salt []byte, base int64, from int) (f frame, at int, ok bool) {
	for at = from; at < len(b); at++ {
		if (base+int64(at))%sector != 0 && (at == 0 || b[at-1] != '\n') {
			// Jump to the next place where a line may begin.
			next := len(b)
			if i := bytes.IndexByte(b[at:], '\n'); i >= 0 {
				next = at + i + 1
			}
			if s := at + int(sector-(base+int64(at))%sector); s < next {
				next = s
			}
			at = next - 1
			continue
		}
		if f, _, ok := parseFrame(b[at:], salt); ok {
			return f, at, true
		}
	}
	return frame{}, 0, false
}

// sector is the smallest amount that a disk writes completely or not at all.
const sector = 512
