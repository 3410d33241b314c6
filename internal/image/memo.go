package image

import (
	"sync"
	"time"
)

// seen remembers, for all plans of this process, what was read of the host.
var seen memo

// A memo keeps values read from files and directories, each as long as the file is the same:
// inode, size and times. No program can set the time of change, so a rewrite with the old
// size and time of modification is noticed.
type memo struct {
	mu   sync.Mutex // guards kept
	kept map[memoKey]memoValue
}

type memoKey struct{ what, disk string }

type memoValue struct {
	id    info
	value any
}

// maxKept bounds the memo; a machine needs about a thousand.
const maxKept = 16384

// settle is how old a change must be before what is read is remembered: a
// second change within the same tick of the kernel's clock would go unseen.
const settle = int64(time.Second)

// remember returns what read gives for the file at disk in the state id. what names the
// kind of value. The value is shared and must not be changed.
func remember[T any](what, disk string, id info, read func() T) T {
	key := memoKey{what, disk}
	seen.mu.Lock()
	v, ok := seen.kept[key]
	seen.mu.Unlock()
	if ok && v.id == id {
		return v.value.(T)
	}
	value := read()
	if time.Now().UnixNano()-id.ctime < settle {
		return value
	}
	seen.mu.Lock()
	defer seen.mu.Unlock()
	if seen.kept == nil || len(seen.kept) >= maxKept {
		seen.kept = map[memoKey]memoValue{}
	}
	seen.kept[key] = memoValue{id, value}
	return value
}
