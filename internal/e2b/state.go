package e2b

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
)

// The state of sandboxes that a new daemon needs and the cell lacks: the processes started
// through this front, and the contexts. It is one file for each sandbox with such state.

// keepAfter is how long a process runs before it is recorded. Most have ended by then, and cost
// nothing.
const keepAfter = 50 * time.Millisecond

// adoptLimit bounds the time for finding the processes of a sandbox again.
const adoptLimit = 10 * time.Second

type keptBox struct {
	Processes []keptProc    `json:"processes"`
	Contexts  []codeContext `json:"contexts"`
	Mixed     bool          `json:"mixed"`
}

// keptProc is a recorded process. The values of its variables, which may be secrets, are not
// recorded.
type keptProc struct {
	Exec   string        `json:"exec"`
	PID    int           `json:"pid"`
	Tag    string        `json:"tag,omitempty"`
	Config processConfig `json:"config"`
	TTY    bool          `json:"tty"`
}

func keptName(id cell.ID) string { return string(id) + ".json" }

// keep writes the state of a sandbox; nothing for a removed one.
func (f *Front) keep(id cell.ID, b *box) {
	if f.cfg.Kept == nil {
		return
	}
	b.keeping.Lock()
	defer b.keeping.Unlock()
	b.mu.Lock()
	k := keptBox{Mixed: b.mixed, Processes: []keptProc{}, Contexts: []codeContext{}}
	for _, pid := range slices.Sorted(maps.Keys(b.procs)) {
		if p := b.procs[pid]; p.kept {
			config := p.config
			config.Envs = nil
			k.Processes = append(k.Processes, keptProc{p.exec, p.pid, p.tag, config, p.tty})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(b.contexts)) {
		k.Contexts = append(k.Contexts, *b.contexts[name])
	}
	gone := b.gone
	b.mu.Unlock()
	var err error
	if gone || len(k.Processes) == 0 && !k.Mixed {
		err = f.cfg.Kept.Remove(keptName(id))
	} else {
		var data []byte
		if data, err = json.Marshal(k); err == nil {
			err = durable.WriteFile(f.cfg.Kept, keptName(id), data, 0o600)
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.cfg.Log.Warn("cannot write the state of a sandbox", "cell", id, "error", err)
	}
}

// recall restores a box from the file of an earlier daemon, and adopts the processes that still
// run.
func (f *Front) recall(id cell.ID, b *box) {
	if f.cfg.Kept == nil {
		return
	}
	data, err := durable.ReadFile(f.cfg.Kept, keptName(id))
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var k keptBox
	if err == nil {
		err = json.Unmarshal(data, &k)
	}
	if err != nil {
		f.cfg.Log.Warn("cannot read the state of a sandbox", "cell", id, "error", err)
		return
	}
	b.mu.Lock()
	b.mixed = k.Mixed
	for _, c := range k.Contexts {
		b.contexts[c.ID] = &c
	}
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), adoptLimit)
	defer cancel()
	for _, was := range k.Processes {
		p := &proc{pid: was.PID, tag: was.Tag, config: was.Config, tty: was.TTY, exec: was.Exec, kept: true, subs: map[*subscriber]bool{}}
		if err := f.adopt(ctx, id, p); err != nil {
			if cell.KindOf(err) != cell.NotFound {
				f.cfg.Log.Warn("cannot find a process of a sandbox again", "cell", id, "exec", was.Exec, "error", err)
			}
			continue
		}
		b.mu.Lock()
		b.procs[p.pid] = p
		b.mu.Unlock()
		go f.attend(id, b, p)
	}
	go f.keep(id, b)
}

// adopt attaches to a running process, from now on: its earlier output went to its followers
// then.
func (f *Front) adopt(ctx context.Context, id cell.ID, p *proc) error {
	x, err := f.cfg.Engine.Exec(p.exec)
	if err != nil {
		return err
	}
	if p.att, err = f.cfg.Engine.AttachExec(p.exec, true); err != nil {
		return err
	}
	if p.conn, err = p.att.Open(ctx, backend.Attach{Offsets: backend.Offsets{Stdout: x.Output.Stdout.Bytes, Stderr: x.Output.Stderr.Bytes}, Input: true}); err != nil {
		p.att.Release(false)
	}
	return err
}

// recallAll adopts the processes of all sandboxes, and removes the files of removed ones.
func (f *Front) recallAll() {
	if f.cfg.Kept == nil {
		return
	}
	list, err := f.cfg.Kept.List(".")
	if err != nil {
		f.cfg.Log.Warn("cannot list the state of sandboxes", "error", err)
		return
	}
	for _, i := range list {
		id, ok := strings.CutSuffix(i.Name, ".json")
		if !ok {
			continue
		}
		_, err := f.find(cell.ID(id))
		if err == nil {
			f.box(cell.ID(id))
		}
		if cell.KindOf(err) == cell.NotFound {
			if err := f.cfg.Kept.Remove(i.Name); err != nil {
				f.cfg.Log.Warn("cannot forget a sandbox", "cell", id, "error", err)
			}
		}
	}
}
