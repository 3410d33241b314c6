//go:build !linux

package cli

import (
	"os"
	"syscall"

	"github.com/pando-dev/pando/api"
)

var forwarded = []os.Signal{os.Interrupt, syscall.SIGTERM}

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
