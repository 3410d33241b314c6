package api

// Ceiling is the operator's limit for a door, a token or a label, and its usage.
type Ceiling struct {
	For      string        `json:"for"`                 // "door e2b", "token ci", "label team=a"
	By       string        `json:"by"`                  // where it is set: built in, or a file
	Default  CeilingLimits `json:"default"`             // of a cell that requests nothing
	Max      CeilingLimits `json:"max"`                 // of any cell
	MaxCells int           `json:"max_cells,omitempty"` // maximum number of cells that are not paused; unlimited when missing
	Cells    int           `json:"cells"`               // number of cells
	Keep     string        `json:"keep,omitempty"`      // how long a paused or stopped cell is kept; unlimited when missing
	Waiting  int           `json:"waiting"`             // requests that wait for a cell to end
	Waited   int64         `json:"waited"`              // requests that had to wait, since the daemon started
	Refused  int64         `json:"refused"`             // requests that were refused for this ceiling, since the daemon started
}

// CeilingLimits are bounds of one cell; a missing one does not bind.
type CeilingLimits struct {
	CPUs   float64 `json:"cpus,omitempty"`   // cores
	Memory int64   `json:"memory,omitempty"` // bytes
	PIDs   int64   `json:"pids,omitempty"`   // processes and threads
	Disk   int64   `json:"disk,omitempty"`   // bytes
	Egress int64   `json:"egress,omitempty"` // bytes that leave the cell in one run
}
