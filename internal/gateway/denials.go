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
	keptDenials = 32 // the last ones that a cell can read
	// They are written at once, but no more than so many times in a second; what
	// comes then is shown a little later.
	showBurst = 50
	showLater = 200 * time.Millisecond
	// oneDenial is how long what says more about a refusal replaces it.
	oneDenial = oneAttempt
	// maxWant is how many bytes of what was wanted are shown.
	maxWant = 1 << 10
)

// Denied is one of the last refusals of a cell, as its programs can read it.
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
	// Grant is the flag that would allow it, Line what to write into a policy
	// file; neither is there for what nothing allows.
	Grant string `json:"grant,omitempty"`
	Line  string `json:"line,omitempty"`
	Times int64  `json:"times"`
}

// denials are the last refusals of a cell, and the files in which it sees them.
type denials struct {
	mu     sync.Mutex // guards what follows
	list   []Denied   // oldest first
	text   *os.File   // nil: not shown
	lines  *os.File
	writes *rate.Limiter
	timer  *time.Timer
	closed bool
}

// note keeps a denial. One that says more about the same attempt (a request
// after the question for its host) replaces what was known.
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

// alike is the refusal that e is told of anew, or says more about. n.mu is held.
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

// ShowDenials gives the cell two files in which its programs read the last
// refusals: for people, a line each, and as JSON Lines. It owns both, and they
// replace earlier ones. What an earlier gateway of the cell wrote there goes on.
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

// readDenials reads what a gateway has written. The cell can't write it; what
// can't be read is left out.
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

// show writes them, now or soon. n.mu is held.
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

// write replaces what is in the files. n.mu is held.
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
		// What fails here (a full disk) costs an explanation, and nothing else.
		if _, err := f.WriteAt(b, 0); err == nil {
			f.Truncate(int64(len(b)))
		}
	}
}

// text is a refusal in one line.
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

// closeFiles lets go of the files. n.mu is held.
func (n *denials) closeFiles() {
	if n.text != nil {
		n.text.Close()
		n.lines.Close()
	}
	n.text, n.lines = nil, nil
}
