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

// Audit is the log of who asked for what: one JSON object a line, all requests
// of callers from elsewhere, and what callers on the unix socket did (not what
// they looked at). A nil Audit writes nothing.
//
// Refused requests (answers 4xx) never push out what was done: they may have a quarter of
// the log, and what is beyond that goes to a log beside it (NAME-refused.jsonl). Of
// callers without a good token the first request of a peer in a minute has a line, and
// the others are summed up in one.
//
// It says who asked. What happened is evidence of another kind: see receipts.
type Audit struct {
	log, overflow *auditFile

	mu      sync.Mutex // guards what follows
	tallies map[tallied]*tally
	flush   *time.Timer // runs while there are tallies
}

// auditFile is one log: a file that becomes NAME.1 when it is full, in the place of
// the former one.
type auditFile struct {
	path string

	mu      sync.Mutex // guards what follows
	f       *os.File
	done    int64 // bytes of lines of what was done
	refused int64 // and of what was refused
	failed  bool
}

// Each log may become 64 MiB long, a quarter of it lines of refused requests.
const (
	doneMax    = 48 << 20
	refusedMax = 16 << 20
)

// tallied is what is summed up in one line: requests of one peer that were refused for
// one kind of reason.
type tallied struct {
	peer netip.Prefix
	kind string
}

type tally struct {
	n           int64 // beside the first, which has a line
	first, last time.Time
	status      int
}

// tallyTime is how long requests without a good token are summed up.
const tallyTime = time.Minute

// OpenAudit opens the log at path and that of refused requests beside it, and makes
// them when there are none.
func OpenAudit(path string) (*Audit, error) {
	a := &Audit{log: &auditFile{path: path}, overflow: &auditFile{path: strings.TrimSuffix(path, ".jsonl") + "-refused.jsonl"}, tallies: map[tallied]*tally{}}
	return a, a.Reopen()
}

// Reopen opens the logs by their names again, so that another program can move them.
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
		if bytes.Contains(line, []byte(`"status":4`)) { // in a text its quotes would be escaped
			n += int64(len(line))
		}
		switch err {
		case nil, bufio.ErrBufferFull: // a line that is none of ours
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

// Close writes down what is still summed up, and closes the logs.
func (a *Audit) Close() error {
	if a == nil {
		return nil
	}
	a.sum(nil)
	return errors.Join(a.log.close(), a.overflow.close())
}

// auditLine is a line of the log.
type auditLine struct {
	Time    time.Time `json:"time"` // when it began
	Request string    `json:"request"`
	Who     string    `json:"who,omitempty"` // a token's name, or local; nothing for who was not recognised
	Token   string    `json:"token,omitempty"`
	From    string    `json:"from"`
	What    string    `json:"what"`             // method and route; the path, where it is another API's or none
	Object  string    `json:"object,omitempty"` // what the path names
	Status  int       `json:"status"`           // of the answer
	Kind    string    `json:"kind,omitempty"`   // of the error
	// Operation is one that has ended: the request that began it has a line of its own.
	Operation string  `json:"operation,omitempty"`
	TookMS    float64 `json:"took_ms"`
	Bytes     int64   `json:"bytes"` // of the answer
	// Times is set in a line that sums up: how many more requests without a good token
	// came from this peer between Time and Until, and were refused.
	Times int64      `json:"times,omitempty"`
	Until *time.Time `json:"until,omitempty"`
}

// note writes a request down.
func (a *Audit) note(d *Daemon, v *visit, r *http.Request) {
	if a == nil || v.from == "socket" && (v.route == nil || v.route.Access == Read) && !v.front {
		return
	}
	l := auditLine{Time: v.began.UTC(), Request: v.id, Who: v.who.Name, Token: v.who.Token, From: v.from, Object: clip(v.object), Status: v.w.status, Kind: v.kind,
		TookMS: float64(time.Since(v.began).Microseconds()) / 1000, Bytes: v.w.bytes}
	if v.route != nil {
		path, _ := v.route.Split()
		l.What = clip(r.Method) + " " + path
	} else {
		l.What = clip(r.Method) + " " + clip(r.URL.Path)
	}
	if l.refused() && v.from != "socket" && v.who.Token == "" {
		a.stranger(d.cfg.Log, l)
		return
	}
	a.write(d.cfg.Log, l)
}

// refused reports whether a line is of a request that was refused.
func (l *auditLine) refused() bool { return l.Status >= 400 && l.Status < 500 }

// stranger writes down a refused request of a caller without a good token, or counts it.
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

// sum writes a line for each tally, and begins anew.
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
		a.write(log, auditLine{Time: t.first, From: from, What: "requests without a good token", Status: t.status, Kind: k.kind, Times: t.n, Until: &last})
	}
}

// ended writes down what came of an operation, which a request began that was
// answered before.
func (a *Audit) ended(d *Daemon, v *visit, route *Route, o api.Operation) {
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

// write adds a line. log hears of the first failure; it may be nil.
func (a *Audit) write(log *slog.Logger, l auditLine) {
	b, err := json.Marshal(l)
	if err != nil {
		return
	}
	b = append(b, '\n')
	refused := l.refused() && l.Operation == "" // an operation that failed was begun
	if !a.log.add(log, b, refused, false) {
		a.overflow.add(log, b, refused, true)
	}
}

// add adds a line. It reports whether there was room: with turn, and for what was done,
// a full log makes place by becoming NAME.1.
func (f *auditFile) add(log *slog.Logger, b []byte, refused, turn bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, most := &f.done, int64(doneMax)
	if refused {
		n, most = &f.refused, refusedMax
	}
	var err error
	if *n+int64(len(b)) > most {
		if refused && !turn {
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
