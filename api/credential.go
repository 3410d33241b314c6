package api

import "time"

// Credential is a secret that can be lent to cells. The value is never told.
type Credential struct {
	Name    string           `json:"credential"`        // its name, which is its handle
	Kind    string           `json:"kind"`              // "token", or "ssh" for a key of the caller's SSH agent
	For     []string         `json:"for"`               // where it may go, as https://HOST/PATH; hosts for SSH
	As      string           `json:"as,omitempty"`      // the header that it is put in, with {secret} or {basic:USER}
	Also    []CredentialPut  `json:"also,omitempty"`    // places where it is put in another way
	Env     []string         `json:"env,omitempty"`     // variables that hold the placeholder in a cell
	Key     string           `json:"key,omitempty"`     // SSH: the key's fingerprint
	Comment string           `json:"comment,omitempty"` // what the person said who stored it
	Created time.Time        `json:"created,omitzero"`
	Lent    []CredentialLent `json:"lent"`              // cells that have a placeholder for it
	Problem string           `json:"problem,omitempty"` // why it can't be used
}

// CredentialPut is one way in which a credential is put into requests.
type CredentialPut struct {
	For []string `json:"for"` // where it may go
	As  string   `json:"as"`  // the header
}

// CredentialLent says that a cell has a credential.
type CredentialLent struct {
	Cell     string    `json:"cell"`
	CellName string    `json:"cell_name,omitempty"` // the cell's name, if it has one
	Since    time.Time `json:"since"`               // when it was lent
	Revoked  time.Time `json:"revoked,omitzero"`    // when it was taken back
}

// CredentialRequest stores a credential. What is left out of one for a
// well-known service is filled in.
type CredentialRequest struct {
	Name    string   `json:"credential"`        // how it will be called
	Kind    string   `json:"kind,omitempty"`    // "token" (default) or "ssh"
	Secret  string   `json:"secret,omitempty"`  // the value; none for SSH
	For     []string `json:"for,omitempty"`     // where it may go
	As      string   `json:"as,omitempty"`      // the header that it is put in
	Env     []string `json:"env,omitempty"`     // variables that hold the placeholder in a cell
	Key     string   `json:"key,omitempty"`     // SSH: the key's fingerprint
	Comment string   `json:"comment,omitempty"` // for people
	Replace bool     `json:"replace,omitempty"` // one of that name is replaced, in running cells too
}

// CredentialCheck is what was found when a credential was looked at.
type CredentialCheck struct {
	Credential Credential `json:"of"`       // what was looked at
	OK         bool       `json:"ok"`       // nothing is wrong
	Problems   []string   `json:"problems"` // what is wrong
}

// RevokeRequest takes a credential back from cells. Exactly one of Cell,
// Subtree and All is given.
type RevokeRequest struct {
	Cell    string `json:"cell,omitempty"`    // one cell
	Subtree string `json:"subtree,omitempty"` // a cell and all that were forked from it
	All     bool   `json:"all,omitempty"`     // every cell
	Undo    bool   `json:"undo,omitempty"`    // let them have it again
}

// RevokeResult says from which cells a credential was taken.
type RevokeResult struct {
	Credential string   `json:"credential"` // its name
	Cells      []string `json:"cells"`      // ids
}

// Secrets is what a run had to do with credentials: what was lent to its cell,
// and where the values were looked for afterwards.
type Secrets struct {
	Lent       []SecretLent  `json:"lent"`        // what the cell has had
	Scanned    []string      `json:"scanned"`     // what was searched
	Found      []SecretFound `json:"found"`       // where a value is; none is as it should be
	More       int           `json:"more"`        // how many were found beyond those listed
	NotScanned []string      `json:"not_scanned"` // what was not searched, with the reason
	TookMS     float64       `json:"took_ms"`
}

// SecretLent is a credential that a run's cell has had.
type SecretLent struct {
	Credential string   `json:"credential"` // its name
	Kind       string   `json:"kind"`       // "token", "ssh"
	For        []string `json:"for"`        // where it may go
	Uses       int64    `json:"uses"`       // requests that it was put into during the run, or signatures
	Revoked    bool     `json:"revoked"`    // it was taken back before the run's end
}

// SecretFound says that a value of a credential is where it should not be.
type SecretFound struct {
	In         string `json:"in"`             // "workspace", or the record of the run: "stdout", "patch", …
	Path       string `json:"path,omitempty"` // of the file in the workspace
	Credential string `json:"credential"`     // its name
	Encoding   string `json:"encoding"`       // "plain", "base64", …
}
