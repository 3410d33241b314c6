package engine

import (
	"context"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/agent"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/evidence"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// After a run, what its agent reports of its tool calls is read from its transcripts, which are bytes of the cell: it can
// have put anything there. Nothing of it is a fact, nothing is followed, and no run fails for it.

// Bounds of what is read of transcripts.
const (
	transcriptsMost  = 64 << 20 // bytes of all
	transcriptMost   = 32 << 20 // bytes of one
	transcriptFiles  = 50
	transcriptLooks  = 5000 // entries of folders that are looked at
	transcriptDepth  = 6
	transcriptMargin = time.Second            // by which the times of calls may be wrong: some are whole seconds
	transcriptTick   = 100 * time.Millisecond // by which the times of files may be: the kernel's are those of its last tick
)

const (
	noFile       = "it is no regular file, or can't be read"
	tooManyLooks = "there are more files beside the transcripts than are looked at"
)

// calls reads the tool calls of one run.
type calls struct {
	e     *Engine
	run   *state.Run
	c     *state.Cell
	after *state.Checkpoint
	found *agent.Calls
	left  int64 // bytes
	out   state.ToolCalls
}

// noteCalls reads what the agent of a run reports of its tool calls, and writes it into the run's folder.
func (e *Engine) noteCalls(ctx context.Context, run *state.Run, c *state.Cell, after *state.Checkpoint) {
	a, _ := e.cfg.Agents.Find(run.Agent)
	reporter, reports := a.(agent.Reporter)
	if !reports && run.In.ToolLog == "" {
		return
	}
	x := &calls{e: e, run: run, c: c, after: after, left: transcriptsMost, found: agent.NewCalls(run.Started.Add(-transcriptMargin), run.Ended.Add(transcriptMargin)),
		out: state.ToolCalls{Basis: api.Reported, Agent: run.Agent, Read: []state.Transcript{}}}
	x.found.Hide = redactor.String
	if reports {
		x.transcripts(ctx, reporter.Transcript())
	}
	if run.In.ToolLog != "" {
		x.log(ctx, run.In.ToolLog)
	}
	x.list()
	if err := evidence.WriteCalls(run.Folder, &x.out); err != nil {
		e.log.Error("cannot keep the tool calls of a run", "run", run.ID, "error", err)
		run.Notes = append(run.Notes, "the reported tool calls could not be kept; see the daemon's log")
	}
}

func (x *calls) problem(text string) {
	if !slices.Contains(x.out.Problems, text) && len(x.out.Problems) < 10 {
		x.out.Problems = append(x.out.Problems, text)
	}
}

// transcripts reads those of an adapter's program, as far as they changed in the run.
func (x *calls) transcripts(ctx context.Context, t agent.Transcript) {
	root, err := workspace.OpenRoot(x.e.ownDir(x.c, cell.RoleHome))
	if err != nil {
		x.problem("the home of the cell can't be read")
		return
	}
	defer root.Close()
	looks, read := transcriptLooks, 0
	var walk func(dir string, depth int)
	walk = func(dir string, depth int) {
		for _, f := range x.names(root, dir, &looks) {
			at := path.Join(dir, f.Name())
			switch {
			case ctx.Err() != nil:
				return
			case f.IsDir() && depth < transcriptDepth:
				walk(at, depth+1)
			case !t.Has(strings.TrimPrefix(at, t.Dir+"/")):
			case read == transcriptFiles:
				x.problem("there are more transcripts than are read")
				return
			case !f.Type().IsRegular():
				x.unread("~/"+at, noFile)
				read++
			case x.file(root, at, "~/"+at, t.Line):
				read++
			}
		}
	}
	walk(t.Dir, 0)
	if len(x.out.Read) == 0 {
		x.problem("there is no transcript of the run in ~/" + t.Dir)
	}
}

// names lists a folder below a root, sorted; links are followed nowhere.
func (x *calls) names(root *linux.Dir, dir string, looks *int) []os.DirEntry {
	fd, err := workspace.OpenReadable(root, dir, true)
	if err != nil {
		if !os.IsNotExist(err) {
			x.problem("a folder of transcripts can't be read")
		}
		return nil
	}
	d := os.NewFile(uintptr(fd), dir)
	defer d.Close()
	if *looks <= 0 {
		x.problem(tooManyLooks)
		return nil
	}
	list, err := d.ReadDir(*looks)
	if err != nil && err != io.EOF {
		x.problem("a folder of transcripts can't be read")
	}
	if *looks -= len(list); *looks == 0 {
		if more, _ := d.ReadDir(1); len(more) > 0 {
			x.problem(tooManyLooks)
		}
	}
	slices.SortFunc(list, func(a, b os.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return list
}

// file reads a file below a root, if the run may have written to it, and reports whether it did.
func (x *calls) file(root *linux.Dir, at, name string, line func([]byte, *agent.Calls) error) bool {
	fd, err := workspace.OpenReadable(root, at, false)
	if err != nil {
		x.unread(name, noFile)
		return true
	}
	f := os.NewFile(uintptr(fd), linux.Abridged(at))
	defer f.Close()
	var st unix.Stat_t
	switch err := unix.Fstat(fd, &st); {
	case err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG:
		x.unread(name, noFile)
		return true
	case time.Unix(0, workspace.StatOf(&st).CTime).Before(x.run.Started.Add(-transcriptTick)): // the kernel sets it; a cell can't
		return false
	}
	x.read(f, name, line)
	return true
}

func (x *calls) unread(name, why string) {
	x.out.Read = append(x.out.Read, state.Transcript{Path: redactor.String(cell.Clip(name)), Problem: why})
}

func (x *calls) read(r io.Reader, name string, line func([]byte, *agent.Calls) error) {
	before := len(x.found.List)
	n, problem, err := x.found.Read(r, min(transcriptMost, x.left), line)
	if err != nil {
		problem = "its end can't be read"
	}
	x.left -= n
	x.out.Read = append(x.out.Read, state.Transcript{Path: redactor.String(cell.Clip(name)), Bytes: n, Calls: len(x.found.List) - before, Problem: problem})
}

// log reads the file that a run was told to report its calls in: in the workspace as it is after the run, in the home or in /tmp.
func (x *calls) log(ctx context.Context, name string) {
	at := name
	if rest, home := strings.CutPrefix(name, "~/"); home {
		at = path.Join(x.target(cell.RoleHome), rest)
	} else if !path.IsAbs(at) {
		at = path.Join(x.run.In.Workdir, at)
	}
	if rel, in := below(x.c.Source, at); in {
		side, err := x.e.side(ctx, x.after)
		if err != nil {
			x.unread(name, "the files after the run can't be read")
			return
		}
		entry, err := side.Tree.Lookup(rel)
		if err != nil || entry.Type != workspace.File {
			x.unread(name, "it is no regular file, or is not there")
			return
		}
		f, err := side.Contents.Open(rel, entry)
		if err != nil {
			x.unread(name, "it can't be read")
			return
		}
		defer f.Close()
		x.read(f, name, agent.Generic)
		return
	}
	for _, role := range []cell.Role{cell.RoleHome, cell.RoleTmp} {
		rel, in := below(x.target(role), at)
		if !in {
			continue
		}
		root, err := workspace.OpenRoot(x.e.ownDir(x.c, role))
		if err != nil {
			break
		}
		defer root.Close()
		if !x.file(root, rel, name, agent.Generic) {
			x.unread(name, "the run did not write to it")
		}
		return
	}
	x.unread(name, "it is neither in the workspace nor in the home or /tmp of the cell")
}

// target is where a cell has its home or its /tmp.
func (x *calls) target(role cell.Role) string {
	for _, m := range x.c.Setup.Mounts {
		if m.Role == role {
			return m.Target
		}
	}
	return ""
}

// below is a path relative to a folder that it is in.
func below(dir, at string) (rel string, in bool) {
	if dir == "" {
		return "", false
	}
	rel, in = strings.CutPrefix(path.Clean(at), strings.TrimSuffix(dir, "/")+"/")
	return rel, in && rel != ""
}

// list puts the calls in the order of their times.
func (x *calls) list() {
	x.out.More = x.found.More
	slices.SortStableFunc(x.found.List, func(a, b agent.Call) int { return a.Time.Compare(b.Time) })
	for _, c := range x.found.List {
		out := state.ToolCall{Time: c.Time.UTC(), Tool: redactor.String(c.Tool), Kind: c.Kind, What: redactor.String(c.What), ExitCode: c.Exit, Ended: c.Ended, Failed: c.Fails}
		for _, f := range c.Files {
			if !path.IsAbs(f) {
				f = path.Join(x.run.In.Workdir, f)
			}
			if rel, in := below(x.c.Source, f); in {
				f = rel
			}
			out.Files = append(out.Files, redactor.String(f))
		}
		x.out.Calls = append(x.out.Calls, out)
	}
}

// callsOf reads the record of the tool calls that the agent of a run reports; nil for none.
func (e *Engine) callsOf(id cell.RunID) (*state.ToolCalls, error) {
	r, err := e.reg.Run(id)
	if err != nil {
		return nil, err
	}
	return evidence.ReadCalls(r.Folder, reportCalls)
}
