package server

import (
	"bytes"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/testenv"
)

// flowing is an output that is read from a pipe.
func flowing(t *testing.T, limit int64) (o *Output, r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	o = newOutput("stdout", nil, &cell.Start{LogLimit: limit})
	go func() { o.copyFrom(r); r.Close() }()
	t.Cleanup(func() { w.Close() })
	return o, r, w
}

// listen streams an output into a connection and returns the other end.
func listen(t *testing.T, o *Output) net.Conn {
	t.Helper()
	here, there := net.Pipe()
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop); here.Close(); there.Close() })
	go func() {
		o.stream(&frameWriter{c: there}, api.FrameStdout, 0, noScreen, stop)
		there.Close()
	}()
	return here
}

// heard is everything that came, and how much was named as missing.
func heard(t *testing.T, c net.Conn) (got []byte) {
	t.Helper()
	var buf []byte
	for {
		f, err := api.ReadFrame(c, &buf)
		if err == io.EOF {
			return got
		}
		if err != nil {
			t.Fatal(err)
		}
		at, b, err := f.OutputData()
		if f.Type != api.FrameStdout || err != nil {
			t.Fatalf("frame %c, %v", f.Type, err)
		}
		if at != int64(len(got)) {
			t.Fatalf("a piece at %d after %d bytes", at, len(got))
		}
		got = append(got, b...)
	}
}

// A listener that is slower than the process, and than the grace after its
// end, gets everything; nothing waits for it.
func TestF30SlowListenerLosesNothing(t *testing.T) {
	o, r, w := flowing(t, 1<<20)
	c := listen(t, o)
	<-o.first
	want := bytes.Repeat([]byte("0123456789abcde\n"), 3<<20/16)
	wrote := make(chan struct{})
	go func() { w.Write(want); w.Close(); close(wrote) }()
	select {
	case <-wrote:
		t.Fatal("3 MiB were written, and nothing has read them: what holds them?")
	case <-time.After(200 * time.Millisecond):
	}
	got := make([]byte, 0, len(want))
	go func() {
		<-wrote
		o.finish(r, 10*time.Millisecond)
	}()
	var buf []byte
	for len(got) < 2<<20 {
		f, err := api.ReadFrame(c, &buf)
		if err != nil {
			t.Fatal(err)
		}
		_, b, _ := f.OutputData()
		got = append(got, b...)
	}
	<-wrote
	select {
	case <-o.over:
	case <-time.After(testenv.Patience()):
		t.Fatal("the end waits for a listener that reads nothing")
	}
	for {
		f, err := api.ReadFrame(c, &buf)
		if err != nil {
			break
		}
		_, b, _ := f.OutputData()
		got = append(got, b...)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%d bytes came, of %d", len(got), len(want))
	}
	if st := o.status(); st.Bytes != int64(len(want)) || st.Digest != cell.Sum(want) || st.Kept != 1<<20 {
		t.Errorf("status %+v", st)
	}
}

// Something that the process left behind holds the stream, and writes on: the
// output ends with what the process wrote, and what is recorded of it stays.
func TestF30OutputEndsWithItsProcess(t *testing.T) {
	o, r, w := flowing(t, 1<<20)
	c := listen(t, o)
	io.WriteString(w, "mine\n")
	o.finish(r, 20*time.Millisecond)
	got := heard(t, c) // it ends although the pipe does not
	if string(got) != "mine\n" {
		t.Errorf("came %q", got)
	}
	before := o.status()
	done := make(chan struct{})
	go func() { // more than a pipe holds: the writer is not blocked
		w.Write(make([]byte, 1<<20))
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(testenv.Patience()):
		t.Fatal("what was left behind can't write any more")
	}
	if after := o.status(); after != before || after.Bytes != 5 {
		t.Errorf("%+v became %+v", before, after)
	}
	// A later listener gets the same.
	if got := heard(t, listen(t, o)); string(got) != "mine\n" {
		t.Errorf("a late listener got %q", got)
	}
}

// An output that a slow listener holds back can be released.
func TestOutputReleasedUnderAListener(t *testing.T) {
	o, _, w := flowing(t, 1<<10)
	s, _, _, _ := o.subscribe(noScreen, 0)
	go w.Write(make([]byte, 4<<20))
	testenv.Eventually(t, func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return s.queued >= queueLimit
	}, "a full queue")
	o.release()
	n := 0
	for {
		p, ok := o.next(s)
		if !ok {
			break
		}
		n += len(p.data)
	}
	if n < queueLimit {
		t.Errorf("%d bytes of the queue came", n)
	}
}

// What a process says about a full disk can't be kept on it; a listener
// that attaches after that gets it all the same, and it is kept when there is room again.
func TestF23LateListenerHearsOfTheFullDisk(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	o := newOutput("stderr", full, &cell.Start{LogLimit: 1 << 20})
	o.add([]byte("no space "))
	o.add([]byte("left"))
	if st := o.status(); st.Bytes != 13 || st.Kept != 0 {
		t.Errorf("%+v is kept on a full disk", st)
	}
	path := filepath.Join(t.TempDir(), "log")
	room, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []*os.File{full, room} {
		if o.file = file; file == room {
			o.add([]byte("!"))
		}
		buf := make([]byte, 100)
		want := "no space left!"[:o.status().Bytes]
		if got := string(buf[:o.readKept(buf, 0)]); got != want {
			t.Errorf("a late listener gets %q, not %q", got, want)
		}
	}
	if b, _ := os.ReadFile(path); string(b) != "no space left!" || o.status().Kept != int64(len(b)) {
		t.Errorf("%q in the file, %d counted", b, o.status().Kept)
	}

	o = newOutput("stderr", full, &cell.Start{LogLimit: 1 << 20})
	o.add(make([]byte, spareLimit+1))
	o.add([]byte("more"))
	if n := o.kept(); n != spareLimit {
		t.Errorf("%d bytes are kept in memory", n)
	}
}
