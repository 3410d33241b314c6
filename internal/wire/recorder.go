package wire

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"maps"
	"slices"
	"sync"

	"filippo.io/age"

	"github.com/pando-dev/pando/internal/cell"
)

// Recorder writes a recording.
type Recorder struct {
	mu     sync.Mutex // guards the fields below
	file   io.Writer
	sum    hash.Hash
	out    io.WriteCloser // encrypts into file and sum
	next   int64
	room   int64 // bytes that are left
	names  map[string]*Name
	done   cell.Recording
	err    error
	closed bool
}

// NewRecorder begins a recording. recipient is an age recipient.
func NewRecorder(file io.Writer, recipient string) (*Recorder, error) {
	to, err := age.ParseX25519Recipient(recipient)
	if err != nil {
		return nil, fmt.Errorf("the recipient of the recording: %w", err)
	}
	r := &Recorder{file: file, sum: sha256.New(), room: MaxRun, names: map[string]*Name{}, done: cell.Recording{NotRecorded: map[string]int64{}}}
	if r.out, err = age.Encrypt(io.MultiWriter(file, r.sum), to); err != nil {
		return nil, err
	}
	return r, nil
}

// Missed counts what cannot be recorded, by its kind.
func (r *Recorder) Missed(kind string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.missed(kind)
}

func (r *Recorder) missed(kind string) {
	if !r.closed {
		r.done.NotRecorded[kind]++
	}
}

// Resolved records what came of the lookup of a name. One that is found once counts as found: programs ask again.
func (r *Recorder) Resolved(now Name) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if was := r.names[now.Host]; was != nil {
		if was.Code != 0 || was.None {
			*was = now
		}
		return
	}
	if r.closed || r.err != nil || now.size() > r.room {
		r.missed(cell.NotKept)
		return
	}
	r.room -= now.size()
	r.done.Bytes += now.size()
	r.names[now.Host] = &now
}

// Begin gives a request its number.
func (r *Recorder) Begin() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next++
	return r.next
}

// Keep adds what of p there is room for to a body. The room is the recorder's, so bodies in memory are
// bounded together. m belongs to the caller.
func (r *Recorder) Keep(m *Message, p []byte) {
	n := min(len(p), MaxBody-len(m.Body))
	if n > 0 && !m.Cut {
		r.mu.Lock()
		n = int(min(int64(n), r.room))
		if r.closed {
			n = 0
		}
		r.room -= int64(n)
		r.mu.Unlock()
		m.Body = append(m.Body, p[:n]...)
	} else {
		n = 0
	}
	m.Cut = m.Cut || n < len(p)
}

// Drop gives back the room of an exchange that is not written.
func (r *Recorder) Drop(e *Exchange, kind string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(e, kind)
}

func (r *Recorder) drop(e *Exchange, kind string) {
	r.room += int64(len(e.Request.Body) + len(e.Answer.Body))
	r.missed(kind)
}

// Write writes an exchange that is over.
func (r *Recorder) Write(e *Exchange) {
	b, err := json.Marshal(e)
	r.mu.Lock()
	defer r.mu.Unlock()
	size := e.size()
	switch {
	case r.closed:
		return
	case err != nil || r.err != nil:
		r.drop(e, cell.NotRecordable)
		return
	case size > r.room:
		r.drop(e, cell.NotKept)
		return
	}
	r.room -= size
	if _, r.err = r.out.Write(append(b, '\n')); r.err != nil {
		r.missed(cell.NotRecordable)
		return
	}
	r.done.Exchanges++
	r.done.Bytes += size + int64(len(e.Request.Body)+len(e.Answer.Body))
	for _, m := range []*Message{&e.Request, &e.Answer} {
		if m.Cut {
			r.done.Cut++
		}
	}
}

// Close ends the recording, and says what is in it.
func (r *Recorder) Close() cell.Recording {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.closed = true
		for _, host := range slices.Sorted(maps.Keys(r.names)) {
			b, err := json.Marshal(line{Name: r.names[host]})
			if err == nil && r.err == nil {
				_, err = r.out.Write(append(b, '\n'))
			}
			if r.err == nil {
				r.err = err
			}
		}
		if err := r.out.Close(); r.err == nil {
			r.err = err
		}
		if s, ok := r.file.(interface{ Sync() error }); ok && r.err == nil {
			r.err = s.Sync()
		}
		if r.err != nil {
			r.done.Incomplete = "it could not be written: " + r.err.Error()
		}
		copy(r.done.Digest[:], r.sum.Sum(nil))
	}
	out := r.done
	out.NotRecorded = maps.Clone(out.NotRecorded)
	return out
}
