package guest

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestTrimLeavesWhatIsWritten(t *testing.T) {
	const size = 3 * trimUnit
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(b)
	written := []int{0, 4095, 4096 * 7, trimUnit - 1, trimUnit, size - 1}
	for _, i := range written {
		b[i] = 1
	}
	b[4096*3] = 0 // touched, and zero
	pages := map[int]bool{}
	for _, i := range written {
		pages[i/4096] = true
	}
	at := spanOf(b)
	if given, want := at.trim(), uintptr(size-len(pages)*4096); given != want {
		t.Errorf("gave back %d bytes, want %d", given, want)
	}
	for _, i := range written {
		if b[i] != 1 {
			t.Errorf("byte %d is lost", i)
		}
	}
	resident := make([]byte, size/4096)
	if err := mincore(b, resident); err != nil {
		t.Fatal(err)
	}
	for p, r := range resident {
		if (r&1 == 1) != pages[p] {
			t.Errorf("page %d: resident %v, want %v", p, r&1 == 1, pages[p])
		}
	}
}

func TestTables(t *testing.T) {
	got := tables(`00400000-0059c000 r-xp 00000000 00:0b 9                                  /run/pando-guest
becc0000000-becc0800000 rw-p 00000000 00:00 0                            [anon: Go: heap]
7ef8821a0000-7ef882300000 rw-p 00000000 00:00 0                          [anon: Go: profiler hash buckets]
7ef882400000-7ef884400000 rw-p 00000000 00:00 0                          [anon: Go: heap index]
7ef884400000-7ef895bd9000 ---p 00000000 00:00 0                          [anon: Go: heap index]
`)
	if len(got) != 2 || got[0] != (span{0x7ef8821a0000, 0x7ef882300000}) || got[1] != (span{0x7ef882400000, 0x7ef884400000}) {
		t.Errorf("got %x", got)
	}
}
