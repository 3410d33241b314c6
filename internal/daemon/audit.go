package daemon

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// Audit is the audit log: one JSON object a line for each request of callers over the network,
// and for each change by callers on the unix socket. A nil Audit writes nothing.
//
// Refused requests (answers 4xx) never displace successful ones: they get a quarter of the log,
// and the rest goes to a log of its own (NAME-refused.jsonl). For callers without a valid token
// the first request of a peer in a minute has a line, and the others are counted in one line.
//
// The log says which caller sent a request. Receipts say what happened.
type Audit struct {
	log, overflow *auditFile

	mu      sync.Mutex // guards the fields below
	tallies map[tallied]*tally
	flush   *time.Timer // runs while there are tallies
}

// auditFile is one log. A full file is renamed to NAME.1, which replaces the former one.
type auditFile struct {
	path string

	mu      sync.Mutex // guards the fields below
	f       *os.File
	done    int64 // bytes of the lines of accepted requests
	refused int64 // bytes of the lines of refused requests
	failed  bool
}

// Each log may become 64 MiB long, a quarter of it lines of refused requests.
const (
	doneMax    = 48 << 20
	refusedMax = 16 << 20
)

// tallied is a counted line: refused requests of one peer with the same error kind.
type tallied struct {
	peer netip.Prefix
	kind string
}

type tally struct {
	n           int64 // beside the first, which has a line
	first, last time.Time
	status      int
}

// tallyTime is the period for which requests without a valid token are counted in one line.
const tallyTime = time.Minute

// OpenAudit opens the log at path, and the log of refused requests beside it, and creates them
// if they do not exist.
func OpenAudit(path string) (*Audit, error) {
	a := &Audit{log: &auditFile{path: path}, overflow: &auditFile{path: strings.TrimSuffix(path, ".jsonl") + "-refused.jsonl"}, tallies: map[tallied]*tally{}}
	return a, a.Reopen()
}

// Reopen opens the logs by their names again, after another program has moved them.
func (a *Audit) Reopen() error {
	if a == nil {
		return nil
	}
	return errors.Join(a.log.reopen(), a.overflow.reopen())
}

func (f *auditFile) reopen() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.open()
}

// open opens the file. The caller holds mu.
func (f *auditFile) open() error {
	n, err := os.OpenFile(f.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return cell.Errorf(cell.Unavailable, "daemon.OpenAudit", "", "cannot open the audit log: %w", err)
	}
	st, err := n.Stat()
	var refused int64
	if err == nil {
		refused, err = refusedIn(f.path)
	}
	if err != nil {
		n.Close()
		return err
	}
	if f.f != nil {
		f.f.Close()
	}
	f.f, f.done, f.refused = n, st.Size()-refused, refused
	return nil
}

// refusedIn counts the bytes of lines of refused requests in a log.
func refusedIn(path string) (n int64, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	r := bufio.NewReaderSize(f, 64<<10)
	for {
		line, err := r.ReadSlice('\n')
		if bytes.Contains(line, []byte(`"status":4`)) { // within a text the quotes would be escaped
			n += int64(len(line))
		}
		switch err {
		case nil, bufio.ErrBufferFull: // not a line of this log
		case io.EOF:
			return n, nil
		default:
			return 0, err
		}
	}
}

func (f *auditFile) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.f.Close()
}

// Close writes the pending tallies and closes the logs.
func (a *Audit) Close() error {
	if a == nil {
		return nil
	}
	a.sum(nil)
	return errors.Join(a.log.close(), a.overflow.close())
}

// auditLine is a line of the log.
type auditLine struct {
	Time    time.Time `json:"time"` // when the request began
	Request string    `json:"request"`
	Who     string    `json:"caller,omitempty"` // a token's name, or local; absent for a caller without a valid token
	Token   string    `json:"token,omitempty"`
	From    string    `json:"from"`             // "" at the end of an operation of an earlier daemon
	What    string    `json:"what"`             // method and route; the path for other APIs and unknown routes
	Object  string    `json:"object,omitempty"` // the object in the path
	Status  int       `json:"status"`           // of the answer
	Kind    string    `json:"kind,omitempty"`   // of the error
	// Operation is the id of an ended operation. The request that began it has a line of its
	// own.
	Operation string  `json:"operation,omitempty"`
	TookMS    float64 `json:"took_ms"`
	Bytes     int64   `json:"bytes"` // of the answer
	// Times is set in a line of a tally: the number of further requests without a valid token
	// from this peer between Time and Until.
	Times int64      `json:"times,omitempty"`
	Until *time.Time `json:"until,omitempty"`
}

// note logs a request.
func (a *Audit) note(d *Daemon, v *requestRecord, r *http.Request) {
	l, ok := a.line(v, r)
	switch {
	case !ok:
	case l.refused() && v.from != "socket" && v.who.Token == "":
		a.stranger(d.cfg.Log, l)
	default:
		a.write(d.cfg.Log, l)
	}
}

// line is the line of a request, if it has one.
func (a *Audit) line(v *requestRecord, r *http.Request) (l auditLine, ok bool) {
	if a == nil || v.from == "socket" && (v.route == nil || v.route.Access == Read) && !v.front {
		return l, false
	}
	l = auditLine{Time: v.began.UTC(), Request: v.id, Who: v.who.Name, Token: v.who.Token, From: v.from, Object: cell.Clip(v.object), Status: v.w.status, Kind: v.kind,
		TookMS: float64(time.Since(v.began).Microseconds()) / 1000, Bytes: v.w.bytes}
	if v.route != nil {
		path, _ := v.route.Split()
		l.What = cell.Clip(r.Method) + " " + path
	} else {
		l.What = cell.Clip(r.Method) + " " + cell.Clip(r.URL.Path)
	}
	return l, true
}

// refused reports whether a line is of a refused request.
func (l *auditLine) refused() bool { return l.Status >= 400 && l.Status < 500 }

// stranger logs or counts a refused request without a valid token.
func (a *Audit) stranger(log *slog.Logger, l auditLine) {
	key := tallied{peerOf(l.From), l.Kind}
	a.mu.Lock()
	defer a.mu.Unlock()
	t := a.tallies[key]
	if t == nil && len(a.tallies) >= maxPeers {
		key = tallied{}
		t = a.tallies[key]
	}
	if t != nil {
		if t.n++; t.n == 1 {
			t.first = l.Time
		}
		t.last = l.Time
		return
	}
	a.tallies[key] = &tally{status: l.Status}
	if a.flush == nil {
		a.flush = time.AfterFunc(tallyTime, func() { a.sum(log) })
	}
	a.write(log, l)
}

// sum writes a line for each tally, and starts anew.
func (a *Audit) sum(log *slog.Logger) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.flush != nil {
		a.flush.Stop()
		a.flush = nil
	}
	for k, t := range a.tallies {
		delete(a.tallies, k)
		if t.n == 0 {
			continue
		}
		from := k.peer.String()
		switch {
		case !k.peer.IsValid():
			from = "other peers"
		case k.peer.IsSingleIP():
			from = k.peer.Addr().String()
		}
		last := t.last
		a.write(log, auditLine{Time: t.first, From: from, What: "requests without a valid token", Status: t.status, Kind: k.kind, Times: t.n, Until: &last})
	}
}

// ended logs the end of an operation, after the request that began it was answered.
func (a *Audit) ended(d *Daemon, v *requestRecord, route *Route, o api.Operation) {
	if a == nil {
		return
	}
	path, _ := route.Split()
	l := auditLine{Time: o.Began, Request: o.Request, Who: v.who.Name, Token: v.who.Token, From: v.from, What: route.Method + " " + path, Object: o.Object,
		Operation: o.ID, Status: http.StatusOK, TookMS: float64(o.Ended.Sub(o.Began).Microseconds()) / 1000}
	if o.Error != nil {
		l.Kind, l.Status = string(o.Error.Kind), api.ReasonOf(o.Error.Kind).Status
	}
	a.write(d.cfg.Log, l)
}

// write adds a line. The first failure is reported to log, which may be nil.
func (a *Audit) write(log *slog.Logger, l auditLine) {
	b, err := json.Marshal(l)
	if err != nil {
		return
	}
	b = append(b, '\n')
	refused := l.refused() && l.Operation == "" // an operation that failed was accepted
	if !a.log.add(log, b, refused, false) {
		a.overflow.add(log, b, refused, true)
	}
}

// add adds a line. It reports whether there was room: with rotate, and for accepted requests, a
// full log is renamed to NAME.1.
func (f *auditFile) add(log *slog.Logger, b []byte, refused, rotate bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, most := &f.done, int64(doneMax)
	if refused {
		n, most = &f.refused, refusedMax
	}
	var err error
	if *n+int64(len(b)) > most {
		if refused && !rotate {
			return false
		}
		if err = os.Rename(f.path, f.path+".1"); err == nil {
			err = f.open()
		}
	}
	if err == nil {
		var wrote int
		wrote, err = f.f.Write(b)
		*n += int64(wrote)
	}
	if err != nil && !f.failed && log != nil { // once, not with each request
		log.Error("cannot write the audit log", "error", err)
	}
	f.failed = err != nil
	return true
}
