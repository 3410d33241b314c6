package gvisor

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/backend/namespace"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/fault"
	"github.com/pando-dev/pando/internal/guest"
	"github.com/pando-dev/pando/internal/keeper"
	"github.com/pando-dev/pando/internal/linux"
)

// bootGrace is how long a sandbox may take until its guest answers.
const bootGrace = 30 * time.Second

// sandbox is the running application kernel of a cell.
type sandbox struct {
	id      cell.ID
	spec    cell.Spec
	stage   *namespace.Stage
	counted func() (cell.Stats, error) // what the cell has used, by its cgroup
	booted  int64                      // microseconds of processors until it could be used
	runsc   *os.File
	log     *os.File                     // what gVisor says when it fails
	now     atomic.Pointer[guest.Client] // that of the application kernel that there is, or was last
	token   [32]byte                     // what guest and keeper know each other by
	copied  atomic.Bool                  // it goes on with another's memory, and waits to be adopted
	procs   atomic.Int64                 // started so far
	talks   bool
	told    *told
	boots   int // how many application kernels it has had; guarded by reviving

	interpreter guest.Known // of a copy
	in          *keeper.Interpreter

	reviving sync.Mutex
	freezing sync.Mutex // guards frozen and still
	frozen   bool
	still    []cell.ProcessInfo // what there was when it was frozen
}

// boot starts gVisor on the cell's stage, with its guest, or with all that is in
// the image whose directory is given. Then the token is that of the image.
func (s *sandbox) boot(image *os.File) (err error) {
	s.boots++
	args, greet, more := []string{"run"}, guest.Boot, []*os.File{s.told.theirs}
	if image == nil {
		s.token = newToken()
	} else {
		args, greet, more = []string{"restore", "-image-path", "/proc/self/fd/4"}, guest.Connect, append(more, image)
	}
	args = append(append(runscArgs(s.talks), args...), "-user-log", "/proc/self/fd/3", "-detach", "-bundle", bundleDir, s.name())
	if s.log, err = logFile(); err != nil {
		return err
	}
	theirs, ours, err := socketPair()
	if err != nil {
		return err
	}
	defer theirs.Close()
	defer func() {
		if err != nil {
			ours.Close()
		}
	}()
	connected := make(chan error, 1)
	go func() { // before a copy goes on: the first thing that it does is to look who is there
		g, err := greet(context.Background(), ours, s.token[:])
		if err == nil {
			s.now.Store(g)
		}
		connected <- err
	}()
	fault.Step("start gVisor")
	child, err := s.stage.Start(s.runsc, args, [3]*os.File{theirs, s.log, s.log}, more...)
	if err != nil {
		return fmt.Errorf("cannot start gVisor: %w", err)
	}
	theirs.Close()
	failed := make(chan error, 1)
	go func() { failed <- s.started(child) }()
	late := time.After(bootGrace)
	for {
		select {
		case err := <-failed:
			if err != nil {
				return err
			}
			failed = nil
		case err := <-connected:
			if err != nil && failed != nil { // which says more
				select {
				case why := <-failed:
					err = cmp.Or(why, err)
				case <-time.After(time.Second):
				}
			}
			return err
		case <-late:
			return cell.Errorf(cell.Unavailable, "gvisor.boot", "try again when the machine is less busy", "cannot start gVisor: its guest does not answer in %v: %s", bootGrace, s.said())
		}
	}
}

// name is that of the application kernel, to gVisor.
func (s *sandbox) name() string { return string(s.id) + "-" + strconv.Itoa(s.boots) }

// revive returns the guest of the application kernel, and starts another one where
// that is lost.
func (s *sandbox) revive() (*guest.Client, error) {
	s.reviving.Lock()
	defer s.reviving.Unlock()
	if g := s.guest(); g != nil {
		return g, nil
	}
	select {
	case <-s.stage.Gone():
		return nil, cell.Errorf(cell.NotFound, "gvisor.Start", "", "cell %s has ended", s.id)
	default:
	}
	s.log.Close()
	if err := s.boot(nil); err != nil {
		return nil, err
	}
	return s.now.Load(), nil
}

// guest is that of the application kernel; nil when that has ended, and all in it:
// it took more memory than the cell may have, or failed.
func (s *sandbox) guest() *guest.Client {
	g := s.now.Load()
	if g == nil {
		return nil
	}
	select {
	case <-g.Done():
		return nil
	default:
		return g
	}
}

// started waits for a command of pando-runsc, and says why it failed.
func (s *sandbox) started(child *linux.Child) error {
	defer child.PIDFD.Close()
	ws, _, err := child.Wait()
	if err == nil && ws.ExitStatus() != 0 {
		err = s.why()
	}
	return err
}

// why is the reason why gVisor does not start: what it said, or, where it dies
// without a word, what it lacks.
func (s *sandbox) why() error {
	if err := linux.ProbeTrace(); err != nil {
		return cell.Errorf(cell.Unsupported, "gvisor.boot", "choose --backend namespace, or allow it: a container needs --cap-add SYS_PTRACE or --security-opt seccomp=unconfined, a host kernel.yama.ptrace_scope below 3",
			"cannot start gVisor: it runs a cell's programs by tracing them, and this machine lets no program trace another: %w", err)
	}
	return cell.Errorf(cell.Unsupported, "gvisor.boot", "choose --backend namespace; `pando doctor` says what works on this machine", "cannot start gVisor: %s", s.said())
}

// said is what gVisor wrote before it gave up.
func (s *sandbox) said() string {
	b := make([]byte, 4096)
	n, _ := s.log.ReadAt(b, 0)
	if text := strings.TrimSpace(string(b[:n])); text != "" {
		return text
	}
	return "it does not say why"
}

func newToken() (t [32]byte) {
	rand.Read(t[:])
	return t
}

func logFile() (*os.File, error) {
	fd, err := unix.MemfdCreate("pando-runsc", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), "gVisor's log"), nil
}

// socketPair is the guest's only connection, and ours.
func socketPair() (theirs *os.File, ours *net.UnixConn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	theirs = os.NewFile(uintptr(fds[0]), "guest")
	mine := os.NewFile(uintptr(fds[1]), "guest")
	defer mine.Close()
	c, err := net.FileConn(mine)
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return theirs, c.(*net.UnixConn), nil
}
