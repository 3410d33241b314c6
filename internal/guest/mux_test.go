package guest

import (
	"bytes"
	"encoding/binary"
	"io"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
)

// Each end bounds what it receives.
func TestBounds(t *testing.T) {
	room := func(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
	full := bytes.Repeat(appendFrame(nil, frameData, 1, make([]byte, maxPayload)), window/maxPayload)
	for name, in := range map[string][]byte{
		"more than there is room for": appendFrame(full, frameData, 1, []byte{1}),
		"more room than there is":     appendFrame(nil, frameRoom, 1, room(1)),
		"after the end":               appendFrame(appendFrame(nil, frameEnd, 1, nil), frameData, 1, []byte{1}),
		"a long frame":                {byte(frameData), 0, 0, 0, 1, 0, 1, 0, 1},
		"a long message":              bytes.Repeat(appendFrame(nil, frameAnswer|frameMore, 1, make([]byte, maxPayload)), maxJSON/maxPayload+1),
		"a message in a message":      appendFrame(appendFrame(nil, frameAnswer|frameMore, 1, []byte("{")), frameData, 1, []byte{1}),
		"an unknown frame":            appendFrame(nil, 77, 1, nil),
	} {
		m := newMux(bytes.NewReader(in), io.Discard)
		m.open(1)
		if _, _, _, err := m.next(make([]byte, maxPayload)); err == io.EOF || cell.KindOf(err) != cell.Unavailable {
			t.Errorf("%s: %v", name, err)
		}
	}
	m := newMux(bytes.NewReader(full), io.Discard)
	m.open(1)
	if _, _, _, err := m.next(make([]byte, maxPayload)); err != io.EOF {
		t.Errorf("as much as there is room for: %v", err)
	}
}

// An exit is one that the kernel could have told.
func TestExits(t *testing.T) {
	if e := plain(cell.Exit{Code: -1 << 20, Signal: "a lie", Cause: "memory limit"}); e != (cell.Exit{}) {
		t.Errorf("%+v", e)
	}
	if e := (cell.Exit{Code: 137, Signal: "SIGKILL"}); plain(e) != e {
		t.Errorf("%+v", plain(e))
	}
}
