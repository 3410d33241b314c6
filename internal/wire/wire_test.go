package wire

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"filippo.io/age"

	"github.com/pando-dev/pando/internal/cell"
)

// What was recorded is answered in its order, a body that differs is named, and a body beyond the bounds is cut.
func TestRecordedIsAnswered(t *testing.T) {
	t.Parallel()
	key, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	r, err := NewRecorder(&file, key.Recipient().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{`{"a":1}`, strings.Repeat("x", MaxBody+1)} {
		e := Exchange{N: r.Begin(), Scheme: "http", Host: "a.test:80", Method: "POST", Path: "/", Status: 200}
		r.Keep(&e.Request, []byte(`{"n":["one"]}`))
		r.Keep(&e.Answer, []byte(body))
		r.Write(&e)
	}
	if done := r.Close(); done.Exchanges != 2 || done.Cut != 1 {
		t.Errorf("%+v", done)
	}
	clear, err := age.Decrypt(&file, key)
	if err != nil {
		t.Fatal(err)
	}
	list, _, err := Read(clear)
	if err != nil || len(list) != 2 {
		t.Fatalf("%d, %v", len(list), err)
	}
	p := NewPlayer(list, nil)
	q := Exchange{Scheme: "http", Host: "a.test:80", Method: "POST", Path: "/", Request: Message{Body: []byte(`{"n":["two"]}`)}}
	if e, why := p.Answer(&q); e == nil || string(e.Answer.Body) != `{"a":1}` {
		t.Errorf("%v, %s", e, why)
	}
	if e, _ := p.Answer(&q); e != nil {
		t.Error("a cut answer is replayed")
	}
	if d := p.Done(); d.Differing != 1 || !strings.HasSuffix(d.Bodies[0], "/n/0") || d.Unanswered != 1 {
		t.Errorf("%+v", d)
	}
}

// A run's bodies share their room, what does not fit is counted, and its room is there again.
func TestARunIsBounded(t *testing.T) {
	t.Parallel()
	r, clear := recording(t)
	body := bytes.Repeat([]byte("x"), MaxBody)
	for range MaxRun/MaxBody + 1 {
		e := Exchange{N: r.Begin(), Scheme: "http", Host: "a.test:80", Method: "GET", Path: "/", Status: 200}
		r.Keep(&e.Answer, body)
		r.Write(&e)
	}
	// Those leave no room beside their bodies, and are given back. A small one fits.
	e := Exchange{N: r.Begin(), Scheme: "http", Host: "a.test:80", Method: "GET", Path: "/small", Status: 200}
	r.Keep(&e.Answer, body[:100])
	r.Write(&e)
	const whole = MaxRun/MaxBody - 1
	if done := r.Close(); done.Exchanges != whole+1 || done.Bytes > MaxRun || done.Cut != 0 || done.NotRecorded[cell.NotKept] != 2 {
		t.Errorf("%+v", done)
	}
	if list, _, err := Read(clear()); err != nil || len(list) != whole+1 || list[whole].Path != "/small" {
		t.Errorf("%d, %v", len(list), err)
	}
}

// A recording that its keeper did not close is no whole one.
func TestUnclosedIsIncomplete(t *testing.T) {
	t.Parallel()
	r, clear := recording(t)
	e := Exchange{N: r.Begin(), Scheme: "http", Host: "a.test:80", Method: "GET", Path: "/", Status: 200}
	r.Keep(&e.Answer, bytes.Repeat([]byte("x"), 1<<20))
	r.Write(&e)
	if list, _, err := Read(clear()); err == nil {
		t.Errorf("%d exchanges are read", len(list))
	}
	r.Close()
	if list, _, err := Read(clear()); err != nil || len(list) != 1 {
		t.Errorf("%d, %v", len(list), err)
	}
}

// What came of the lookup of a name comes of it again, and others are noted, each once. A name that was found at last counts as found.
func TestNamesAreResolvedAsThen(t *testing.T) {
	t.Parallel()
	r, clear := recording(t)
	for _, n := range []Name{{Host: "no.test", Code: 3, None: true}, {Host: "late.test", Code: 2, None: true}, {Host: "late.test"}, {Host: "late.test", Code: 3, None: true}} {
		r.Resolved(n)
	}
	e := Exchange{N: r.Begin(), Scheme: "http", Host: "a.test:80", Method: "GET", Path: "/", Status: 200}
	r.Write(&e)
	r.Close()
	list, names, err := Read(clear())
	if err != nil || len(list) != 1 || len(names) != 2 {
		t.Fatalf("%d, %+v, %v", len(list), names, err)
	}
	p := NewPlayer(list, names)
	for _, x := range []struct {
		host  string
		code  int
		known bool
	}{{"no.test", 3, true}, {"late.test", 0, true}, {"a.test", 0, true}, {"other.test", 0, false}, {"other.test", 0, false}} {
		if n, ok := p.Resolve(x.host); n.Code != x.code || ok != x.known {
			t.Errorf("%s: %+v, %v", x.host, n, ok)
		}
	}
	if d := p.Done(); d.Unanswered != 1 || d.First != "resolve other.test was not recorded" {
		t.Errorf("%+v", d)
	}
}

// Names share the room of a run: a flood of them is counted.
func TestNamesAreBounded(t *testing.T) {
	t.Parallel()
	r, clear := recording(t)
	r.room = 3 * (overhead/8 + 10)
	for i := range 10 {
		r.Resolved(Name{Host: "000000000" + string(rune('0'+i))})
	}
	if done := r.Close(); done.NotRecorded[cell.NotKept] != 7 {
		t.Errorf("%+v", done)
	}
	if _, names, err := Read(clear()); err != nil || len(names) != 3 {
		t.Errorf("%+v, %v", names, err)
	}
}

// Bodies are compared as JSON if they are, by their digests otherwise.
func TestDiffer(t *testing.T) {
	t.Parallel()
	for _, x := range []struct{ was, is, want string }{
		{`{"a":1,"b":2}`, `{"b":2, "a":1}`, ""},
		{`{"a":[1,2]}`, `{"a":[1,2,3]}`, "its body differs at /a/2"},
		{`{"a/b":{"~":1}}`, `{"a/b":{"~":{}}}`, "its body differs at /a~1b/~0"},
		{`{"a":1}`, `{"c":1}`, "its body differs at /a, /c"},
		{`1`, `2`, `its body differs at ""`},
		{`one`, `two!`, "its body is 4 bytes (" + cell.Sum([]byte("two!")).String()[:19] + "), and was 3 bytes (" + cell.Sum([]byte("one")).String()[:19] + ")"},
	} {
		if got := differ(&Message{Body: []byte(x.was)}, &Message{Body: []byte(x.is)}); got != x.want {
			t.Errorf("%s, %s: %q, not %q", x.was, x.is, got, x.want)
		}
	}
	if got := differ(&Message{Body: []byte("1"), Cut: true}, &Message{Body: []byte("2")}); got != "" {
		t.Errorf("a cut body: %s", got)
	}
}

// recording begins one, and returns how to read it, decrypted.
func recording(t *testing.T) (*Recorder, func() io.Reader) {
	key, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	r, err := NewRecorder(&file, key.Recipient().String())
	if err != nil {
		t.Fatal(err)
	}
	return r, func() io.Reader {
		clear, err := age.Decrypt(bytes.NewReader(file.Bytes()), key)
		if err != nil {
			t.Fatal(err)
		}
		return clear
	}
}

// FuzzRead: whatever is read is within the bounds, and answers each of its requests once.
func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"n":1,"host":"a:80","method":"GET","status":200}`))
	f.Add([]byte(`{"n":2,"host":"a:80","method":"GET","status":200,"answer":{"body":"eA==","cut":true}}{"n":1,"host":"a:80","method":"GET","status":999,"request":{"header":{"A":[""]}}}`))
	f.Add([]byte(`{"n":1,"host":"a:80","method":"GET","status":101}`))
	f.Add([]byte(`{"name":{"host":"a","code":3}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		list, names, err := Read(bytes.NewReader(b))
		if err != nil {
			return
		}
		p, cut := NewPlayer(list, names), int64(0)
		for _, e := range list {
			if len(e.Request.Body) > MaxBody || len(e.Answer.Body) > MaxBody || e.Status < 200 {
				t.Fatalf("%+v", e)
			}
			if e.Answer.Cut {
				cut++
			}
			p.Answer(e)
		}
		if d := p.Done(); d.Unasked != 0 || d.Unanswered != cut || d.Answered != int64(len(list))-cut {
			t.Fatalf("%d exchanges, %d of them cut: %+v", len(list), cut, d)
		}
	})
}
