package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pando-dev/pando/api"
)

// fakeLine is a connection: what comes over it, until it breaks, and what was sent.
type fakeLine struct {
	frames chan api.Frame // closed: it breaks

	mu   sync.Mutex // guards sent
	sent []string
}

func (f *fakeLine) Recv(ctx context.Context) (api.Frame, error) {
	select {
	case x, ok := <-f.frames:
		if ok {
			return x, nil
		}
		return x, io.EOF
	case <-ctx.Done():
		return api.Frame{}, ctx.Err()
	}
}

func (f *fakeLine) Send(_ context.Context, x api.Frame) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent = append(f.sent, string(x.Type)+string(x.Payload))
	return nil
}

func (f *fakeLine) Close() {}

func (f *fakeLine) all() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.sent, " ")
}

func newLine() *fakeLine { return &fakeLine{frames: make(chan api.Frame, 16)} }

func tookFrame(n int) api.Frame {
	return api.Frame{Type: api.FrameTaken, Payload: fmt.Appendf(nil, `{"bytes":%d}`, n)}
}

// linked returns an app with a stream over several connections, one after the other.
type linked struct {
	*link
	out  strings.Builder
	done chan error
}

func follow(t *testing.T, l *link) *linked {
	t.Helper()
	x := &linked{link: l, done: make(chan error, 1)}
	a := &app{stderr: io.Discard, told: map[string]bool{}}
	go func() {
		_, err := a.carry(t.Context(), l, &x.out, io.Discard)
		l.close()
		x.done <- err
	}()
	synctest.Wait()
	return x
}

// After a connection was lost, the stream goes on over the next one: output from where it was, input
// behind what has arrived, and signals that were given meanwhile.
func TestLinkGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := newLine(), newLine()
		l := newLink(one, false)
		began := time.Now()
		var up atomic.Bool
		l.what, l.alive, l.ended = "run r-1", func(context.Context) bool { return up.Load() }, func() bool { return false }
		var from []int64
		var after time.Duration
		l.again = func(_ context.Context, stdout, stderr int64) (attachment, error) {
			from, after = append(from, stdout, stderr), time.Since(began)
			return two, nil
		}
		x := follow(t, l)
		ctx := t.Context()
		one.frames <- api.Output(api.FrameStdout, 0, []byte("ab"))
		one.frames <- api.Output(api.FrameStderr, 0, []byte("error"))
		one.frames <- tookFrame(0)
		synctest.Wait()
		l.input(ctx, []byte("12345"))
		l.inputEnds(ctx)
		one.frames <- tookFrame(2)
		synctest.Wait()
		if got := one.all(); got != "i12345 e" {
			t.Errorf("to the first connection went %q", got)
		}
		close(one.frames)
		synctest.Wait()
		time.Sleep(time.Second)
		l.tell(ctx, api.Frame{Type: api.FrameSignal, Payload: []byte("SIGINT")})
		synctest.Wait()
		if len(from) > 0 {
			t.Errorf("after %s it has started a daemon itself", after)
		}
		up.Store(true)
		time.Sleep(time.Second)
		synctest.Wait()
		if d := cmp.Diff([]int64{2, 5}, from); d != "" {
			t.Fatal(d)
		}
		two.frames <- api.Output(api.FrameStdout, 1, []byte("bcd"))
		two.frames <- api.Output(api.FrameStderr, 2, []byte("ror"))
		synctest.Wait()
		if got := two.all(); got != "sSIGINT" {
			t.Errorf("before it is known what had arrived, the second connection gets %q", got)
		}
		two.frames <- tookFrame(3)
		synctest.Wait()
		if got := two.all(); got != "sSIGINT i45 e" {
			t.Errorf("to the second connection went %q", got)
		}
		two.frames <- api.Frame{Type: api.FrameResult}
		if err := <-x.done; err != nil || x.out.String() != "abcd" {
			t.Errorf("%q, %v", x.out.String(), err)
		}
		if n := l.missing(api.Outputs{Stdout: api.Output1{Bytes: 10}, Stderr: api.Output1{Bytes: 5}}); n != 6 {
			t.Errorf("%d bytes are missing", n)
		}
	})
}

// Input that is beyond what may be under way waits.
func TestLinkHoldsInputBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := newLine()
		l := newLink(one, false)
		x := follow(t, l)
		one.frames <- tookFrame(0)
		synctest.Wait()
		l.input(t.Context(), make([]byte, inputWindow))
		more := make(chan bool, 1)
		go func() { more <- l.input(t.Context(), []byte("more")) }()
		synctest.Wait()
		if len(more) > 0 || strings.Contains(one.all(), "more") {
			t.Error("more input is under way than may be")
		}
		one.frames <- tookFrame(10)
		if ok := <-more; !ok || !strings.Contains(one.all(), "more") {
			t.Error("the input does not go on")
		}
		close(one.frames)
		if err := <-x.done; !errors.Is(err, io.EOF) {
			t.Errorf("a stream that is not taken up again ends with %v", err)
		}
		if l.input(t.Context(), []byte("x")) {
			t.Error("it takes input after its end")
		}
	})
}

// No daemon, another error, or a user's detaching ends it.
func TestLinkEnds(t *testing.T) {
	gone := &api.Error{Kind: "unavailable", Message: "gone"}
	for name, c := range map[string]struct {
		again  error
		told   bool          // the daemon, to end
		letGo  time.Duration // 0: the user stays
		want   string
		within time.Duration
	}{
		"no daemon":     {gone, false, 0, "EOF", reconnectWindow + 2*time.Second},
		"no such run":   {&api.Error{Kind: "not-found", Message: "no run r-1"}, false, 0, "no run r-1", othersStart + 2*time.Second},
		"a person":      {gone, false, time.Second, "EOF", 2 * time.Second},
		"other trouble": {errors.New("broken pipe"), false, 0, "EOF", reconnectWindow + 2*time.Second},
		"daemon stop":   {nil, true, 0, "EOF", reconnectWindow + 2*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				one := newLine()
				l := newLink(one, false)
				l.alive, l.ended = func(context.Context) bool { return false }, func() bool { return c.told }
				tries := 0
				l.again = func(context.Context, int64, int64) (attachment, error) {
					tries++
					return nil, c.again
				}
				began := time.Now()
				if c.letGo > 0 {
					time.AfterFunc(c.letGo, l.close)
				}
				x := follow(t, l)
				close(one.frames)
				err := <-x.done
				if err == nil || !strings.Contains(err.Error(), c.want) || time.Since(began) > c.within {
					t.Errorf("%v after %s and %d tries", err, time.Since(began), tries)
				}
				if (tries > 0) != (c.letGo == 0 && !c.told) {
					t.Errorf("it has tried %d times", tries)
				}
			})
		})
	}
}

// What `pando send` types is typed once and whole, also when the daemon ends between the text and its Enter,
// and when it has taken a part of the text.
func TestSendGoesOn(t *testing.T) {
	for _, took := range []int{0, 2, 4} {
		synctest.Test(t, func(t *testing.T) {
			one, two := newLine(), newLine()
			l := newLink(one, true)
			l.what, l.alive, l.ended = "run r-1", func(context.Context) bool { return true }, func() bool { return false }
			l.again = func(context.Context, int64, int64) (attachment, error) { return two, nil }
			defer l.close()
			a := &app{stderr: io.Discard}
			type end struct {
				sent int64
				err  error
			}
			done := make(chan end, 1)
			go func() {
				n, err := a.typeOver(t.Context(), l, []string{"word", "\r"})
				done <- end{n, err}
			}()
			one.frames <- tookFrame(0)
			synctest.Wait()
			if got := one.all(); got != "iword" {
				t.Errorf("to the first connection went %q", got)
			}
			close(one.frames)
			time.Sleep(time.Minute)
			two.frames <- tookFrame(took)
			synctest.Wait()
			two.frames <- tookFrame(4)
			synctest.Wait()
			if got, want := strings.ReplaceAll(two.all(), " i", ""), "i"+"word"[took:]+"\r"; got != want {
				t.Errorf("after %d bytes %q went to the second connection, not %q", took, got, want)
			}
			two.frames <- tookFrame(5)
			if got := <-done; got.sent != 5 || got.err != nil {
				t.Errorf("%d bytes, %v", got.sent, got.err)
			}
		})
	}
}
