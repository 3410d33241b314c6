package bench

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// perFolder is how many files lie in each folder of a tree.
const perFolder = 100

// tree makes a tree of files, about average bytes each, the same on every machine: text, in
// folders of a hundred. A second call returns the same tree, so its files must not be
// changed; see copyOf.
func (l *lab) tree(files, average int) (string, error) {
	key := fmt.Sprintf("tree-%dx%d", files, average)
	if dir := l.trees[key]; dir != "" {
		return dir, nil
	}
	l.log("making a tree: %d files, %s", files, bytesWord(int64(files)*int64(average)))
	dir := filepath.Join(l.dir, key)
	if err := plant(dir, files, average); err != nil {
		return "", fmt.Errorf("cannot make a tree: %w", err)
	}
	l.trees[key] = dir
	return dir, l.settle()
}

// own makes a tree that the caller may change.
func (l *lab) own(files, average int) (string, error) {
	dir, err := l.fresh("own")
	if err != nil {
		return "", err
	}
	return dir, plant(dir, files, average)
}

// plant writes the files. Sizes go from a quarter of the average to nearly
// twice as much.
func plant(dir string, files, average int) error {
	rnd := rand.New(rand.NewPCG(1, uint64(files)))
	text := words(rnd, 2*average+64)
	for i := range files {
		p := member(dir, i)
		if i%perFolder == 0 {
			if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
				return err
			}
		}
		size := average/4 + rnd.IntN(average*3/2+1)
		at := rnd.IntN(len(text) - size)
		body := append(fmt.Appendf(nil, "file %d\n", i), text[at:at+size]...)
		if err := os.WriteFile(p, body, 0o644); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, marker), []byte("0\n"), 0o644)
}

// marker is the file that the measured commands read and write.
const marker = "marker.txt"

// member is the path of file i of a tree.
func member(dir string, i int) string {
	return filepath.Join(dir, fmt.Sprintf("folder-%04d", i/perFolder), fmt.Sprintf("file-%06d.txt", i))
}

// words is text that looks like prose, so that nothing takes it for a secret.
func words(rnd *rand.Rand, n int) []byte {
	list := []string{"aspen", "root", "stem", "grove", "leaf", "bark", "fire", "clone", "sprout", "slope", "snow", "elk", "stand", "soil", "canopy", "autumn"}
	out := make([]byte, 0, n+16)
	for len(out) < n {
		out = append(out, list[rnd.IntN(len(list))]...)
		if rnd.IntN(10) == 0 {
			out = append(out, '\n')
		} else {
			out = append(out, ' ')
		}
	}
	return out[:n]
}
