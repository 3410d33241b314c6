package wire

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"filippo.io/age"
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
	list, err := Read(clear)
	if err != nil || len(list) != 2 {
		t.Fatalf("%d, %v", len(list), err)
	}
	p := NewPlayer(list)
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

// FuzzRead reads anything without a panic.
func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"n":1,"host":"a:80","method":"GET","status":200}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if list, err := Read(bytes.NewReader(b)); err == nil {
			NewPlayer(list).Done()
		}
		io.Discard.Write(b)
	})
}
