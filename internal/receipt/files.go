package receipt

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"

	"github.com/pando-dev/pando/internal/cell"
)

// VerifyFiles computes the digests of files that a receipt binds (manifest,
// events, output, patch) and names those that differ or are not there. open
// returns a file's content; when that can be closed, it is.
func VerifyFiles(digests map[string]cell.Digest, open func(name string) (io.Reader, error)) []Problem {
	var problems []Problem
	for _, name := range slices.Sorted(maps.Keys(digests)) {
		got, err := digestOf(name, open)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			problems = append(problems, Problem{Missing, -1, name, fmt.Sprintf("%s is not there", name)})
		case err != nil:
			problems = append(problems, Problem{Missing, -1, name, fmt.Sprintf("%s can't be read: %v", name, err)})
		case got != digests[name]:
			problems = append(problems, Problem{Edited, -1, name, fmt.Sprintf("%s has the digest %s, the receipt says %s", name, got.Short(), digests[name].Short())})
		}
	}
	return problems
}

func digestOf(name string, open func(string) (io.Reader, error)) (d cell.Digest, err error) {
	r, err := open(name)
	if err != nil {
		return d, err
	}
	if c, ok := r.(io.Closer); ok {
		defer c.Close()
	}
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		return d, err
	}
	return cell.Digest(h.Sum(nil)), nil
}
