package main

import (
	"encoding/binary"
	"fmt"
	"sync"
	"syscall"
	"time"
)

// holder has dirty memory, and writes a byte of it every millisecond.
type holder struct {
	mu      sync.Mutex
	memory  []byte
	last    time.Time
	longest time.Duration // between two beats
	beats   int
}

// dirty writes mib MiB of pages that are distinct and not zero.
func (h *holder) dirty(mib int) string {
	memory, err := syscall.Mmap(-1, 0, mib<<20, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return err.Error()
	}
	for i := 0; i < len(memory); i += 4096 {
		for j := i; j < i+4096; j += 512 {
			binary.LittleEndian.PutUint64(memory[j:], uint64(i+j)|1)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.memory = memory
	return "dirty"
}

// beat writes one page of that memory per beat, and records the longest interval between two
// beats.
func (h *holder) beat() {
	for {
		time.Sleep(time.Millisecond)
		h.mu.Lock()
		if n := len(h.memory) / 4096; n > 0 {
			h.memory[h.beats*7919%n*4096+8]++ // in a scattered order
		}
		h.beats++
		h.note()
		h.mu.Unlock()
	}
}

// note records the time since the last beat, and the time of this one. The caller holds mu.
func (h *holder) note() {
	now := time.Now()
	if !h.last.IsZero() {
		h.longest = max(h.longest, now.Sub(h.last))
	}
	h.last = now
}

// gap returns the longest interval since the last call, in microseconds. It includes a beat
// that is late.
func (h *holder) gap() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.last.IsZero() {
		h.note()
	}
	answer := fmt.Sprint(h.longest.Microseconds())
	h.longest = 0
	return answer
}
