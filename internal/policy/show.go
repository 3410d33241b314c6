package policy

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// Shown is one thing that a policy says, for people.
type Shown struct {
	Section, Name, Text, Origin string
	Force                       string // "enforced", "observed", "accounted"
	How                         string // by what
}

// DefaultOrigin is the origin of what holds where no file and no flag says anything.
const DefaultOrigin = "default"

// Show lists all that a policy says, line by line, defaults included.
func (e Effective) Show(o Origins) (out []Shown) {
	add := func(section, name, text, force, how string) {
		origin := o.Lines[name]
		if origin == "" {
			origin = DefaultOrigin
		}
		out = append(out, Shown{section, name, text, origin, force, how})
	}
	const enforced = "enforced"
	isolation := "backend " + strings.Join(Strengths()[strength(e.Isolation.Least):], ", ")
	if e.Isolation.Allows(Strengths()[0]) {
		isolation += " (none: not isolated)"
	}
	add("isolation", RuleIsolation, isolation, enforced, "the daemon, whenever something is started")
	tracked := "secrets that git tracks come in and are named"
	if e.Secrets == SecretsMask {
		tracked = "secrets that git tracks stay outside; git's history is not searched for them"
	}
	add("secrets", RuleSecrets, tracked, enforced, "import, when the cell is made")
	for _, m := range e.Files.Mounts {
		add("files", "mount "+m.Target, "mount "+m.Source+" at "+m.Target+map[bool]string{true: ", writable", false: ""}[m.Writable], enforced, "mounts")
	}
	if e.Files.ReadOnlyRoot {
		add("files", ruleRoot, "the image is read-only", enforced, "mounts")
	}
	for _, s := range e.Files.Secrets {
		add("files", "secret "+s, "import "+s, enforced, "import")
	}
	for _, s := range e.Files.Hidden {
		add("files", "hidden "+s, "hide "+s, enforced, "mounts, where it is there when the cell starts")
	}
	for _, s := range e.Files.ReadOnly {
		add("files", "read-only "+s, s+" is read-only", enforced, "mounts, where it is there when the cell starts")
	}
	for _, line := range e.Home.show() {
		add("home", line[0], line[1], enforced, "the daemon, before a run: what the cell has changed stays")
	}
	for _, n := range e.Environment.Set {
		add("environment", "variable "+n, n+" is set", enforced, "the keeper")
	}
	for _, p := range e.Processes.Deny {
		add("processes", "deny program "+p, "deny "+p, enforced, "mounts over the programs of the image; a copy that a command makes runs")
	}
	add("processes", "trace", "deny tracing", enforced, "seccomp")
	add("processes", "nested namespaces", "deny nested namespaces", enforced, "seccomp")
	n := e.Network
	if !e.Talks() {
		add("network", "network", "none: its own loopback only", enforced, "a network namespace without an interface")
	}
	for _, list := range []struct {
		what  string
		rules []Rule
	}{{"allow", n.Allow}, {"ask", n.Ask}, {"deny", n.Deny}} {
		for i, r := range list.rules {
			add("network", list.what+" "+itoa(i+1), list.what+" "+r.String(), enforced, "the gateway")
		}
	}
	if e.Talks() {
		add("network", RuleSpecial, "deny loopback, private, link-local and metadata addresses that no rule names", enforced, "the gateway")
		add("network", RuleDefault, "deny the rest", enforced, "the gateway")
	}
	for i, b := range n.Bounds {
		for j, r := range b.Allow {
			add("network", BoundName(i, "allow", j), "at most: allow "+r.String(), enforced, "the gateway")
		}
		for j, r := range b.Ask {
			add("network", BoundName(i, "ask", j), "at most: ask "+r.String(), enforced, "the gateway")
		}
	}
	for _, c := range e.Credentials {
		text := "lend " + c.Handle
		if len(c.For) > 0 {
			text += " for " + strings.Join(c.For, ", ")
		}
		if c.Unpinned {
			text += "; other authentication passes there, too (pin: false)"
		} else {
			text += "; no other authentication passes there"
		}
		add("credentials", "credential "+c.Handle, text, enforced, "the gateway")
	}
	l := e.Limits
	if l.CPUs > 0 {
		add("limits", "limits.cpus", "cpus "+strconv.FormatFloat(l.CPUs, 'g', -1, 64), enforced, "cgroup")
	}
	add("limits", "limits.memory", "memory "+FormatSize(l.Memory), enforced, "cgroup")
	add("limits", "limits.pids", "processes "+strconv.FormatInt(l.PIDs, 10), enforced, "cgroup")
	force, how := "accounted", "sizes are measured at intervals"
	if o.Lines["limits.disk"] != "" {
		force, how = enforced, "a file system of its own, as root; else accounted"
	}
	add("limits", "limits.disk", "disk "+FormatSize(l.Disk), force, how)
	if l.Timeout > 0 {
		add("limits", "limits.timeout", "time "+(time.Duration(l.Timeout)*time.Millisecond).String(), enforced, "the keeper")
	}
	if l.Egress > 0 {
		add("limits", "limits.egress", "egress "+FormatSize(l.Egress), enforced, "the gateway")
	}
	if l.Forks > 0 {
		add("limits", "limits.forks", "forks "+strconv.FormatInt(l.Forks, 10), enforced, "the daemon")
	}
	if l.Execs > 0 {
		add("limits", "limits.executions", "executions "+strconv.FormatInt(l.Execs, 10), enforced, "the daemon")
	}
	for _, name := range budgetNames() {
		if b := *l.Budget.part(name); b > 0 {
			force, how := enforced, "the daemon, with the cell's forks; then it asks"
			if name != "time" {
				force, how = "accounted", "by answers of models in connections that the gateway opens; then it asks"
			}
			add("limits", "limits.budget."+name, "budget "+Amount(name, b), force, how)
		}
	}
	for _, p := range e.Prices {
		add("prices", "price "+p.Models, priceText(p), "accounted", "the daemon, for budgets of usd")
	}
	for _, line := range e.Findings.show() {
		add("findings", line[0], line[1], "observed", "reports, in the evidence of a run")
	}
	if e.Accept.Needs > 0 {
		add("accept", "accept.needs", e.Accept.text(), enforced, "the daemon, at each accept")
	}
	if len(e.Accept.Approvers) > 0 {
		add("accept", "accept.approvers", "approvers "+e.Accept.names(), enforced, "the daemon, by their signatures")
	}
	for _, w := range Kept() {
		if p := *e.Keep.Of(w); p.Says() {
			add("keep", "keep."+w, p.text(w), enforced, "the daemon, after the end of a run")
		}
	}
	if len(n.Ask) > 0 || o.Lines["approvals.timeout"] != "" {
		add("approvals", "approvals.timeout", "a question waits "+(time.Duration(e.Approvals.Timeout)*time.Millisecond).String(), enforced, "the gateway")
	}
	if e.Approvals.Webhook != "" {
		add("approvals", "approvals.webhook", "questions are told to "+e.Approvals.Webhook, enforced, "the daemon")
	}
	return out
}

// String says a rule in one line: "GET, POST api.github.com /repos/me/** on
// port 443, except …".
func (r Rule) String() string {
	var parts []string
	if len(r.Methods) > 0 {
		parts = append(parts, strings.Join(r.Methods, ", "))
	}
	if len(r.Hosts) > 0 {
		parts = append(parts, strings.Join(r.Hosts, ", "))
	}
	if len(r.Paths) > 0 {
		parts = append(parts, strings.Join(r.Paths, ", "))
	}
	if len(r.Ports) > 0 {
		parts = append(parts, "on "+PortsText(r.Ports))
	}
	text := strings.Join(parts, " ")
	for i, x := range r.Except {
		if i == 0 {
			text += ", except "
		} else {
			text += " and "
		}
		text += x.String()
	}
	if r.Credential != "" {
		text += ", with " + r.Credential
	}
	return text
}

// ReachesHost returns the first of the hosts that a rule allows, or asks about, which is the
// gateway's own machine: its name, or a range that names its loopback, its link or the
// metadata service that answers it; "" for none. Ranges that are wider name none of these.
func (n Network) ReachesHost() string {
	for _, r := range slices.Concat(n.Allow, n.Ask) {
		for _, h := range r.Hosts {
			if h == cell.HostName {
				return h
			}
			p, isRange := ParseRange(h)
			if !isRange {
				continue
			}
			if plain, ok := plainPrefix(p); ok {
				p = plain
			}
			if b, ok := Special(p.Addr()); ok && b.host && (p.IsSingleIP() || b.Prefix.Contains(p.Addr()) && p.Bits() >= b.Prefix.Bits()) {
				return h
			}
		}
	}
	return ""
}

// Remarks says what is odd about a policy: what has no effect, and what allows
// more than it seems to.
func (e Effective) Remarks(o Origins) []string {
	out := []string{}
	at := func(name string) string {
		if l := o.Lines[name]; l != "" {
			return " (" + l + ")"
		}
		return ""
	}
	if l := o.Lines[RuleIsolation]; l != "" && e.Isolation.Allows(Strengths()[0]) {
		out = append(out, "isolation.least is none: with --backend none commands run on the host, not isolated"+at(RuleIsolation))
	}
	if e.Secrets == SecretsMask && !slices.Contains(e.Files.Hidden, ".git") {
		out = append(out, "secrets: mask leaves out files: what was committed of them is in git's objects in the cell, unless files.hidden has .git"+at(RuleSecrets))
	}
	if n := len(e.Accept.Approvers); int64(n) < e.Accept.Needs {
		out = append(out, "accept.needs is "+strconv.FormatInt(e.Accept.Needs, 10)+", and "+strconv.Itoa(n)+" approvers are named: nothing that needs them can be accepted"+at("accept.needs"))
	}
	if e.Approvals.Webhook != "" {
		out = append(out, "the address of approvals.webhook is in the policy, and so in every receipt: a secret in it is none"+at("approvals.webhook"))
	}
	if len(e.Network.Ask) == 0 && (o.Lines["approvals.timeout"] != "" || e.Approvals.Webhook != "") {
		out = append(out, "approvals has no effect: no rule of network.ask asks a person"+at("approvals.timeout"))
	}
	for i, r := range e.Network.Allow {
		name := "allow " + itoa(i+1)
		for j, d := range e.Network.Deny {
			if len(d.Except) == 0 && !d.Inside() && len(r.Hosts) > 0 && covers(d, r) {
				out = append(out, name+at(name)+" has no effect: deny "+itoa(j+1)+at("deny "+itoa(j+1))+" denies all of it")
			}
		}
		for _, h := range r.Hosts {
			n, isRange := ParseRange(h)
			switch {
			case h == "*":
				out = append(out, name+at(name)+" allows every name: whatever is in the cell can be sent anywhere")
			case isRange && !n.IsSingleIP() && n.Bits() < 8:
				out = append(out, name+at(name)+" allows most addresses, but not special ones (loopback, private, metadata), which must be named by ranges of their own")
			case strings.HasPrefix(h, "*.") && strings.Count(h, ".") == 1:
				out = append(out, name+at(name)+" allows every name below "+h[2:])
			}
		}
	}
	return out
}

// covers reports whether every host and port of r is one of d's.
func covers(d, r Rule) bool {
	a, _ := ParseSpans(d.Ports)
	b, _ := ParseSpans(r.Ports)
	if !CoversSpans(a, b) {
		return false
	}
	for _, h := range r.Hosts {
		found := false
		for _, o := range d.Hosts {
			below, wild := strings.CutPrefix(o, "*")
			found = found || h == o || wild && strings.HasSuffix(h, below) && !isRangeText(h)
		}
		if !found {
			return false
		}
	}
	return true
}

func isRangeText(s string) bool { _, ok := ParseRange(s); return ok }
