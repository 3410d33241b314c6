package api

// Ceiling is what an operator set for a door, a token or a label, and what is in use of it.
type Ceiling struct {
	For      string        `json:"for"`                 // "door e2b", "token ci", "label team=a"
	By       string        `json:"by"`                  // who said so: built in, or a file
	Default  CeilingLimits `json:"default"`             // of a cell that asks for nothing
	Max      CeilingLimits `json:"max"`                 // of any cell
	MaxCells int           `json:"max_cells,omitempty"` // how many there may be at once that are not paused; any number when missing
	Cells    int           `json:"cells"`               // how many there are
	Keep     string        `json:"keep,omitempty"`      // how long a paused or stopped one is kept; for ever when missing
	Waiting  int           `json:"waiting"`             // requests that wait for one of them to end
	Waited   int64         `json:"waited"`              // requests that had to wait, since the daemon started
	Refused  int64         `json:"refused"`             // requests that were refused for it, since the daemon started
}

// CeilingLimits are bounds of one cell; what is missing does not bind.
type CeilingLimits struct {
	CPUs   float64 `json:"cpus,omitempty"`   // cores
	Memory int64   `json:"memory,omitempty"` // bytes
	PIDs   int64   `json:"pids,omitempty"`   // processes and threads
	Disk   int64   `json:"disk,omitempty"`   // bytes
	Egress int64   `json:"egress,omitempty"` // bytes that leave the cell in one run
}
