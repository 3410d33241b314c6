package live

import (
	"hash/maphash"
	"sync"

	"github.com/pando-dev/pando/internal/cell"
)

// stripes are locks of cells for moments. Some cells share one: no caller holds those of two.
type stripes [64]sync.Mutex

var stripeSeed = maphash.MakeSeed()

// of is that of a cell.
func (l *stripes) of(id cell.ID) *sync.Mutex {
	return &l[maphash.String(stripeSeed, string(id))%uint64(len(l))]
}

// lock takes that of a cell, until unlock is called.
func (l *stripes) lock(id cell.ID) (unlock func()) {
	m := l.of(id)
	m.Lock()
	return m.Unlock
}
