package evidence

import (
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/state"
)

// unsignedOff says what is wrong with the sign-off in an act; "" for nothing, or when there is none.
func unsignedOff(act *state.Act) string {
	s := act.SignOff
	if s == nil {
		return ""
	}
	if s.Decision != act.Act {
		return "the sign-off of " + s.Approver + " says something else than its receipt"
	}
	return (&receipt.SignedOff{Approver: s.Approver, Key: s.Key, Decision: s.Decision, Digest: s.Digest, Envelope: s.Envelope}).Fault()
}
