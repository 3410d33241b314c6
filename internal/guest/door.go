package guest

import (
	"io"
	"time"

	"golang.org/x/sys/unix"
)

// glance is the poll interval of a paused guest.
const glance = 50 * time.Millisecond

// door is the guest's socket. It is a descriptor number, not an os.File, because another socket
// is behind it in each restored copy.
type door struct{ fd int }

func newDoor(fd int) (*door, error) {
	unix.CloseOnExec(fd)
	if err := unix.SetNonblock(fd, false); err != nil {
		return nil, err
	}
	return &door{fd}, nil
}

func (d *door) Read(b []byte) (int, error) {
	for {
		n, err := unix.Read(d.fd, b)
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			d.poll(unix.POLLIN, -1)
		case err != nil:
			return 0, err
		case n == 0 && len(b) > 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

func (d *door) Write(b []byte) (n int, err error) {
	for n < len(b) {
		k, err := unix.Write(d.fd, b[n:])
		switch {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			d.poll(unix.POLLOUT, -1)
		case err != nil:
			return n, err
		default:
			n += k
		}
	}
	return n, nil
}

// poll waits for events for at most the given time.
func (d *door) poll(events int16, most time.Duration) bool {
	p := []unix.PollFd{{Fd: int32(d.fd), Events: events}}
	ms := -1
	if most >= 0 {
		ms = int(most / time.Millisecond)
	}
	n, err := unix.Poll(p, ms)
	return err == nil && n > 0
}

// await waits for input. It polls: after a restore the socket is another one, which does not
// wake it.
func (d *door) await() {
	for !d.poll(unix.POLLIN, glance) {
	}
}
