package server

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"
)

// told is what a Starts wrote.
type told struct {
	kinds  []string
	fields []json.RawMessage
	bytes  int
}

func (l *told) emit(kind string, fields any) {
	b, _ := json.Marshal(fields)
	l.kinds, l.fields, l.bytes = append(l.kinds, kind), append(l.fields, b), l.bytes+len(b)
}

func (l *told) exec(t *testing.T, i int) (f ExecFields) {
	t.Helper()
	if err := json.Unmarshal(l.fields[i], &f); err != nil || l.kinds[i] != "process.exec" {
		t.Fatalf("event %d is %s %s, %v", i, l.kinds[i], l.fields[i], err)
	}
	return f
}

// Words are cut, and how much is missing is said; a credential is taken out before that, so that no
// part of it remains.
func TestWordsOfAProcessAreBounded(t *testing.T) {
	t.Parallel()
	var l told
	s := newStarts(l.emit, []string{"hunter2-hunter2", "x"})
	s.Exec(Exec{PID: 1, Parent: 2, Args: []string{"curl", "-u", "me:hunter2-hunter2", ""}, Path: "/bin/hunter2-hunter2", As: Asked})
	if f := l.exec(t, 0); strings.Join(f.Argv, "|") != "curl|-u|me:[secret]|" || f.Path != "/bin/[secret]" || f.Cut != 0 || f.As != Asked || f.Parent != 2 {
		t.Errorf("%+v", f)
	}
	token := "ghp_" + strings.Repeat("a1B2", 9)
	long := strings.Repeat("ü", maxWord/2-5) + " " + token
	s.Exec(Exec{PID: 1, Args: append([]string{long, strings.Repeat("y", 1<<20)}, strings.Fields(strings.Repeat("z ", 1000))...), Cut: 5, As: Asked})
	f := l.exec(t, 1)
	all := 0
	for _, w := range f.Argv {
		all += len(w)
		if len(w) > maxWord || !utf8.ValidString(w) || strings.Contains(w, "ghp_") {
			t.Errorf("a word of %d bytes: %.20s…", len(w), w)
		}
	}
	if len(f.Argv) != maxCount || all > maxWords || f.Cut < 1<<20-maxWord+1000-maxCount+5 {
		t.Errorf("%d words, %d bytes, %d cut", len(f.Argv), all, f.Cut)
	}
	s.Exec(Exec{Args: []string{strings.Repeat("a", 1<<20), strings.Repeat("b", 1<<20), strings.Repeat("c", 1<<20), strings.Repeat("d", 1<<20), strings.Repeat("e", 1<<20)}})
	if f := l.exec(t, 2); f.Cut != 5<<20-maxWords || len(f.Argv) != 4 {
		t.Errorf("%d words, %d cut", len(f.Argv), f.Cut)
	}
}

// A flood is recorded up to a limit, and what is beyond it is counted: while it goes on at most once in
// a while, and at the end.
func TestLostStartsAreCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l told
		s := newStarts(l.emit, nil)
		const n = 40_000
		for range n {
			s.Exec(Exec{PID: 1, Args: []string{strings.Repeat("w", maxWord)}, As: Asked})
			s.Ended(End{PID: 1, As: Observed})
		}
		if l.bytes > startsRoom {
			t.Errorf("%d bytes are written", l.bytes)
		}
		time.Sleep(lostEvery)
		s.Exec(Exec{PID: 2, As: Asked}) // there is room again
		s.Lost(0, 3, "the second reason")
		s.Lost(1, 0, "the third")
		s.end()
		s.Exec(Exec{PID: 3})
		s.Lost(9, 9, "too late")
		s.end()
		var starts, ends, reports int64
		var why []string
		for i, k := range l.kinds {
			switch k {
			case "process.exec":
				starts++
			case "process.ended":
				ends++
			case "process.lost":
				var f LostFields
				if err := json.Unmarshal(l.fields[i], &f); err != nil {
					t.Fatal(err)
				}
				starts, ends, reports, why = starts+f.Starts, ends+f.Ends, reports+1, append(why, f.Why)
			}
		}
		if starts != n+2 || ends != n+3 || reports != 2 || l.kinds[len(l.kinds)-1] != "process.lost" || l.kinds[len(l.kinds)-2] != "process.exec" {
			t.Errorf("%d starts and %d ends are recorded or counted, %d times", starts, ends, reports)
		}
		if got := strings.Join(why, ", "); got != "there were more than is recorded, the second reason" {
			t.Errorf("because %s", got)
		}
	})
}

// What a driver tells of processes is between the start of the command and its end, and what a
// backend can't observe is said.
func TestProcessesAreToldOf(t *testing.T) {
	k := newKit(t)
	k.start("p", "starts")
	k.wait("p")
	if kinds, _ := k.events.all(); kinds != "process.start process.exec process.ended process.running process.exit" {
		t.Errorf("%s", kinds)
	}
	k = newKitWith(t, func(d *fakeDriver) Driver { return blind{d} })
	k.start("p", "true")
	k.wait("p")
	if kinds, _ := k.events.all(); kinds != "process.start process.unseen process.running process.exit" {
		t.Errorf("%s", kinds)
	}
}

// blind is a driver that observes no processes.
type blind struct{ Driver }
