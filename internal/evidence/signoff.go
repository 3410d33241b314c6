package evidence

import (
	"fmt"

	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/state"
)

// unsignedOff says what is wrong with the sign-off in an act; "" for nothing, or when there is none. That the key is an approver's is for the
// policy to say.
func unsignedOff(act *state.Act) string {
	s := act.SignOff
	if s == nil {
		return ""
	}
	raw, err := policy.ApproverKey(s.Key)
	if err != nil {
		return err.Error()
	}
	key, err := receipt.PublicKeyOf(raw)
	if err != nil {
		return err.Error()
	}
	digest, says, err := receipt.OpenSignOff([]byte(s.Envelope), key)
	switch {
	case err != nil:
		return fmt.Sprintf("the sign-off of %s: %v", s.Approver, err)
	case says.Decision != s.Decision || says.Decision != act.Act || digest.String() != s.Digest || says.Cell != act.Cell:
		return "the sign-off of " + s.Approver + " says something else than its receipt"
	}
	return ""
}
