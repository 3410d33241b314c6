package gvisor

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/isolation/guestkernel"
)

// tryGrace is the time limit of Try.
const tryGrace = 20 * time.Second

// Try implements backend.Trier. It starts a minimal cell that runs the guest's program once
// more as a command.
func (b *Backend) Try(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, tryGrace, cell.Errorf(cell.Unavailable, "gvisor.Try", "try again when the machine is less busy", "cannot run a command in a gVisor cell within %v", tryGrace))
	defer cancel()
	i, err := b.Create(ctx, cell.Spec{
		ID: cell.NewID(), Hostname: "try", Workdir: "/", User: cell.User{UID: os.Getuid(), GID: os.Getgid(), Name: "try", Home: "/"}, Limits: cell.Limits{Disk: 1 << 20}, Sized: true, // there is nothing to count
		Mounts: []cell.Mount{{Kind: cell.Tmpfs, Target: "/run"}, {Kind: cell.Tmpfs, Target: "/tmp"}, {Kind: cell.Tmpfs, Target: "/usr"}}, // present in every cell
	})
	if err == nil {
		defer func() {
			err = errors.Join(err, i.Remove(context.WithoutCancel(ctx), "it was tried"))
		}()
		done, doErr := i.Do(ctx, "try", cell.Start{LogLimit: 1 << 10, Process: cell.Process{Args: []string{"pando-guest", "nothing"}, Path: []string{guestkernel.GuestPath}, Workdir: "/"}})
		switch exit := done.Status.Exit; {
		case doErr != nil:
			err = doErr
		case exit == nil || exit.Code != 0:
			err = cell.Errorf(cell.Internal, "gvisor.Try", "choose --backend namespace, and report this", "cannot run a command in a gVisor cell: it ended as %+v: %s", exit, done.Stderr)
		}
	}
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
