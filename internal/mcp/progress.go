package mcp

import (
	"context"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/pando-dev/pando/api"
)

// call is one call of a tool, with its progress.
type call struct {
	ctx   context.Context
	say   func(sdk.ProgressNotificationParams) // nil: the caller wants none
	begun time.Time
	stop  context.CancelFunc
	done  sync.WaitGroup

	mu   sync.Mutex // guards the fields below
	n    float64    // notifications so far: it only grows
	last time.Time
	text string // the last text
}

// often is the minimum time between notifications.
const often = 200 * time.Millisecond

func newCall(ctx context.Context, req *sdk.CallToolRequest) *call {
	c := &call{ctx: ctx, begun: time.Now(), stop: func() {}}
	token := req.Params.GetProgressToken()
	if token == nil {
		return c
	}
	c.say = func(p sdk.ProgressNotificationParams) {
		p.ProgressToken = token
		req.Session.NotifyProgress(ctx, &p) // an error means that the caller has disconnected
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

// end stops notifications.
func (c *call) end() {
	c.stop()
	c.done.Wait()
}

// tell sends a line about the work, unless one was just sent.
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

// progress passes on the daemon's progress.
func (c *call) progress(p api.Progress) {
	text := p.Step
	if p.Note != "" {
		text += ": " + p.Note
	}
	c.tell(text)
}

// send is called with mu held. Progress counts notifications, since it must grow, whatever the
// work counts.
func (c *call) send(p sdk.ProgressNotificationParams) {
	c.n++
	p.Progress, c.last = c.n, time.Now()
	c.say(p)
}

// lastLine returns the last complete line of an output, as progress.
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
