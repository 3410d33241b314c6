package operation

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
)

// What was under way when the daemon ended is not begun again.
func TestC32UnknownOutcomesAreSaid(t *testing.T) {
	dir := t.TempDir()
	o, err := OpenKeys(durable.Disk(dir), "keys.log")
	if err != nil {
		t.Fatal(err)
	}
	if _, mine, err := o.begin("k", "a", nil); !mine || err != nil {
		t.Fatal(mine, err)
	}
	o.Close()
	if o, err = OpenKeys(durable.Disk(dir), "keys.log"); err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	if _, _, err := o.begin("k", "a", nil); cell.KindOf(err) != cell.Conflict || !strings.Contains(err.Error(), "outcome is unknown") {
		t.Errorf("%v", err)
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
