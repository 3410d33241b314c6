package server

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/keeper/proto"
	"github.com/pando-dev/pando/internal/testenv"
)

// A client that comes after another one learns how much input the process was given: when
// all is fed that the earlier one had sent, and not before. Signals do not wait for that.
func TestInputIsTakenUpWhereItWas(t *testing.T) {
	k := newKit(t)
	k.start("p", "late")
	first, err := k.c.Attach(k.ctx, proto.Attachment{Proc: "p", Input: true})
	if err != nil {
		t.Fatal(err)
	}
	first.SetDeadline(time.Now().Add(testenv.Patience()))
	piece := bytes.Repeat([]byte("0123456789abcdef"), 2<<10)
	const pieces = 3 // more than a pipe holds, and less than a pipe and a socket
	for range pieces {
		if _, err := first.Write(api.AppendFrame(nil, api.Frame{Type: api.FrameStdin, Payload: piece})); err != nil {
			t.Fatal(err)
		}
	}
	first.Close()

	second, err := k.c.Attach(k.ctx, proto.Attachment{Proc: "p", Input: true})
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	second.SetDeadline(time.Now().Add(testenv.Patience()))
	second.Write(api.AppendFrame(nil, api.Frame{Type: api.FrameSignal, Payload: []byte("SIGINT")}))
	var buf []byte
	var out strings.Builder
	var taken []int64
	for {
		f, err := api.ReadFrame(second, &buf)
		if err != nil {
			t.Fatalf("the stream broke: %v; so far %d bytes, %v", err, out.Len(), taken)
		}
		if f.Type == api.FrameExit {
			break
		}
		switch f.Type {
		case api.FrameStdout:
			_, b, err := f.OutputData()
			if err != nil {
				t.Fatal(err)
			}
			out.Write(b)
		case api.FrameTaken:
			var n api.Taken
			if err := json.Unmarshal(f.Payload, &n); err != nil {
				t.Fatal(err)
			}
			if taken = append(taken, n.Bytes); len(taken) == 1 {
				second.Write(api.AppendFrame(nil, api.Frame{Type: api.FrameStdin, Payload: []byte("end")}))
			} else {
				second.Write(api.AppendFrame(nil, api.Frame{Type: api.FrameStdinEOF}))
			}
		}
	}
	all := int64(pieces * len(piece))
	if len(taken) != 2 || taken[0] != all || taken[1] != all+3 {
		t.Errorf("it is told %d, want %d and %d", taken, all, all+3)
	}
	if want := strings.Repeat(string(piece), pieces) + "end"; out.String() != want {
		t.Errorf("the process had %d bytes, want %d", out.Len(), len(want))
	}
}
