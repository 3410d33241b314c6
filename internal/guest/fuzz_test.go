package guest

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/bound/boundtest"
	"github.com/pando-dev/pando/internal/cell"
)

// FuzzLyingGuest is a keeper with a guest that knew the token and says anything:
// each question gets an answer or an error, and what came is bounded.
func FuzzLyingGuest(f *testing.F) {
	frame := func(t frameType, id uint32, v any) []byte {
		b, ok := v.([]byte)
		if !ok {
			b, _ = json.Marshal(v)
		}
		return appendFrame(nil, t, id, b)
	}
	cat := func(list ...[]byte) (all []byte) {
		for _, b := range list {
			all = append(all, b...)
		}
		return all
	}
	f.Add([]byte{})
	f.Add(cat(frame(frameAnswer, 1, answer{PID: 3}), frame(frameNote, 0, note{Ended: "a"}), frame(frameAnswer, 2, answer{Count: -1})))
	for id := uint32(1); id < 12; id++ {
		f.Add(cat(frame(frameAnswer, 5, answer{PID: 3}), frame(frameData, id, make([]byte, 70)), frame(frameRoom, id, []byte{0xff, 0, 0, 0}), frame(frameEnd, id, nil)))
		f.Add(cat(frame(frameAnswer, id, answer{PID: -3, List: make([]cell.ProcessInfo, 9)}), frame(frameStop, id, nil), frame(frameData, id, make([]byte, maxPayload))))
	}
	f.Add(cat(frame(frameAnswer|frameMore, 1, []byte(`{"pid"`)), frame(frameAnswer, 1, []byte(`:7}`)), frame(frameAnswer|frameMore, 2, []byte(`{`)), frame(frameNote, 2, []byte(`{}`))))
	f.Add([]byte{byte(frameData), 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff})
	f.Add(frame(frameGreet, 0, greeting{}))
	f.Fuzz(func(t *testing.T, said []byte) {
		boundtest.Allocates(t, len(said), func() {
			c, theirs := net.Pipe()
			go func() {
				g, err := readGreeting(theirs)
				if err == nil {
					_, err = greetKeeper(theirs, g, testToken, nil)
				}
				if err != nil {
					theirs.Close()
					return
				}
				if _, err := theirs.Read(make([]byte, 1)); err == nil { // something is asked
					go io.Copy(io.Discard, theirs)
					theirs.Write(said)
				}
				theirs.Close()
			}()
			cl, err := Connect(t.Context(), c, testToken)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			var wg sync.WaitGroup
			wg.Go(func() {
				out, out2 := pipe(t, 0)
				wg.Go(func() { io.Copy(io.Discard, out) })
				p, err := cl.Start(ctx, sh("a", ""), [3]*os.File{nil, out2, out2}, nil)
				out2.Close()
				if err == nil {
					p.Signal("SIGTERM")
					if exit, _ := p.Wait(func() {}); exit.Code < 0 || exit.Code > 255 {
						t.Errorf("an exit of %+v", exit)
					}
				}
			})
			wg.Go(func() { cl.List(ctx) })
			wg.Go(func() { cl.Ports(ctx) })
			wg.Go(func() { cl.ReadFiles(ctx, "/x", io.Discard) })
			wg.Go(func() {
				if conn, err := cl.Dial(ctx, 80); err == nil {
					io.Copy(io.Discard, conn)
					conn.Close()
				}
			})
			wg.Wait()
			if ctx.Err() != nil {
				t.Error("somebody waits for ever")
			}
			cl.Close()
			cl.m.mu.Lock()
			defer cl.m.mu.Unlock()
			if len(cl.m.streams) > 0 {
				t.Errorf("%d streams are left", len(cl.m.streams))
			}
		})
	})
}

// FuzzStrangeGuest is what comes instead of a greeting.
func FuzzStrangeGuest(f *testing.F) {
	f.Add([]byte{})
	f.Add(appendFrame(nil, frameGreet, 0, []byte(`{"version":1,"nonce":"AAAA"}`)))
	f.Add(appendFrame(nil, frameGreet, 0, []byte(`{"error":{"kind":"denied"}}`)))
	f.Fuzz(func(t *testing.T, said []byte) {
		boundtest.Allocates(t, len(said), func() {
			c, theirs := net.Pipe()
			go io.Copy(io.Discard, theirs)
			go func() { theirs.Write(said); theirs.Close() }()
			if _, err := Connect(t.Context(), c, testToken); err == nil {
				t.Error("it is believed")
			}
		})
	})
}
