package server

import (
	"encoding/json"
	"sync"

	"github.com/pando-dev/pando/api"
)

// intake counts the standard input that the clients of a process have fed, one after the
// other. The zero value is ready.
type intake struct {
	mu    sync.Mutex // guards what follows
	bytes int64
	last  chan struct{} // closed when the newest client, and all before it, have fed what they sent
}

// join begins a client. earlier is closed when what the clients before it had sent is fed,
// which may take until the process reads it; leave says that its own is.
func (i *intake) join() (earlier <-chan struct{}, leave func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	before, mine := i.last, make(chan struct{})
	if before == nil {
		before = make(chan struct{})
		close(before)
	}
	i.last = mine
	return before, func() {
		go func() {
			<-before
			close(mine)
		}()
	}
}

func (i *intake) add(n int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.bytes += int64(n)
}

// tell sends a client how much came: first when nothing of earlier clients is under way, and
// then whenever took says that there is more, until stop.
func (i *intake) tell(out *frameWriter, earlier, took, stop <-chan struct{}) {
	select {
	case <-earlier:
	case <-stop:
		return
	}
	for {
		i.mu.Lock()
		b, _ := json.Marshal(api.Taken{Bytes: i.bytes})
		i.mu.Unlock()
		if out.write(api.Frame{Type: api.FrameTaken, Payload: b}) != nil {
			return
		}
		select {
		case <-took:
		case <-stop:
			return
		}
	}
}

// maxIntakes bounds how many clients of a process are counted by themselves. Those beyond
// it are counted together, as those without a name are.
const maxIntakes = 256

// intakes has the intake of each client of a process. The zero value is ready.
type intakes struct {
	mu sync.Mutex // guards what follows
	by map[string]*intake
}

// of is the intake of the client with a name; "" is that of all that have none.
func (i *intakes) of(name string) *intake {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.by == nil {
		i.by = map[string]*intake{}
	}
	if _, known := i.by[name]; !known && len(i.by) >= maxIntakes {
		name = ""
	}
	if i.by[name] == nil {
		i.by[name] = &intake{}
	}
	return i.by[name]
}
