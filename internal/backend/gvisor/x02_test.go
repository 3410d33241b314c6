package gvisor

import (
	"bytes"
	"net"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/bound"
)

// An answer without an end is an error, and costs what the limit costs.
func TestX02AnswerIsBounded(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "control")
		ends[i], err = net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		defer ends[1].Close()
		ends[1].Write([]byte(`{"success":true,"err":"`))
		page := bytes.Repeat([]byte("x"), 64<<10)
		for range 64 << 20 / len(page) {
			if _, err := ends[1].Write(page); err != nil {
				return
			}
		}
	}()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err = call(ends[0].(*net.UnixConn), "Checkpoint", nil, nil)
	runtime.ReadMemStats(&after)
	ends[0].Close()
	<-sent
	if e := bound.Exceeded(err); e == nil || e.Limit != maxControl {
		t.Errorf("%v", err)
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > 16*maxControl {
		t.Errorf("an answer allocated %d bytes", n)
	}
}
