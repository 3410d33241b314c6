package evidence

import (
	"encoding/json"

	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/state"
)

// unsignedOff says what is wrong with the sign-off in an act; "" for nothing, or when there is none. ledger has the origin of ours.
func unsignedOff(act *state.Act, ledger func() string) string {
	if act.SignOff == nil && act.Act != receipt.SignApprove && act.Act != receipt.SignReject {
		return ""
	}
	var s receipt.SignedOff
	text, err := json.Marshal(act)
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		return err.Error()
	}
	return s.Fault(ledger())
}
