package policy

import (
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// File is a policy file: YAML, version 1. Every key is optional but version;
// a key that is not in the table of words (words.go) is an error.
type File struct {
	Name        string // as in messages and origins
	Isolation   FileIsolation
	Secrets     FileSecrets
	Mounts      []FileMount
	Hidden      []Line // paths of the workspace
	ReadOnly    []Line
	Root        FileRoot
	Environment []FileVariable
	Deny        []Line // programs
	Network     FileNetwork
	Credentials []FileCredential
	Limits      FileLimits
	Budgets     FileBudgets
	LimitLines  map[string]int // by name: "memory"
	Approvals   FileApprovals
	Home        FileHome
	Prices      []FilePrice
	Findings    FileFindings
	Accept      FileAccept
	Keep        FileKeep
}

// Line is one line's worth of a policy, and where it stands.
type Line struct {
	Text string
	Line int
}

// FileMount is one entry of files.mounts.
type FileMount struct {
	Mount
	Line int
}

// FileRoot is files.root; "" when the file does not say it.
type FileRoot struct {
	Word string
	Line int
}

// The words of files.root.
const (
	wordWritable = "writable"
	wordReadOnly = "read-only"
)

func rootWords() []string { return []string{wordWritable, wordReadOnly} }

func checkRoot(s string) error {
	if slices.Contains(rootWords(), s) {
		return nil
	}
	return cell.Errorf(cell.Invalid, "policy.ParseFile", "write one of "+strings.Join(rootWords(), ", "), "%s is no word for the root file system", Quoted(s))
}

// ruleRoot is the name of the rule about the root file system, in origins and receipts.
const ruleRoot = "read-only root"

// FileVariable is one variable of environment.set.
type FileVariable struct{ Name, Value string }

// FileNetwork is the section network.
type FileNetwork struct {
	Allow, Ask, Deny             []FileRule
	AllowLine, AskLine, DenyLine int
}

// lists reports whether the file says what is allowed: then it bounds the
// layers beneath.
func (n FileNetwork) lists() bool { return len(n.Allow)+len(n.Ask) > 0 }

// FileRule is one entry of a list of the network: a preset may stand for more
// than one rule.
type FileRule struct {
	Rules []Rule
	Line  int
	Words string // as it was written, when it was one word
}

// FileCredential is one entry of credentials.
type FileCredential struct {
	Credential
	PinSaid bool // whether the file has the word pin
	Line    int
}

// FileLimits is the part of the section limits that is also there as flags, in
// their words.
type FileLimits struct {
	CPUs    string
	Memory  string
	PIDs    string
	Disk    string
	Timeout string
	Budget  string
}

// FileBudgets is the rest of the section limits.
type FileBudgets struct{ Egress, Forks, Executions string }

// FileApprovals is the section approvals.
type FileApprovals struct {
	Timeout, Webhook         string
	TimeoutLine, WebhookLine int
}

// ParseFile reads a policy file. Errors name line and column, and the source
// line with a mark under the place.
func ParseFile(name string, text []byte) (*File, error) {
	r := &reader{name: name, lines: strings.Split(string(text), "\n")}
	f := &File{Name: name, LimitLines: map[string]int{}}
	body := r.document(text)
	if r.err != nil {
		return nil, r.err
	}
	w := f.words()
	w.read(r, body, "")
	if r.err != nil {
		return nil, r.err
	}
	return f, nil
}

// at is the place of a line: "pando.policy.yaml:31".
func (f *File) at(line int) string { return f.Name + ":" + itoa(line) }

// parse puts the limits that are given into l, and names them.
func (f *FileLimits) parse(l Limits) (Limits, []string, error) {
	var given []string
	var err error
	set := func(name, text string, read func() error) {
		if text == "" || err != nil {
			return
		}
		if err = read(); err == nil {
			given = append(given, name)
		}
	}
	set("cpus", f.CPUs, func() (e error) { l.CPUs, e = ParseCPUs(f.CPUs); return })
	set("memory", f.Memory, func() (e error) { l.Memory, e = ParseSize(f.Memory); return })
	set("pids", f.PIDs, func() (e error) { l.PIDs, e = ParseCount("processes", f.PIDs); return })
	set("disk", f.Disk, func() (e error) { l.Disk, e = ParseSize(f.Disk); return })
	set("timeout", f.Timeout, func() error {
		d, e := ParseTimeout(f.Timeout)
		l.Timeout = d.Milliseconds()
		return e
	})
	if f.Budget != "" && err == nil {
		var b Budget
		if b, err = ParseBudget(f.Budget); err == nil {
			for _, name := range budgetNames() {
				if n := b.part(name); *n > 0 {
					*l.Budget.part(name), given = *n, append(given, "budget."+name)
				}
			}
		}
	}
	return l, given, err
}

// parse puts the budgets that are given into l, and names them.
func (f *FileBudgets) parse(l Limits) (Limits, []string, error) {
	var given []string
	for _, b := range []struct {
		name, text string
		dst        *int64
		read       func(string) (int64, error)
	}{
		{"egress", f.Egress, &l.Egress, ParseSize},
		{"forks", f.Forks, &l.Forks, func(s string) (int64, error) { return ParseCount("forks", s) }},
		{"executions", f.Executions, &l.Execs, func(s string) (int64, error) { return ParseCount("executions", s) }},
	} {
		if b.text == "" {
			continue
		}
		n, err := b.read(b.text)
		if err != nil {
			return l, nil, err
		}
		*b.dst, given = n, append(given, b.name)
	}
	return l, given, nil
}

// fileRule makes rules of what a rule of a file says.
type fileRule struct {
	hosts   []string
	ports   []string
	rule    Rule
	except  []*fileRule
	deny    bool
	isInner bool // an exception
	head    bool // its methods have HEAD
}

// rules expands presets and ports: hosts with the same ports are one rule.
func (f *fileRule) rules() ([]Rule, error) {
	const op = "policy.ParseFile"
	base := f.rule
	for _, x := range f.except {
		inner, err := x.rules()
		if err != nil {
			return nil, err
		}
		base.Except = append(base.Except, inner...)
	}
	if f.head && !slices.Contains(base.Methods, "GET") {
		return nil, cell.Errorf(cell.Invalid, op, "write GET, which is HEAD too", "HEAD alone is no rule")
	}
	switch {
	case len(f.hosts) == 0 && !f.isInner:
		return nil, cell.Errorf(cell.Invalid, op, "", "a rule needs host")
	case len(f.hosts) == 0:
		base.Ports = f.ports
		return []Rule{base.Canonical()}, nil
	}
	var out, more []Rule
	for _, h := range f.hosts {
		t, err := parseTarget(h)
		if err != nil {
			return nil, err
		}
		ports := t.ports
		switch {
		case len(f.ports) > 0 && ports != nil && !strings.HasPrefix(h, "@"):
			return nil, cell.Errorf(cell.Invalid, op, "leave out one of them", "%s has a port, and there are ports", h)
		case len(f.ports) > 0:
			ports = f.ports
		case f.deny && strings.HasPrefix(h, "@"), ports == nil && (f.deny || f.isInner):
			ports = nil // what is denied is denied on every port
		case ports == nil:
			ports = webPorts()
		}
		if !f.deny && !f.isInner {
			given := ports
			if len(f.ports) == 0 && t.ports == nil {
				given = nil
			}
			if err := checkHostPorts(h, t.hosts, given); err != nil {
				return nil, err
			}
		}
		if len(f.ports)+len(base.Methods)+len(base.Paths)+len(base.Except) == 0 && base.Credential == "" {
			for _, r := range t.more {
				more = append(more, r.Canonical())
			}
		}
		r := base
		r.Hosts, r.Ports = t.hosts, ports
		if len(r.Paths) == 0 && !f.deny && !f.isInner {
			r.Paths = t.paths
		}
		r = r.Canonical()
		i := slices.IndexFunc(out, func(o Rule) bool { return slices.Equal(o.Ports, r.Ports) && slices.Equal(o.Paths, r.Paths) })
		if i >= 0 {
			out[i].Hosts = unique(append(slices.Clone(out[i].Hosts), r.Hosts...))
			continue
		}
		out = append(out, r)
	}
	return append(out, more...), nil
}
