package gateway

import (
	"io"
	"strings"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// Crowd is how many connections may have large buffers.
const Crowd = crowd

// MaxNew is how many questions a cell may have within a minute.
const MaxNew = maxNew

// Buffers returns the sizes of the buffers of all connections.
func (g *Gateway) Buffers() (list []int64) {
	for _, c := range g.conns.all() {
		c.mu.Lock()
		if c.ep != nil {
			o := c.ep.SocketOptions()
			list = append(list, o.GetSendBufferSize()+o.GetReceiveBufferSize())
		}
		c.mu.Unlock()
	}
	return list
}

// Most returns how many connections and requests there may be at once.
func (g *Gateway) Most() (conns, requests int) { return g.conns.max, cap(g.web.busy) }

// RefuseFor sets how long a connection to a denied name may live, and returns how
// many there may be.
func (g *Gateway) RefuseFor(d time.Duration) (most int) {
	g.refuseFor = d
	return maxRefusing
}

// Redacted is what the cell sees of a text that a host sends which knows a value.
func Redacted(l cell.Lent, text string) (string, error) {
	list, err := newLent([]cell.Lent{l})
	if err != nil {
		return "", err
	}
	b, err := io.ReadAll(newRedactor(strings.NewReader(text), list))
	return string(b), err
}

// RefusedTypes returns how many types of questions are kept of denied names.
func (g *Gateway) RefusedTypes() (n int) {
	g.refused.mu.Lock()
	defer g.refused.mu.Unlock()
	for _, r := range g.refused.byName {
		n += len(r.types)
	}
	return n
}
