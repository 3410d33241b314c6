package server

import (
	"sync"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

const (
	// deathsWait is how long "deaths" waits for news.
	deathsWait = 30 * time.Second
	// deathsKept is how many are told again to a daemon that asks from the
	// beginning.
	deathsKept = 8192
)

// deaths are the interpreters of a family that have ended, numbered from 1.
type deaths struct {
	mu   sync.Mutex // guards what follows
	list []cell.Death
	last int64         // number of the newest
	news chan struct{} // closed and replaced with each; nil when nothing waits
}

// add is told by drivers. It never blocks for long.
func (d *deaths) add(x cell.Death) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last++
	if len(d.list) == deathsKept {
		d.list = append(d.list[:0:0], d.list[deathsKept/2:]...)
	}
	d.list = append(d.list, x)
	if d.news != nil {
		close(d.news)
		d.news = nil
	}
}

// wait returns what is newer than since, once there is something, or nothing
// after a while or when quit is closed.
func (d *deaths) wait(since int64, quit <-chan struct{}) ([]cell.Death, int64) {
	late := time.NewTimer(deathsWait)
	defer late.Stop()
	for {
		d.mu.Lock()
		if since > d.last { // of another keeper
			since = 0
		}
		if fresh := min(d.last-since, int64(len(d.list))); fresh > 0 {
			list, last := append([]cell.Death(nil), d.list[int64(len(d.list))-fresh:]...), d.last
			d.mu.Unlock()
			return list, last
		}
		if d.news == nil {
			d.news = make(chan struct{})
		}
		last, news := d.last, d.news
		d.mu.Unlock()
		select {
		case <-news:
		case <-late.C:
			return nil, last
		case <-quit:
			return nil, last
		}
	}
}
