package linux

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"strconv"

	"github.com/pando-dev/pando/internal/cell"
)

// maxMapped bounds the files that Mapped lists: a cell can map some 65,000 in each process.
const maxMapped = 1 << 16

// Mapped lists the files that the processes that a /proc shows can write through shared memory, each
// once. It is all of them, or an error.
func Mapped(proc string) ([]cell.MappedFile, error) {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return nil, err
	}
	var list []cell.MappedFile
	seen := map[cell.MappedFile]bool{}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		err := mappedBy(filepath.Join(proc, e.Name(), "maps"), func(f cell.MappedFile) error {
			if seen[f] {
				return nil
			}
			if len(list) == maxMapped {
				return cell.Errorf(cell.TooLarge, "linux.Mapped", "", "more than %d files are written through memory", maxMapped)
			}
			seen[f] = true
			list = append(list, f)
			return nil
		})
		if err != nil && !IsGone(err) {
			return nil, err
		}
	}
	return list, nil
}

// mappedBy parses proc_pid_maps(5): "start-end rw-s offset device inode path".
func mappedBy(maps string, found func(cell.MappedFile) error) error {
	f, err := os.Open(maps)
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 64<<10) // a path has at most 4096 bytes, a line break in it is four
	for lines.Scan() {
		fields := bytes.SplitN(lines.Bytes(), []byte(" "), 6)
		if len(fields) < 6 || len(fields[1]) < 4 || fields[1][1] != 'w' || fields[1][3] != 's' {
			continue
		}
		path := bytes.TrimLeft(fields[5], " ")
		inode, err := strconv.ParseUint(string(fields[4]), 10, 64)
		if err != nil || !bytes.HasPrefix(path, []byte("/")) {
			continue
		}
		if err := found(cell.MappedFile{Path: string(path), Inode: inode}); err != nil {
			return err
		}
	}
	return lines.Err()
}
