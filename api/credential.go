package api

import "time"

// Credential is a secret that can be lent to cells. No answer has its value.
type Credential struct {
	Name    string           `json:"credential"`        // its name, which is its handle
	Kind    string           `json:"kind"`              // "token", or "ssh" for a key of the caller's SSH agent
	For     []string         `json:"for"`               // where it may be sent, as https://HOST/PATH; for SSH hosts, and "git-signatures"
	As      string           `json:"as,omitempty"`      // the header that carries it, with {secret} or {basic:USER}
	Also    []CredentialPut  `json:"also,omitempty"`    // further headers for other places
	Env     []string         `json:"env,omitempty"`     // variables that hold the placeholder in a cell
	Key     string           `json:"key,omitempty"`     // SSH: the key's fingerprint
	Comment string           `json:"comment,omitempty"` // the comment given when it was stored
	Created time.Time        `json:"created,omitzero"`
	Lent    []CredentialLent `json:"lent"`              // cells that have a placeholder for it
	Problem string           `json:"problem,omitempty"` // the reason why it can't be used
	Login   string           `json:"login,omitempty"`   // the program of the login file that has the value, which is not stored
	Path    string           `json:"path,omitempty"`    // that file
	Expires time.Time        `json:"expires,omitzero"`  // when the token in it expires, if that is known
}

// CredentialPut is one way in which a credential is put into requests.
type CredentialPut struct {
	For []string `json:"for"` // where it may be sent
	As  string   `json:"as"`  // the header
}

// CredentialLent says that a cell has a credential.
type CredentialLent struct {
	Cell     string    `json:"cell"`
	CellName string    `json:"cell_name,omitempty"` // the cell's name, if it has one
	Since    time.Time `json:"since"`               // when it was lent
	Revoked  time.Time `json:"revoked,omitzero"`    // when it was taken back
}

// CredentialRequest stores a credential. For a well-known service missing fields are filled in.
type CredentialRequest struct {
	Name    string   `json:"credential"`        // its name
	Kind    string   `json:"kind,omitempty"`    // "token" (default) or "ssh"
	Secret  string   `json:"secret,omitempty"`  // the value; none for SSH
	For     []string `json:"for,omitempty"`     // where it may be sent; for SSH hosts, and "git-signatures" for commits and tags
	As      string   `json:"as,omitempty"`      // the header that carries it
	Env     []string `json:"env,omitempty"`     // variables that hold the placeholder in a cell
	Key     string   `json:"key,omitempty"`     // SSH: the key's fingerprint, or the public key, as in a file NAME.pub
	Comment string   `json:"comment,omitempty"` // for people
	Replace bool     `json:"replace,omitempty"` // replace a credential of this name, also in running cells
	// In place of the value: the program of the daemon's host, "claude", "codex" or "opencode", that keeps a
	// login file. It alone refreshes the login; the token in the file is lent, and read again when the file changes.
	Login string `json:"login,omitempty"`
	Path  string `json:"path,omitempty"` // of that program: its login file
}

// CredentialCheck is the outcome of checking a credential.
type CredentialCheck struct {
	Credential Credential `json:"of"`       // the checked credential
	OK         bool       `json:"ok"`       // no problem was found
	Problems   []string   `json:"problems"` // the problems found
}

// RevokeRequest takes a credential back from cells. Exactly one of Cell,
// Subtree and All is given.
type RevokeRequest struct {
	Cell    string `json:"cell,omitempty"`    // one cell
	Subtree string `json:"subtree,omitempty"` // a cell and all its forks
	All     bool   `json:"all,omitempty"`     // every cell
	Undo    bool   `json:"undo,omitempty"`    // lend it to them again
}

// RevokeResult lists the cells from which a credential was taken back.
type RevokeResult struct {
	Credential string   `json:"credential"` // its name
	Cells      []string `json:"cells"`      // ids
}

// Secrets reports on the credentials of a run: those lent to its cell, and where their values
// were searched for afterwards.
type Secrets struct {
	Lent       []SecretLent  `json:"lent"`        // credentials that the cell has had
	Scanned    []string      `json:"scanned"`     // what was searched
	Found      []SecretFound `json:"found"`       // places of a value; normally empty
	More       int           `json:"more"`        // number of places beyond those listed
	NotScanned []string      `json:"not_scanned"` // what was not searched, with the reason
	TookMS     float64       `json:"took_ms"`
}

// SecretLent is a credential that a run's cell has had.
type SecretLent struct {
	Credential string   `json:"credential"` // its name
	Kind       string   `json:"kind"`       // "token", "ssh"
	For        []string `json:"for"`        // where it may be sent
	Uses       int64    `json:"uses"`       // number of requests that it was put into during the run, or of signatures
	Revoked    bool     `json:"revoked"`    // it was taken back before the run's end
}

// SecretFound is a place where the value of a credential should not be.
type SecretFound struct {
	In         string `json:"in"`             // "workspace", or the record of the run: "stdout", "patch", …
	Path       string `json:"path,omitempty"` // path of the file in the workspace
	Credential string `json:"credential"`     // its name
	Encoding   string `json:"encoding"`       // "plain", "base64", …
}

// AgentLogin says whether a coding agent is logged in: whether a credential is stored that its cells
// are lent.
type AgentLogin struct {
	Agent      string    `json:"agent"`                // "claude"
	Title      string    `json:"title"`                // "Claude Code"
	Credential string    `json:"credential,omitempty"` // the credential's name; none: the agent is not logged in
	Env        []string  `json:"env,omitempty"`        // variables that hold the placeholder in a cell
	For        []string  `json:"for,omitempty"`        // where it may be sent
	Since      time.Time `json:"since,omitzero"`       // when it was stored
	Path       string    `json:"path,omitempty"`       // the login file that has the value
	Expires    time.Time `json:"expires,omitzero"`     // when the token in it expires, if that is known
	Problem    string    `json:"problem,omitempty"`    // the reason why it can't be used
}
