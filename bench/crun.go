package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/pando-dev/pando/internal/linux"
)

// crunPeer is crun with a bundle that is as near to our cells as the OCI
// format can say.
type crunPeer struct {
	path   string
	bundle string
	state  string // its --root
	view   *cellView
	lacks  []string
	on     *privateHost
	runs   int
}

// crun prepares crun for commands in a workspace. It is nil, and said in out,
// where there is none.
func (l *lab) crun(ctx context.Context, out *AxisResult, inst *installation, source, name string, args ...string) (*crunPeer, error) {
	p := l.find(ctx, "crun")
	if p.why != "" {
		out.absent(name, p.why)
		return nil, nil
	}
	ids := ociMapping{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}
	if os.Geteuid() == 0 {
		ids = ociMapping{ContainerID: 0, HostID: linux.FreeIDRange(65536), Size: 65536}
	}
	v, err := l.view(ctx, inst, source, ids.HostID)
	if err != nil {
		return nil, err
	}
	c := &crunPeer{path: p.path, view: v, state: filepath.Join(v.dir, "state")}
	if why := l.prepareHost(out, c); why != "" {
		out.absent(name, why)
		return nil, nil
	}
	if err := os.Mkdir(c.state, 0o700); err != nil {
		return nil, err
	}
	dir, gaps, err := v.bundle(ids, args...)
	if err != nil {
		return nil, err
	}
	c.bundle = dir
	c.lacks = append([]string{lacksTransaction, lacksEvidence, lacksLandlock, lacksLimits + " (--cgroup-manager=disabled)",
		"no id-mapped mounts: your files have no owner in it", lacksImport}, gaps...)
	return c, nil
}

// prepareHost makes the host fit for it, or says why that can't be.
func (l *lab) prepareHost(out *AxisResult, c *crunPeer) (why string) {
	if os.Geteuid() != 0 {
		if hybrid() {
			return "it refuses hosts with hybrid cgroups, and only root can hide those from it"
		}
		return ""
	}
	if l.hosts == nil {
		h, err := newPrivateHost()
		if err != nil {
			return err.Error()
		}
		l.hosts = h
	}
	c.on = l.hosts
	if hybrid() {
		out.note("crun runs where %s is not mounted: it refuses hosts with hybrid cgroups", hybridCgroups)
	}
	// It mounts overlays as the container's root, which cannot pass through your home
	// directory to what is below.
	for i := range c.view.mounts {
		m := &c.view.mounts[i]
		if m.upper == "" {
			continue
		}
		at := filepath.Join(filepath.Dir(m.upper), "lower")
		if err := os.Mkdir(at, 0o755); err != nil {
			return err.Error()
		}
		if err := c.on.show(m.from, at); err != nil {
			return err.Error()
		}
		m.from = at
	}
	return ""
}

func (c *crunPeer) command(args ...string) command {
	return command{dir: c.bundle, on: c.on, args: append([]string{c.path, "--cgroup-manager=disabled", "--root", c.state}, args...)}
}

// once starts a container, waits for it and leaves nothing.
func (c *crunPeer) once(ctx context.Context) error {
	c.runs++
	_, err := c.command("run", "--bundle", c.bundle, fmt.Sprintf("run%d", c.runs)).run(ctx)
	return err
}

// crunRun is `crun run` as a contestant.
func (l *lab) crunRun(ctx context.Context, out *AxisResult, inst *installation, source string, cases ...string) ([]contestant, error) {
	const name = "crun run"
	c, err := l.crun(ctx, out, inst, source, name, "true")
	if c == nil || err != nil {
		return nil, err
	}
	list := repeat(cases, contestant{name: name, lacks: c.lacks, command: "crun --cgroup-manager=disabled --root STATE run --bundle BUNDLE ID (true)"}, c.once)
	for i := range list {
		do := list[i].round
		list[i].round = func(ctx context.Context, r *recorder) error {
			if err := c.view.renew(); err != nil { // new upper layers, as ours; before its clock starts
				return err
			}
			return do(ctx, r)
		}
	}
	return list, nil
}

// crunExec is `crun exec` in a container that lives, as a contestant; none,
// and said in out, where it can't be. end ends the container.
func (l *lab) crunExec(ctx context.Context, out *AxisResult, inst *installation, source string, cases ...string) (list []contestant, end func()) {
	const name = "crun exec"
	end = func() {}
	c, err := l.crun(ctx, out, inst, source, name, "sleep", "86400")
	if err == nil && c == nil {
		return nil, end
	}
	if err == nil {
		start := c.command("run", "--detach", "--bundle", c.bundle, "lives")
		start.leave = filepath.Join(c.bundle, "output")
		_, err = start.run(ctx)
		end = func() { c.command("delete", "--force", "lives").run(context.WithoutCancel(ctx)) }
	}
	if err != nil {
		end()
		out.absent(name, firstLine("it failed: "+err.Error()))
		return nil, func() {}
	}
	once := func(ctx context.Context) error { return all(ctx, c.command("exec", "lives", "/bin/true")) }
	return repeat(cases, contestant{name: name, lacks: without(c.lacks, lacksTransaction, lacksEvidence, lacksImport),
		command: "crun --cgroup-manager=disabled --root STATE exec ID /bin/true"}, once), end
}

// without returns what is not among others.
func without(list []string, others ...string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(others, s) })
}
