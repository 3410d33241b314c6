package api

import "time"

// CreateRequest asks for a cell in which nothing has run yet.
type CreateRequest struct {
	Name string `json:"name,omitempty"` // default: one is made up
	From string `json:"from,omitempty"` // source directory, absolute; "": an empty workspace
	// Upload is the id of a source that was sent to the daemon (Upload.ID), in the place
	// of From. The cell ends the upload.
	Upload string `json:"upload,omitempty"`
	// Place is where an empty workspace, or what was uploaded, is seen in the cell; default /workspace.
	Place       string            `json:"place,omitempty"`
	Backend     string            `json:"backend,omitempty"`     // default auto
	Image       string            `json:"image,omitempty"`       // default host
	Kernel      string            `json:"kernel,omitempty"`      // as in RunRequest
	Policy      string            `json:"policy,omitempty"`      // text of a policy file
	Mounts      []string          `json:"mounts,omitempty"`      // SRC:DST[:rw]
	Env         []string          `json:"env,omitempty"`         // of every command in it
	Allow       []string          `json:"allow,omitempty"`       // whom it may reach
	Credentials []string          `json:"credentials,omitempty"` // names of credentials to lend to it
	WithSecret  []string          `json:"with_secret,omitempty"` // paths to import although they look like secrets
	Limits      Limits            `json:"limits,omitzero"`
	Labels      map[string]string `json:"labels,omitempty"` // words of your own
	Lease       LeaseRequest      `json:"lease,omitzero"`   // how long it lives
	CallerEnv   []string          `json:"caller_env,omitempty"`
	CallerDir   string            `json:"caller_dir,omitempty"`
}

// What becomes of a cell when its lease is over.
const (
	LeasePause  = "pause"  // its processes stand still; resume lets them go on
	LeaseStop   = "stop"   // its processes end, its files stay
	LeaseRemove = "remove" // it is removed
)

// LeaseRequest asks for a cell to live a while, from now on.
type LeaseRequest struct {
	For    string `json:"for,omitempty"`    // how long: "5m"; "": for ever, or as before
	Then   string `json:"then,omitempty"`   // pause (default), stop, remove
	Extend bool   `json:"extend,omitempty"` // never make it shorter
	// Labels replace those that the cell has; null: they stay.
	Labels map[string]string `json:"labels,omitempty"`
	// Env replaces the variables that every command in the cell finds; null: they stay.
	Env []string `json:"env,omitempty"`
}

// Lease is how long a cell lives.
type Lease struct {
	Since  time.Time `json:"since"`            // when it began
	Until  time.Time `json:"until,omitzero"`   // absent: for ever
	Then   string    `json:"then"`             // what becomes of the cell then: pause, stop, remove
	Paused bool      `json:"paused,omitempty"` // the cell is paused, also when nothing runs in it
	// Kept is until when the cell is kept as it is paused, by the daemon's ceilings; absent:
	// for ever, or it is not paused. It is removed then.
	Kept time.Time `json:"kept_until,omitzero"`
	// Unkept are variables of the cell whose values look like secrets: no record
	// holds them, and a new daemon does not know them.
	Unkept []string `json:"unkept,omitempty"`
}
