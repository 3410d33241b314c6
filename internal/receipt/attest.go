package receipt

import (
	"encoding/json"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// PredicateContents is the type of what a bundle ends with: a signed list of its files.
const PredicateContents = "https://pando.dev/bundle/v1"

// Attest signs a statement that is no receipt: it is in no ledger, and what it says can be made again from receipts. Types of
// receipts are refused.
func (l *Ledger) Attest(predicateType string, subjects []Subject, predicate any) ([]byte, error) {
	if predicateType == PredicateRun || predicateType == PredicateVerdict || predicateType == PredicateFork || predicateType == PredicateSignOff || predicateType == PredicateKey || strings.ContainsAny(predicateType, `"\`) {
		return nil, cell.Errorf(cell.Invalid, "receipt.Attest", "", "cannot sign a statement of type %q outside the ledger", predicateType)
	}
	payload, err := json.Marshal(struct {
		Type          string    `json:"_type"`
		Subject       []Subject `json:"subject"`
		PredicateType string    `json:"predicateType"`
		Predicate     any       `json:"predicate"`
	}{StatementType, subjects, predicateType, predicate})
	if err != nil {
		return nil, err
	}
	signer, _ := l.signing()
	return seal(signer, payload)
}
