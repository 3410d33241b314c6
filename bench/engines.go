package bench

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// Container engines (docker, podman) run an image that we make: the mount
// points of a cell, with the same directories of the host in them.

// daemonOf finds a container engine that answers.
func (l *lab) daemonOf(ctx context.Context, name string) *program {
	p := l.find(ctx, name)
	if p.why != "" {
		return p
	}
	if _, err := (command{args: []string{p.path, "ps", "--quiet"}}).run(ctx); err != nil {
		p.why = firstLine("installed, but it does not answer: " + err.Error())
	}
	return p
}

// engines are the container engines as contestants.
func (l *lab) engines(ctx context.Context, out *AxisResult, inst *installation, source string, cases ...string) (list []contestant, err error) {
	for _, name := range []string{"docker", "podman"} {
		p := l.daemonOf(ctx, name)
		if p.why != "" {
			out.absent(name+" run", p.why)
			continue
		}
		args, lacks, err := l.engineArgs(ctx, name, inst, source)
		if err != nil {
			out.absent(name+" run", firstLine(err.Error()))
			continue
		}
		c := command{args: append(append([]string{p.path, "run", "--rm"}, args...), "true")}
		list = append(list, repeat(cases, contestant{name: name + " run", command: c.words(), lacks: lacks},
			func(ctx context.Context) error { _, err := c.run(ctx); return err })...)
	}
	return list, nil
}

// engineExec is `docker exec` in a container that lives, as crunExec.
func (l *lab) engineExec(ctx context.Context, out *AxisResult, engine string, inst *installation, source string, cases ...string) (list []contestant, end func()) {
	name := engine + " exec"
	end = func() {}
	p := l.daemonOf(ctx, engine)
	if p.why != "" {
		out.absent(name, p.why)
		return nil, end
	}
	args, lacks, err := l.engineArgs(ctx, engine, inst, source)
	var id []byte
	if err == nil {
		id, err = command{args: append(append([]string{p.path, "run", "--rm", "--detach"}, args...), "sleep", "86400")}.run(ctx)
	}
	if err != nil {
		out.absent(name, firstLine("it failed: "+err.Error()))
		return nil, end
	}
	container := strings.TrimSpace(string(id))
	once := func(ctx context.Context) error {
		return all(ctx, command{args: []string{p.path, "exec", container, "/bin/true"}})
	}
	return repeat(cases, contestant{name: name, command: engine + " exec ID /bin/true", lacks: without(lacks, lacksTransaction, lacksEvidence, lacksImport)}, once),
		func() { all(context.WithoutCancel(ctx), command{args: []string{p.path, "rm", "--force", container}}) }
}

// engineArgs makes the image and says how to run it.
func (l *lab) engineArgs(ctx context.Context, name string, inst *installation, source string) (args, lacks []string, err error) {
	v, err := l.view(ctx, inst, source, os.Geteuid())
	if err != nil {
		return nil, nil, err
	}
	root, err := v.root()
	if err != nil {
		return nil, nil, err
	}
	archive := filepath.Join(v.dir, "image.tar")
	if err := tarOf(root, archive); err != nil {
		return nil, nil, err
	}
	const image = "pando-bench"
	if _, err := (command{args: []string{l.find(ctx, name).path, "import", archive, image}}).run(ctx); err != nil {
		return nil, nil, err
	}
	filter, gaps := ociFilter()
	profile := filepath.Join(v.dir, "seccomp.json")
	b, err := json.Marshal(filter)
	if err != nil {
		return nil, nil, err
	}
	if err := os.WriteFile(profile, b, 0o644); err != nil {
		return nil, nil, err
	}
	copied := filepath.Join(v.dir, "workspace")
	if err := os.CopyFS(copied, os.DirFS(source)); err != nil {
		return nil, nil, err
	}
	args = []string{"--network=none", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--security-opt=seccomp=" + profile, "--read-only", "--workdir=" + source}
	for _, m := range v.mounts {
		switch kind := cell.MountKind(m.Kind); {
		case kind == cell.Link: // is in the image
		case kind == cell.Tmpfs:
			args = append(args, "--tmpfs="+m.Target)
		case m.Target == source:
			args = append(args, "--volume="+copied+":"+m.Target)
		case m.ReadOnly || kind == cell.Cache:
			args = append(args, "--volume="+m.from+":"+m.Target+":ro")
		default:
			args = append(args, "--volume="+m.from+":"+m.Target)
		}
	}
	lacks = append([]string{lacksTransaction, lacksEvidence, lacksLandlock, lacksLimits, lacksImport,
		"its own user namespace only where the engine is set up for it", "caches are read-only"}, gaps...)
	return append(args, image), lacks, nil
}

// tarOf archives the folders, links and empty files below a directory.
func tarOf(dir, name string) error {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		target := ""
		if info.Mode()&fs.ModeSymlink != 0 {
			if target, err = os.Readlink(p); err != nil {
				return err
			}
		}
		h, err := tar.FileInfoHeader(info, target)
		if err != nil {
			return err
		}
		h.Name = strings.TrimPrefix(p, dir+"/")
		if h.Size > 0 && !info.IsDir() && target == "" {
			return fmt.Errorf("%s is not a mount point", p)
		}
		return w.WriteHeader(h)
	})
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return err
	}
	return os.WriteFile(name, b.Bytes(), 0o644)
}
