package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
)

// What a peer lacks beside a governed run, in the words of the result.
const (
	lacksTransaction = "no checkpoint before, no rollback, no diff"
	lacksEvidence    = "no receipt, no digests, no events, nothing synced"
	lacksLandlock    = "no Landlock, no canaries"
	lacksLimits      = "no limits on memory, processes, CPU, disk"
	lacksImport      = "no import: the workspace was copied before the clock started"
)

// cellView is what a cell shows of the host, in the form that peers take: the
// mounts of `pando run --dry-run`, with places of the peer's own where the
// cell has its own.
type cellView struct {
	dir    string // everything that belongs to it
	source string // of the workspace, and where it is visible
	mounts []viewMount
	env    []string
	owner  int // owner of the writable files, on the host
}

type viewMount struct {
	api.Mount
	from  string // directory or file of the host that is shown
	upper string // of overlays: what is written
	work  string
}

// view asks pando what a run from source would see, and prepares the places.
// Copies and folders are made now: no peer's clock counts them.
func (l *lab) view(ctx context.Context, inst *installation, source string, owner int) (*cellView, error) {
	plan, err := inst.client.PlanRun(ctx, api.RunRequest{Command: []string{"true"}, From: source, CallerEnv: inst.env, CallerDir: source})
	if err != nil {
		return nil, err
	}
	dir, err := l.fresh("view")
	if err != nil {
		return nil, err
	}
	v := &cellView{dir: dir, source: source, owner: owner}
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		for _, n := range plan.Env {
			if n == name {
				v.env = append(v.env, kv)
			}
		}
	}
	for i, m := range plan.Mounts {
		x := viewMount{Mount: m, from: m.Source}
		own := filepath.Join(dir, fmt.Sprintf("%02d", i))
		switch cell.MountKind(m.Kind) {
		case cell.Bind:
			if m.Source == "" || strings.HasPrefix(m.Source, inst.dir) { // the cell's own
				x.from = filepath.Join(own, "fs")
				if err := v.folder(x.from); err != nil {
					return nil, err
				}
				if m.Source != "" { // made by pando: the filtered /etc
					if err := os.CopyFS(x.from, os.DirFS(m.Source)); err != nil {
						return nil, err
					}
				}
			}
		case cell.Overlay:
			x.from = source
			x.Mount.Kind = string(cell.Overlay)
			fallthrough
		case cell.Cache:
			x.upper, x.work = filepath.Join(own, "fs"), filepath.Join(own, "work")
		case cell.Link, cell.Tmpfs:
		default:
			return nil, fmt.Errorf("cannot give a peer a mount of kind %q", m.Kind)
		}
		v.mounts = append(v.mounts, x)
	}
	return v, v.renew()
}

func (v *cellView) folder(path string) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	return os.Chown(path, v.owner, v.owner)
}

// renew empties what is thrown away after each run.
func (v *cellView) renew() error {
	for _, m := range v.mounts {
		for _, d := range []string{m.upper, m.work} {
			if d == "" {
				continue
			}
			if err := removeTree(d); err != nil {
				return err
			}
			if err := v.folder(d); err != nil {
				return err
			}
		}
	}
	return nil
}

// above returns the mount that a target lies in, nil for the root itself.
func (v *cellView) above(target string) *viewMount {
	var best *viewMount
	for i := range v.mounts {
		m := &v.mounts[i]
		if strings.HasPrefix(target, m.Target+"/") && (best == nil || len(m.Target) > len(best.Target)) {
			best = m
		}
	}
	return best
}

// root makes a root directory with all mount points and links.
func (v *cellView) root(extra ...string) (string, error) {
	root := filepath.Join(v.dir, "root")
	for _, d := range append(extra, "/proc", "/dev", "/sys") {
		if err := os.MkdirAll(root+d, 0o755); err != nil {
			return "", err
		}
	}
	for _, m := range v.mounts {
		at := root + m.Target
		if up := v.above(m.Target); up != nil {
			if up.from == "" || !strings.HasPrefix(up.from, v.dir) {
				continue // on a file system of the peer's own, or of the host, which has it
			}
			at = up.from + strings.TrimPrefix(m.Target, up.Target)
		}
		if err := point(at, m); err != nil {
			return "", err
		}
	}
	return root, nil
}

// point makes a mount point, or a link.
func point(at string, m viewMount) error {
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	if _, err := os.Lstat(at); err == nil {
		return nil
	}
	if cell.MountKind(m.Kind) == cell.Link {
		return os.Symlink(m.Source, at)
	}
	if st, err := os.Stat(m.from); m.from != "" && err == nil && !st.IsDir() {
		return os.WriteFile(at, nil, 0o644)
	}
	return os.MkdirAll(at, 0o755)
}

// filterFile writes the seccomp filter of our cells as the kernel reads it:
// eight bytes an instruction, in the byte order of the machine.
func (l *lab) filterFile() (string, error) {
	filter, err := linux.SeccompFilter(linux.SeccompOptions{})
	if err != nil {
		return "", err
	}
	var b bytes.Buffer
	for _, f := range filter {
		if err := binary.Write(&b, binary.NativeEndian, f); err != nil {
			return "", err
		}
	}
	name := filepath.Join(l.dir, "seccomp.bpf")
	return name, os.WriteFile(name, b.Bytes(), 0o644)
}
