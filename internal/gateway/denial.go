package gateway

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"github.com/pando-dev/pando/internal/cell"
)

// Denial is the answer to a denied request in the cell: the body of the response, as {"error":
// …}.
type Denial struct {
	Kind   string `json:"kind"` // "denied", "invalid" for an ambiguous request, "unavailable" for a host that can't be reached
	Rule   string `json:"rule,omitempty"`
	Origin string `json:"origin,omitempty"`
	Reason string `json:"reason"`
	// Narrower is the least grant that suffices, Permit the flag that would allow it, Line the
	// line for a policy file.
	Narrower string `json:"narrower,omitempty"`
	Permit   string `json:"permit,omitempty"`
	Line     string `json:"line,omitempty"`
	HowToAsk string `json:"how_to_ask,omitempty"`
	// RequestID is that of the decision in the run's events.
	RequestID string `json:"request_id,omitempty"`
}

const (
	howToAsk   = "Tell the person you work for what you need and why, with the request id. They can start the run again with the flag above, or write the line into the policy; a rule under \"ask\" would ask them each time."
	howToNever = "Nothing can allow this: do it another way."
)

// refuse emits a decision, and reports it to the cell.
func (x *exchange) refuse(rw http.ResponseWriter, r *http.Request, d cell.Decision, status int) {
	if x.access.Path == "" {
		if forms, ok := pathForms(r.URL.EscapedPath()); ok {
			x.access.Path = forms[0][:min(len(forms[0]), maxPath)]
		}
	}
	x.id = x.c.g.tell(x.l, x.access, d, x.c.id)
	x.deny(rw, d, status)
}

// deny reports a decision to the cell.
func (x *exchange) deny(rw http.ResponseWriter, d cell.Decision, status int) {
	e := Denial{Kind: "denied", Rule: d.Rule, Origin: d.Origin, Reason: d.Reason, Narrower: d.Narrower, Permit: d.Permit, Line: d.Line, HowToAsk: howToAsk, RequestID: x.id}
	if d.By == "gateway" && d.Line == "" {
		e.HowToAsk = howToNever
	}
	if status == http.StatusBadRequest {
		e.Kind = "invalid"
	}
	respond(rw, status, e)
}

// unavailable reports to the cell that the host can't be reached.
func (x *exchange) unavailable(rw http.ResponseWriter, err error) {
	reason := "the gateway can't reach " + x.c.host() + ": " + err.Error()
	if u, ok := errors.AsType[*unseeable](err); ok {
		reason = u.Error()
	}
	respond(rw, http.StatusBadGateway, Denial{Kind: "unavailable", Reason: reason, RequestID: x.id})
}

func respond(rw http.ResponseWriter, status int, e Denial) {
	b, err := json.Marshal(struct {
		Error Denial `json:"error"`
	}{e})
	if err != nil {
		panic(err) // strings can be marshalled
	}
	h := rw.Header()
	clear(h)
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(b)+1))
	h.Set("Cache-Control", "no-store")
	rw.WriteHeader(status)
	rw.Write(append(b, '\n'))
}
