package daemon

import (
	"testing"

	"github.com/pando-dev/pando/internal/linux"
)

// What ends at the logout comes with the command by which it does not: a user that lingers is
// enough where it is the user's own systemd that ends.
func TestOutliveLogout(t *testing.T) {
	for at, want := range map[linux.AtLogout]string{
		{}:                           "",
		{UID: "1000"}:                "loginctl enable-linger",
		{UID: "1000", Session: true}: "loginctl enable-linger; pando daemon stop; systemd-run --user --scope -p Delegate=yes pando ls",
	} {
		if got := outliveLogout(at); got != want {
			t.Errorf("%+v: %q", at, got)
		}
	}
}
