package gateway

import (
	"io"
	"net/http"
	"sync"

	"github.com/pando-dev/pando/internal/agent/turn"
	"github.com/pando-dev/pando/internal/cell"
)

// This file counts what is used of models, by what their answers say: a cell can lie in its requests,
// but the answer comes from the service. It is told among what the cell asks, as a sum since the
// gateway was opened, so that nothing is lost or counted twice whichever daemon reads it.

// modelUse reads the answer to one request. A nil one does nothing.
type modelUse struct {
	upgrade bool

	mu     sync.Mutex // guards the fields below
	status int        // 0: no answer
	hidden bool       // the answer can't be read
	body   *turn.Use
}

// asksModel returns what reads the answer to a request; nil if it asks no model.
func asksModel(x *exchange, r *http.Request) *modelUse {
	upgrade := r.Header.Get("Upgrade") != ""
	if !turn.Asks(x.access.Path) || r.Method != http.MethodPost && !upgrade {
		return nil
	}
	return &modelUse{upgrade: upgrade, body: turn.NewUse()}
}

// lookInto returns the body of an answer without its encoding, or as it is if that is not known.
func (m *modelUse) lookInto(res *http.Response) io.Reader {
	from, err := lookInto(res)
	if err != nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.hidden = true
		return res.Body
	}
	return from
}

// answered notes that an answer begins.
func (m *modelUse) answered(status int) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.status = status
}

// answer returns a reader of the answer that reads along.
func (m *modelUse) answer(from io.Reader) io.Reader {
	if m == nil {
		return from
	}
	return io.TeeReader(from, m)
}

// Write implements io.Writer. It never fails.
func (m *modelUse) Write(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.hidden {
		return len(p), nil
	}
	return m.body.Write(p)
}

// end returns what was used; nil for nothing. A request that failed is one all the same; what goes on
// over a WebSocket is not seen.
func (m *modelUse) end() *cell.ModelUse {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.status == 0 || m.upgrade && m.status != http.StatusSwitchingProtocols && m.status/100 != 2 {
		return nil
	}
	u := m.body.Found()
	if m.status >= 300 {
		u.Unseen = 0
	}
	return &u
}

// uses adds what was used.
func (a *asks) uses(u *cell.ModelUse) {
	if u == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return
	}
	a.used = cell.AddUse(a.used, *u)
	a.news()
}
