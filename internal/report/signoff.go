package report

import (
	"fmt"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
)

// SignOffLine says in one line what an approver signed.
func SignOffLine(s api.SignOff) string {
	verb := map[string]string{"approve": "approved", "reject": "rejected"}[s.Decision]
	return strings.TrimSuffix(fmt.Sprintf("%s by %s on %s, changes %.16s: %s", verb, s.Approver, s.At.UTC().Format(time.RFC3339), strings.TrimPrefix(s.Digest, "sha256:"), s.Message), ": ")
}
