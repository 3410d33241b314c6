package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// runscPeer is gVisor's own runtime, with a bundle that shows what a cell shows.
type runscPeer struct {
	path   string
	bundle string
	state  string // its --root
	lacks  []string
	runs   atomic.Int64
}

// runscLacks is what any container of it does not do beside our cells.
var runscLacks = []string{lacksLandlock, lacksLimits + " (--ignore-cgroups)", "no user namespace around gVisor, no view of its own: code that breaks out of it is root in the host's namespaces of users and cgroups",
	"no overlays: the workspace is a plain copy, which gVisor may cache (--file-access=exclusive, its default)"}

// plainRunsc finds gVisor's runtime: the one that is installed, or else ours, which
// knows fewer commands.
func (l *lab) plainRunsc(ctx context.Context, needs string) *program {
	p := l.find(ctx, "runsc")
	if p.why == "" || needs == "exec" {
		return p
	}
	ours := filepath.Join(filepath.Dir(l.exe), "pando-runsc")
	if _, err := os.Stat(ours); err != nil {
		return p
	}
	return &program{path: ours}
}

// runscIn prepares runsc for a command in a workspace. It is nil, and said in out,
// where there is none.
func (l *lab) runscIn(ctx context.Context, out *AxisResult, inst *installation, source, name, needs string, env []string, args ...string) (*runscPeer, error) {
	p := l.plainRunsc(ctx, needs)
	if p.why != "" {
		out.absent(name, p.why)
		return nil, nil
	}
	if os.Geteuid() != 0 {
		out.absent(name, "it is root's")
		return nil, nil
	}
	v, err := l.view(ctx, inst, source, 0)
	if err != nil {
		return nil, err
	}
	root, err := v.root()
	if err != nil {
		return nil, err
	}
	copied := filepath.Join(v.dir, "workspace")
	if err := os.CopyFS(copied, os.DirFS(source)); err != nil {
		return nil, err
	}
	c := ociConfig{
		Version: "1.0.2", Hostname: "bench", Root: ociRoot{Path: root, Readonly: true},
		Process: ociProcess{Args: args, Env: v.env, Cwd: source, NoNewPrivileges: true,
			Capabilities: map[string][]string{"bounding": {}, "effective": {}, "permitted": {}, "inheritable": {}, "ambient": {}}},
		Mounts: v.runscMounts(copied),
		Linux:  ociLinux{Namespaces: []ociNamespace{{"mount"}, {"pid"}, {"network"}, {"ipc"}, {"uts"}}},
	}
	if env != nil {
		c.Process.Env = env
	}
	b, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(v.dir, "config.json"), b, 0o644); err != nil {
		return nil, err
	}
	r := &runscPeer{path: p.path, bundle: v.dir, state: filepath.Join(v.dir, "state"), lacks: runscLacks}
	l.runscs = append(l.runscs, r)
	return r, os.Mkdir(r.state, 0o700)
}

// runscMounts are the mounts of a cell, as gVisor takes them.
func (v *cellView) runscMounts(workspace string) []ociMount {
	list := []ociMount{{"/proc", "proc", "proc", nil}, {"/dev", "tmpfs", "tmpfs", nil}}
	for _, m := range v.mounts {
		from, o := m.from, []string{"rbind"}
		switch kind := cell.MountKind(m.Kind); {
		case kind == cell.Link:
			continue
		case kind == cell.Tmpfs:
			list = append(list, ociMount{m.Target, "tmpfs", "tmpfs", []string{"mode=1777"}})
			continue
		case m.Target == v.source:
			from = workspace
		case m.ReadOnly || kind == cell.Cache:
			o = append(o, "ro")
		}
		list = append(list, ociMount{m.Target, "bind", from, o})
	}
	return list
}

func (p *runscPeer) command(args ...string) command {
	return command{dir: p.bundle, args: slices.Concat([]string{p.path, "--root", p.state, "--platform=systrap", "--network=none", "--ignore-cgroups", "--overlay2=none"}, args)}
}

// close undoes what it leaves mounted.
func (p *runscPeer) close() error {
	err := unix.Unmount(filepath.Join(p.state, "null-netns"), unix.MNT_DETACH)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) { // none was started
		return nil
	}
	return err
}

// runscWords is how its command is told.
const runscWords = "runsc --platform=systrap --network=none --ignore-cgroups --overlay2=none "

// next is a name that no container had.
func (p *runscPeer) next() string {
	return fmt.Sprintf("bench%d", p.runs.Add(1))
}

// once starts a container, waits for it and leaves nothing.
func (p *runscPeer) once(ctx context.Context) error {
	_, err := p.command("run", "--bundle", p.bundle, p.next()).run(ctx)
	return err
}

// runscRun is `runsc run` as a contestant.
func (l *lab) runscRun(ctx context.Context, out *AxisResult, inst *installation, source string, cases ...string) ([]contestant, error) {
	const name = "runsc run"
	p, err := l.runscIn(ctx, out, inst, source, name, "run", nil, "true")
	if p == nil || err != nil {
		return nil, err
	}
	return repeat(cases, contestant{name: name, lacks: slices.Concat([]string{lacksTransaction, lacksEvidence, lacksImport}, p.lacks),
		command: runscWords + "run --bundle BUNDLE ID (true)"}, p.once), nil
}

// runscExec is `runsc exec` in a container that lives, as crunExec.
func (l *lab) runscExec(ctx context.Context, out *AxisResult, inst *installation, source string, cases ...string) (list []contestant, end func()) {
	const name = "runsc exec"
	p, err := l.runscIn(ctx, out, inst, source, name, "exec", nil, "sleep", "86400")
	if p == nil && err == nil {
		return nil, func() {}
	}
	var living *runscContainer
	if err == nil {
		living, err = p.start(ctx, "run")
	}
	if err != nil {
		out.absent(name, firstLine("it failed: "+err.Error()))
		return nil, func() {}
	}
	once := func(ctx context.Context) error { return all(ctx, p.command("exec", living.id, "/bin/true")) }
	return repeat(cases, contestant{name: name, lacks: p.lacks, command: runscWords + "exec ID /bin/true"}, once),
		func() { living.end(context.WithoutCancel(ctx)) }
}

// runscContainer is a container that lives, and writes lines into a file.
type runscContainer struct {
	p   *runscPeer
	id  string
	out string
}

// start starts one, or lets one go on from an image ("restore", "--image-path", …).
func (p *runscPeer) start(ctx context.Context, how ...string) (*runscContainer, error) {
	id := p.next()
	c := &runscContainer{p, id, filepath.Join(p.bundle, id+".out")}
	cmd := p.command(slices.Concat(how, []string{"--detach", "--bundle", p.bundle, id})...)
	cmd.leave = c.out
	if _, err := cmd.run(ctx); err != nil {
		return nil, errors.Join(err, c.end(context.WithoutCancel(ctx)))
	}
	return c, nil
}

// checkpoint writes an image of it into a new directory; it goes on.
func (c *runscContainer) checkpoint(ctx context.Context) (dir string, err error) {
	dir = filepath.Join(c.p.bundle, c.p.next()+".image")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	return dir, all(ctx, c.p.command("checkpoint", "--leave-running", "--compression=none", "--image-path", dir, c.id))
}

func (c *runscContainer) end(ctx context.Context) error {
	_, err := c.p.command("delete", "--force", c.id).run(ctx)
	if rerr := os.Remove(c.out); !errors.Is(rerr, fs.ErrNotExist) {
		err = errors.Join(err, rerr)
	}
	return err
}

// said waits until it has written so many lines after the first bytes.
func (c *runscContainer) said(ctx context.Context, after int64, lines int) (string, error) {
	for until := time.Now().Add(bootPatience); ; {
		b, err := os.ReadFile(c.out)
		if err != nil {
			return "", err
		}
		if int64(len(b)) >= after && strings.Count(string(b[after:]), "\n") >= lines {
			return string(b[after:]), nil
		}
		if time.Now().After(until) {
			return "", fmt.Errorf("it says nothing in %v: %.300s", bootPatience, b)
		}
		select {
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-time.After(time.Millisecond):
		}
	}
}

// bootPatience is how long a container may take to say something.
const bootPatience = time.Minute

// size is how much it has written.
func (c *runscContainer) size() (int64, error) {
	st, err := os.Stat(c.out)
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

// gaps are those between the times that it wrote after the first bytes, in ms.
func (c *runscContainer) gaps(ctx context.Context, after int64) (list []float64, err error) {
	text, err := c.said(ctx, after, 2)
	if err != nil {
		return nil, err
	}
	if after > 0 { // the first line may be the rest of one
		_, text, _ = strings.Cut(text, "\n")
	}
	last := int64(0)
	for s := bufio.NewScanner(strings.NewReader(text[:strings.LastIndexByte(text, '\n')])); s.Scan(); {
		at, err := strconv.ParseInt(s.Text(), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("the heart said %q", s.Text())
		}
		if last > 0 && at > last {
			list = append(list, round(float64(at-last)/1e6))
		}
		last = at
	}
	return list, nil
}

// runscDo is `runsc do`: gVisor on the host's own root, read-only, with what is
// written kept in memory.
func (l *lab) runscDo(ctx context.Context, out *AxisResult, inst *installation, source string, cases ...string) ([]contestant, error) {
	const name = "runsc do"
	p := l.find(ctx, "runsc")
	if p.why != "" {
		out.absent(name, p.why)
		return nil, nil
	}
	c := command{dir: source, args: []string{p.path, "--network=none", "--platform=systrap", "do", "--cwd=" + source, "true"}}
	lacks := []string{lacksTransaction, lacksEvidence, lacksLimits, "the whole host is readable in it"}
	if l.backend == "" {
		lacks = append(lacks, "another isolation: a kernel of its own, which ours here has not")
	}
	return repeat(cases, contestant{name: name, command: strings.ReplaceAll(c.words(), source, "SOURCE"), lacks: lacks}, func(ctx context.Context) error { _, err := c.run(ctx); return err }), nil
}
