package ram

import (
	"context"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// copyBase copies the first size bytes of base to the image, with holes, and records where it
// has data.
func (t *Taking) copyBase(ctx context.Context, base *os.File, size int64) error {
	// An empty file is not truncated: ext4 writes out a truncated file when it is closed
	// (auto_da_alloc), during the pause.
	if st, err := t.to.Stat(); err != nil {
		return err
	} else if st.Size() > 0 {
		if err := t.to.Truncate(0); err != nil {
			return err
		}
	}
	st, err := base.Stat()
	if err != nil {
		return err
	}
	if err := t.to.Truncate(size); err != nil || t.own || st.Mode()&os.ModeDevice != 0 {
		return err
	}
	for off := int64(0); ; {
		from, end, err := nextData(base, off, size)
		if err != nil || from == size {
			return err
		}
		t.stats.BaseBytes += end - from
		if err := t.copyPart(ctx, base, from, end); err != nil {
			return err
		}
		off = end
	}
}

// copyPart copies the bytes of base between two offsets.
func (t *Taking) copyPart(ctx context.Context, base *os.File, from, end int64) error {
	buf := make([]byte, chunk)
	for from < end {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		b := buf[:min(end-from, chunk)]
		if n, err := base.ReadAt(b, from); n < len(b) {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		if err := t.write(b, from, false); err != nil {
			return err
		}
		from += int64(len(b))
	}
	return nil
}

// nextData returns the next data of a file, in whole pages, or from == size if there is none.
func nextData(f *os.File, off, size int64) (from, end int64, err error) {
	from, err = unix.Seek(int(f.Fd()), off, unix.SEEK_DATA)
	if err == unix.ENXIO || err == nil && from >= size {
		return size, size, nil
	}
	if err != nil {
		return 0, 0, os.NewSyscallError("seek", err)
	}
	end, err = unix.Seek(int(f.Fd()), from, unix.SEEK_HOLE)
	if err != nil {
		return 0, 0, os.NewSyscallError("seek", err)
	}
	if end <= from {
		return 0, 0, fmt.Errorf("cannot find the data of the memory's file: it changes")
	}
	return from / pageSize * pageSize, min((end+pageSize-1)/pageSize*pageSize, size), nil
}
