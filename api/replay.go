package api

// ReplayRequest asks for a run again, in a new cell.
type ReplayRequest struct {
	// Verify executes the command again, from the files before the run and without network, and compares. Without it nothing
	// runs: the new cell gets the recorded patch.
	Verify bool `json:"verify,omitempty"`
	// Until has the new cell begin at a state within the run: "before", "after", a checkpoint of its cell ("5"), "turn:N",
	// "step:N", or "event:N", the newest checkpoint that is not later than that event. Nothing runs.
	Until string `json:"until,omitempty"`
	// From is a directory with the files of before the run, where pando has these no more; absolute. Its content digest must
	// be the recorded one.
	From string   `json:"from,omitempty"`
	Name string   `json:"name,omitempty"` // of the new cell; "replay-N" by default
	Env  []string `json:"env,omitempty"`  // with Verify: NAME=value, in addition to what the run is known to have had
	Keep bool     `json:"keep,omitempty"` // with Verify: keep the new cell, also when nothing differs
	// IgnoreTimes has Verify compare output without dates, times and durations.
	IgnoreTimes bool `json:"ignore_times,omitempty"`
}

// Replay is what came out of it.
type Replay struct {
	Run       string `json:"run"`                 // what was replayed
	Mode      string `json:"mode"`                // "patch", "verify" or "until"
	Identical bool   `json:"identical"`           // nothing that is compared differs
	First     string `json:"first,omitempty"`     // the first divergence, in words; empty when there is none
	Cell      string `json:"cell,omitempty"`      // the new cell; empty when it was not made, or is gone
	CellName  string `json:"cell_name,omitempty"` // its name
	Isolation string `json:"isolation"`           // of the run and the new cell: "isolated" or "not isolated" (backend none)
	Again     string `json:"again,omitempty"`     // with Verify: the run that executed the command again
	Receipt   string `json:"receipt,omitempty"`   // digest of the receipt of the new cell; none with Verify, where Again has one
	// Levels say what was compared, in the order in which a divergence counts as the first.
	Levels []ReplayLevel `json:"levels"`
	Notes  []string      `json:"notes"`   // what can't be replayed, and what is to be known
	TookMS float64       `json:"took_ms"` // wall time in milliseconds
}

// ReplayLevel is one part of a comparison.
type ReplayLevel struct {
	Level    string `json:"level"`              // "evidence", "before", "patch", "wire", "stdout", "stderr", "exit code", "files", "after"
	Is       string `json:"is"`                 // "same", "differs", "unknown"
	Text     string `json:"text,omitempty"`     // what differs, or why it is unknown
	Recorded string `json:"recorded,omitempty"` // by the receipt: a digest, or an exit code
	Found    string `json:"found,omitempty"`    // now
}

// What a ReplayLevel says.
const (
	ReplaySame    = "same"
	ReplayDiffers = "differs"
	ReplayUnknown = "unknown"
)
