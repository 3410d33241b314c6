package guest

import (
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// listener is a socket in the cell on which the guest listens for the keeper. Restored copies
// have it, too.
type listener struct {
	came chan *net.UnixConn
	gone chan struct{} // closed when the listener is closed
}

// accept joins a stream with the next connection to a socket of the cell. The keeper stops the
// stream to cancel.
func (g *inside) accept(s *stream, path string) error {
	l, err := g.listen(path)
	if err != nil {
		return cell.Errorf(cell.Unavailable, "guest.Accept", "", "cannot listen at %s in the cell: %w", path, err)
	}
	unwanted := make(chan struct{})
	s.whenStopped(func() { close(unwanted) })
	for {
		select {
		case c := <-l.came:
			select {
			case <-unwanted: // by this keeper; the connection goes to the next request
				go func() { l.came <- c }()
				return errDetached
			default:
			}
			join(s, c)
			return nil
		case <-unwanted:
			return errDetached
		case <-l.gone:
			return errGone
		}
	}
}

// listen listens at a path of the cell, unless it already does. The path's directory must
// exist. A tmpfs covers it: sockets that the directory has on the host belong to another
// kernel.
func (g *inside) listen(path string) (*listener, error) {
	g.listening.Lock()
	defer g.listening.Unlock()
	if l := g.sockets[path]; l != nil {
		return l, nil
	}
	dir := filepath.Dir(path)
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0755,size=64k,nr_inodes=16"); err != nil {
		return nil, os.NewSyscallError("mount", err)
	}
	s, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o666); err != nil {
		s.Close()
		return nil, err
	}
	l := &listener{make(chan *net.UnixConn), make(chan struct{})}
	go func() {
		defer close(l.gone)
		for {
			c, err := s.AcceptUnix()
			if err != nil { // the next request listens again
				s.Close()
				g.listening.Lock()
				delete(g.sockets, path)
				g.listening.Unlock()
				return
			}
			l.came <- c
		}
	}()
	g.sockets[path] = l
	return l, nil
}
