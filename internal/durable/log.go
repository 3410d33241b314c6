package durable

import (
	"errors"
	"io"
	"io/fs"
	"path"
	"strings"
	"sync"

	"github.com/pando-dev/pando/internal/cell"
)

// A Log is an append-only journal of records. It is safe for concurrent use.
//
// A group is one write and one sync: the records of one Append, or of several that came
// while the previous group was being synced. After power loss all records of a group are
// there or none is. If Append fails and the process ends right after, its records may still
// be there.
type Log struct {
	fs   FS
	name string

	// writer is full while a goroutine writes, syncs or replaces the file. It is a channel,
	// so that waiting goroutines can also learn that all is done.
	writer chan struct{}
	file   File
	salt   []byte
	size   int64 // of what is acknowledged
	seq    int64 // of the last record
	cut    int64
	buf    []byte
	broken error // why nothing can be written any more

	// mu guards the group that is being gathered.
	mu   sync.Mutex
	next *group

	// view guards what ReadAt and Size need.
	view   sync.RWMutex
	reader Reader // opened when first needed
	shown  int64  // size
	key    []byte // salt
}

type group struct {
	recs []([]byte)
	done chan struct{} // closed when the rest is final
	at   []int64       // offsets of the records
	err  error
}

// OpenLog opens the journal called name, and creates it if there is none. It calls replay
// for each record in it, oldest first; replay may keep rec. A torn tail was never
// acknowledged and is cut; Cut returns its length. Damage is a Corrupt error that names the
// offset, except in the last group, where it cannot be told from a torn tail: a caller that
// must notice keeps the number of records elsewhere. Every replayed record survives power
// loss, even if the process that wrote it ended before its sync.
func OpenLog(fsys FS, name string, replay func(rec []byte) error) (*Log, error) {
	return OpenIndexed(fsys, name, func(_ int64, rec []byte) error { return replay(rec) })
}

// OpenIndexed is OpenLog for callers that want to read single records later:
// replay gets the place of each, for ReadAt.
func OpenIndexed(fsys FS, name string, replay func(at int64, rec []byte) error) (*Log, error) {
	l := &Log{fs: fsys, name: name, writer: make(chan struct{}, 1)}
	err := removePartial(fsys, path.Dir(name), func(partial string) bool {
		return len(partial) == len(path.Base(name))+9+len(partialSuffix) && strings.HasPrefix(partial, path.Base(name)+".")
	})
	if err != nil {
		return nil, err
	}
	r, err := fsys.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		if err := l.create(); err != nil {
			return nil, err
		}
		return l, nil
	}
	if err != nil {
		return nil, fail("durable.OpenLog", "open "+name, err)
	}
	s, err := read(r, name, replay)
	r.Close()
	if err != nil {
		return nil, err
	}
	l.salt, l.size, l.seq, l.cut = s.salt, s.good, s.seq, s.size-s.good
	l.show()
	if l.file, err = fsys.OpenAppend(name); err != nil {
		return nil, fail("durable.OpenLog", "open "+name, err)
	}
	if l.cut > 0 {
		err = l.file.Truncate(l.size)
	}
	if err == nil {
		err = l.file.SyncData()
	}
	if err == nil {
		err = fsys.SyncDir(path.Dir(name))
	}
	if err != nil {
		l.file.Close()
		return nil, fail("durable.OpenLog", "open "+name, err)
	}
	return l, nil
}

func (l *Log) create() error {
	head := newHead()
	f, err := replace(l.fs, l.name, 0o600, func(w io.Writer) error {
		_, err := w.Write(head)
		return err
	})
	if err != nil {
		if f != nil {
			f.Close()
		}
		return fail("durable.OpenLog", "create "+l.name, err)
	}
	l.salt, _ = parseHead(head)
	l.file, l.size = f, int64(headLen)
	l.show()
	return nil
}

// Cut returns how many bytes of a torn tail were cut when the Log was opened.
func (l *Log) Cut() int64 { return l.cut }

// Size returns how many bytes the journal has on disk.
func (l *Log) Size() int64 {
	l.view.RLock()
	defer l.view.RUnlock()
	return l.shown
}

// Append adds records and returns when they survive power loss. It takes no
// context: it lasts one or two syncs, and giving up half-way would leave
// unsaid whether the records count. When it fails, none of them counts, and
// the Log can be used further unless it says otherwise.
func (l *Log) Append(recs ...[]byte) error {
	_, err := l.AppendIndexed(recs...)
	return err
}

// AppendIndexed is Append and returns the place of each record, for ReadAt.
func (l *Log) AppendIndexed(recs ...[]byte) ([]int64, error) {
	for _, r := range recs {
		if len(r) > MaxRecord {
			return nil, cell.Errorf(cell.Invalid, "durable.Append", "", "cannot append to %s: a record of %d bytes is too long", l.name, len(r))
		}
	}
	if len(recs) == 0 {
		return nil, nil
	}
	l.mu.Lock()
	if l.next == nil {
		l.next = &group{done: make(chan struct{})}
	}
	g, from := l.next, len(l.next.recs)
	g.recs = append(g.recs, recs...)
	l.mu.Unlock()

	// The first of the group to get through writes for all of them.
	select {
	case <-g.done:
	case l.writer <- struct{}{}:
		l.mu.Lock()
		mine := l.next == g
		if mine {
			l.next = nil
		}
		l.mu.Unlock()
		if mine {
			g.at, g.err = l.commit(g.recs)
			close(g.done)
		}
		<-l.writer
	}
	if g.err != nil {
		return nil, g.err
	}
	return g.at[from : from+len(recs)], nil
}

// commit writes and syncs one group.
func (l *Log) commit(recs [][]byte) ([]int64, error) {
	if l.broken != nil {
		return nil, l.broken
	}
	at := make([]int64, len(recs))
	b := l.buf[:0]
	for i, r := range recs {
		at[i] = l.size + int64(len(b))
		b = appendFrame(b, l.salt, frame{seq: l.seq + int64(i) + 1, k: int64(i) + 1, n: int64(len(recs)), rec: r})
	}
	if cap(b) <= 1<<20 {
		l.buf = b
	}
	_, err := l.file.Write(b)
	if err == nil {
		err = l.file.SyncData()
	}
	if err != nil {
		return nil, l.retreat(err)
	}
	l.size += int64(len(b))
	l.seq += int64(len(recs))
	l.show()
	return at, nil
}

// retreat takes back a write that failed. A failed sync may have dropped what
// it was to write, so the file is cut to what was synced before; when that
// fails too, nothing more is written.
func (l *Log) retreat(why error) error {
	err := l.file.Truncate(l.size)
	if err == nil {
		err = l.file.SyncData()
	}
	if err != nil {
		l.broken = cell.Errorf(cell.Unavailable, "durable.Append", "free some space or check the disk, then restart pando",
			"cannot append to %s: an earlier write failed (%w) and could not be taken back (%w)", l.name, cause(why), cause(err))
	}
	return fail("durable.Append", "append to "+l.name, why)
}

// Close waits for what is being written and closes the file. Everything that
// was acknowledged is safe already.
func (l *Log) Close() error {
	l.writer <- struct{}{}
	defer func() { <-l.writer }()
	if l.file == nil {
		return nil
	}
	l.forget()
	err := l.file.Close()
	l.file = nil
	l.broken = cell.Errorf(cell.Unavailable, "durable.Append", "", "cannot write to %s: it is closed", l.name)
	return err
}
