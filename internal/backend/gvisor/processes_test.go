package gvisor

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pando-dev/pando/internal/keeper/server"
)

// toldStarts keeps what it is told.
type toldStarts struct {
	t    testing.TB
	mu   sync.Mutex
	list []string
}

func (s *toldStarts) add(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, text)
}

func (s *toldStarts) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.list)
}

func (s *toldStarts) Exec(e server.Exec) {
	if e.As != server.Observed || e.Cut < 0 {
		s.t.Errorf("%+v", e)
	}
	s.add(fmt.Sprintf("exec %d of %d %s %s -%d", e.PID, e.Parent, e.Path, strings.Join(e.Args, "|"), e.Cut))
}

func (s *toldStarts) Ended(e server.End) {
	if e.As != server.Observed {
		s.t.Errorf("%+v", e)
	}
	s.add(fmt.Sprintf("end %d %d %s", e.PID, e.Code, e.Signal))
}

func (s *toldStarts) Lost(starts, ends int64, why string) {
	if starts < 0 || ends < 0 || why == "" {
		s.t.Errorf("%d and %d lost: %s", starts, ends, why)
	}
	s.add(fmt.Sprintf("lost %d %d", starts, ends))
}

// Reports are told to their command, in whatever pieces they come, and none to another; what is no report is
// left out, and so is one that is too long.
func TestReportsAreToldToTheirCommand(t *testing.T) {
	t.Parallel()
	m := toldOf()
	one, two := &toldStarts{t: t}, &toldStarts{t: t}
	m.watched[1], m.watched[2] = &watched{starts: one}, &watched{starts: two}
	word, _ := json.Marshal(strings.Repeat("w\n", 10_000))
	long, _ := json.Marshal(strings.Repeat("w", reportSize))
	text := `proc {"kind":"exec","command":1,"pid":2,"argv":["sh","-c","two words"],"path":"/bin/sh","cut":5}` + "\n" +
		`part {"kind":"exec","command":2,` + "\n" + "away\n" + `proc "pid":7,"parent":6,"argv":["x\nproc"],"path":"/x"}` + "\n" +
		`proc {"kind":"exec","command":3,"pid":9}` + "\n" + "proc {\nproc null\nproc \npart x\nproc x\n" +
		`proc {"kind":"end","command":1,"pid":3,"status":768}` + "\n" + `proc {"kind":"end","command":1,"pid":4,"status":9}` + "\n" +
		`proc {"kind":"end","command":1,"pid":5,"silent":true}` + "\n" + `proc {"kind":"lost","command":2,"starts":4,"ends":-1}` + "\n" +
		`proc {"kind":"other","command":2}` + "\n"
	for part := range parts(`{"kind":"exec","command":1,"argv":[` + string(word) + `],"pid":8}`) {
		text += part
	}
	for part := range parts(`{"kind":"exec","command":1,"argv":[` + string(long) + `],"pid":8}`) {
		text += part
	}
	text += `proc {"kind":"end","command":1,"pid":2,"own":true}` + "\n"
	for i := range text {
		m.take([]byte{text[i]})
	}
	for range 2 * reportSize / 4000 {
		m.take([]byte("part " + strings.Repeat("x", 4000) + "\n"))
	}
	if len(m.parts) > reportSize+1 {
		t.Errorf("%d bytes of a report are kept", len(m.parts))
	}
	want := []string{"exec 2 of 0 /bin/sh sh|-c|two words -5", "end 3 3 ", "end 4 137 SIGKILL", "exec 8 of 0  " + strings.Repeat("w\n", 10_000) + " -0", "end 2 0 "}
	if strings.Join(one.list, ";") != strings.Join(want, ";") {
		t.Errorf("%.2000q", one.list)
	}
	if got := strings.Join(two.list, ";"); got != "exec 7 of 6 /x x\nproc -0;lost 4 0" || m.away != 1 {
		t.Errorf("%q, %d", two.list, m.away)
	}
}

// parts are the lines of a report as pando-runsc writes them.
func parts(text string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for len(text) > 4000 {
			if !yield("part " + text[:4000] + "\n") {
				return
			}
			text = text[4000:]
		}
		yield("proc " + text + "\n")
	}
}

// The end of a command waits until the ends of its processes were reported, for as long as reports come if some go
// on after it, and never for long.
func TestTheEndWaitsForReports(t *testing.T) {
	t.Parallel()
	wait := func(send func(w *watched)) (took time.Duration, list []string) {
		synctest.Test(t, func(t *testing.T) {
			s := &toldStarts{t: t}
			w := &watched{starts: s}
			began := time.Now()
			go send(w)
			w.settle()
			took = time.Since(began)
			list = s.all()
			time.Sleep(time.Second)
		})
		return took, list
	}
	if took, list := wait(func(w *watched) {
		time.Sleep(100 * time.Millisecond)
		w.take(report{Kind: "end", Own: true, Left: 1})
		time.Sleep(20 * time.Millisecond)
		w.take(report{Kind: "end"})
	}); took < 120*time.Millisecond || took > 125*time.Millisecond || len(list) != 2 {
		t.Errorf("after %v: %q", took, list)
	}
	if took, list := wait(func(w *watched) {
		w.take(report{Kind: "end", Own: true, Left: 1})
		for range 5 {
			time.Sleep(20 * time.Millisecond)
			w.take(report{Kind: "exec", Left: 0})
		}
	}); took < 100*time.Millisecond+settleStill || took > 105*time.Millisecond+settleStill || len(list) != 6 {
		t.Errorf("after %v: %q", took, list)
	}
	if took, list := wait(func(w *watched) {
		for range 100 {
			time.Sleep(10 * time.Millisecond)
			w.take(report{Kind: "lost"})
		}
	}); took < settleLimit || took > settleLimit+5*time.Millisecond || list[len(list)-1] != "lost 0 0" {
		t.Errorf("after %v: %q", took, list)
	}
}
