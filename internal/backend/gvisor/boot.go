package gvisor

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/isolation"
	"github.com/pando-dev/pando/internal/isolation/guestkernel"
	"github.com/pando-dev/pando/internal/linux"
)

// sandbox is a cell's application kernel.
type sandbox struct {
	id    cell.ID
	runsc *os.File
	log   *os.File // gVisor's error output
	talks bool
	told  *told
	stage *isolation.Stage // where it runs
	boots int              // number of starts
}

// newSandbox prepares a cell's kernel.
func newSandbox(m guestkernel.Made) (guestkernel.Kernel, isolation.Scene, error) {
	s := &sandbox{id: m.ID, runsc: m.Files[0], talks: m.Talks}
	body, err := bundleOf(&m.Spec)
	if err == nil {
		s.told, err = newTold(m.Spec.Mounts)
	}
	if err != nil {
		s.runsc.Close()
		return nil, isolation.Scene{}, err
	}
	return s, isolation.Scene{Files: map[string][]byte{bundleDir + "/config.json": body, stateDir + "/made": nil}}, nil
}

// Close implements guestkernel.Kernel.
func (s *sandbox) Close() {
	s.told.close()
	s.runsc.Close()
	if s.log != nil {
		s.log.Close()
	}
}

// Boot implements guestkernel.Kernel.
func (s *sandbox) Boot(st *isolation.Stage, conn *os.File, image []*os.File) (<-chan error, error) {
	s.stage = st
	s.boots++
	args, more := []string{"run"}, []*os.File{s.told.theirs}
	if image != nil {
		args, more = []string{"restore", "-image-path", "/proc/self/fd/4"}, append(more, image[0])
	}
	args = append(append(runscArgs(s.talks), args...), "-user-log", "/proc/self/fd/3", "-detach", "-bundle", bundleDir, s.name())
	if s.log != nil {
		s.log.Close()
	}
	var err error
	if s.log, err = logFile(); err != nil {
		return nil, err
	}
	failpoint.Step("start gVisor")
	child, err := st.Start(nil, s.runsc, args, [3]*os.File{conn, s.log, s.log}, more...)
	if err != nil {
		return nil, fmt.Errorf("cannot start gVisor: %w", err)
	}
	failed := make(chan error, 1)
	go func() { failed <- s.started(child) }()
	return failed, nil
}

// name returns the container ID of the application kernel.
func (s *sandbox) name() string { return string(s.id) + "-" + strconv.Itoa(s.boots) }

// started waits for a command of pando-runsc, and returns the reason of its failure.
func (s *sandbox) started(child *linux.Child) error {
	defer child.PIDFD.Close()
	ws, _, err := child.Wait()
	if err == nil && ws.ExitStatus() != 0 {
		err = s.why()
	}
	return err
}

// why returns the reason why gVisor does not start: its error output or, without any, what the
// host lacks.
func (s *sandbox) why() error {
	if err := linux.ProbeTrace(); err != nil {
		return cell.Errorf(cell.Unsupported, "gvisor.boot", "choose --backend namespace, or allow it: a container needs --cap-add SYS_PTRACE or --security-opt seccomp=unconfined, a host kernel.yama.ptrace_scope below 3",
			"cannot start gVisor: it runs a cell's programs by tracing them, and this machine lets no program trace another: %w", err)
	}
	return cell.Errorf(cell.Unsupported, "gvisor.boot", "choose --backend namespace; `pando doctor` says what works on this machine", "cannot start gVisor: %s", s.Said())
}

// Said returns gVisor's error output.
func (s *sandbox) Said() string {
	b := make([]byte, 4096)
	n, _ := s.log.ReadAt(b, 0)
	if text := strings.TrimSpace(string(b[:n])); text != "" {
		return text
	}
	return "it does not say why"
}

func logFile() (*os.File, error) {
	fd, err := unix.MemfdCreate("pando-runsc", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), "gVisor's log"), nil
}
