package api

import "time"

// Token describes a token, by which a caller over the network is identified. Its secret is shown
// once, when it is made.
type Token struct {
	ID      string    `json:"token"`              // t-…
	Name    string    `json:"name"`               // for people, and for the audit log
	Scope   string    `json:"scope"`              // what it allows: read, approve, run or admin
	Created time.Time `json:"created"`            // when it was made
	Expires time.Time `json:"expires,omitzero"`   // when it ends; never when missing
	Expired bool      `json:"expired,omitempty"`  // it has ended
	Used    time.Time `json:"last_used,omitzero"` // when it was last used, since the daemon started
	Secret  string    `json:"secret,omitempty"`   // the token itself, only in the answer that makes it
	// Labels restrict the token to cells that have all of them; cells made with it get them.
	// Without labels it sees everything.
	Labels   map[string]string `json:"labels,omitempty"`
	MaxCells int               `json:"max_cells,omitempty"` // maximum number of cells made with it; unlimited when missing
	Cells    int               `json:"cells,omitempty"`     // number of cells made with it, where that is limited
	TTL      string            `json:"ttl,omitempty"`       // lifetime of cells made with it; each extension is at most this long
	Rate     float64           `json:"rate,omitempty"`      // requests per second; the daemon's limit when missing
}

// TokenRequest makes a token.
type TokenRequest struct {
	Name    string    `json:"name,omitempty"`   // its id when empty
	Scope   string    `json:"scope,omitempty"`  // read, run (the default) or admin
	Expires time.Time `json:"expires,omitzero"` // never when missing
	// Labels restrict the token to cells that have all of them, and to what belongs to those.
	// Cells made with it get them.
	Labels   map[string]string `json:"labels,omitempty"`
	MaxCells *int              `json:"max_cells,omitempty"` // maximum number of cells made with it at a time, from 1 on; null: unlimited
	TTL      string            `json:"ttl,omitempty"`       // maximum lifetime of a cell made with it: "1h"; then it is paused
	Rate     *float64          `json:"rate,omitempty"`      // requests per second; null: the daemon's limit
}
