package policy

import (
	"net/url"
	"path"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// words is the table of everything that a policy file may say. Reading, the
// JSON Schema and the list of valid words all come from it.
func (f *File) words() section {
	return section{words: []word{
		{name: "version", about: "Version of the format: 1.", shape: whole{Version}, must: true},
		{name: "isolation", about: "How strong the isolation of the cell must be.", shape: section{words: []word{
			{name: "least", about: "The weakest backend that may run it, of none, namespace, gvisor, microvm in this order. Of several layers the strictest counts; a policy of the host that does not say it means namespace.", must: true,
				line: &f.Isolation.Line, shape: text{words: Strengths(), set: func(s string) error { f.Isolation.Least = s; return CheckStrength(s) }}},
		}}},
		{name: "secrets", about: "What import does with secrets that git tracks: name lets them in and names them, mask leaves them out. Of several layers the strictest counts.",
			line: &f.Secrets.Line, shape: text{words: secretsWords(), set: func(s string) error { f.Secrets.Word = Secrets(s); return CheckSecrets(s) }}},
		{name: "files", about: "What the cell sees of the host's files, and what it may do with those of the workspace.", shape: section{words: []word{
			{name: "mounts", about: "Directories and files of the host that the cell sees.", shape: list{item: f.mount}},
			{name: "hidden", about: "Paths of the workspace that the cell finds empty.", shape: list{item: lines(&f.Hidden, workspacePath)}},
			{name: "root", about: "Whether commands may write to the image: writable, or read-only. Image host is read-only in any case. Of several layers the strictest counts.",
				line: &f.Root.Line, shape: text{words: rootWords(), set: func(s string) error { f.Root.Word = s; return checkRoot(s) }}},
			{name: "read_only", about: "Paths of the workspace that the cell can't change.", shape: list{item: lines(&f.ReadOnly, workspacePath)}},
		}}},
		{name: "environment", about: "Variables of the commands.", shape: section{words: []word{
			{name: "set", about: "Variables with their values. The values are no part of the policy's digest.", shape: dictionary{f.variable}, must: true},
		}}},
		{name: "home", about: "What comes into the home of a cell before a run, and for agents what they read.", shape: f.Home.words()},
		{name: "processes", about: "What may run.", shape: section{words: []word{
			{name: "deny", about: "Programs that don't run: a name (in any directory of PATH) or a path; * stands for any characters of the last part.", shape: list{item: lines(&f.Deny, ParseProgram)}, must: true},
		}}},
		{name: "network", about: "What the cell may reach. Deny wins over ask, ask over allow; the rest is denied.", shape: section{words: []word{
			{name: "allow", about: "What is allowed.", shape: f.ruleList(&f.Network.Allow, false), line: &f.Network.AllowLine},
			{name: "ask", about: "What a person is asked about.", shape: f.ruleList(&f.Network.Ask, false), line: &f.Network.AskLine},
			{name: "deny", about: "What is denied, whatever else allows it. Without ports, on all of them.", shape: f.ruleList(&f.Network.Deny, true), line: &f.Network.DenyLine},
		}}},
		{name: "credentials", about: "Credentials that are lent to the cell.", shape: list{item: f.credential}},
		{name: "limits", about: "Limits and budgets.", shape: section{words: []word{
			f.limit("cpus", "Cores, such as 1.5.", &f.Limits.CPUs, func(s string) error { _, err := ParseCPUs(s); return err }),
			f.limit("memory", "Bytes of memory, such as 512M.", &f.Limits.Memory, checkSize),
			f.limit("pids", "Processes and threads.", &f.Limits.PIDs, checkCount("processes")),
			f.limit("disk", "Bytes written and kept, such as 10G.", &f.Limits.Disk, checkSize),
			f.limit("timeout", "Time of one command, such as 10m.", &f.Limits.Timeout, func(s string) error { _, err := ParseTimeout(s); return err }),
			f.limit("budget", "What the cell and its forks may use together, such as time=2h,requests=500,tokens=2M,usd=5. Then they are paused, and it asks.", &f.Limits.Budget,
				func(s string) error { _, err := ParseBudget(s); return err }),
			f.limit("egress", "Bytes that leave the cell in one run.", &f.Budgets.Egress, checkSize),
			f.limit("forks", "Cells that are made of the cell.", &f.Budgets.Forks, checkCount("forks")),
			f.limit("executions", "Commands that run in the cell.", &f.Budgets.Executions, checkCount("executions")),
		}}},
		{name: "prices", about: "What models cost, for budgets of usd: by the name of a model, or a pattern of names in which * stands for any characters. They come before those that are built in.", shape: pricesShape{f}},
		{name: "findings", about: "What is looked for in the evidence of a run.", shape: f.Findings.words()},
		{name: "accept", about: "Which results are accepted only when approvers have signed them (`pando approve`).", shape: f.acceptWords()},
		{name: "keep", about: "For how long the contents of a run's evidence are kept after its end; of several layers the longest counts. A project, or a file for one run, only lengthens what the host or the user say. Receipts are kept for ever.", shape: f.Keep.words()},
		{name: "approvals", about: "How a person is asked.", shape: section{words: []word{
			{name: "timeout", about: "How long a question waits; then it is denied.", line: &f.Approvals.TimeoutLine,
				shape: text{set: func(s string) error { f.Approvals.Timeout = s; _, err := ParseTimeout(s); return err }}},
			{name: "webhook", about: "A URL that is told of each question.", line: &f.Approvals.WebhookLine,
				shape: text{set: func(s string) error { f.Approvals.Webhook = s; return checkWebhook(s) }}},
		}}},
	}}
}

// lines reads texts, checks them and notes where they stand.
func lines(dst *[]Line, check func(string) (string, error)) func(int) shape {
	return func(int) shape {
		at := 0
		return text{at: func(n int) { at = n }, set: func(s string) error {
			c, err := check(s)
			*dst = append(*dst, Line{c, at})
			return err
		}}
	}
}

// workspacePath gives the one form of a path below the workspace.
func workspacePath(s string) (string, error) {
	bad := func(why string) (string, error) {
		return "", cell.Errorf(cell.Invalid, "policy.ParseFile", "give a path below the workspace, such as config/keys", "%q is no path of the workspace: %s", s, why)
	}
	c := path.Clean(s)
	switch {
	case strings.ContainsAny(s, "\x00\n"):
		return bad("it has a NUL or a new line")
	case strings.ContainsAny(s, "*?["):
		return bad("patterns can't be enforced, one path can")
	case path.IsAbs(s):
		return bad("it begins with /")
	case c == ".":
		return bad("it is the workspace itself")
	case c == ".." || strings.HasPrefix(c, "../"):
		return bad("it lies outside")
	}
	return c, nil
}

func (f *File) mount(int) shape {
	f.Mounts = append(f.Mounts, FileMount{})
	i := len(f.Mounts) - 1
	set := func(dst *string) func(string) error {
		return func(s string) error {
			*dst = s
			if strings.ContainsRune(s, 0) {
				return cell.Errorf(cell.Invalid, "policy.ParseFile", "", "it contains a NUL")
			}
			return nil
		}
	}
	m := &f.Mounts[i]
	return mountShape{m, section{words: []word{
		{name: "source", about: "Path on the host.", shape: text{set: set(&m.Source), at: func(n int) { m.Line = n }}},
		{name: "target", about: "Path in the cell.", shape: text{set: set(&m.Target)}},
		{name: "writable", about: "The cell may write to it. What it writes there is outside rollback.", shape: yes{&m.Writable}},
	}}}
}

func (f *File) variable(name, value string) error {
	if strings.Contains(name, "=") {
		return cell.Errorf(cell.Invalid, "policy.ParseFile", "", "%q is no name of a variable", name)
	}
	f.Environment = append(f.Environment, FileVariable{name, value})
	_, err := CheckEnv(name + "=" + value)
	return err
}

// limit is a word of the section limits.
func (f *File) limit(name, about string, dst *string, check func(string) error) word {
	return word{name: name, about: about, shape: text{numbers: true, at: func(n int) { f.LimitLines[name] = n },
		set: func(s string) error { *dst = s; return check(s) }}}
}

func checkSize(s string) error { _, err := ParseSize(s); return err }

func checkCount(what string) func(string) error {
	return func(s string) error { _, err := ParseCount(what, s); return err }
}

// IsAddress reports whether text is a web address that can be told something: http or https, with a host and no user.
func IsAddress(text string) bool {
	u, err := url.Parse(text)
	return err == nil && u.Host != "" && (u.Scheme == "https" || u.Scheme == "http") && u.User == nil
}

func checkWebhook(s string) error {
	if !IsAddress(s) {
		return cell.Errorf(cell.Invalid, "policy.ParseFile", "write it as https://host/path", "%s is no URL to send questions to", Quoted(s))
	}
	return nil
}

func (f *File) credential(int) shape {
	f.Credentials = append(f.Credentials, FileCredential{})
	c := &f.Credentials[len(f.Credentials)-1]
	handle := func(s string) error {
		c.Handle = s
		if !isHandle(s) {
			return cell.Errorf(cell.Invalid, "policy.ParseFile", "", "%q is no name of a credential", s)
		}
		return nil
	}
	return either{
		short: text{set: handle, at: func(n int) { c.Line = n }},
		long: section{words: []word{
			{name: "name", about: "Name of the credential, as in `pando credential ls`.", shape: text{set: handle}, must: true},
			{name: "for", about: "Where it may go, such as https://api.github.com/repos/me/**. Only ever less than the credential itself says.",
				shape: list{one: true, item: func(int) shape {
					return text{set: func(s string) error {
						p, err := cell.ParsePlace(s)
						c.For = append(c.For, p.String())
						return err
					}}
				}}},
			{name: "pin", about: "Whether requests to the hosts that it is for may carry no other authentication. true without; false lets another's keys pass.",
				shape: pinShape{c}},
		}},
	}
}

// ruleList is a list of rules of the network.
func (f *File) ruleList(dst *[]FileRule, deny bool) shape {
	return list{item: func(int) shape { return newRuleShape(dst, deny) }}
}

func newRuleShape(dst *[]FileRule, deny bool) shape {
	raw, entry := &fileRule{deny: deny}, FileRule{}
	return ruleShape{raw: raw, entry: &entry, dst: dst, either: either{
		short: text{at: func(n int) { entry.Line = n }, set: func(s string) error { raw.hosts, entry.Words = []string{s}, s; return nil }},
		long:  section{words: raw.words()},
	}}
}

func (raw *fileRule) words() []word {
	words := []word{
		{name: "host", about: "A name, *.NAME for all below it, * for all names, an address, a prefix, or a preset such as @npm; with :PORT if it is one; or a list of them.",
			shape: list{one: true, item: func(int) shape {
				return text{set: func(s string) error {
					raw.hosts = append(raw.hosts, s)
					_, err := parseTarget(s)
					return err
				}}
			}}},
		{name: "ports", about: "Ports and ranges such as 8000-8010, or \"*\" for all. Without, 80 and 443; in deny and except, all.",
			shape: list{one: true, item: func(int) shape {
				return text{numbers: true, set: func(s string) error {
					if s == "*" {
						raw.ports = append(raw.ports, "1-65535")
						return nil
					}
					p, err := ParseSpan(s)
					raw.ports = append(raw.ports, p.String())
					return err
				}}
			}}},
		{name: "methods", about: "HTTP methods. GET is HEAD too.",
			shape: list{one: true, item: func(int) shape {
				return text{set: func(s string) error {
					s = strings.ToUpper(s)
					if !IsMethod(s) {
						return cell.Errorf(cell.Invalid, "policy.ParseFile", "write it as GET or POST", "%s is no method", Quoted(s))
					}
					if s == "HEAD" { // that of GET: see rules
						raw.head = true
						return nil
					}
					raw.rule.Methods = append(raw.rule.Methods, s)
					return nil
				}}
			}}},
		{name: "paths", about: "Paths of requests: * stands for characters of one segment, ** for any number of segments.",
			shape: list{one: true, item: func(int) shape {
				return text{set: func(s string) error {
					p, err := ParsePathPattern(s)
					raw.rule.Paths = append(raw.rule.Paths, p)
					return err
				}}
			}}},
	}
	if raw.isInner {
		return words
	}
	words = append(words, word{name: "except", about: "What the rule does not match: each with host, ports, methods or paths.",
		shape: list{one: true, item: func(int) shape {
			x := &fileRule{deny: raw.deny, isInner: true}
			raw.except = append(raw.except, x)
			return section{words: x.words()}
		}}})
	if !raw.deny {
		words = append(words, word{name: "credential", about: "Name of the credential that the gateway puts into requests that this rule allows.",
			shape: text{set: func(s string) error {
				raw.rule.Credential = s
				if !isHandle(s) {
					return cell.Errorf(cell.Invalid, "policy.ParseFile", "", "%q is no name of a credential", s)
				}
				return nil
			}}})
	}
	return words
}
