package engine

import (
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/govern"
	"github.com/pando-dev/pando/internal/state"
)

// keeps is what a plan's request says of that.
func (p *runPlan) keeps() (state.Kept, error) {
	req := &p.req
	k := state.Kept{PolicyName: req.PolicyName, Mounts: req.Mounts, ReadOnly: req.ReadOnly, Allow: req.Allow, Credentials: req.Credentials, Limits: state.Limits(req.Limits)}
	k.Limits.Timeout = ""
	if k.Caches = p.caches; len(k.Caches) > 0 {
		k.CacheWrite = req.CacheWrite
	}
	kept := map[string][]string{"allow": k.Allow, "credential": k.Credentials, "mount": k.Mounts, "cache": k.Caches, "cache-write": {k.CacheWrite}, "read-only": {strconv.FormatBool(k.ReadOnly)}, "cpus": {k.Limits.CPUs}, "memory": {k.Limits.Memory}, "pids": {k.Limits.PIDs}, "disk": {k.Limits.Disk}, "budget": {k.Limits.Budget}}
	for _, d := range req.Defaults {
		for _, v := range d.Values {
			if word := d.Key + " " + v; slices.Contains(kept[d.Key], v) && !slices.Contains(k.Config, word) {
				k.Config = append(k.Config, word)
			}
		}
	}
	var had bool
	var err error
	if k.Policy, had, err = govern.Keepable(&redactor, req.Policy); err != nil {
		return k, err
	}
	k.NoVariables = had || p.asked.Policy == "" && p.asked.PolicyName == "" && p.cell != nil && p.cell.Setup.Kept.NoVariables
	return k, nil
}

// configured adds to the defaults of a request what a cell keeps of values that were defaults.
func configured(k *state.Kept, req *api.RunRequest, flag string, values ...string) {
	key := strings.TrimPrefix(flag, "--")
	values = slices.DeleteFunc(slices.Clone(values), func(v string) bool { return !slices.Contains(k.Config, key+" "+v) })
	if len(values) > 0 {
		req.Defaults = append(slices.Clone(req.Defaults), api.Default{Key: key, Values: values})
	}
}

// fillKept completes a request with what is kept and what it says nothing of, and returns the
// words for that.
func fillKept(k *state.Kept, req *api.RunRequest) (words []string) {
	if req.Policy == "" && req.PolicyName == "" && k.PolicyName != "" {
		req.Policy, req.PolicyName = k.Policy, k.PolicyName
		if strings.HasPrefix(k.PolicyName, govern.PolicyOfCell) {
			words = append(words, "its policy")
		} else {
			words = append(words, "--policy "+k.PolicyName)
		}
		if k.NoVariables {
			words = append(words, "(without its variables)")
		}
	}
	for _, l := range []struct {
		flag string
		to   *[]string
		is   []string
	}{{"--allow", &req.Allow, k.Allow}, {"--credential", &req.Credentials, k.Credentials}, {"--mount", &req.Mounts, k.Mounts}, {"--cache", &req.Caches, k.Caches}} {
		if len(*l.to) == 0 && len(l.is) > 0 {
			*l.to = l.is
			configured(k, req, l.flag, l.is...)
			words = append(words, l.flag+" "+strings.Join(l.is, " "+l.flag+" "))
		}
	}
	if !req.ReadOnly && k.ReadOnly {
		req.ReadOnly = true
		configured(k, req, "--read-only", "true")
		words = append(words, "--read-only")
	}
	for _, l := range []struct {
		flag string
		to   *string
		is   string
	}{{"--cpus", &req.Limits.CPUs, k.Limits.CPUs}, {"--memory", &req.Limits.Memory, k.Limits.Memory}, {"--pids", &req.Limits.PIDs, k.Limits.PIDs}, {"--disk", &req.Limits.Disk, k.Limits.Disk}, {"--budget", &req.Limits.Budget, k.Limits.Budget}, {"--cache-write", &req.CacheWrite, k.CacheWrite}} {
		if *l.to == "" && l.is != "" {
			*l.to = l.is
			configured(k, req, l.flag, l.is)
			words = append(words, l.flag+" "+l.is)
		}
	}
	return words
}

// keep completes what was asked of a run in a cell that exists with what that keeps.
func (p *runPlan) keep() {
	p.req = p.asked
	if p.asked.Anew {
		return
	}
	p.kept = nil
	if words := fillKept(&p.cell.Setup.Kept, &p.req); len(words) > 0 {
		p.kept = []string{"cell " + p.cell.Title() + " keeps " + strings.Join(words, " ") + " (--anew forgets that)"}
	}
}

// keepsOther reports whether a cell keeps something else than what a plan was made with.
func (p *runPlan) keepsOther(c *state.Cell) bool {
	return !p.asked.Anew && !reflect.DeepEqual(c.Setup.Kept, p.cell.Setup.Kept)
}
