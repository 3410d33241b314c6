package finding

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/policy"
)

// maxLooked bounds what all rules of a policy on text look through in a run: bytes, times their expressions. What is beyond is a
// finding of the rule that did not look.
const maxLooked = 64 << 20

// applyOwn applies a rule of the policy. What isn't known fulfils no condition.
func applyOwn(e *Evidence, r *policy.CompiledRule, f *found) {
	switch r.When {
	case policy.WhenRun:
		if e.fulfils(r, nil) {
			f.say("%s", strings.Join(r.If, ", "))
		}
	case policy.WhenPaths:
		for i := range e.Changed {
			if c := &e.Changed[i]; r.Names(c.Path, c.OldPath) && e.fulfils(r, func(name string) (any, bool) { return e.ofPath(c, name) }) {
				f.at(c.Path, 0, "%s", status(c))
			}
		}
	case policy.WhenText:
		for i := range e.Changed {
			c := &e.Changed[i]
			if !r.Names(c.Path) || !e.fulfils(r, func(string) (any, bool) { return c.Path, true }) {
				continue
			}
			after := e.after(c)
			if !text(after) {
				continue
			}
			if e.looked += int64(len(after)) * int64(1+len(r.Text)); e.looked > maxLooked {
				f.at(c.Path, 0, "not looked at, nor what comes after it: the rules of the policy look through %s at most", policy.FormatSize(maxLooked))
				return
			}
			for _, l := range added(e.before(c), after) {
				if r.Line(l.text) {
					f.at(c.Path, l.number, "%s", clip(secretShapes.String(strings.TrimSpace(l.text))))
				}
			}
		}
	case policy.WhenDependencies:
		e.ownDependencies(r, f)
	case policy.WhenNetwork:
		e.ownNetwork(r, f)
	}
}

func (e *Evidence) ownDependencies(r *policy.CompiledRule, f *found) {
	e.manifests(func(c *api.FileChange, was, is *manifest) {
		if was.unparsed || is.unparsed {
			return
		}
		for _, change := range []struct {
			word  string
			names []string
		}{{"added", newOnes(was.wants, is.wants, true)}, {"removed", newOnes(is.wants, was.wants, true)}, {"source", newOnes(was.fetched, is.fetched, false)}} {
			for _, name := range change.names {
				values := map[string]any{"name": name, "change": change.word, "path": c.Path}
				if r.Names(name) && e.fulfils(r, func(field string) (any, bool) { return values[field], true }) {
					f.at(c.Path, 0, "%s: %s", clip(name), change.word)
				}
			}
		}
	})
}

func (e *Evidence) ownNetwork(r *policy.CompiledRule, f *found) {
	look := func(host, outcome string, times int) {
		values := map[string]any{"host": host, "outcome": outcome, "times": float64(times)}
		if r.Names(host) && e.fulfils(r, func(field string) (any, bool) { return values[field], true }) {
			f.say("%s: %s, %s", outcome, clip(host), count(times, "time", "times"))
		}
	}
	hosts, times := denials(e)
	for _, h := range hosts {
		look(h, "denied", times[h])
	}
	if e.Run.Network != nil {
		for _, p := range e.Run.Network.Peers {
			look(p.Host, "reached", p.Requests)
		}
	}
}

// fulfils reports whether all conditions of a rule hold, of what is looked at (its fields are thing's), and of the run.
func (e *Evidence) fulfils(r *policy.CompiledRule, thing func(field string) (any, bool)) bool {
	for _, c := range r.Conditions {
		var v any
		known := false
		if policy.FieldOf(r.When, c.Field) == policy.WhenRun || thing == nil {
			v, known = e.ofRun(c.Field)
		} else {
			v, known = thing(c.Field)
		}
		if !known {
			return false
		}
		is := false
		switch v := v.(type) {
		case float64:
			is = c.Number(v)
		case string:
			is = c.Text(v)
		case []string:
			is = c.Text(v...)
		}
		if !is {
			return false
		}
	}
	return true
}

func yesNo(is bool) string { return map[bool]string{true: "yes", false: "no"}[is] }

// kinds are modes of git in words.
var kinds = map[string]string{"100644": "file", "100755": "executable", "120000": "link", "160000": "submodule"}

func (e *Evidence) ofPath(c *api.FileChange, field string) (any, bool) {
	switch field {
	case "path":
		return c.Path, true
	case "status":
		return c.Status, true
	case "kind":
		if c.NewMode == "" {
			return kinds[c.OldMode], true
		}
		return kinds[c.NewMode], true
	case "binary":
		return yesNo(c.Binary), true
	case "lines.added":
		return float64(c.Added), true
	case "lines.deleted":
		return float64(c.Deleted), true
	case "size":
		if c.Status == "deleted" || e.Size == nil {
			return nil, false
		}
		n, err := e.Size(c.Path)
		return float64(n), err == nil
	}
	return nil, false
}

func (e *Evidence) ofRun(field string) (any, bool) {
	r := e.Run
	n := r.Network
	if n == nil {
		n = &api.Network{}
	}
	switch field {
	case "exit":
		if r.ExitCode == nil {
			return nil, false
		}
		return float64(*r.ExitCode), true
	case "check":
		switch {
		case r.Check == nil:
			return "none", true
		case r.Check.ExitCode == 0 && r.Check.Cause == "":
			return "passed", true
		}
		return "failed", true
	case "cause":
		return r.Cause, true
	case "duration":
		return float64(r.Usage.WallMS), true
	case "cpu":
		return float64(r.Usage.CPUMS), slices.Contains(r.Usage.Measured, "cpu")
	case "memory":
		return float64(r.Usage.PeakMemory), r.Usage.PeakMemory > 0
	case "processes.left":
		return float64(r.Usage.LeftOver), true
	case "files":
		return float64(r.Changes.Files), true
	case "files.added":
		return float64(r.Changes.Added), true
	case "files.deleted":
		return float64(r.Changes.Deleted), true
	case "bytes":
		return float64(r.Changes.Bytes), true
	case "denied":
		return float64(n.Denied), true
	case "sent":
		return float64(n.Sent), true
	case "tokens", "usd", "model":
		return ofModels(n.Models, field)
	case "agent":
		return r.Agent, true
	case "mode":
		return r.Mode, true
	case "command":
		return strings.Join(r.Command, " "), true
	case "ref":
		return r.Ref, true
	case "backend":
		return r.Backend, true
	}
	return nil, false
}

func ofModels(models []api.ModelUse, field string) (any, bool) {
	tokens, usd, known, names := int64(0), 0.0, true, []string{}
	for _, m := range models {
		tokens += m.Input + m.Output + m.CacheRead + m.CacheWrite
		usd += float64(m.MicroUSD) / 1e6
		known = known && !m.Unpriced && m.Unseen == 0
		names = append(names, m.Model)
	}
	switch field {
	case "tokens":
		return float64(tokens), true
	case "usd":
		return usd, known
	}
	return names, true
}

// rulesOf are the rules of the house as a policy has them, and then its own. One that can't be read is an error, and not left out.
func rulesOf(p policy.Findings, origin map[string]string) ([]Rule, error) {
	var out []Rule
	for _, r := range rules {
		if slices.Contains(p.Off, r.ID) {
			continue
		}
		if s := p.Severity[r.ID]; s != "" {
			r.Severity = s
		}
		out = append(out, r)
	}
	for _, r := range p.Rules {
		c, err := r.Compile()
		if err != nil {
			return nil, fmt.Errorf("%s%s: %w", policy.Own, r.ID, err)
		}
		see := map[string]string{policy.WhenRun: seeRun, policy.WhenNetwork: seeEvents}[r.When]
		if see == "" {
			see = seeFile
		}
		why := "a rule of the policy of the run"
		if at := origin[policy.Own+r.ID]; at != "" {
			why += ": " + at
		}
		out = append(out, Rule{ID: policy.Own + r.ID, Severity: r.Severity, Title: r.Explain, Why: why, See: see,
			find: func(e *Evidence, f *found) { applyOwn(e, &c, f) }})
	}
	return out, nil
}
