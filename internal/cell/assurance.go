package cell

import "time"

// Assurance is how strong a cell's isolation really is, as measured from the
// running cell.
type Assurance struct {
	Backend    string         `json:"backend"`
	Isolation  []string       `json:"isolation"`  // what separates it: "user namespace", "seccomp", …
	Limits     []AppliedLimit `json:"limits"`     // asked and applied
	Canaries   Canaries       `json:"canaries"`   // what was tried in the cell before the command
	Downgrades []string       `json:"downgrades"` // each thing that is weaker than it could be, in words
	Network    string         `json:"network"`    // "none": loopback only
	IDs        string         `json:"ids"`        // how the cell's users map to the host's
}

// AppliedLimit is one limit: what was asked, what is in force and how.
type AppliedLimit struct {
	Name    string `json:"name"`    // "memory", "cpus", "pids", "disk", "time"
	Asked   string `json:"asked"`   // "" when it is a default
	Applied string `json:"applied"` // "" when nothing is in force
	How     string `json:"how"`     // "cgroup v2 memory.max", "accounted", …
}

// Canaries is the outcome of the battery of forbidden things that were tried
// inside the cell, by the process that then became the command.
type Canaries struct {
	Passed int      `json:"passed"`
	Total  int      `json:"total"`
	Failed []string `json:"failed,omitempty"`
	// Bites lists the enforcements that a canary ran into: an enforcement
	// that is not listed was not seen to work.
	Bites []string `json:"bites"`
	// Skipped names those that were not tried, because the policy allows what
	// they would do.
	Skipped []string `json:"skipped,omitempty"`
	// At is when they were tried, and Fresh that it was for this command alone.
	At    time.Time `json:"at,omitzero"`
	Fresh bool      `json:"fresh,omitempty"`
}
