package engine

import (
	"context"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/govern"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// Plan says what a run would import, leave out, mount, allow and enforce. It
// starts nothing and keeps nothing.
func (e *Engine) Plan(ctx context.Context, req api.RunRequest) (api.Plan, error) {
	p, err := e.plan(ctx, req)
	if err != nil {
		return api.Plan{}, err
	}
	if p.cell != nil && p.cell.State == cell.Creating {
		return api.Plan{}, cell.Errorf(cell.Conflict, "engine.Plan", "wait a moment and try again", "cell %s is being made", p.cell.Title())
	}
	out := api.Plan{Source: p.source, Repositories: p.further, Command: redactArgs(p.req.Command), Backend: p.backend.Name(), Isolation: api.IsolationOf(p.backend.Name()), Image: p.image.String(), Policy: p.policy.Digest().String(),
		LeftOut: []api.LeftOut{}, Mounts: []api.Mount{}, Env: []string{}, Notes: []string{}, Limits: []api.AppliedLimit{}, Allowed: []string{}, Enforced: []string{}, Downgrades: []string{}}
	out.Notes = append(out.Notes, p.notes...)
	out.Home = p.listHome()
	hidden := p.policy.Files.Hidden
	c := state.Cell{Source: p.source, Repositories: p.further, NoSource: p.from != "", Image: p.image.String()}
	if p.cell != nil {
		c = *p.cell
		out.Notes = append(out.Notes, "cell "+c.Title()+" exists: its workspace is as it was left, the source is not imported again")
		out.LeftOut = state.LeftOutAPI(leftOutOf(slices.DeleteFunc(slices.Clone(c.LeftOut), func(l workspace.LeftOut) bool { return l.Kind == workspace.Outside }), hidden))
	} else {
		for _, d := range p.sources() {
			s, err := workspace.Survey(ctx, d.Source, withOf(p.with, d.At), p.policy.Secrets == policy.SecretsMask, e.cfg.Parser)
			if err != nil {
				return out, err
			}
			for k := range s.LeftOut {
				s.LeftOut[k].Path = filepath.Join(d.At, s.LeftOut[k].Path)
			}
			out.Files, out.Bytes, out.LeftOut = out.Files+s.Files, out.Bytes+s.Bytes, append(out.LeftOut, state.LeftOutAPI(leftOutOf(s.LeftOut, hidden))...)
			out.Notes = append(out.Notes, s.Notes...)
		}
	}
	for _, s := range p.services {
		out.Services = append(out.Services, api.ServiceUse{Name: s.Name, Image: s.image.String()})
	}
	for _, s := range c.Services {
		out.Services = append(out.Services, api.ServiceUse{Name: s.Name, Image: s.Image, ImageID: s.ImageID})
	}
	x := &execution{e: e, p: p, c: c, run: &state.Run{}}
	if err := x.planImage(ctx); err != nil {
		return out, err
	}
	img := x.plan
	x.nameOutside()
	out.LeftOut = append(out.LeftOut, state.LeftOutAPI(leftOutOf(slices.DeleteFunc(x.c.LeftOut, func(l workspace.LeftOut) bool { return l.Kind != workspace.Outside }), hidden))...)
	out.Notes = append(out.Notes, x.run.Notes...)
	img.Insert(cell.Mount{Kind: cell.Bind, Target: img.Home, Role: cell.RoleHome, Why: whyHome}, cell.Mount{Kind: cell.Bind, Target: img.Tmp, Role: cell.RoleTmp, Why: whyTmp})
	img.Insert(workspaceMounts(img.Workspaces)...)
	for _, m := range img.Mounts {
		out.Mounts = append(out.Mounts, api.Mount{Target: m.Target, Source: m.Source, Kind: string(m.Kind), ReadOnly: m.ReadOnly, Kept: m.Kept, Why: m.Why})
	}
	for _, kv := range cell.CommandEnv(img.Env, p.policy.Env, e.cfg.User, req.TTY, "") {
		for i := range kv {
			if kv[i] == '=' {
				out.Env = append(out.Env, kv[:i])
				break
			}
		}
	}
	caps, err := e.caps(ctx, p.backend)
	if err != nil {
		return out, err
	}
	out.Lines, out.Defaults = govern.Lines(&p.policy, caps), req.Defaults
	e.planCell(p, &out)
	out.Downgrades = append(append(append([]string{}, p.policy.Downgrades()...), img.Downgrades...), lacking(caps.Landlock, caps.ManyIDs)...)
	out.DowngradeWords = p.words()
	asked := map[string]bool{}
	for _, a := range p.policy.Asked {
		asked[a] = true
	}
	if p.policy.Talks() {
		for _, line := range p.policy.Show(p.policy.Origins) {
			if line.Section == "network" || line.Section == "credentials" {
				out.Allowed = append(out.Allowed, line.Text+" ("+line.Origin+")")
			}
		}
	}
	l := p.policy.Limits
	add := func(name, value, lacks, how string) {
		lim := api.AppliedLimit{Name: name, Applied: value, How: how}
		if asked[name] {
			lim.Asked = value
		}
		if lacks != "" {
			lim.Applied, lim.How = "", lacks
		}
		out.Limits = append(out.Limits, lim)
	}
	add("memory", strconv.FormatInt(l.Memory, 10), caps.MemoryLimit, "cgroup")
	add("pids", strconv.FormatInt(l.PIDs, 10), caps.ProcessLimit, "cgroup or RLIMIT_NPROC")
	if l.CPUs > 0 {
		add("cpus", strconv.FormatFloat(l.CPUs, 'g', -1, 64), caps.CPULimit, "cgroup")
	}
	disk := "accounted"
	if asked["disk"] && caps.DiskLimit == "" {
		disk = "a file system of its own"
	}
	add("disk", strconv.FormatInt(l.Disk, 10), "", disk)
	if l.Timeout > 0 {
		add("timeout", strconv.FormatInt(l.Timeout, 10)+" ms", "", "the keeper")
	}
	if caps.Isolation == "" {
		out.Enforced = append(out.Enforced, "user, mount, pid, network, ipc, uts and cgroup namespaces", "seccomp", reach(ctx, p.backend, p.policy.Talks()))
		if caps.Landlock == "" {
			out.Enforced = append(out.Enforced, "landlock")
		}
	} else {
		out.Downgrades = append(out.Downgrades, caps.Isolation)
	}
	if len(img.Notes) == 0 && len(out.Notes) == 0 {
		out.Notes = []string{}
	}
	files, err := img.LookPath(p.req.Command[0], x.workdir())
	if p.agent == nil {
		return out, err
	}
	out.Agent, err = x.plannedAgent(ctx, files, err)
	out.Missing = p.missing
	return out, err
}

// reach says what a cell may talk with, and by what that is enforced.
func reach(ctx context.Context, b backend.Backend, talks bool) string {
	if !talks {
		return "no network but loopback"
	}
	if c, ok := b.(backend.Connector); ok {
		if link, err := c.Link(ctx); err == nil {
			return "no network but through a gateway, over " + link
		}
	}
	return "no network but through a gateway"
}

func lacking(sentences ...string) (out []string) {
	for _, s := range sentences {
		if s != "" {
			out = append(out, s)
		}
	}
	return out
}
