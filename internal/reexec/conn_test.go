package reexec

import (
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestConnCarriesMessagesAndFiles(t *testing.T) {
	a, theirs, err := pair()
	if err != nil {
		t.Fatal(err)
	}
	b, err := FromFile(theirs)
	if err != nil {
		t.Fatal(err)
	}
	r, w, _ := os.Pipe()
	big := strings.Repeat("x", 3<<20)
	go func() {
		a.Send(map[string]string{"k": big}, w)
		a.Send("second")
		w.Close()
		a.Close()
	}()
	var m map[string]string
	files, err := b.Recv(&m)
	if err != nil || m["k"] != big || len(files) != 1 {
		t.Fatalf("err %v, %d bytes, %d files", err, len(m["k"]), len(files))
	}
	if fl, _ := unix.FcntlInt(files[0].Fd(), unix.F_GETFD, 0); fl&unix.FD_CLOEXEC == 0 {
		t.Error("a received file stays open on exec")
	}
	var s string
	if _, err := b.Recv(&s); err != nil || s != "second" {
		t.Fatalf("%q %v", s, err)
	}
	if _, err := b.Recv(&s); err != io.EOF {
		t.Fatalf("at the end: %v", err)
	}
	io.WriteString(files[0], "through the file")
	files[0].Close()
	got, _ := io.ReadAll(r)
	if string(got) != "through the file" {
		t.Fatalf("got %q", got)
	}
}

func TestConnRefusesHugeMessage(t *testing.T) {
	a, theirs, _ := pair()
	b, _ := FromFile(theirs)
	go a.Raw().Write([]byte{0xff, 0xff, 0xff, 0xff})
	var v any
	if _, err := b.Recv(&v); err == nil {
		t.Fatal("accepted a message of 4 GiB")
	}
}

func TestRole(t *testing.T) {
	if r, ok := Role("pando-keeper"); !ok || r != "keeper" {
		t.Error(r, ok)
	}
	if _, ok := Role("/usr/bin/pando"); ok {
		t.Error("the CLI has no role")
	}
}
