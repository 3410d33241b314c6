package durable

import (
	"bufio"
	"io"
	"path"

	"github.com/pando-dev/pando/internal/cell"
)

// state is what reading a journal to its end has shown.
type state struct {
	salt []byte
	size int64 // of the file
	good int64 // where the last complete group ends
	seq  int64 // of the last record in it
}

// read calls replay for each record that counts, with the offset of its line.
// It stops at a torn tail and fails when anything else is wrong.
func read(r Reader, name string, replay func(at int64, rec []byte) error) (state, error) {
	var s state
	info, err := r.Info()
	if err != nil {
		return s, fail("durable.OpenLog", "read "+name, err)
	}
	s.size = info.Size
	in := bufio.NewReaderSize(io.NewSectionReader(r, 0, s.size), 1<<18)
	head, err := in.Peek(headLen)
	if err != nil && err != io.EOF {
		return s, fail("durable.OpenLog", "read "+name, err)
	}
	var ok bool
	if s.salt, ok = parseHead(head); !ok {
		return s, damaged(name, 0, "its first line is missing or damaged")
	}
	in.Discard(headLen)
	s.good = int64(headLen)

	type placed struct {
		at  int64
		rec []byte
	}
	var group []placed // read, but its end was not seen yet
	for at := s.good; ; {
		f, size, err := readFrame(in, s.salt, s.size-at)
		if err != nil {
			return s, fail("durable.OpenLog", "read "+name, err)
		}
		if size == 0 {
			return s, s.judgeTail(r, name, at)
		}
		if f.seq != s.seq+int64(len(group))+1 || f.k != int64(len(group))+1 {
			return s, damaged(name, at, "record %d stands where record %d belongs", f.seq, s.seq+int64(len(group))+1)
		}
		group = append(group, placed{at, f.rec})
		at += size
		if f.k < f.n {
			continue
		}
		for _, p := range group {
			if err := replay(p.at, p.rec); err != nil {
				return s, err
			}
		}
		s.seq += int64(len(group))
		s.good = at
		group = group[:0]
	}
}

// readFrame reads one line. A size of 0 means that no intact line is next.
func readFrame(in *bufio.Reader, salt []byte, left int64) (f frame, size int64, err error) {
	b, err := in.Peek(maxHeader)
	if err != nil && err != io.EOF {
		return f, 0, err
	}
	h, ok := parseHeader(b)
	if !ok || h.lineSize() > left {
		return f, 0, nil
	}
	line := make([]byte, h.lineSize())
	if _, err := io.ReadFull(in, line); err != nil {
		return f, 0, err
	}
	if !h.check(line, salt) {
		return f, 0, nil
	}
	f = h.frame
	f.rec = line[h.size : h.size+h.len : h.size+h.len]
	return f, h.lineSize(), nil
}

// judgeTail decides what it means that no intact line is at offset at. When
// power fails during a write, any part of that write may be missing, so lines
// of the same group may follow. A line of another group is proof that this
// place was once whole, because a group is synced before the next is written.
func (s *state) judgeTail(r Reader, name string, at int64) error {
	if at >= s.size {
		return nil
	}
	base := at / sector * sector
	b := make([]byte, s.size-base)
	if n, err := r.ReadAt(b, base); err != nil && err != io.EOF || n < len(b) {
		return fail("durable.OpenLog", "read "+name, err)
	}
	for from := int(at-base) + 1; ; {
		f, i, ok := nextFrame(b, s.salt, base, from)
		if !ok {
			return nil
		}
		if f.first() != s.seq+1 {
			return damaged(name, at, "record %d is intact at offset %d", f.seq, base+int64(i))
		}
		from = i + 1
	}
}

// damaged is the error for a journal that was changed after it was synced.
func damaged(name string, at int64, format string, args ...any) error {
	return cell.Errorf(cell.Corrupt, "durable.OpenLog",
		"restore "+path.Base(name)+" from a backup; nothing in it was changed",
		"cannot read %s: damaged at offset %d: "+format, append([]any{name, at}, args...)...)
}
