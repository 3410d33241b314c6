package spawn

import (
	"context"
	"strconv"

	"github.com/pando-dev/pando/internal/cell"
)

// What may have a name already: see taken.
const (
	TakenByCell     = "cell"
	takenByTemplate = "template"
)

// taken says what has a name; "" for nothing. The caller holds m.mu.
func (m *Manager) taken(name string) string {
	if _, ok := m.reg.Named(name); ok || m.names[name] != nil {
		return TakenByCell
	}
	if _, err := m.reg.Template(name); err == nil || m.building[name] {
		return takenByTemplate
	}
	return ""
}

// Name gives a name to a new cell: commit, which records it, is called with what has the name
// already, "" for nothing. Names are not given otherwise until it returns.
func (m *Manager) Name(name string, commit func(taken string) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return commit(m.taken(name))
}

// AwaitName waits until forks that are being made under a name are there, or are not made. It
// reports whether there were any.
func (m *Manager) AwaitName(ctx context.Context, name string) (bool, error) {
	m.mu.Lock()
	ended := m.names[name]
	m.mu.Unlock()
	if ended == nil {
		return false, nil
	}
	select {
	case <-ended:
		return true, nil
	case <-ctx.Done():
		return true, context.Cause(ctx)
	}
}

// claimNames chooses the names of forks and keeps others from taking them until
// done is called.
func (m *Manager) claimNames(of, asked string, count int) (names []string, done func(), err error) {
	return m.claimNumbered(of, of+"-", asked, count)
}

// claimNumbered is claimNames, with numbers behind stem when no name is asked
// for.
func (m *Manager) claimNumbered(of, stem, asked string, count int) (names []string, done func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if asked != "" {
		stem = asked + "-"
	}
	if asked != "" && count == 1 {
		names = append(names, asked)
	}
	for i := 1; asked != "" && len(names) < count; i++ {
		names = append(names, stem+strconv.Itoa(i))
	}
	if len(names) < count {
		for i := range m.reg.NumbersOf(stem) {
			if n := stem + strconv.Itoa(i); m.taken(n) == "" {
				names = append(names, n)
			}
			if len(names) == count {
				break
			}
		}
	}
	for _, n := range names {
		if err := cell.CheckName(n); err != nil {
			return nil, nil, err
		}
		if what := m.taken(n); what != "" {
			kind := cell.Exists
			if m.names[n] != nil {
				kind = cell.Conflict
			}
			return nil, nil, cell.Errorf(kind, "spawn.claimNames", "choose another --name", "cannot fork %s: %s %s exists", of, what, n)
		}
	}
	ended := make(chan struct{})
	for _, n := range names {
		m.names[n] = ended
	}
	return names, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, n := range names {
			delete(m.names, n)
		}
		close(ended)
	}, nil
}
