package guest

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/bound/boundtest"
)

// What a guest says in few bytes does not expand in the keeper.
func TestX02MessagesThatExpand(t *testing.T) {
	for _, list := range []string{"list", "ports", "known", "hazards", "draws"} {
		b := []byte(`{"` + list + `":[` + strings.Repeat("{},", maxJSON/3-10) + `{}]}`)
		boundtest.Allocates(t, 0, func() {
			var a answer
			if err := decode(b, &a); err == nil || !strings.Contains(err.Error(), "values") {
				t.Errorf("%s: %v", list, err)
			}
		})
	}
	most := []byte(`{"list":[` + strings.Repeat(`{"pid":1,"ppid":1,"state":"S","rss":1,"cpu_ms":1,"command":"sh"},`, 50_000) + `{}]}`)
	var a answer
	if err := decode(most, &a); err != nil || len(a.List) != 50_001 {
		t.Errorf("a list of 50,000 processes: %v", err)
	}
}

// A frame that claims a length allocates none of it.
func TestX02FramesThatClaim(t *testing.T) {
	for _, kind := range []frameType{frameData, frameAnswer, frameNote, frameAnswer | frameMore, frameGreet} {
		b := append(appendFrame(nil, kind, 1, nil)[:headerSize-4], 0xff, 0xff, 0xff, 0xff)
		if binary.BigEndian.Uint32(b[headerSize-4:]) != 1<<32-1 {
			t.Fatal("not the length")
		}
		boundtest.Allocates(t, 0, func() {
			if _, _, _, err := readFrame(bytes.NewReader(b), make([]byte, maxPayload)); err == nil {
				t.Error("it is taken")
			}
		})
	}
}
