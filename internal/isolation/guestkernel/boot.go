package guestkernel

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/guest"
	"github.com/pando-dev/pando/internal/isolation"
	"github.com/pando-dev/pando/internal/keeper/server"
)

// GuestPath is the path of pando-guest in a cell.
const GuestPath = "/run/pando-guest"

// bootGrace is the default time limit for a guest to answer after its kernel starts.
const bootGrace = 30 * time.Second

// sandbox is a cell with its kernel.
type sandbox struct {
	kind    *Kind
	kernel  Kernel
	id      cell.ID
	spec    cell.Spec
	stage   *isolation.Stage
	counted func() (cell.Stats, error)   // resource usage of the cell's cgroup
	booted  int64                        // CPU time in microseconds up to the end of the boot
	now     atomic.Pointer[guest.Client] // of the current or last kernel
	named   string                       // hostname in the cell's files
	token   [32]byte                     // shared by guest and keeper
	copied  atomic.Bool                  // it continues from another cell's memory and waits for its adoption
	deaf    atomic.Bool                  // the guest was lost because it did not answer
	procs   atomic.Int64                 // number of processes started so far

	interpreter guest.Known // of a copy
	in          *server.Interpreter

	reviving sync.Mutex
	freezing sync.Mutex // guards the fields below
	frozen   bool
	froze    int                // number of freezes
	prepared time.Time          // time of the last Prepare
	brief    bool               // it is frozen for that capture, for a moment only
	still    []cell.ProcessInfo // processes when it was frozen
	resting  bool               // its kernel rests until the adoption
}

// known is what a keeper must know to take over another keeper's guest.
type known struct {
	Token  []byte          `json:"token"`
	Procs  int64           `json:"procs"`            // number of processes started so far; their IDs contain it
	Kernel json.RawMessage `json:"kernel,omitempty"` // from Kernel.Capture
	Taken  string          `json:"taken,omitempty"`
}

// begin boots a cell, or continues it from a captured image. A cell from an image stays frozen
// until its adoption.
func (s *sandbox) begin(image []*os.File, like known) error {
	if len(image) == 0 {
		return s.boot(nil)
	}
	if len(like.Token) != len(s.token) {
		return cell.Errorf(cell.Corrupt, s.kind.Name+".Create", "", "cannot read the metadata of the memory image")
	}
	copy(s.token[:], like.Token)
	s.procs.Store(like.Procs)
	if err := s.boot(image); err != nil {
		return err
	}
	s.copied.Store(true)
	return s.disown(s.now.Load())
}

// boot starts the kernel with its guest, or with the contents of an image. An image keeps its
// token.
func (s *sandbox) boot(image []*os.File) (err error) {
	patience := cmp.Or(s.kind.Patience, bootGrace)
	for again := s.kind.Again; ; again-- {
		err = s.bootOnce(image, patience)
		if again == 0 || cell.KindOf(err) != cell.Timeout {
			return err
		}
		patience *= 2 // a busy host is slower
	}
}

// bootOnce tries to boot once. It fails with Timeout if the guest does not answer within
// patience.
func (s *sandbox) bootOnce(image []*os.File, patience time.Duration) (err error) {
	greet := guest.Connect
	if image == nil {
		s.token, greet = newToken(), guest.Boot
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
	go func() { // before a copy resumes, because its guest first looks for the greeting
		ctx, cancel := context.WithTimeout(context.Background(), patience+time.Second) // the error of patience comes first
		defer cancel()
		g, err := greet(ctx, ours, s.token[:])
		if err == nil {
			s.deaf.Store(false)
			s.now.Store(g)
		}
		connected <- err
	}()
	failed, err := s.kernel.Boot(s.stage, theirs, image)
	if err != nil {
		return err
	}
	theirs.Close()
	silent := func() error {
		return cell.Errorf(cell.Timeout, s.kind.Name+".boot", "try again when the machine is less busy", "cannot start %s: its guest does not answer in %v: %s", s.kind.Title, patience, s.kernel.Said())
	}
	late := time.After(patience)
	for {
		select {
		case err := <-failed:
			if err != nil {
				return err
			}
			failed = nil
		case err := <-connected:
			if errors.Is(err, os.ErrDeadlineExceeded) { // this process itself was stopped meanwhile
				return silent()
			}
			if err != nil && failed != nil { // which says more
				select {
				case why := <-failed:
					return cmp.Or(why, err)
				case <-time.After(time.Second):
				}
			}
			if err == nil && image == nil && s.kind.Introduced {
				err = s.introduce(patience)
			}
			if err != nil {
				return cell.Errorf(cell.KindOf(err), s.kind.Name+".boot", cell.HintOf(err), "%w: %s", err, s.kernel.Said())
			}
			return nil
		case <-late:
			return silent()
		}
	}
}

// introduce sends a guest that has just booted the identity of its cell. It fails with Timeout
// if the guest does not answer within patience: a kernel may hang after its boot.
func (s *sandbox) introduce(patience time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := s.now.Load().Adopt(ctx, s.adoption(s.spec.Hostname, s.token))
	if err != nil && ctx.Err() != nil {
		return cell.Errorf(cell.Timeout, s.kind.Name+".boot", "try again when the machine is less busy", "cannot start %s: its guest does not take its name in %v", s.kind.Title, patience)
	}
	return err
}

// adoption returns what a guest is told about its cell, with the token for further connections.
func (s *sandbox) adoption(hostname string, token [32]byte) guest.Adoption {
	a := guest.Adoption{Hostname: hostname, Token: token[:]}
	if s.kind.Introduced { // its kernel shares nothing with the host's
		seed := newToken()
		a.Clock, a.Seed = time.Now(), seed[:]
		a.Limits = &guest.Limits{Memory: s.spec.Limits.Memory, PIDs: s.spec.Limits.PIDs}
	}
	return a
}

func (s *sandbox) close() {
	if g := s.now.Load(); g != nil {
		g.Close()
	}
	if s.stage != nil {
		s.stage.Close()
	}
	s.kernel.Close()
}

// revive returns the guest of the kernel. It boots another kernel if that one is lost.
func (s *sandbox) revive() (*guest.Client, error) {
	s.reviving.Lock()
	defer s.reviving.Unlock()
	if g := s.guest(); g != nil {
		return g, nil
	}
	select {
	case <-s.stage.Gone():
		return nil, cell.Errorf(cell.NotFound, s.kind.Name+".Start", "", "cell %s has ended", s.id)
	default:
	}
	if err := s.boot(nil); err != nil {
		return nil, err
	}
	return s.now.Load(), nil
}

// guest returns the kernel's guest, or nil if the kernel has ended: it exceeded the cell's
// memory limit, or failed.
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

func newToken() (t [32]byte) {
	rand.Read(t[:])
	return t
}

// socketPair returns the guest's only connection and the keeper's end of it.
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
