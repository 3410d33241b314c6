package cell

import "time"

// Assurance is the strength of a cell's isolation, as measured from the running cell.
type Assurance struct {
	Backend    string         `json:"backend"`
	Isolation  []string       `json:"isolation"`  // the mechanisms: "user namespace", "seccomp", …
	Limits     []AppliedLimit `json:"limits"`     // requested and applied
	Canaries   Canaries       `json:"canaries"`   // results of the canaries that ran before the command
	Downgrades []string       `json:"downgrades"` // each thing that is weaker than it could be, in words
	Network    string         `json:"network"`    // "none": loopback only
	IDs        string         `json:"ids"`        // how the cell's users map to the host's
}

// AppliedLimit is one limit: the requested value, the value in force and the mechanism.
type AppliedLimit struct {
	Name    string `json:"name"`    // "memory", "cpus", "pids", "disk", "time"
	Asked   string `json:"asked"`   // "" when it is a default
	Applied string `json:"applied"` // "" when nothing is in force
	How     string `json:"how"`     // "cgroup v2 memory.max", "accounted", …
}

// Canaries is the outcome of the canaries: forbidden operations that the process which then
// became the command tried inside the cell.
type Canaries struct {
	Passed int      `json:"passed"`
	Total  int      `json:"total"`
	Failed []string `json:"failed,omitempty"`
	// Bites lists the enforcements that stopped a canary. An enforcement that is not
	// listed was not seen to work.
	Bites []string `json:"bites"`
	// Skipped names the canaries that did not run, because the policy allows the
	// operation.
	Skipped []string `json:"skipped,omitempty"`
	// At is when the canaries ran. Fresh says that they ran for this command alone.
	At    time.Time `json:"at,omitzero"`
	Fresh bool      `json:"fresh,omitempty"`
}
