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
}

// TokenRequest makes a token.
type TokenRequest struct {
	Name    string    `json:"name,omitempty"`   // its id when empty
	Scope   string    `json:"scope,omitempty"`  // read, run (the default) or admin
	Expires time.Time `json:"expires,omitzero"` // never when missing
}
