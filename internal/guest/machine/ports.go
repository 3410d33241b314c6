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

// glance is how long it is looked away from what comes at a time of its own.
const glance = 2 * time.Millisecond

// lostLimit is how long a port may be nobody's once somebody had it.
const lostLimit = 10 * time.Second

// portsIn are the ports that the kernel shows below a folder, by name: the names of
// their devices. One whose name is not known yet is left out.
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

// openPorts opens ports by their names when the kernel has all of them, or those that
// it has at the deadline, which is an error.
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
				if !errors.Is(err, unix.ENOENT) { // the device comes after its name, perhaps
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

// port is one of virtio-serial: a device with a socket of the host's behind it. While
// nobody has that socket, the kernel says that there is no more to read, and keeps who
// writes waiting.
type port struct {
	fd       int
	name     string
	patience time.Duration // how long it may be nobody's before it ends
}

// connected waits until somebody has the other end.
func (p *port) connected(limit time.Duration) error {
	for deadline := time.Now().Add(limit); !p.taken(); time.Sleep(glance) {
		if time.Now().After(deadline) {
			return cell.Errorf(cell.Unavailable, "machine.connected", "", "cannot use the machine's port %s: nobody is at its other end", p.name)
		}
	}
	return nil
}

func (p *port) taken() bool {
	f := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}
	_, err := unix.Poll(f, 0)
	return err == nil && f[0].Revents&unix.POLLHUP == 0
}

// Read implements io.Reader. It ends when nobody has had the other end for a while:
// in a restored copy of the machine it is another socket, which may come later.
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
