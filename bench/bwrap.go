package bench

import (
	"context"
	"os"
	"path/filepath"
	"slices"

	"github.com/pando-dev/pando/internal/cell"
)

// bwrap is bubblewrap with the mounts, namespaces and filter of our cells. It
// needs no privilege, and does nothing but start a program.
func (l *lab) bwrap(ctx context.Context, out *AxisResult, inst *installation, source string, cases ...string) (list []contestant, err error) {
	c, once, err := l.bwrapOnce(ctx, out, inst, source, "true")
	if once == nil || err != nil {
		return nil, err
	}
	return repeat(cases, contestant{name: bwrapName, command: c, lacks: slices.Concat(bwrapLacks, []string{lacksImport})},
		func(ctx context.Context) error { _, err := once(ctx); return err }), nil
}

const bwrapName = "bwrap"

// bwrapLacks is what it doesn't do.
var bwrapLacks = []string{lacksTransaction, lacksEvidence, lacksLandlock, lacksLimits,
	"one user id instead of 65,536", "no overlays: the workspace is a plain copy, caches are read-only", "nothing of /proc is hidden"}

// bwrapOnce prepares bwrap for a command: how one would type it, and a function
// that runs it once and may be called by several. It is nil, and said in out,
// where there is none.
func (l *lab) bwrapOnce(ctx context.Context, out *AxisResult, inst *installation, source string, args ...string) (typed string, once func(context.Context) ([]byte, error), err error) {
	p := l.find(ctx, bwrapName)
	if p.why != "" {
		out.absent(bwrapName, p.why)
		return "", nil, nil
	}
	v, err := l.view(ctx, inst, source, os.Geteuid())
	if err != nil {
		return "", nil, err
	}
	filter, err := l.filterFile()
	if err != nil {
		return "", nil, err
	}
	copied := filepath.Join(v.dir, "workspace")
	if err := os.CopyFS(copied, os.DirFS(source)); err != nil {
		return "", nil, err
	}
	c := command{env: v.env, args: append([]string{p.path}, v.bwrapArgs(copied)...)}
	c.args = append(append(c.args, "--seccomp", "3", "--chdir", source, "--"), args...)
	return c.words() + " 3<seccomp.bpf", func(ctx context.Context) ([]byte, error) {
		f, err := os.Open(filter) // it reads to the end: each time a new one
		if err != nil {
			return nil, err
		}
		defer f.Close()
		c := c
		c.files = []*os.File{f}
		return c.run(ctx)
	}, nil
}

func (v *cellView) bwrapArgs(workspace string) []string {
	args := []string{"--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup",
		"--die-with-parent", "--new-session", "--hostname", "bench", "--cap-drop", "ALL", "--proc", "/proc", "--dev", "/dev"}
	for _, m := range v.mounts {
		switch kind := cell.MountKind(m.Kind); {
		case kind == cell.Link:
			args = append(args, "--symlink", m.Source, m.Target)
		case kind == cell.Tmpfs:
			args = append(args, "--tmpfs", m.Target)
		case m.Target == v.source:
			args = append(args, "--bind", workspace, m.Target)
		case m.ReadOnly || kind == cell.Cache:
			args = append(args, "--ro-bind", m.from, m.Target)
		default:
			args = append(args, "--bind", m.from, m.Target)
		}
	}
	return append(args, "--remount-ro", "/")
}
