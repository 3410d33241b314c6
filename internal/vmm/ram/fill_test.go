package ram

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// A copy that maps the same base and is given another's own pages has the memory of that,
// also where that has written zeros over the base, and where its own mapping is in pieces.
// What is taken of the copy is so, too.
func TestOwnPagesAlone(t *testing.T) {
	base := filled(t)
	c := newChild(t, base, "private")
	c.say("write %d %d 3", 4*mib, 5*mib) // 4 to 9
	c.say("zero %d %d", 10*mib, mib)
	c.say("write %d %d 7", 40*mib, pageSize)
	c.say("read 0 %d", 64*mib)
	n, err := Own(c.pid, base, c.size)
	must(t, err)
	if want := int64(6*mib + pageSize); n < want || n > want+16*mib { // some kernels allocate pages on reads
		t.Errorf("%d bytes are its own, where it has written %d", n, want)
	}
	image := c.takenOwn()
	var st unix.Stat_t
	must(t, unix.Fstat(int(image.Fd()), &st))
	if got := st.Blocks * 512; got < 6*mib || got > n+mib {
		t.Errorf("an image of %d bytes takes %d", n, got)
	}

	copied := newChild(t, base, "private")
	if _, err := Blank(copied.pid, base, copied.size); err != nil {
		t.Fatal(err)
	}
	got, err := Fill(copied.pid, base, copied.size, image)
	must(t, err)
	if got < 6*mib+pageSize {
		t.Errorf("it was given %d bytes", got)
	}
	if copied.say("digest") != c.say("digest") {
		t.Fatal("the copy has another memory")
	}

	copied.say("write %d %d 9", 8*mib, 2*mib)
	third := newChild(t, base, "private")
	if _, err := Fill(third.pid, base, third.size, copied.takenOwn()); err != nil {
		t.Fatal(err)
	}
	if third.say("digest") != copied.say("digest") || third.say("digest") == c.say("digest") {
		t.Error("the copy's copy has another memory")
	}
}

// takenOwn takes what the child has of its own, some of which it writes meanwhile.
func (c *child) takenOwn() *os.File {
	c.Helper()
	to := memfd(c, 0)
	k, err := Begin(c.Context(), c.pid, c.base, c.size, to, Options{Own: true})
	must(c, err)
	c.say("write %d %d 11", 20*mib, pageSize)
	c.say("zero %d %d", 11*mib, pageSize)
	_, err = k.Finish(c.Context())
	must(c, err)
	must(c, k.Close())
	c.untouched()
	return to
}
