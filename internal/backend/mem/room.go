package mem

import (
	"context"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
)

// room is a cell. Host.mu guards all mutable state.
type room struct {
	host  *Host
	id    cell.ID
	spec  cell.Spec
	known cell.Assurance

	gone     bool
	tasks    map[int]*task
	commands map[string]*command // by name; nil: it is being started
	frozen   chan struct{}       // closed by Thaw; nil: not frozen
	acting   int                 // number of changes in progress
	still    chan struct{}       // closed when acting is 0, if freeze waits for it
	written  int64               // bytes since the files were counted
}

// check fails if the cell was removed. The caller holds Host.mu.
func (r *room) check(op string) error {
	if r.gone {
		return cell.Errorf(cell.NotFound, op, "", "no cell %s", r.id)
	}
	return nil
}

// real maps a path of the cell to its path on the host. owned reports whether it is in one of
// the cell's own directories.
func (r *room) real(p string) (path string, owned bool) {
	for i := len(r.spec.Mounts) - 1; i >= 0; i-- {
		m := r.spec.Mounts[i]
		if rest, below := strings.CutPrefix(p+"/", m.Target+"/"); below && m.Kind == cell.Bind && m.Owned && !m.ReadOnly {
			return strings.TrimSuffix(m.Source+"/"+rest, "/"), true
		}
	}
	return p, false
}

// act runs f while the cell is not frozen, unless the task has ended.
func (r *room) act(ctx context.Context, f func()) error {
	r.host.mu.Lock()
	for r.frozen != nil && ctx.Err() == nil {
		thawed := r.frozen
		r.host.mu.Unlock()
		select {
		case <-thawed:
		case <-ctx.Done():
		}
		r.host.mu.Lock()
	}
	if err := ctx.Err(); err != nil {
		r.host.mu.Unlock()
		return err
	}
	r.acting++
	r.host.mu.Unlock()
	defer func() {
		r.host.mu.Lock()
		defer r.host.mu.Unlock()
		if r.acting--; r.acting == 0 && r.still != nil {
			close(r.still)
			r.still = nil
		}
	}()
	f()
	return nil
}

// freeze returns when no task changes anything any more.
func (r *room) freeze() error {
	r.host.mu.Lock()
	defer r.host.mu.Unlock()
	if err := r.check("mem.Freeze"); err != nil {
		return err
	}
	if r.frozen == nil {
		r.frozen = make(chan struct{})
	}
	for r.acting > 0 {
		if r.still == nil {
			r.still = make(chan struct{})
		}
		still := r.still
		r.host.mu.Unlock()
		<-still
		r.host.mu.Lock()
	}
	return nil
}

func (r *room) thaw() error {
	r.host.mu.Lock()
	defer r.host.mu.Unlock()
	if r.frozen != nil {
		close(r.frozen)
		r.frozen = nil
	}
	return r.check("mem.Thaw")
}

// living lists the tasks of a cell, or of one command.
func (r *room) living(of *command) (list []*task) {
	r.host.mu.Lock()
	defer r.host.mu.Unlock()
	for _, t := range r.tasks {
		if of == nil || t.of == of {
			list = append(list, t)
		}
	}
	return list
}

// killAll kills the tasks of a cell, or of one command, and returns their number.
func (r *room) killAll(of *command) (n int) {
	for {
		list := r.living(of)
		if len(list) == 0 {
			return n
		}
		n = max(n, len(list))
		for _, t := range list {
			t.signal("SIGKILL")
		}
		for _, t := range list {
			<-t.done
		}
	}
}

// blame sets the cause of all commands that end from now on.
func (r *room) blame(cause string) {
	r.host.mu.Lock()
	defer r.host.mu.Unlock()
	for _, c := range r.commands {
		if c != nil && c.cause == "" {
			c.cause = cause
		}
	}
}

// wrote counts written bytes. Amounts below a fraction of the limit are checked only at the end
// of the command.
func (r *room) wrote(n int64) {
	r.host.mu.Lock()
	r.written += n
	much := r.written >= max(r.spec.Limits.Disk/16, 1<<20)
	r.host.mu.Unlock()
	if much {
		r.look()
	}
}

// look counts the cell's files, and kills its commands above the limit.
func (r *room) look() {
	if r.spec.Limits.Disk <= 0 || r.spec.Sized {
		return
	}
	r.host.mu.Lock()
	r.written = 0
	r.host.mu.Unlock()
	var used int64
	for _, dir := range r.spec.Writes {
		filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil {
				return nil
			}
			if st, err := e.Info(); err == nil {
				used += st.Sys().(*syscall.Stat_t).Blocks * 512
			}
			return nil
		})
	}
	if used <= r.spec.Limits.Disk {
		return
	}
	r.host.mu.Lock()
	for _, c := range r.commands {
		if c != nil {
			c.emit("limit.disk", map[string]any{"limit": r.spec.Limits.Disk, "used": used})
		}
	}
	r.host.mu.Unlock()
	r.blame(api.CauseDiskLimit)
	for _, t := range r.living(nil) {
		t.signal("SIGKILL") // the caller may be one of them, so it is not waited for
	}
}
