package guest

import (
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
)

// In a machine of its own root of a cell finds the kernel's settings read-only, and
// what the kernel says of the machine empty.
func TestMachinesProcIsCovered(t *testing.T) {
	b := onLinuxAs(t, "machine")
	exit, out, errs := b.run(t, sh("in", "cat /proc/interrupts | wc -c; cat /proc/sys/kernel/ostype; echo spoilt > /proc/sys/kernel/hostname"), "")
	if exit.Code == 0 || out != "0\nLinux\n" || !strings.Contains(strings.ToLower(errs), "read-only file system") {
		t.Errorf("%+v, %q, %q", exit, out, errs)
	}
	b = onLinux(t) // elsewhere it is not the guest's to decide
	if exit, _, errs := b.run(t, sh("elsewhere", "echo fine > /proc/sys/kernel/hostname"), ""); exit.Code != 0 {
		t.Errorf("%+v, %q", exit, errs)
	}
}

// A machine that can't become a cell says why to the keeper that greets it.
func TestRefused(t *testing.T) {
	c, theirs := sockets(t)
	why := cell.Errorf(cell.Unavailable, "machine.Run", "do this", "cannot prepare the machine: no port")
	done := make(chan error, 1)
	go func() { done <- Refuse(int(theirs.Fd()), why) }()
	if _, err := Boot(t.Context(), c, testToken); cell.KindOf(err) != cell.Unavailable || err.Error() != why.Error() || cell.HintOf(err) != "do this" {
		t.Errorf("the keeper hears %v", err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
