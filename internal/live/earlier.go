package live

import (
	"context"
	"strings"
	"sync"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
)

// An earlierExec is a command that an earlier daemon started outside runs.
type earlierExec struct {
	name string
	proc backend.Process
	st   cell.Status
}

// earlierExecs are those of a living cell. It fails when the cell's keeper does not answer.
func (m *Manager) earlierExecs(ctx context.Context, inst backend.Instance) (list []earlierExec, err error) {
	names, err := Ask(ctx, inst, inst.Names)
	if silent(ctx, err) {
		return nil, err
	}
	if err != nil {
		m.cfg.Log.Warn("cannot find the commands of a cell", "cell", inst.ID(), "error", err)
	}
	for _, name := range names {
		if !strings.HasPrefix(name, execPrefix) {
			continue
		}
		x := earlierExec{name: name}
		x.proc, err = Ask(ctx, inst, func(ctx context.Context) (backend.Process, error) { return inst.Process(ctx, name) })
		if err == nil {
			x.st, err = Ask(ctx, inst, x.proc.Status)
		}
		switch {
		case err == nil:
			list = append(list, x)
		case silent(ctx, err):
			return nil, err
		case cell.KindOf(err) != cell.NotFound: // else its client has got its end in this moment
			m.cfg.Log.Warn("cannot follow a command", "cell", inst.ID(), "command", name, "error", err)
		}
	}
	return list, nil
}

// putEarlier has an instance be that of a cell, with its interpreter and those commands: a
// client that waited for one can come back, and read on from where it was.
func (m *Manager) putEarlier(id cell.ID, inst backend.Instance, it *Interp, list []earlierExec) {
	execs := make([]*Exec, len(list))
	for i, was := range list {
		x := m.newExec(was.name, id, was.st.Started)
		x.inst, x.proc, x.command = inst, was.proc, m.cfg.Redactor.Args(was.st.Args)
		execs[i] = x
	}
	m.put(id, inst, it, execs...)
	for i, x := range execs {
		m.attend(x, list[i].st.Awaited, sync.OnceFunc(func() { m.release(id) }))
	}
}
