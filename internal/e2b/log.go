package e2b

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// logLine is an entry of a sandbox's log.
type logLine struct {
	Timestamp time.Time         `json:"timestamp"`
	Level     string            `json:"level"`
	Message   string            `json:"message"`
	Fields    map[string]string `json:"fields"`
}

// maxLog bounds the lines kept for each sandbox.
const maxLog = 1000

// note adds a line to the log of a sandbox. It has no input or output of commands.
func (f *Front) note(id cell.ID, level, message string) {
	b := f.box(id)
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.log) >= maxLog {
		b.log = append(b.log[:0], b.log[1:]...)
	}
	b.log = append(b.log, logLine{time.Now().UTC(), level, message, map[string]string{}})
}

// levels orders the levels by severity.
var levels = map[string]int{"debug": 0, "info": 1, "warn": 2, "error": 3}

// logQuery selects lines.
type logQuery struct {
	cursor   time.Time // from here on; backward: up to here
	limit    int
	backward bool   // the newest first
	level    string // at least
	search   string // part of a message
}

// logQueryOf parses the query of a request; names are the parameters of its route.
func logQueryOf(w http.ResponseWriter, r *http.Request, names ...string) (l logQuery, err error) {
	known(w, r, names...)
	l.limit = maxLog
	for _, name := range names {
		s := r.URL.Query().Get(name)
		if s == "" {
			continue
		}
		ok := true
		switch name {
		case "start", "cursor":
			n, nerr := strconv.ParseInt(s, 10, 64)
			l.cursor, ok = time.UnixMilli(n), nerr == nil
		case "limit":
			n, nerr := strconv.Atoi(s)
			l.limit, ok = min(n, maxLog), nerr == nil && n >= 0
		case "direction":
			l.backward, ok = s == "backward", s == "backward" || s == "forward"
		case "level":
			_, ok = levels[s]
			l.level = s
		case "search":
			l.search = s
		}
		if !ok {
			return l, cell.Errorf(cell.Invalid, "e2b.logs", "leave "+name+" out, or correct it", "cannot read logs: %s cannot be %q", name, cell.Clip(s))
		}
	}
	return l, nil
}

// of selects lines. Those in the cursor's millisecond are included: a client that continues from
// its last line gets it twice, and misses none.
func (l *logQuery) of(n int, line func(i int) (at time.Time, level, message string)) (picked []int) {
	for i := range n {
		if l.backward {
			i = n - 1 - i
		}
		at, level, message := line(i)
		at = at.Truncate(time.Millisecond)
		switch {
		case len(picked) >= l.limit:
			return picked
		case !l.cursor.IsZero() && (l.backward && at.After(l.cursor) || !l.backward && at.Before(l.cursor)):
		case levels[level] < levels[l.level], !strings.Contains(message, l.search):
		default:
			picked = append(picked, i)
		}
	}
	return picked
}

func (f *Front) pick(c *api.Cell, l *logQuery) []logLine {
	b := f.box(cell.ID(c.ID))
	b.mu.Lock()
	all := slices.Clone(b.log)
	b.mu.Unlock()
	out := []logLine{}
	for _, i := range l.of(len(all), func(i int) (time.Time, string, string) { return all[i].Timestamp, all[i].Level, all[i].Message }) {
		out = append(out, all[i])
	}
	return out
}

// logs returns the log of a sandbox since this daemon started, as text and in parts, the oldest
// line first.
func (f *Front) logs(w http.ResponseWriter, r *http.Request, c *api.Cell) {
	q, err := logQueryOf(w, r, "start", "limit")
	if err != nil {
		fail(w, err)
		return
	}
	type line struct {
		Timestamp time.Time `json:"timestamp"`
		Line      string    `json:"line"`
	}
	entries, lines := f.pick(c, &q), []line{}
	for _, e := range entries {
		// E2B's command line parses a line as JSON, and reports other text as its own failure.
		b, err := json.Marshal(map[string]string{"level": e.Level, "logger": "pando", "message": e.Message})
		if err != nil {
			fail(w, err)
			return
		}
		lines = append(lines, line{e.Timestamp, string(b)})
	}
	answer(w, http.StatusOK, map[string]any{"logs": lines, "logEntries": entries})
}

// logsV2 returns the log in parts, filtered by level and text, in either order.
func (f *Front) logsV2(w http.ResponseWriter, r *http.Request, c *api.Cell) {
	q, err := logQueryOf(w, r, "cursor", "limit", "direction", "level", "search")
	if err != nil {
		fail(w, err)
		return
	}
	answer(w, http.StatusOK, map[string]any{"logs": f.pick(c, &q)})
}

// buildLogs returns the output of a template's steps.
func (f *Front) buildLogs(w http.ResponseWriter, r *http.Request) {
	_, b, ok := f.buildOf(r)
	if !ok {
		refuse(w, http.StatusNotFound, noBuild)
		return
	}
	q, err := logQueryOf(w, r, "cursor", "limit", "direction", "level")
	if err != nil {
		fail(w, err)
		return
	}
	b.mu.Lock()
	all := slices.Clone(b.lines)
	b.mu.Unlock()
	out := []buildLine{}
	for _, i := range q.of(len(all), func(i int) (time.Time, string, string) { return all[i].Timestamp, all[i].Level, all[i].Message }) {
		out = append(out, all[i])
	}
	answer(w, http.StatusOK, map[string]any{"logs": out})
}
