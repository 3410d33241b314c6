package receipt

import (
	"encoding/json"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// The acts on how long evidence is kept.
const (
	ActHold    = "hold"
	ActRelease = "release"
	ActErase   = "erase"
)

// erasures are what acts of a bundle say was erased, by the paths of its files.
type erasures map[string]erasure

type erasure struct {
	digest cell.Digest
	found  string // what was there instead; "" for what the receipt names
	words  string // for people: "erased on …"
}

// add adds what the predicate of an act says.
func (e erasures) add(predicate json.RawMessage) {
	var act struct {
		Act    string    `json:"act"`
		At     time.Time `json:"at"`
		By     string    `json:"by"`
		Reason string    `json:"reason"`
		Erased []struct {
			Run    string      `json:"run"`
			File   string      `json:"file"`
			Digest cell.Digest `json:"digest"`
			Found  string      `json:"found"`
		} `json:"erased"`
	}
	if json.Unmarshal(predicate, &act) != nil || act.Act != ActErase {
		return
	}
	for _, f := range act.Erased {
		e[ArchiveRun(f.Run, f.File)] = erasure{f.Digest, f.Found, "erased on " + act.At.UTC().Format(time.DateOnly) + " by " + act.By + ", for: " + act.Reason}
	}
}
