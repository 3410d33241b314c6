package ocsf

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"path"
	"strings"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// Facts are what is known of a run besides its events.
type Facts struct {
	Run      string
	Cell     string // its id
	CellName string
	Backend  string
	Command  []string // redacted
	Policy   string   // digest
	Receipt  string   // digest; "" while it has none
	Version  string   // of pando
	Hostname string
	User     cell.User
	// Surprises say, in a sentence each, what isolation did not hold when it
	// was tried.
	Surprises []string
	// Found are values of credentials that were found where they must not be.
	Found []Found
}

// Found is the value of a credential where it must not be.
type Found struct {
	Credential string // handle
	Where      string // file, or stream
	As         string // "plain", "base64"
}

// Source is an event of a run, as it was recorded.
type Source struct {
	Seq    int64
	Time   time.Time
	Kind   string
	Text   string // in one line
	Fields json.RawMessage
}

// A Mapper says what happened in one run. It remembers which findings it has
// told of: the same attack is one finding, however often it was tried. It is
// not safe for concurrent use.
type Mapper struct {
	facts Facts
	pid   int // of the command, once it runs
	began int64
	told  map[string]bool
}

// NewMapper returns a mapper for the events of one run, which must come in order.
func NewMapper(f Facts) *Mapper { return &Mapper{facts: f, told: map[string]bool{}} }

// Map returns what an event of ours is: one event or two. None: it says nothing
// that another does not say (process.start). A kind that this version does not
// know is an activity "Other" of the cell's process.
func (m *Mapper) Map(s Source) []Event {
	switch s.Kind {
	case "process.start":
		return nil
	case "decision":
		var d cell.Decided
		if json.Unmarshal(s.Fields, &d) == nil {
			return m.decision(s, d)
		}
	case "flow":
		var f cell.Flow
		if json.Unmarshal(s.Fields, &f) == nil {
			return []Event{m.flow(s, f)}
		}
	case "network.earlier":
		return m.earlier(s)
	case "network.none":
		return []Event{m.none(s)}
	case "network.unresolved":
		return []Event{m.unresolved(s)}
	}
	return []Event{m.process(s)}
}

// Findings returns what is not in the events of a run: canaries that were not
// stopped, values of credentials where they must not be. at is when the run
// ended.
func (m *Mapper) Findings(at time.Time) (out []Event) {
	s := Source{Time: at, Kind: "run"}
	for _, why := range m.facts.Surprises {
		if e, ok := m.finding(s, "canary/"+why, critical, "Isolation does not hold", "Isolation", why); ok {
			out = append(out, e)
		}
	}
	for _, f := range m.facts.Found {
		if e, ok := m.finding(s, "credential/"+f.Credential+"/"+f.Where+"/"+f.As, critical, "Value of a credential in a cell", "Credential exposure",
			fmt.Sprintf("the value of credential %s was found in %s (%s)", f.Credential, f.Where, f.As)); ok {
			e.also("credential", f.Credential)
			out = append(out, e)
		}
	}
	return out
}

// begin makes an event with all that every event has.
func (m *Mapper) begin(s Source) Event {
	f := &m.facts
	e := Event{
		Time: s.Time.UnixMilli(), Message: s.Text,
		Metadata: Metadata{
			Version: Version, Product: Product{Name: "pando", VendorName: "pando", Version: f.Version},
			Profiles: []string{"container", "host", "security_control"}, UID: fmt.Sprintf("%s/%d", f.Run, s.Seq), Sequence: s.Seq,
			EventCode: s.Kind, LogName: "pando events",
		},
		Device: &Device{Hostname: cmp.Or(f.Hostname, "localhost"), TypeID: 0, Type: "Unknown", OS: &OS{Name: "Linux", TypeID: 200, Type: "Linux"}},
		Actor:  &Actor{Process: m.command(), User: m.user()},
	}
	e.severity(informational)
	e.also("run", f.Run)
	e.also("backend", f.Backend)
	if f.Receipt != "" {
		e.also("receipt", f.Receipt)
	}
	if f.Policy != "" {
		e.Policy = &Policy{UID: f.Policy, IsApplied: true}
	}
	return e
}

func (m *Mapper) user() *User {
	return &User{Name: m.facts.User.Name, UID: fmt.Sprint(m.facts.User.UID)}
}

func (m *Mapper) container() *Container {
	return &Container{UID: m.facts.Cell, Name: m.facts.CellName}
}

// command is the process of the run. Before it runs it has a name and no
// number.
func (m *Mapper) command() *Process {
	p := &Process{UID: m.facts.Run, PID: m.pid, CmdLine: strings.Join(m.facts.Command, " "), CreatedTime: m.began, User: m.user(), Container: m.container()}
	if len(m.facts.Command) > 0 {
		p.Name = path.Base(m.facts.Command[0])
	}
	return p
}

// child is another process than the command itself.
func (m *Mapper) child(f map[string]any, pid int) *Process {
	p := &Process{UID: fmt.Sprintf("%s/%d", m.facts.Run, pid), PID: pid, Container: m.container()}
	p.Path, _ = f["path"].(string)
	if words, ok := f["argv"].([]any); ok {
		var list []string
		for _, w := range words {
			s, _ := w.(string)
			list = append(list, s)
		}
		p.CmdLine = strings.Join(list, " ")
		p.Name = path.Base(cmp.Or(p.Path, "unknown"))
	}
	return p
}

// process maps the events of a command's life.
func (m *Mapper) process(s Source) Event {
	var f map[string]any
	json.Unmarshal(s.Fields, &f)
	number := func(name string) int { // within what the schema has for an integer
		n, _ := f[name].(float64)
		return int(min(max(n, math.MinInt32), math.MaxInt32))
	}
	word := func(name string) string { w, _ := f[name].(string); return w }
	if s.Kind == "process.running" {
		m.pid, m.began = number("pid"), s.Time.UnixMilli()
	}
	e := m.begin(s)
	e.Process = m.command()
	e.Actor = &Actor{User: m.user()} // the caller that started it; its own events have the process as their actor
	switch s.Kind {
	case "process.running":
		e.is(processActivity, launch)
		e.LaunchTypeID, e.LaunchType = 1, "Spawn"
		e.succeeded("")
		return e
	case "process.failed":
		e.is(processActivity, launch)
		e.LaunchTypeID, e.LaunchType = 1, "Spawn"
		e.severity(low)
		e.didNot(word("error"))
		return e
	case "process.exit":
		e.is(processActivity, terminate)
		e.Actor.Process = m.command()
		code := number("code")
		e.ExitCode, e.Process.TerminatedTime = &code, s.Time.UnixMilli()
		e.succeeded(word("cause"))
		e.StatusCode = fmt.Sprint(code)
		if sig := word("signal"); sig != "" {
			e.StatusCode = sig
		}
	case "process.exec":
		e.is(processActivity, launch)
		e.LaunchTypeID, e.LaunchType = 3, "Exec"
		e.Actor.Process = m.command()
		e.Process = m.child(f, number("pid"))
		e.Process.CreatedTime = s.Time.UnixMilli()
		e.Unmapped["as"], e.Unmapped["parent"] = word("as"), number("parent")
		return e
	case "process.ended":
		e.is(processActivity, terminate)
		e.Actor.Process = m.command()
		e.Process = m.child(f, number("pid"))
		e.Process.TerminatedTime = s.Time.UnixMilli()
		if f["code"] != nil {
			code := number("code")
			e.ExitCode, e.StatusCode = &code, cmp.Or(word("signal"), fmt.Sprint(code))
		}
		e.Unmapped["as"] = word("as")
		return e
	case "process.signal":
		e.is(processActivity, other("Signal"))
		e.StatusCode = word("signal")
		return e
	case "limit.time", "limit.disk":
		e.is(processActivity, other("Limit"))
		e.Actor.Process = m.command()
		e.severity(low)
		e.decided(blocked)
	default:
		e.is(processActivity, other(s.Kind))
	}
	if f != nil {
		e.also("fields", f)
	} else if len(s.Fields) > 0 {
		e.also("fields", string(s.Fields))
	}
	return e
}
