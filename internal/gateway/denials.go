package gateway

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/pando-dev/pando/internal/cell"
)

const (
	keptDenials = 32 // latest denials that a cell can read
	// They are written at once, up to this rate per second; later ones follow with a short
	// delay.
	showBurst = 50
	showLater = 200 * time.Millisecond
	// oneDenial is the time within which a more detailed denial replaces an earlier one.
	oneDenial = oneAttempt
	// maxWant bounds the shown part of a request, in bytes.
	maxWant = 1 << 10
)

// Denied is one denial, as the cell's programs can read it.
type Denied struct {
	Time   time.Time  `json:"time"`
	Want   string     `json:"want"` // "GET https://api.github.com/user", "connect db.example:5432"
	Host   string     `json:"host,omitempty"`
	Addr   netip.Addr `json:"addr,omitzero"`
	Port   uint16     `json:"port,omitempty"`
	Method string     `json:"method,omitempty"`
	Path   string     `json:"path,omitempty"`
	Rule   string     `json:"rule"`
	Origin string     `json:"origin"`
	Reason string     `json:"reason"`
	// Grant is the flag that would allow it, Line the line for a policy file; both are empty if
	// nothing can allow it.
	Grant string `json:"grant,omitempty"`
	Line  string `json:"line,omitempty"`
	Times int64  `json:"times"`
}

// denials are the latest denials of a cell, and the files that show them.
type denials struct {
	mu     sync.Mutex // guards the fields below
	list   []Denied   // oldest first
	text   *os.File   // nil: not shown
	lines  *os.File
	writes *rate.Limiter
	timer  *time.Timer
	closed bool
}

// note adds a denial. A more detailed one for the same attempt (a request after the lookup of
// its host) replaces the earlier one.
func (n *denials) note(a cell.Access, d cell.Decision) {
	e := Denied{Time: time.Now().UTC(), Host: a.Host, Addr: a.Addr, Port: a.Port, Method: a.Method, Path: a.Path,
		Rule: d.Rule, Origin: d.Origin, Reason: d.Reason, Grant: d.Permit, Line: d.Line, Times: 1}
	e.Want = shown(a.Want())
	for _, s := range []*string{&e.Method, &e.Path, &e.Reason, &e.Line} {
		*s = shown(*s)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return
	}
	switch last := n.alike(&e); {
	case last == nil:
		n.list = append(n.list, e)
		n.list = n.list[max(0, len(n.list)-keptDenials):]
	case last.Want == e.Want:
		last.Times, last.Time = last.Times+1, e.Time
	default:
		*last = e
	}
	n.show()
}

// alike returns the denial that e repeats or refines. n.mu is held.
func (n *denials) alike(e *Denied) *Denied {
	for i := len(n.list) - 1; i >= 0; i-- {
		o := &n.list[i]
		same := o.Want == e.Want && o.Rule == e.Rule && o.Origin == e.Origin
		more := o.Host != "" && o.Host == e.Host && o.Times == 1 && (o.Port == 0 && e.Port != 0 || o.Port == e.Port && o.Method == "" && e.Method != "")
		if same || more && e.Time.Sub(o.Time) <= oneDenial {
			return o
		}
	}
	return nil
}

// ShowDenials gives the cell two files with its latest denials: for people, a line each, and as
// JSON Lines. It owns both, and they replace earlier ones. The entries of an earlier gateway are
// kept.
func (g *Gateway) ShowDenials(text, lines *os.File) {
	n := &g.denials
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closeFiles()
	n.text, n.lines = text, lines
	if n.closed {
		n.closeFiles()
		return
	}
	if len(n.list) == 0 {
		n.list = readDenials(lines)
	}
	n.write()
}

// readDenials reads the file of an earlier gateway, which the cell can't write. Unreadable
// entries are dropped.
func readDenials(f *os.File) (list []Denied) {
	s := bufio.NewScanner(io.LimitReader(f, 1<<20))
	s.Buffer(nil, 64<<10)
	for s.Scan() && len(list) < keptDenials {
		var d Denied
		if json.Unmarshal(s.Bytes(), &d) == nil {
			list = append(list, d)
		}
	}
	return list
}

// show writes the files, now or soon. n.mu is held.
func (n *denials) show() {
	if n.writes == nil {
		n.writes = rate.NewLimiter(showBurst, showBurst)
	}
	switch {
	case n.text == nil || n.timer != nil:
	case n.writes.Allow():
		n.write()
	default:
		n.timer = time.AfterFunc(showLater, func() {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.timer = nil
			if !n.closed {
				n.write()
			}
		})
	}
}

// write replaces the contents of the files. n.mu is held.
func (n *denials) write() {
	var text, lines bytes.Buffer
	for _, d := range n.list {
		text.WriteString(d.text())
		b, err := json.Marshal(d)
		if err != nil {
			panic(err) // strings can be marshalled
		}
		lines.Write(append(b, '\n'))
	}
	for f, b := range map[*os.File][]byte{n.text: text.Bytes(), n.lines: lines.Bytes()} {
		// A failure here (a full disk) costs an explanation, and nothing else.
		if _, err := f.WriteAt(b, 0); err == nil {
			f.Truncate(int64(len(b)))
		}
	}
}

// text is a denial in one line.
func (d *Denied) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s: denied by %s (%s), %s", d.Time.Format(time.RFC3339), d.Want, d.Rule, d.Origin, d.Reason)
	if d.Times > 1 {
		fmt.Fprintf(&b, " (%d times)", d.Times)
	}
	switch {
	case d.Grant != "" && d.Line != "" && d.Path != "":
		fmt.Fprintf(&b, "; would be allowed by %s, or less in the policy: %s", d.Grant, d.Line)
	case d.Grant != "":
		b.WriteString("; would be allowed by " + d.Grant)
	case d.Line != "":
		b.WriteString("; would be allowed by this line in the policy: " + d.Line)
	}
	return b.String() + "\n"
}

// shown keeps what came from the cell on one line, and in the order of its characters: marks
// that turn the direction of text around are replaced as control characters are.
func shown(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if len(s) > maxWant {
		s = strings.ToValidUTF8(s[:maxWant], "") + "…"
	}
	return s
}

func (n *denials) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	if n.timer != nil {
		n.timer.Stop()
	}
	if n.text != nil {
		n.write()
	}
	n.closeFiles()
}

// closeFiles closes the files. n.mu is held.
func (n *denials) closeFiles() {
	if n.text != nil {
		n.text.Close()
		n.lines.Close()
	}
	n.text, n.lines = nil, nil
}
