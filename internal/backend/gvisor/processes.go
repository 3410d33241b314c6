package gvisor

import (
	"encoding/json"
	"sync"
	"syscall"
	"time"

	"github.com/pando-dev/pando/internal/keeper/server"
	"github.com/pando-dev/pando/internal/linux"
)

const (
	reportSize = 512 << 10 // size limit of a report, in bytes: JSON takes up to six for one of a word
	// settleLimit is how long the end of a command waits for the reports of its processes, and settleStill how
	// long if processes go on after it and nothing is reported.
	settleLimit = 500 * time.Millisecond
	settleStill = 30 * time.Millisecond
)

// report is what pando-runsc says of the processes of a command: see processes.go there.
type report struct {
	Kind    string   `json:"kind"` // exec, end, lost
	Command int64    `json:"command"`
	PID     int32    `json:"pid"`
	Parent  int32    `json:"parent"`
	Argv    []string `json:"argv"`
	Path    string   `json:"path"`
	Cut     int64    `json:"cut"`
	Status  uint32   `json:"status"`
	Silent  bool     `json:"silent"`
	Own     bool     `json:"own"`
	Left    int      `json:"left"`
	Starts  int64    `json:"starts"`
	Ends    int64    `json:"ends"`
}

// starts is what is told of processes: server.Starts.
type starts interface {
	Exec(server.Exec)
	Ended(server.End)
	Lost(starts, ends int64, why string)
}

// watched is a command with reported processes.
type watched struct {
	starts starts

	mu    sync.Mutex // guards the fields below
	own   bool       // the end of its first process was reported
	all   bool       // that of all was
	count int        // of reports
}

// Watch implements guestkernel.Watcher.
func (s *sandbox) Watch(number int64, starts *server.Starts) (settle func(started bool)) {
	w := &watched{starts: starts}
	s.told.mu.Lock()
	s.told.watched[number] = w
	s.told.mu.Unlock()
	return func(started bool) {
		if started {
			w.settle()
		}
		s.told.mu.Lock()
		delete(s.told.watched, number)
		s.told.mu.Unlock()
	}
}

// settle waits for the last reports.
func (w *watched) settle() {
	began, last, since := time.Now(), -1, time.Now()
	for {
		w.mu.Lock()
		own, all, n := w.own, w.all, w.count
		w.mu.Unlock()
		switch {
		case own && all:
			return
		case n != last:
			last, since = n, time.Now()
		case own && time.Since(since) > settleStill:
			return
		}
		if time.Since(began) > settleLimit {
			w.starts.Lost(0, 0, "the cell's kernel did not say in time that all had ended")
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// part takes a part of a report. It holds mu.
func (t *told) part(text string, last bool) {
	if len(t.parts) <= reportSize {
		t.parts = append(t.parts, text[:min(len(text), reportSize+1-len(t.parts))]...)
	}
	if !last {
		return
	}
	b := t.parts
	t.parts = nil
	var r report
	if json.Unmarshal(b, &r) != nil { // one that is too long was cut
		return
	}
	if w := t.watched[r.Command]; w != nil {
		w.take(r)
	}
}

func (w *watched) take(r report) {
	switch r.Kind {
	case "exec":
		w.starts.Exec(server.Exec{PID: int(r.PID), Parent: int(r.Parent), Args: r.Argv, Path: r.Path, Cut: max(r.Cut, 0), As: server.Observed})
	case "end":
		if !r.Silent {
			exit := linux.ExitOf(syscall.WaitStatus(r.Status))
			w.starts.Ended(server.End{PID: int(r.PID), Code: exit.Code, Signal: exit.Signal, As: server.Observed})
		}
	case "lost":
		w.starts.Lost(max(r.Starts, 0), max(r.Ends, 0), "there were more at once than the cell's kernel could report")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count++
	if r.Kind == "end" {
		w.own, w.all = w.own || r.Own, w.all || r.Left == 0
	}
}
