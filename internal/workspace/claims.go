package workspace

import (
	"context"
	"math"

	"golang.org/x/sys/unix"
)

// Claims adds up the sizes of the files below dir, holes included, in bytes: the amount to read
// for a digest. A file with several names counts once.
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
		if sum += s.Size; sum < 0 { // beyond the range of int64
			return math.MaxInt64, err
		}
	}
	return sum, err
}
