package api

import "time"

// Token is what is known of a token, by which a caller from elsewhere is
// recognised. Its secret is told once, when it is made.
type Token struct {
	ID      string    `json:"token"`              // t-…
	Name    string    `json:"name"`               // for people, and for the audit log
	Scope   string    `json:"scope"`              // what it allows: read, run or admin
	Created time.Time `json:"created"`            // when it was made
	Expires time.Time `json:"expires,omitzero"`   // when it ends; never when missing
	Expired bool      `json:"expired,omitempty"`  // it has ended
	Used    time.Time `json:"last_used,omitzero"` // when it was used last, since the daemon started
	Secret  string    `json:"secret,omitempty"`   // the token itself, in the answer to its making alone
	// Labels are what a cell carries that the token sees, all of them, and what
	// is made with it gets; without any, it sees everything.
	Labels   map[string]string `json:"labels,omitempty"`
	MaxCells int               `json:"max_cells,omitempty"` // how many cells made with it there may be; any number when missing
	Cells    int               `json:"cells,omitempty"`     // how many there are, where that is limited
	TTL      string            `json:"ttl,omitempty"`       // how long cells made with it live, unless they are given more time, this much again at most
	Rate     float64           `json:"rate,omitempty"`      // requests in a second; the daemon's own limit when missing
}

// TokenRequest makes a token.
type TokenRequest struct {
	Name    string    `json:"name,omitempty"`   // its id when empty
	Scope   string    `json:"scope,omitempty"`  // read, run (the default) or admin
	Expires time.Time `json:"expires,omitzero"` // never when missing
	// Labels restrict the token to cells that carry all of them, and to what
	// belongs to those. What is made with it gets them.
	Labels   map[string]string `json:"labels,omitempty"`
	MaxCells *int              `json:"max_cells,omitempty"` // how many cells made with it there may be at a time, from 1 on; null: any number
	TTL      string            `json:"ttl,omitempty"`       // how long a cell made with it lives at most: "1h"; it is paused then
	Rate     *float64          `json:"rate,omitempty"`      // requests in a second; null: the daemon's own limit
}
