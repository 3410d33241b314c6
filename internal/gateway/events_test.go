package gateway

import (
	"fmt"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
)

// TestAFloodHidesNoEffect: what is told as one beyond a flood is told apart by
// what was said about it.
func TestAFloodHidesNoEffect(t *testing.T) {
	count := map[cell.Effect]int64{}
	e := newEvents(func(_ string, fields any) {
		d := fields.(cell.Decided)
		count[d.Decision.Effect] += max(d.Count, 1)
	}, func(cell.Access, cell.Decision) {})
	say := func(i int, effect cell.Effect) {
		e.decided(cell.Decided{Access: cell.Access{Act: cell.Connect, Host: fmt.Sprint(i), Port: 443}, Decision: cell.Decision{Effect: effect}})
	}
	for i := range maxGather {
		say(i, cell.Deny)
	}
	for i := range 500 {
		say(maxGather+2*i, cell.Allow)
		say(maxGather+2*i+1, cell.Deny)
	}
	e.close()
	if count[cell.Allow] != 500 || count[cell.Deny] != maxGather+500 {
		t.Errorf("told: %v", count)
	}
}
