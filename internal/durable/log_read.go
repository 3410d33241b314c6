package durable

import (
	"io"

	"github.com/pando-dev/pando/internal/cell"
)

// show lets readers see what is acknowledged now.
func (l *Log) show() {
	l.view.Lock()
	l.shown, l.key = l.size, l.salt
	l.view.Unlock()
}

// forget closes the reader.
func (l *Log) forget() {
	l.view.Lock()
	if l.reader != nil {
		l.reader.Close()
		l.reader = nil
	}
	l.view.Unlock()
}

// ReadAt returns the record at a place that AppendIndexed or OpenIndexed
// gave. Rewrite makes all places invalid.
func (l *Log) ReadAt(at int64) ([]byte, error) {
	if err := l.openReader(); err != nil {
		return nil, err
	}
	l.view.RLock()
	defer l.view.RUnlock()
	if l.reader == nil {
		return nil, cell.Errorf(cell.Unavailable, "durable.ReadAt", "", "cannot read %s: it was closed or rewritten", l.name)
	}
	var peek [maxHeader]byte
	n, err := l.reader.ReadAt(peek[:], at)
	if err != nil && err != io.EOF {
		return nil, fail("durable.ReadAt", "read "+l.name, err)
	}
	h, ok := parseHeader(peek[:n])
	if !ok || h.lineSize() > l.shown-at {
		return nil, damaged(l.name, at, "no record is there")
	}
	line := make([]byte, h.lineSize())
	if _, err := l.reader.ReadAt(line, at); err != nil && err != io.EOF {
		return nil, fail("durable.ReadAt", "read "+l.name, err)
	}
	if !h.check(line, l.key) {
		return nil, damaged(l.name, at, "the record's sum is wrong")
	}
	return line[h.size : h.size+h.len], nil
}

func (l *Log) openReader() error {
	l.view.Lock()
	defer l.view.Unlock()
	if l.reader != nil {
		return nil
	}
	r, err := l.fs.Open(l.name)
	if err != nil {
		return fail("durable.ReadAt", "read "+l.name, err)
	}
	l.reader = r
	return nil
}
