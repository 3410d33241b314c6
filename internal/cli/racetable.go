package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/pando-dev/pando/api"
)

// raceBoard shows a race while it goes on: a table that is drawn again on a terminal, lines elsewhere, JSON Lines with --json.
type raceBoard struct {
	a     *app
	live  bool
	over  chan struct{} // closed when nothing is drawn again by itself
	mu    sync.Mutex    // guards what follows
	last  api.Race
	drawn int            // lines of the table on the terminal
	told  map[int]string // the state of each attempt that was last told
	notes map[string]bool
}

// begin decides how the race is shown.
func (b *raceBoard) begin(race api.Race) {
	errs, ok := b.a.stderr.(*os.File)
	if !ok || !b.a.isTTY || b.a.json || os.Getenv("TERM") == "dumb" {
		return
	}
	_, rows, err := term.GetSize(int(errs.Fd()))
	if b.live = err == nil && len(race.Attempts)+3 < rows; b.live {
		go b.tick()
	}
}

// tick draws the table again, for the time that has gone by.
func (b *raceBoard) tick() {
	every := time.NewTicker(time.Second)
	defer every.Stop()
	for {
		select {
		case <-b.over:
			return
		case <-every.C:
			b.mu.Lock()
			if b.drawn > 0 {
				b.draw()
			}
			b.mu.Unlock()
		}
	}
}

// end takes the table off the terminal for good.
func (b *raceBoard) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.over)
	b.clear()
}

// say writes a line, above the table.
func (b *raceBoard) say(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.clear()
	b.a.say(format, args...)
}

// draw draws the table. The caller holds mu.
func (b *raceBoard) draw() {
	var text strings.Builder
	t := b.a.newTable(&text)
	t.cut = b.a.width
	attemptRows(t, b.last, false)
	t.flush()
	b.clear()
	io.WriteString(b.a.stderr, text.String())
	b.drawn = strings.Count(text.String(), "\n")
}

// clear takes the table off the terminal. The caller holds mu.
func (b *raceBoard) clear() {
	if b.drawn > 0 {
		fmt.Fprintf(b.a.stderr, "\x1b[%dA\r\x1b[J", b.drawn)
		b.drawn = 0
	}
}

// show shows a race as it is.
func (b *raceBoard) show(race api.Race) {
	for _, n := range race.Notes {
		if !b.notes[n] {
			b.notes[n] = true
			b.say("pando: note: %s", printable(n))
		}
	}
	if b.live {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.last = race
		b.draw()
		return
	}
	for _, at := range race.Attempts {
		if b.told[at.Number] == at.State || b.told[at.Number] == "" && at.State == api.AttemptWaiting {
			continue
		}
		b.told[at.Number] = at.State
		switch {
		case b.a.json:
			json.NewEncoder(b.a.stdout).Encode(map[string]any{"attempt": at})
		case at.State == api.AttemptRunning:
			b.a.say("pando: %s runs%s", at.CellName, variesWords(at.Varies))
		case isOver(at.State):
			b.a.say("pando: %s %s", at.CellName, attemptLine(&at, race.Check != ""))
		}
	}
}

// isOver reports whether an attempt in this state has ended.
func isOver(state string) bool {
	return slices.Contains([]string{api.AttemptSucceeded, api.AttemptFailed, api.AttemptStopped, api.AttemptLost}, state)
}

// attemptLine says how an attempt ended.
func attemptLine(at *api.RaceAttempt, checked bool) string {
	parts := []string{}
	if at.ExitCode != nil {
		exit := fmt.Sprintf("exit %d", *at.ExitCode)
		if at.Cause != "" {
			exit += " (" + at.Cause + ")"
		}
		parts = append(parts, exit)
	}
	if checked && at.Check != nil {
		parts = append(parts, "check "+checkWord(at))
	}
	if at.Score != nil {
		parts = append(parts, "score "+scoreWord(at))
	} else if at.Scored != "" {
		parts = append(parts, "no score: "+printable(at.Scored))
	}
	if at.ExitCode != nil {
		parts = append(parts, fmt.Sprintf("%s, +%d -%d", plural(at.Files, "file"), at.Added, at.Deleted))
	}
	for _, rule := range at.High {
		parts = append(parts, "found: "+rule)
	}
	if at.Problem != "" {
		parts = append(parts, printable(at.Problem))
	}
	if len(parts) == 0 {
		return at.State
	}
	return at.State + ": " + strings.Join(parts, ", ")
}

// tableOfAttempts prints the attempts of a race: by rank, if it has ended.
func (a *app) tableOfAttempts(w io.Writer, race api.Race) {
	t := a.newTable(w)
	attemptRows(t, race, race.State == api.RaceEnded)
	t.flush()
	for _, at := range race.Attempts {
		if at.Scored != "" {
			a.say("pando: %s has no score: %s", at.CellName, printable(at.Scored))
		}
		if at.Problem != "" {
			a.say("pando: %s: %s", at.CellName, printable(at.Problem))
		}
		if at.Check != nil && at.Check.ExitCode != 0 && at.Check.Output != "" && len(race.Attempts) <= 8 {
			a.say("pando: the check of %s said:\n%s", at.CellName, indent(lastOf(at.Check.Output, 5)))
		}
	}
}

// lastOf are the last lines of a text.
func lastOf(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(len(lines)-n, 0):], "\n")
}

// attemptRows adds a row for each attempt.
func attemptRows(t *table, race api.Race, ranked bool) {
	list := slices.Clone(race.Attempts)
	if ranked {
		slices.SortStableFunc(list, func(a, b api.RaceAttempt) int {
			ra, rb := a.Rank, b.Rank
			if ra == 0 {
				ra = len(list) + 1
			}
			if rb == 0 {
				rb = len(list) + 1
			}
			return ra - rb
		})
	}
	varies := slices.ContainsFunc(list, func(at api.RaceAttempt) bool { return len(at.Varies) > 0 })
	costs := slices.ContainsFunc(list, func(at api.RaceAttempt) bool { return at.USD > 0 })
	turns := slices.ContainsFunc(list, func(at api.RaceAttempt) bool { return at.Turns > 0 })
	tokens := slices.ContainsFunc(list, func(at api.RaceAttempt) bool { return at.Tokens > 0 })
	head := []string{"ATTEMPT", "STATE"}
	if varies {
		head = append(head, "VARIES")
	}
	head = append(head, "EXIT")
	if race.Check != "" {
		head = append(head, "CHECK")
	}
	if race.Score != "" {
		head = append(head, "SCORE")
	}
	head = append(head, "FILES", "LINES", "TIME")
	if turns {
		head = append(head, "TURNS")
	}
	if tokens {
		head = append(head, "TOKENS")
	}
	if costs {
		head = append(head, "COST")
	}
	head = append(head, "FOUND")
	t.row(head...)
	for i := range list {
		at := &list[i]
		state := at.State
		if at.CellName == race.Winner {
			state = "winner"
		}
		row := []string{at.CellName, state}
		if varies {
			row = append(row, cut(strings.TrimPrefix(variesWords(at.Varies), " with "), 30))
		}
		exit, files, lines, took := "–", "–", "–", "–"
		switch {
		case at.ExitCode != nil && at.Cause != "":
			exit = at.Cause
		case at.ExitCode != nil:
			exit = strconv.Itoa(*at.ExitCode)
		}
		if isOver(at.State) && at.ExitCode != nil {
			files, lines = strconv.Itoa(at.Files), fmt.Sprintf("+%d -%d", at.Added, at.Deleted)
		}
		switch {
		case at.TookMS > 0 || isOver(at.State) && at.ExitCode != nil:
			took = (time.Duration(at.TookMS) * time.Millisecond).Round(100 * time.Millisecond).String()
		case at.State == api.AttemptRunning && !at.Started.IsZero():
			took = time.Since(at.Started).Round(time.Second).String()
		}
		row = append(row, exit)
		if race.Check != "" {
			row = append(row, checkWord(at))
		}
		if race.Score != "" {
			row = append(row, scoreWord(at))
		}
		row = append(row, files, lines, took)
		if turns {
			row = append(row, strconv.Itoa(at.Turns))
		}
		if tokens {
			row = append(row, strconv.FormatInt(at.Tokens, 10))
		}
		if costs {
			row = append(row, fmt.Sprintf("$%.4f", at.USD))
		}
		found := strings.Join(at.High, ", ")
		if found == "" {
			found = "–"
		}
		t.row(append(row, found)...)
	}
}

func checkWord(at *api.RaceAttempt) string {
	switch {
	case at.Check == nil:
		return "–"
	case at.Check.ExitCode == 0:
		return "passed"
	}
	return "failed"
}

func scoreWord(at *api.RaceAttempt) string {
	switch {
	case at.Score != nil:
		return strconv.FormatFloat(*at.Score, 'g', 6, 64)
	case at.Scored != "":
		return "none"
	}
	return "–"
}

// variesWords are the fields of an attempt, in words.
func variesWords(row map[string]string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(row)) {
		parts = append(parts, k+"="+row[k])
	}
	if len(parts) == 0 {
		return ""
	}
	return " with " + cut(strings.Join(parts, " "), 60)
}
