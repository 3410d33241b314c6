package server

import (
	"bytes"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/terminal/screen"
	"github.com/pando-dev/pando/internal/testenv"
)

// onScreen is an output of a terminal.
func onScreen(limit int64) *Output {
	o := newOutput("stdout", nil, &cell.Start{LogLimit: limit})
	o.screen = screen.New(10, 40)
	return o
}

// look streams an output into a connection as a client of a terminal gets it.
func look(t *testing.T, o *Output, v view, from int64) net.Conn {
	t.Helper()
	here, there := net.Pipe()
	here.SetDeadline(time.Now().Add(testenv.Patience()))
	stop := make(chan struct{})
	began := make(chan struct{})
	t.Cleanup(func() { close(stop); here.Close(); there.Close() })
	go func() {
		close(began)
		o.stream(&frameWriter{c: there}, api.FrameStdout, from, v, stop)
		there.Close()
	}()
	<-began
	return here
}

// frames are what came up to the end of the output: each as its type, its offset and its data;
// parts of one screen are one.
func frames(t *testing.T, c net.Conn) (got []string) {
	t.Helper()
	var buf []byte
	for {
		f, err := api.ReadFrame(c, &buf)
		if err != nil {
			return got
		}
		if f.Type == api.FrameGap {
			got = append(got, "g "+string(f.Payload))
			continue
		}
		at, b, err := f.OutputData()
		if err != nil {
			t.Fatal(err)
		}
		if f.Type == api.FrameScreen && len(b) > 0 {
			got[len(got)-1] += string(b)
			continue
		}
		got = append(got, fmt.Sprintf("%c %d %s", f.Type, at, b))
	}
}

// A client that attaches gets the screen, and then what comes: nothing twice, and nothing of
// what it replaces.
func TestX39AttachBeginsWithTheScreen(t *testing.T) {
	o := onScreen(1 << 20)
	o.add([]byte("gone\x1b[2J\x1b[Hthere "))
	o.add([]byte(strings.Repeat("x", 30) + "\r\n"))
	s, at, _, drawn := o.subscribe(screenFirst, 0)
	o.unsubscribe(s)
	if at != 49 || !bytes.Contains(drawn, []byte("there xxx")) || bytes.Contains(drawn, []byte("gone")) {
		t.Errorf("at %d the screen is %q", at, drawn)
	}
	c := look(t, o, screenFirst, 0)
	testenv.Eventually(t, func() bool { o.mu.Lock(); defer o.mu.Unlock(); return len(o.subs) == 1 }, "a client")
	o.add([]byte("more"))
	o.close()
	got := frames(t, c)
	if len(got) != 2 || !strings.HasPrefix(got[0], "S 49 ") || !strings.Contains(got[0], "there xxx") || got[1] != "o 49 more" {
		t.Errorf("%q", got)
	}
}

// Bytes that are no longer kept are replaced by the screen for a client with a terminal, and
// named for one without.
func TestX39ScreenInsteadOfAGap(t *testing.T) {
	o := onScreen(10)
	o.add([]byte("0123456789abcdef"))
	o.close()
	if got := frames(t, look(t, o, redraws, 4)); len(got) != 1 || !strings.HasPrefix(got[0], "S 16 ") || !strings.Contains(got[0], "0123456789abcdef") {
		t.Errorf("with a terminal: %q", got)
	}
	if got := frames(t, look(t, o, redraws, 16)); len(got) != 0 {
		t.Errorf("with a terminal, after all of it: %q", got)
	}
	if got := frames(t, look(t, o, noScreen, 4)); !slices.Equal(got, []string{"o 4 456789", `g {"stream":"stdout","bytes":6}`}) {
		t.Errorf("without: %q", got)
	}
}

// Of several clients one that takes nothing holds no other back: it gets the screen when it
// takes something again.
func TestX39SlowClientsHoldNobodyBack(t *testing.T) {
	o := onScreen(1 << 10)
	slow, _, _, _ := o.subscribe(redraws, 0)
	quick := look(t, o, redraws, 0)
	testenv.Eventually(t, func() bool { o.mu.Lock(); defer o.mu.Unlock(); return len(o.subs) == 2 }, "both clients")
	wrote := make(chan struct{})
	go func() {
		defer close(wrote)
		for range 3 * queueLimit / 1024 {
			o.add(bytes.Repeat([]byte("y"), 1024))
		}
		o.add([]byte("\x1b[2J\x1b[Hlast"))
		o.close()
	}()
	if got := frames(t, quick); len(got) < 3*queueLimit/1024 {
		t.Errorf("the quick one got %d frames", len(got))
	}
	testenv.Receive(t, wrote, "the end of what is written")
	p, ok := o.next(slow)
	if !ok || !p.screen || p.offset != o.bytes || !bytes.Contains(p.data, []byte("last")) {
		t.Errorf("the slow one gets %v: %.100q", ok, p.data)
	}
	if _, ok := o.next(slow); ok {
		t.Error("and something after it")
	}
}

// The size of the terminal is that of the client that came or changed last; when it goes, that
// of the one before.
func TestX39LatestSizeCounts(t *testing.T) {
	var z sizes
	var was []api.Resize
	apply := func(r api.Resize) { was = append(was, r) }
	a, b, c := &size{}, &size{}, &size{}
	r := func(n uint16) api.Resize { return api.Resize{Rows: n, Cols: n} }
	z.set(a, r(1), apply)
	z.set(b, r(2), apply)
	z.set(a, r(3), apply)
	z.leave(b, apply)
	z.set(b, r(4), apply)
	z.leave(c, apply)
	z.leave(b, apply)
	z.leave(a, apply)
	if want := []api.Resize{r(1), r(2), r(3), r(4), r(3)}; !slices.Equal(was, want) {
		t.Errorf("%v, want %v", was, want)
	}
}

// What is taken of the input is counted for each client that has a name.
func TestX39InputIsCountedForEachClient(t *testing.T) {
	var i intakes
	i.of("a").add(5)
	i.of("b").add(3)
	i.of("").add(1)
	if a, b, all := i.of("a").bytes, i.of("b").bytes, i.of("").bytes; a != 5 || b != 3 || all != 1 {
		t.Errorf("%d, %d, %d", a, b, all)
	}
	for n := range 2 * maxIntakes {
		i.of(fmt.Sprint(n)).add(1)
	}
	if len(i.by) > maxIntakes {
		t.Errorf("%d are counted", len(i.by))
	}
}
