package workspace

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// Stamp sums up the names and attributes of the files below dir, which is in use: it is another one once
// something there was written, made, renamed or removed. It is zero where something changed within the last
// tick of the file times, since a later change could look the same. No file is read.
func Stamp(ctx context.Context, dir string) (cell.Digest, error) {
	root, err := OpenRoot(dir)
	if err != nil {
		return cell.Digest{}, err
	}
	defer root.Close()
	now := time.Now().UnixNano()
	all, left, err := CollectUsed(ctx, root)
	if err != nil {
		return cell.Digest{}, err
	}
	var b []byte
	for i := range all {
		s := &all[i].Stat
		if s.CTime >= now-RacySlack {
			return cell.Digest{}, nil
		}
		b = append(append(b, all[i].Path...), 0)
		for _, n := range []uint64{s.Ino, uint64(s.Size), uint64(s.MTime), uint64(s.CTime), uint64(s.Mode)} {
			b = binary.LittleEndian.AppendUint64(b, n)
		}
	}
	for _, p := range left {
		b = append(append(b, p...), 0)
	}
	return cell.Sum(b), nil
}
