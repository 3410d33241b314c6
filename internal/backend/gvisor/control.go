package gvisor

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/bound"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/isolation/guestkernel"
)

// control calls a method of the application kernel over its control socket, with
// files beside the argument. The protocol is gVisor's urpc (pkg/urpc): one JSON
// object each way, files with its first byte. The methods are those of
// containerManager in runsc/boot/controller.go.
func (s *sandbox) control(method string, arg any, files ...*os.File) error {
	c, err := s.stage.Dial(stateDir + "/runsc-" + s.name() + ".sock")
	if err != nil {
		return cell.Errorf(cell.Unavailable, "gvisor.control", "", "cannot reach gVisor: %w", err)
	}
	defer c.Close()
	failpoint.Step("have gVisor do " + method)
	if err := call(c, "containerManager."+method, arg, files); err != nil {
		return fmt.Errorf("cannot have gVisor do %s: %w", method, err)
	}
	return nil
}

// Pause implements guestkernel.Kernel.
func (s *sandbox) Pause() error { return s.control("Pause", nil) }

// Resume implements guestkernel.Kernel.
func (s *sandbox) Resume() error { return s.control("Resume", nil) }

// Rest implements guestkernel.Kernel. An idle application kernel uses no processor.
func (s *sandbox) Rest() error { return nil }

// Wake implements guestkernel.Kernel.
func (s *sandbox) Wake() error { return nil }

// Programs implements guestkernel.Kernel. The sandbox shares its memory with its tasks, so it cannot
// be attributed.
func (s *sandbox) Programs() []int { return nil }

// Prepare implements guestkernel.Kernel. gVisor writes everything during the pause.
func (s *sandbox) Prepare([]*os.File, bool) (*os.File, error) { return nil, nil }

// Refresh implements guestkernel.Kernel. gVisor looks up all files that it does not have open.
func (s *sandbox) Refresh(...string) error { return nil }

// Capture implements guestkernel.Kernel.
func (s *sandbox) Capture(files []*os.File) (guestkernel.Captured, error) {
	arg := map[string]any{"metadata": map[string]string{"compression": "none"}, "have_pages_file": true, "Resume": true}
	return guestkernel.Captured{}, s.control("Checkpoint", arg, files...)
}

// maxControl is the size limit of an answer, in bytes. A compromised application kernel may
// send anything.
const maxControl = 1 << 20

func call(c *net.UnixConn, method string, arg any, files []*os.File) error {
	b, err := json.Marshal(map[string]any{"method": method, "arg": arg})
	if err != nil {
		return err
	}
	var rights []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		rights = unix.UnixRights(fds...)
	}
	n, _, err := c.WriteMsgUnix(b, rights, nil)
	if err == nil && n < len(b) {
		_, err = c.Write(b[n:])
	}
	if err != nil {
		return err
	}
	var answer struct {
		Success bool   `json:"success"`
		Err     string `json:"err"`
	}
	if err := json.NewDecoder(bound.Reader(c, "gVisor's answer", maxControl)).Decode(&answer); err != nil {
		return err
	}
	if !answer.Success {
		return refused(answer.Err)
	}
	return nil
}

// refused returns gVisor's error, without the stack trace that may follow line by line.
func refused(text string) error {
	text, _, _ = strings.Cut(text, "\n")
	text = strings.TrimSuffix(text, ":")
	// gVisor's control connection (pkg/urpc) sends an error as its text alone, without an errno.
	if strings.Contains(text, unix.ENOSPC.Error()) {
		return unix.ENOSPC
	}
	return cell.Errorf(cell.Internal, "gvisor.control", "", "gVisor says: %s", text)
}
