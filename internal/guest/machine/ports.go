package machine

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// glance is the poll interval for events without a notification.
const glance = 2 * time.Millisecond

// lostLimit is how long a port may be disconnected after it was connected.
const lostLimit = 10 * time.Second

// portsIn returns the device names of the ports below a directory of sysfs, by port name. It
// leaves out ports without a name yet.
func portsIn(dir string) map[string]string {
	found := map[string]string{}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if b, err := os.ReadFile(filepath.Join(dir, e.Name(), "name")); err == nil {
			if name := strings.TrimSpace(string(b)); name != "" {
				found[name] = e.Name()
			}
		}
	}
	return found
}

// openPorts opens ports by name once the kernel has all of them. At the deadline it returns
// those that exist, and an error.
func openPorts(dir, dev string, deadline time.Time, names ...string) (map[string]*port, error) {
	opened := map[string]*port{}
	for {
		var missing []string
		found := portsIn(dir)
		for _, name := range names {
			if opened[name] != nil {
				continue
			}
			if at, is := found[name]; is {
				fd, err := unix.Open(filepath.Join(dev, at), unix.O_RDWR|unix.O_CLOEXEC, 0)
				if err == nil {
					opened[name] = &port{fd: fd, name: name, patience: lostLimit}
					continue
				}
				if !errors.Is(err, unix.ENOENT) { // the device node may appear after its name
					return opened, &os.PathError{Op: "open", Path: "port " + name, Err: err}
				}
			}
			missing = append(missing, name)
		}
		if len(missing) == 0 {
			return opened, nil
		}
		if !time.Now().Before(deadline) {
			return opened, cell.Errorf(cell.Unavailable, "machine.openPorts", "", "cannot find the machine's port %s", strings.Join(missing, ", "))
		}
		time.Sleep(glance)
	}
}

// port is a virtio-serial device, with a socket of the host behind it. While the socket has no
// peer, reads return EOF and writes block.
type port struct {
	fd       int
	name     string
	patience time.Duration // how long it may be disconnected before it ends
}

// connected waits until the other end is connected.
func (p *port) connected(limit time.Duration) error {
	for deadline := time.Now().Add(limit); !p.taken(); time.Sleep(glance) {
		if time.Now().After(deadline) {
			return cell.Errorf(cell.Unavailable, "machine.connected", "", "cannot use the machine's port %s: it is not connected", p.name)
		}
	}
	return nil
}

func (p *port) taken() bool {
	f := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}
	_, err := unix.Poll(f, 0)
	return err == nil && f[0].Revents&unix.POLLHUP == 0
}

// Read implements io.Reader. It returns EOF after the port was disconnected for a while. In a
// restored copy of the machine another socket is connected, perhaps later.
func (p *port) Read(b []byte) (int, error) {
	for {
		n, err := unix.Read(p.fd, b)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return 0, &os.PathError{Op: "read", Path: "port " + p.name, Err: err}
		case n > 0 || len(b) == 0:
			return n, nil
		case p.connected(p.patience) != nil:
			return 0, io.EOF
		}
	}
}

// Write implements io.Writer.
func (p *port) Write(b []byte) (n int, err error) {
	for n < len(b) {
		k, err := unix.Write(p.fd, b[n:])
		switch {
		case err == unix.EINTR:
		case err != nil:
			return n, &os.PathError{Op: "write", Path: "port " + p.name, Err: err}
		default:
			n += k
		}
	}
	return n, nil
}
