package workspace

import (
	"context"
	"math"

	"golang.org/x/sys/unix"
)

// Claims adds up what the files below dir say their sizes are, holes included,
// in bytes: so much has to be read to digest them. A file with several names
// counts once.
func Claims(ctx context.Context, dir string) (int64, error) {
	root, err := OpenRoot(dir)
	if err != nil {
		return 0, err
	}
	defer root.Close()
	all, err := Collect(ctx, root)
	var sum int64
	seen := map[string]bool{}
	for i := range all {
		s := &all[i].Stat
		if s.Mode&unix.S_IFMT != unix.S_IFREG || s.Nlink > 1 && seen[LinkKey(s)] {
			continue
		}
		if s.Nlink > 1 {
			seen[LinkKey(s)] = true
		}
		if sum += s.Size; sum < 0 { // beyond what can be counted
			return math.MaxInt64, err
		}
	}
	return sum, err
}
