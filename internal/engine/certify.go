package engine

import (
	"slices"

	"github.com/pando-dev/pando/internal/cell"
)

// certifyStrict is the one word of what a caller wants to be certified.
const certifyStrict = "strict"

// strict reads that word.
func strict(certify string) (bool, error) {
	switch certify {
	case "", certifyStrict:
		return certify == certifyStrict, nil
	}
	return false, cell.Errorf(cell.Invalid, "engine.certify", "give --certify strict, or leave it out", "cannot certify copies as %q", certify)
}

// inherited names, each once, what generators copies have in common with their source.
func inherited(list []*child) (names []string) {
	for _, ch := range list {
		for _, n := range ch.cert.Inherited() {
			if !slices.Contains(names, n) {
				names = append(names, n)
			}
		}
	}
	return names
}
