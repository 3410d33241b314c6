//go:build !linux

package cli

import (
	"os"
	"syscall"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/upload"
)

var forwarded = []os.Signal{os.Interrupt, syscall.SIGTERM}

// checkSource refuses a home directory and the directories above it as a source.
func checkSource(dir, home string, _ ...string) error { return upload.CheckSource(dir, home) }

var resized []os.Signal

func signalName(s os.Signal) string {
	if s == os.Interrupt {
		return "SIGINT"
	}
	return "SIGTERM"
}

func hideInput(int) (restore func(), err error) {
	return nil, &api.Error{Kind: "unsupported", Message: "cannot hide what is typed here", Hint: "use --from-env VARIABLE or --from-file FILE"}
}
