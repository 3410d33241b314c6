package race

import (
	"math"
	"strconv"

	"github.com/pando-dev/pando/internal/cell"
)

// When a race ends.
const (
	UntilAll   = "all"
	UntilFirst = "first"
)

// Wanted is how many attempts have to succeed for a race to end before all have ended; 0: none can end it.
func Wanted(until string) (int, error) {
	switch until {
	case "", UntilAll:
		return 0, nil
	case UntilFirst:
		return 1, nil
	}
	n, err := strconv.Atoi(until)
	if err != nil || n < 1 || n > MaxAttempts {
		return 0, cell.Errorf(cell.Invalid, "race.Wanted", "use all, first, or a number", "cannot end a race at %q", cell.Clip(until))
	}
	return n, nil
}

// Score reads what a scorer printed: a number, on the last line that is not empty.
func Score(line string) (float64, error) {
	f, err := strconv.ParseFloat(line, 64)
	if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
		return 0, cell.Errorf(cell.Invalid, "race.Score", "print a number as the last line", "%q is no number", cell.Clip(line))
	}
	return f, nil
}
