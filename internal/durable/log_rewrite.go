package durable

import (
	"io"
	"iter"

	"github.com/pando-dev/pando/internal/cell"
)

// Rewrite replaces all records with recs, atomically: after power loss the
// journal has the old ones or the new ones. Appends wait meanwhile, and those
// that wait come after recs. An Append that has returned is in the journal
// only if it is in recs: hold your own lock over Append and what it changes,
// and over Rewrite.
func (l *Log) Rewrite(recs iter.Seq[[]byte]) error {
	l.writer <- struct{}{}
	defer func() { <-l.writer }()
	if l.broken != nil {
		return l.broken
	}
	head := newHead()
	salt, _ := parseHead(head)
	size, seq := int64(0), int64(0)
	f, err := replace(l.fs, l.name, 0o600, func(w io.Writer) error {
		n, err := w.Write(head)
		size = int64(n)
		for rec := range recs {
			if err != nil {
				return err
			}
			if len(rec) > MaxRecord {
				return cell.Errorf(cell.Invalid, "durable.Rewrite", "", "cannot rewrite %s: a record of %d bytes is too long", l.name, len(rec))
			}
			seq++
			l.buf = appendFrame(l.buf[:0], salt, frame{seq: seq, k: 1, n: 1, rec: rec})
			size += int64(len(l.buf))
			_, err = w.Write(l.buf)
		}
		return err
	})
	if f == nil {
		return fail("durable.Rewrite", "rewrite "+l.name, err)
	}
	if err != nil { // renamed, but not sure to stay
		l.broken = cell.Errorf(cell.Unavailable, "durable.Rewrite", "check the disk, then restart pando",
			"cannot write to %s: it was replaced, and that could not be made to last (%w)", l.name, cause(err))
	}
	l.file.Close()
	l.file, l.salt, l.size, l.seq = f, salt, size, seq
	l.forget()
	l.show()
	return l.broken
}
