package access

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// Bounds are what a token is held to beside its level. What is zero does not
// bind.
type Bounds struct {
	// Labels are what a cell carries that the token sees: all of them. What is
	// made with the token carries them.
	Labels map[string]string `json:"labels,omitempty"`
	// MaxCells is how many cells made with the token there may be at a time.
	MaxCells int `json:"max_cells,omitempty"`
	// TTL is how long a cell lives at most that is made with the token, from when
	// it was made or was last given time.
	TTL time.Duration `json:"ttl,omitempty"`
	// Rate is how many requests in a second come with it, on the whole; for a
	// moment, twice as many.
	Rate float64 `json:"rate,omitempty"`
}

// Any reports whether something binds.
func (b *Bounds) Any() bool {
	return b != nil && (len(b.Labels) > 0 || b.MaxCells != 0 || b.TTL != 0 || b.Rate != 0)
}

// Limits of bounds.
const (
	maxLabels   = 16
	maxLabel    = 256 // bytes of a name, and of a value
	maxMaxCells = 1_000_000
	maxTTL      = 100 * 365 * 24 * time.Hour
	maxRate     = 1e6
)

// Check says what is no bound.
func (b *Bounds) Check() error {
	const op = "access.Bounds"
	if len(b.Labels) > maxLabels {
		return cell.Errorf(cell.Invalid, op, fmt.Sprintf("give at most %d", maxLabels), "a token can't be restricted to %d labels", len(b.Labels))
	}
	for k, v := range b.Labels {
		switch {
		case k == "" || v == "":
			return cell.Errorf(cell.Invalid, op, "write it as NAME=VALUE", "a token can't be restricted to a label without a name or a value")
		case strings.Contains(k, ":"):
			return cell.Errorf(cell.Invalid, op, "use a name without a colon", "a token can't be restricted to %s: such names belong to other doors", k)
		case len(k) > maxLabel || len(v) > maxLabel:
			return cell.Errorf(cell.Invalid, op, fmt.Sprintf("use at most %d bytes for the name, and for the value", maxLabel), "a token can't be restricted to so long a label")
		}
	}
	switch {
	case b.MaxCells < 0 || b.MaxCells > maxMaxCells:
		return cell.Errorf(cell.Invalid, op, fmt.Sprintf("give a number from 1 to %d", maxMaxCells), "%d is no number of cells", b.MaxCells)
	case b.TTL < 0 || b.TTL != 0 && b.TTL < time.Second || b.TTL > maxTTL:
		return cell.Errorf(cell.Invalid, op, "give a time of a second or more", "a cell can't live for %s", b.TTL)
	case math.IsNaN(b.Rate) || b.Rate < 0 || b.Rate > maxRate || b.Rate != 0 && b.Rate < 0.01:
		return cell.Errorf(cell.Invalid, op, "give a number from 0.01 on", "%g is no number of requests in a second", b.Rate)
	}
	return nil
}

// LabelText is labels for people, in order: "team=a,user=b".
func LabelText(labels map[string]string) string {
	var list []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		list = append(list, k+"="+labels[k])
	}
	return strings.Join(list, ",")
}
