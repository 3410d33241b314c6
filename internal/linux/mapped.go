package linux

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"strconv"
)

// Mapped lists the files that the processes that a /proc shows can write through shared memory, each
// once, as those processes know them. A line break in a path is "\012". It is all of them, or an error.
func Mapped(proc string) ([]string, error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, err
	}
	var paths []string
	seen := map[string]bool{}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		err := mappedBy(filepath.Join(proc, e.Name(), "maps"), func(path string) {
			if !seen[path] {
				seen[path] = true
				paths = append(paths, path)
			}
		})
		if err != nil && !IsGone(err) {
			return nil, err
		}
	}
	return paths, nil
}

// mappedBy parses proc_pid_maps(5): "start-end rw-s offset device inode path".
func mappedBy(maps string, found func(path string)) error {
	f, err := os.Open(maps)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 64<<10) // a path has at most 4096 bytes, a line break in it is four
	for lines.Scan() {
		_, rest, ok := bytes.Cut(lines.Bytes(), []byte(" "))
		if !ok || len(rest) < 4 || rest[1] != 'w' || rest[3] != 's' {
			continue
		}
		if at := bytes.IndexByte(rest, '/'); at >= 0 {
			found(string(rest[at:]))
		}
	}
	return lines.Err()
}
