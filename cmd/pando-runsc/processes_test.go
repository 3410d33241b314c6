package main

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
)

// What has no room is counted for its command. The counts are written when there is room again, and before
// the last reports of the command, which always have room.
func TestReportsWithoutRoomAreCounted(t *testing.T) {
	p := &processes{known: map[*kernel.ThreadGroup]*process{}, losing: map[*command]bool{}, wake: make(chan struct{}, 1)}
	c, other := &command{number: 1, left: 3}, &command{number: 2, left: 1}
	first, second, silent := new(kernel.ThreadGroup), new(kernel.ThreadGroup), new(kernel.ThreadGroup)
	p.known[first] = &process{of: c, pid: 2, own: true, executed: true}
	p.known[second] = &process{of: c, pid: 3, executed: true}
	p.known[silent] = &process{of: c, pid: 4}
	fill := func(of *command) {
		r := report{Kind: "exec", Command: of.number, of: of}
		r.words([]string{strings.Repeat("w", wordsRoom)})
		p.add(r)
	}
	fill(other)
	for range 2 * queueRoom / wordsRoom {
		fill(c)
	}
	for p.size+200 <= queueRoom {
		p.add(report{Kind: "exec", Command: 1, of: c})
	}
	lost := c.starts
	p.ended(second, 0)
	p.ended(second, 0) // once
	p.ended(new(kernel.ThreadGroup), 0)
	p.ended(first, 3<<8)
	p.ended(silent, 0) // the last one, whatever it was
	if p.size > queueRoom+1000 || lost < queueRoom/wordsRoom || len(p.known) != 0 {
		t.Fatalf("%d bytes wait, %d are lost, %d processes are known", p.size, lost, len(p.known))
	}
	var kinds []string
	starts := int64(0)
	for r, ok := p.next(); ok; r, ok = p.next() {
		if r.Kind == "exec" {
			starts++
			continue
		}
		kinds = append(kinds, r.Kind)
		switch r.Kind {
		case "lost":
			if r.Starts != lost || r.Ends != 1 || r.Command != 1 {
				t.Errorf("%+v", r)
			}
		case "end":
			if own := r.PID == 2; r.Own != own || r.Silent == own || own != (r.Left == 1) || own != (r.Status == 3<<8) {
				t.Errorf("%+v", r)
			}
		}
	}
	if got := strings.Join(kinds, " "); got != "lost end end" || p.size != 0 {
		t.Errorf("%s, %d bytes, %d starts", got, p.size, starts)
	}
	fill(c)
	for c.starts == 0 {
		fill(c)
	}
	for p.size > 0 {
		p.next()
	}
	if r, ok := p.next(); !ok || r.Kind != "lost" || r.Starts != 1 {
		t.Errorf("%+v", r)
	}
}

// A word is there as a whole, or not at all.
func TestWordsThatHaveNoRoomAreLeftOut(t *testing.T) {
	var r report
	r.words([]string{"a", strings.Repeat("b", wordsRoom), strings.Repeat("c", wordsRoom-1), "dd", ""})
	if len(r.Argv) != 3 || r.Argv[0] != "a" || len(r.Argv[1]) != wordsRoom-1 || r.Argv[2] != "" || r.Cut != wordsRoom+2 {
		t.Errorf("%d words, %d cut", len(r.Argv), r.Cut)
	}
	r = report{}
	r.words(strings.Split(strings.Repeat("a ", 2*wordsMost), " "))
	if len(r.Argv) != wordsMost || r.Cut != wordsMost {
		t.Errorf("%d words, %d cut", len(r.Argv), r.Cut)
	}
}

// Lines wait for room in the pipe, of which they leave some to others, and end with its reader.
func TestLinesWaitForRoom(t *testing.T) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	p := &processes{fd: fds[1]}
	line := []byte(strings.Repeat("x", 4095) + "\n")
	for n := 0; n <= pipeRoom; n += len(line) {
		if !p.line(line) {
			t.Fatal("it has a reader")
		}
	}
	if n, err := unix.Write(fds[1], line); n != len(line) || err != nil {
		t.Errorf("others have no room: %v", err)
	}
	written := make(chan bool)
	go func() { written <- p.line(line) }()
	select {
	case <-written:
		t.Error("it did not wait")
	case <-time.After(50 * time.Millisecond):
	}
	b := make([]byte, 3*len(line))
	unix.Read(fds[0], b)
	if !<-written {
		t.Error("it has a reader")
	}
	unix.Close(fds[0])
	if p.line(line) {
		t.Error("it has no reader")
	}
	unix.Close(fds[1])
}
