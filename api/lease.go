package api

import "time"

// CreateRequest makes a cell without a run.
type CreateRequest struct {
	Name string `json:"name,omitempty"` // default: a generated one
	From string `json:"from,omitempty"` // source directory, absolute; "": an empty workspace
	// Repositories are further directories that come into the cell beside From, as in RunRequest.
	Repositories []string `json:"repositories,omitempty"`
	// Upload is the id of an uploaded source (Upload.ID), instead of From. The cell consumes the
	// upload.
	Upload string `json:"upload,omitempty"`
	// Place is the path of an empty or uploaded workspace in the cell; default /workspace.
	Place       string            `json:"place,omitempty"`
	Backend     string            `json:"backend,omitempty"`     // default auto
	Image       string            `json:"image,omitempty"`       // default host
	Kernel      string            `json:"kernel,omitempty"`      // as in RunRequest
	Policy      string            `json:"policy,omitempty"`      // text of a policy file
	Mounts      []string          `json:"mounts,omitempty"`      // SRC:DST[:rw]
	ReadOnly    bool              `json:"read_only,omitempty"`   // commands can't write to the image
	Caches      []string          `json:"caches,omitempty"`      // as in RunRequest
	CacheWrite  string            `json:"cache_write,omitempty"` // as in RunRequest
	Services    []ServiceRequest  `json:"services,omitempty"`    // as in RunRequest
	Env         []string          `json:"env,omitempty"`         // of every command in it
	Allow       []string          `json:"allow,omitempty"`       // hosts that it may reach
	Credentials []string          `json:"credentials,omitempty"` // names of credentials to lend to it
	WithSecret  []string          `json:"with_secret,omitempty"` // paths to import although they look like secrets
	Limits      Limits            `json:"limits,omitzero"`
	Labels      map[string]string `json:"labels,omitempty"` // names and values that callers choose
	Lease       LeaseRequest      `json:"lease,omitzero"`   // its lifetime
	CallerEnv   []string          `json:"caller_env,omitempty"`
	CallerDir   string            `json:"caller_dir,omitempty"`
}

// What happens to a cell when its lease ends.
const (
	LeasePause  = "pause"  // its processes are paused; resume continues them
	LeaseStop   = "stop"   // its processes end, its files stay
	LeaseRemove = "remove" // it is removed
)

// LeaseRequest sets the lifetime of a cell, counted from now on.
type LeaseRequest struct {
	For    string `json:"for,omitempty"`    // duration: "5m"; "": unlimited, or as before
	Then   string `json:"then,omitempty"`   // pause (default), stop, remove
	Extend bool   `json:"extend,omitempty"` // never shorten it
	// Labels replace those of the cell; null keeps them.
	Labels map[string]string `json:"labels,omitempty"`
	// Env replaces the variables of every command in the cell; null keeps them.
	Env []string `json:"env,omitempty"`
}

// Lease is the lifetime of a cell.
type Lease struct {
	Since  time.Time `json:"since"`            // when it began
	Until  time.Time `json:"until,omitzero"`   // absent: unlimited
	Then   string    `json:"then"`             // what happens to the cell then: pause, stop, remove
	Paused bool      `json:"paused,omitempty"` // the cell is paused, also when it has no processes
	Idle   bool      `json:"idle,omitempty"`   // it is paused because nothing happened in it
	// Kept is when the daemon's ceilings remove the paused cell; absent: never, or the cell is
	// not paused.
	Kept time.Time `json:"kept_until,omitzero"`
	// Unkept are variables of the cell with values that look like secrets: no record has them,
	// and they are lost when the daemon restarts.
	Unkept []string `json:"unkept,omitempty"`
}
