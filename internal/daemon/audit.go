package daemon

import (
	"encoding/json"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// Audit is the log of who asked for what: one JSON object a line, all requests
// of callers from elsewhere, and what callers on the unix socket did (not what
// they looked at). A nil Audit writes nothing.
//
// It says who asked. What happened is evidence of another kind: see receipts.
type Audit struct {
	path string

	mu     sync.Mutex // guards what follows
	f      *os.File
	size   int64
	failed bool
}

// auditMax is how long the log may become, in bytes; then it becomes NAME.1, in
// the place of the former one.
const auditMax = 64 << 20

// OpenAudit opens the log, and makes it when there is none.
func OpenAudit(path string) (*Audit, error) {
	a := &Audit{path: path}
	return a, a.Reopen()
}

// Reopen opens the log by its name again, so that another program can move it.
func (a *Audit) Reopen() error {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.reopen()
}

func (a *Audit) reopen() error {
	f, err := os.OpenFile(a.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return cell.Errorf(cell.Unavailable, "daemon.OpenAudit", "", "cannot open the audit log: %w", err)
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return err
	}
	if a.f != nil {
		a.f.Close()
	}
	a.f, a.size = f, st.Size()
	return nil
}

// Close closes it.
func (a *Audit) Close() error {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.f.Close()
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
	a.write(d, l)
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
	a.write(d, l)
}

// write adds a line.
func (a *Audit) write(d *Daemon, l auditLine) {
	b, err := json.Marshal(l)
	if err != nil {
		return
	}
	b = append(b, '\n')
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.size+int64(len(b)) > auditMax {
		if err = os.Rename(a.path, a.path+".1"); err == nil {
			err = a.reopen()
		}
	}
	if err == nil {
		var n int
		n, err = a.f.Write(b)
		a.size += int64(n)
	}
	if err != nil && !a.failed { // once, not with each request
		d.cfg.Log.Error("cannot write the audit log", "error", err)
	}
	a.failed = err != nil
}
