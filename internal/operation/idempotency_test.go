package operation

import (
	"strconv"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/durable"
)

// A request that was in progress when the daemon ended is not begun again unseen: it is given to
// the first repetition, which finds out what became of it, or leaves it as it is.
func TestC32BrokenOffRequestsAreFoundOut(t *testing.T) {
	dir := t.TempDir()
	o, err := OpenKeys(durable.Disk(dir), "keys.log")
	if err != nil {
		t.Fatal(err)
	}
	first, mine, err := o.begin("k", "a", nil)
	if !mine || err != nil || first.Again() || len(o.Open()) > 0 {
		t.Fatal(mine, err, o.Open())
	}
	o.Close()
	if o, err = OpenKeys(durable.Disk(dir), "keys.log"); err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	if open := o.Open(); len(open) != 1 || open[0] != first.ID {
		t.Errorf("%v are open, want %s", open, first.ID)
	}
	for range 2 {
		d, mine, err := o.begin("k", "a", nil)
		if err != nil || !mine || !d.Again() || d.ID != first.ID {
			t.Fatal(d, mine, err)
		}
		o.Leave(d)
	}
	d, _, _ := o.begin("k", "a", nil)
	if err := o.End(d, &Answer{Body: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	if d, mine, err := o.begin("k", "a", nil); err != nil || mine || string(d.Body) != "x" {
		t.Errorf("%v %v %v", d, mine, err)
	}
}

// When there are too many keys the oldest make place; none of the last minutes
// does, and then a new one is refused.
func TestC32OldKeysMakePlace(t *testing.T) {
	fill := func(age time.Duration) *Keys {
		o := &Keys{all: map[string]*Keyed{}}
		for i := range onceKeys {
			o.take(&Keyed{At: time.Now().Add(-age + time.Duration(i)), Key: strconv.Itoa(i), Over: true, Answer: Answer{Body: []byte("x")}})
		}
		return o
	}
	o := fill(onceLeast + time.Minute)
	if !o.room(time.Now()) || len(o.all) != onceKeys*9/10-1 && len(o.all) != onceKeys*9/10 || o.all["0"] != nil || o.all[strconv.Itoa(onceKeys-1)] == nil || o.bytes != len(o.all) {
		t.Errorf("%d keys, %d bytes are left; the oldest: %v", len(o.all), o.bytes, o.all["0"])
	}
	if o := fill(onceLeast - time.Minute); o.room(time.Now()) || len(o.all) != onceKeys {
		t.Errorf("young keys were forgotten: %d are left", len(o.all))
	}
}
