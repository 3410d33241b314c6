package mcp

import (
	"context"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/pando-dev/pando/api"
)

// call is one call of a tool, and what it tells on its way.
type call struct {
	ctx   context.Context
	say   func(sdk.ProgressNotificationParams) // nil: nobody listens
	begun time.Time
	stop  context.CancelFunc
	done  sync.WaitGroup

	mu   sync.Mutex // guards what follows
	n    float64    // told so far: it only grows
	last time.Time
	text string // what was said last
}

// often is how often something is told at most.
const often = 200 * time.Millisecond

func newCall(ctx context.Context, req *sdk.CallToolRequest) *call {
	c := &call{ctx: ctx, begun: time.Now(), stop: func() {}}
	token := req.Params.GetProgressToken()
	if token == nil {
		return c
	}
	c.say = func(p sdk.ProgressNotificationParams) {
		p.ProgressToken = token
		req.Session.NotifyProgress(ctx, &p) // who has gone does not listen
	}
	beat, stop := context.WithCancel(ctx)
	c.stop = stop
	c.done.Go(func() {
		tick := time.NewTicker(Beat)
		defer tick.Stop()
		for {
			select {
			case <-beat.Done():
				return
			case <-tick.C:
				c.mu.Lock()
				c.send(sdk.ProgressNotificationParams{Message: c.text})
				c.mu.Unlock()
			}
		}
	})
	return c
}

// end stops telling.
func (c *call) end() {
	c.stop()
	c.done.Wait()
}

// tell says a line about the work, unless something was just said.
func (c *call) tell(text string) {
	if c.say == nil || text == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.text = text
	if time.Since(c.last) >= often {
		c.send(sdk.ProgressNotificationParams{Message: text})
	}
}

// progress tells what the daemon says of its work.
func (c *call) progress(p api.Progress) {
	text := p.Step
	if p.Note != "" {
		text += ": " + p.Note
	}
	c.tell(text)
}

// send is called with the lock held. What it counts are notifications: they must
// grow, whatever is counted in between.
func (c *call) send(p sdk.ProgressNotificationParams) {
	c.n++
	p.Progress, c.last = c.n, time.Now()
	c.say(p)
}

// lastLine is the last whole line of what a command wrote, for those who wait.
func lastLine(b []byte) string {
	end := len(b)
	for end > 0 && (b[end-1] == '\n' || b[end-1] == '\r') {
		end--
	}
	begin := end
	for begin > 0 && b[begin-1] != '\n' && end-begin < 200 {
		begin--
	}
	return valid(b[begin:end])
}
