package durable

import (
	"bufio"
	"io"
)

// Found is one piece of a journal as Scan sees it.
type Found struct {
	At     int64  // offset
	Intact bool   // whether the sum is right
	Whole  bool   // whether the line is as long as it says; a torn one mostly is not
	Seq    int64  // its number, as the line says; 0 when there is no header
	Rec    []byte // the record; of what is damaged, what stands where it would be
}

// Scan calls found for everything in a journal, in the order of the file, whether or not it
// is consistent. It is for verifying a journal that may have been tampered with; it never
// reports damage.
func Scan(fsys FS, name string, found func(Found) error) error {
	r, err := fsys.Open(name)
	if err != nil {
		return fail("durable.Scan", "read "+name, err)
	}
	defer r.Close()
	info, err := r.Info()
	if err != nil {
		return fail("durable.Scan", "read "+name, err)
	}
	in := bufio.NewReaderSize(io.NewSectionReader(r, 0, info.Size), 1<<18)
	head, _ := in.Peek(headLen)
	salt, ok := parseHead(head)
	at := int64(0)
	if ok {
		in.Discard(headLen)
		at = int64(headLen)
	}
	for {
		f, size, err := readFrame(in, salt, info.Size-at)
		if err != nil {
			return fail("durable.Scan", "read "+name, err)
		}
		if size == 0 {
			break
		}
		if err := found(Found{At: at, Intact: true, Whole: true, Seq: f.seq, Rec: f.rec}); err != nil {
			return err
		}
		at += size
	}
	// What follows is damaged, or nothing.
	base := at / sector * sector
	b := make([]byte, info.Size-base)
	if n, err := r.ReadAt(b, base); err != nil && err != io.EOF || n < len(b) {
		return fail("durable.Scan", "read "+name, err)
	}
	return scan(b, salt, base, int(at-base), found)
}

// scan is Scan for b[from:], where b lies at offset base of the file.
func scan(b, salt []byte, base int64, from int, found func(Found) error) error {
	for at := from; at < len(b); {
		if f, size, ok := parseFrame(b[at:], salt); ok {
			if err := found(Found{At: base + int64(at), Intact: true, Whole: true, Seq: f.seq, Rec: f.rec}); err != nil {
				return err
			}
			at += int(size)
			continue
		}
		end := len(b)
		if _, i, ok := nextFrame(b, salt, base, at+1); ok {
			end = i
		}
		if err := eachBroken(b, base, at, end, found); err != nil {
			return err
		}
		at = end
	}
	return nil
}

// eachBroken reports b[at:end], in which no line is intact, line by line. A
// line with a header is as long as that says, where that is possible.
func eachBroken(b []byte, base int64, at, end int, found func(Found) error) error {
	for at < end {
		stop := at
		for stop < end && b[stop] != '\n' {
			stop++
		}
		f := Found{At: base + int64(at), Rec: b[at:stop]}
		if h, ok := parseHeader(b[at:end]); ok {
			last := int64(at) + h.lineSize() - 1
			if f.Whole = last < int64(end) && b[last] == '\n'; f.Whole {
				stop = int(last)
			}
			f.Seq, f.Rec = h.seq, b[at+int(h.size):max(stop, at+int(h.size))]
		}
		if err := found(f); err != nil {
			return err
		}
		at = stop + 1
	}
	return nil
}
