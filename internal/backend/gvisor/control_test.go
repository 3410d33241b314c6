package gvisor

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRefused(t *testing.T) {
	const stack = ":\ngoroutine 321 [running]:\ngvisor.dev/gvisor/pkg/state.safely.func1()\n\tstate.go:309 +0x19e\n"
	if err := refused("error serializing object &wire.Struct{TypeID:0x117}: no space left on device" + stack); !errors.Is(err, unix.ENOSPC) || err.Error() != unix.ENOSPC.Error() {
		t.Errorf("a full disk is %q", err)
	}
	if got, want := refused("encoding error: can't save an eventfd"+stack).Error(), "gVisor says: encoding error: can't save an eventfd"; got != want {
		t.Errorf("it says %q, want %q", got, want)
	}
}
