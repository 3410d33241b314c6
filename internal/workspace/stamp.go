package workspace

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// Stamp sums up the names and attributes of the files below dir, which is in use: it is another one once
// something there was written, made, renamed or removed. settled is false where something changed within the last
// tick of the file times, since a later change could look the same. No file is read.
func Stamp(ctx context.Context, dir string) (sum cell.Digest, settled bool, err error) {
	root, err := OpenRoot(dir)
	if err != nil {
		return sum, false, err
	}
	defer root.Close()
	now := time.Now().UnixNano()
	all, left, err := CollectUsed(ctx, root)
	if err != nil {
		return sum, false, err
	}
	settled = true
	h := sha256.New()
	var b []byte
	for i := range all {
		s := &all[i].Stat
		if s.CTime >= now-RacySlack && s.CTime <= now+RacySlack { // later: the clock was set back
			settled = false
		}
		b = append(append(b[:0], all[i].Path...), 0)
		for _, n := range []uint64{s.Ino, uint64(s.Size), uint64(s.MTime), uint64(s.CTime), uint64(s.Mode)} {
			b = binary.LittleEndian.AppendUint64(b, n)
		}
		h.Write(b)
	}
	for _, p := range left {
		h.Write(append([]byte(p), 0))
	}
	h.Sum(sum[:0])
	return sum, settled, nil
}
