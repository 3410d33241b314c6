package ram

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Own returns the number of bytes in own pages of process pid where it has mapped the first
// size bytes of base privately. It fails as Begin does.
func Own(pid int, base *os.File, size int64) (n int64, err error) {
	t := &Taking{pid: pid}
	defer func() {
		t.Close()
		if err != nil {
			err = t.failed("ram.Own", err)
		}
	}()
	if err := t.open(base, size); err != nil {
		return 0, err
	}
	if _, n, err = t.pages(all); err != nil {
		return 0, err
	}
	return n, t.alive.check(t.areas[0].start)
}

// Fill writes an image that was taken with Options.Own into the memory of process pid. The
// process must have mapped the first size bytes of the same base privately; afterwards its
// memory equals that of the captured process. The machine must be stopped. Fill returns the
// number of bytes written.
func Fill(pid int, base *os.File, size int64, own *os.File) (n int64, err error) {
	t := &Taking{pid: pid}
	defer func() {
		if err != nil {
			err = t.failed("ram.Fill", err)
		}
	}()
	areas, err := find(pid, base, size)
	if err != nil {
		return 0, err
	}
	buf := make([]byte, chunk)
	for _, a := range areas {
		last := a.off + int64(a.end-a.start)
		for off := a.off; off < last; {
			from, end, err := nextData(own, off, last)
			if err != nil {
				return n, err
			}
			for off = from; off < end; {
				b := buf[:min(end-off, chunk)]
				if _, err := own.ReadAt(b, off); err != nil {
					return n, err
				}
				if err := writeTo(pid, a.start+uint64(off-a.off), b); err != nil {
					return n, err
				}
				off, n = off+int64(len(b)), n+int64(len(b))
			}
			off = end
		}
	}
	return n, nil
}

// writeTo writes into the memory of another process.
func writeTo(pid int, at uint64, b []byte) error {
	local := []unix.Iovec{{Base: &b[0]}}
	local[0].SetLen(len(b))
	n, err := unix.ProcessVMWritev(pid, local, []unix.RemoteIovec{{Base: uintptr(at), Len: len(b)}}, 0)
	if err != nil {
		return os.NewSyscallError("process_vm_writev", err)
	}
	if n != len(b) {
		return fmt.Errorf("cannot write the machine's memory: %d bytes of %d are there", n, len(b))
	}
	return nil
}
