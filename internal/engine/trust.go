package engine

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/pando-dev/pando/internal/agent"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/workspace"
)

// What a repository configures for an agent is trusted altogether, or by its content: a request has the digests of what its
// user looked at, and anything else is left alone. The plan compares the source or the cell's newest checkpoint, by which the
// agent's arguments and variables are made; before the agent starts, what is in the cell is compared once more.

// Bounds of what is trusted by its content.
const (
	maxConfigured     = 1000     // files
	maxConfiguredSize = 16 << 20 // bytes of all of them
)

// repoConfig is what a repository configures for an agent: by path, what is there.
type repoConfig struct {
	is   map[string]string
	left int64 // of what may be read
}

func newRepoConfig() *repoConfig {
	return &repoConfig{is: map[string]string{}, left: maxConfiguredSize}
}

func (c *repoConfig) add(at, what string) error {
	c.is[at] = what
	if len(c.is) > maxConfigured {
		return cell.Errorf(cell.TooLarge, "engine.trust", "trust it altogether: --trust-repository", "cannot trust what the repository configures by its content: it has more than %d files", maxConfigured)
	}
	return nil
}

// file adds a regular file.
func (c *repoConfig) file(at string, r io.Reader) error {
	sum, err := cell.SumReader(io.LimitReader(r, c.left+1))
	if err != nil {
		return err
	}
	return c.add(at, "file "+sum.String())
}

// size counts a file of which so many bytes are read.
func (c *repoConfig) size(n int64) error {
	if c.left -= n; c.left < 0 {
		return cell.Errorf(cell.TooLarge, "engine.trust", "trust it altogether: --trust-repository", "cannot trust what the repository configures by its content: it has more than %d MiB", maxConfiguredSize>>20)
	}
	return nil
}

// digest is that of the paths and what is there, in the order of the paths; "" if there is nothing.
func (c *repoConfig) digest() string {
	if len(c.is) == 0 {
		return ""
	}
	var b strings.Builder
	for _, at := range slices.Sorted(maps.Keys(c.is)) {
		b.WriteString(at + "\x00" + c.is[at] + "\x00")
	}
	return cell.Sum([]byte(b.String())).String()
}

// configures are the paths from which an agent runs things that a repository configures. An agent's own folder is taken as a
// whole: programs that its settings name lie there, too.
func (a *agentPlan) configures() (paths []string) {
	start := a.start
	start.Trusts, start.Prompt = false, "a task" // which leaves alone the most
	for _, at := range a.adapter.Off(start) {
		if own, _, below := strings.Cut(at, "/"); below && strings.HasPrefix(own, ".") && own != ".github" {
			at = own
		}
		if !slices.Contains(paths, at) {
			paths = append(paths, at)
		}
	}
	return paths
}

// planTrust has an agent run what the repository configures for it if that is what its user trusts.
func (e *Engine) planTrust(p *runPlan) error {
	if p.agent == nil || p.again != nil {
		return nil
	}
	trusted := p.req.Agent.TrustContent
	for _, d := range trusted {
		if _, err := cell.ParseDigest(d); err != nil {
			return cell.Errorf(cell.Invalid, "engine.StartRun", "pando inspect "+p.agent.adapter.About().Name+" says it", "cannot trust content %q: it is no digest", cell.Clip(d))
		}
	}
	if len(trusted) == 0 && !p.req.Inspect {
		return nil
	}
	c, err := e.configuredOf(p)
	if err != nil {
		if len(trusted) == 0 {
			return nil // nothing hangs on it
		}
		return err
	}
	p.agent.content = c.digest()
	if p.agent.start.Trusts || len(trusted) == 0 || p.agent.content == "" {
		return nil
	}
	if !slices.Contains(trusted, p.agent.content) {
		p.kept = append(p.kept, "what the repository configures for "+p.agent.adapter.About().Title+" is not what you trusted: pando inspect "+p.agent.adapter.About().Name)
		return nil
	}
	p.agent.start.Trusts, p.agent.byContent = true, true
	argv, err := p.agent.adapter.Command(p.agent.start)
	if err != nil {
		return err
	}
	p.req.Command, p.asked.Command = argv, argv
	return nil
}

// configuredOf is what is in the source of a plan, or in the newest checkpoint of its cell.
func (e *Engine) configuredOf(p *runPlan) (*repoConfig, error) {
	c := newRepoConfig()
	if p.cell != nil && p.cell.Head != "" {
		k, err := e.reg.Checkpoint(p.cell.Head)
		if err != nil {
			return nil, err
		}
		tree, err := e.tree(e.life, &k)
		if err != nil {
			return nil, err
		}
		prefix := ""
		if parts := p.cell.Parts(); len(parts) > 1 {
			prefix = parts[0].At
		}
		for _, at := range p.agent.configures() {
			err := tree.Walk(path.Join(prefix, at), func(full string, found workspace.Entry) error {
				name := strings.TrimPrefix(strings.TrimPrefix(full, prefix), "/")
				switch found.Type {
				case workspace.Folder:
					return nil
				case workspace.File:
					return cmp.Or(c.size(found.Size), c.add(name, "file "+found.Digest.String()))
				case workspace.Symlink:
					return c.add(name, "link "+found.Target)
				}
				return c.add(name, "other")
			})
			if err != nil && cell.KindOf(err) != cell.NotFound {
				return nil, err
			}
		}
		return c, nil
	}
	root, err := os.OpenRoot(orElse(p.from, p.source))
	if err != nil {
		return nil, err
	}
	defer root.Close()
	for _, at := range p.agent.configures() {
		err := fs.WalkDir(root.FS(), at, func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			st, err := root.Lstat(name)
			if err != nil {
				return err
			}
			switch {
			case st.Mode().IsRegular():
				f, err := root.Open(name)
				if err != nil {
					return err
				}
				defer f.Close()
				return cmp.Or(c.size(st.Size()), c.file(name, f))
			case st.Mode()&fs.ModeSymlink != 0:
				to, err := root.Readlink(name)
				return cmp.Or(err, c.add(name, "link "+to))
			}
			return c.add(name, "other")
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return c, nil
}

// stillTrusted refuses to start an agent when the cell has something else than what its user trusted.
func (x *execution) stillTrusted(ctx context.Context, start agent.Start) error {
	a := x.p.agent
	if !a.byContent {
		return nil
	}
	c := newRepoConfig()
	for _, at := range a.configures() {
		read, write := io.Pipe()
		go func() { write.CloseWithError(x.inst.ReadFiles(ctx, path.Join(start.Root, at), write)) }()
		err := c.archive(path.Dir(at), tar.NewReader(read))
		read.Close()
		if err != nil && cell.KindOf(err) != cell.NotFound {
			return err
		}
	}
	if c.digest() == a.content {
		return nil
	}
	about := a.adapter.About()
	return cell.Errorf(cell.Conflict, "engine.furnish", "look at it: pando inspect "+about.Name+"; --trust-repository=false leaves it alone",
		"cannot start %s: what the repository configures for it is in cell %s not what you trusted", about.Title, x.c.Title())
}

// archive adds what is in an archive of what is below dir.
func (c *repoConfig) archive(dir string, r *tar.Reader) error {
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := path.Join(dir, h.Name)
		switch h.Typeflag {
		case tar.TypeDir:
		case tar.TypeReg:
			err = cmp.Or(c.size(h.Size), c.file(name, r))
		case tar.TypeSymlink:
			err = c.add(name, "link "+h.Linkname)
		default:
			err = c.add(name, "other")
		}
		if err != nil {
			return err
		}
	}
}
