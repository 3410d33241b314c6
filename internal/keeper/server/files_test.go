package server

import (
	"bytes"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/proto"
)

// rootedDriver has a directory for the root of its cell, and a kernel that remembers files.
type rootedDriver struct {
	*fakeDriver
	dir  string
	told atomic.Int64
}

func (d *rootedDriver) Root(cell.ID) (*os.File, error) { return os.Open(d.dir) }
func (d *rootedDriver) Refresh(cell.ID) error          { d.told.Add(1); return nil }

// The kernel of a cell is told of what was written to its files from outside before the caller is,
// and of nothing that was only read.
func TestKernelsKnowOfWrittenFiles(t *testing.T) {
	d := &rootedDriver{dir: t.TempDir()}
	k := newKitWith(t, func(f *fakeDriver) Driver {
		d.fakeDriver = f
		return d
	})
	told := int64(0)
	for _, c := range []struct {
		act    cell.FileAct
		in     string
		writes bool
	}{
		{cell.FileAct{Act: cell.FileMkdir, Path: "/d"}, "", true},
		{cell.FileAct{Act: cell.FileWrite, Path: "/d/f"}, "text", true},
		{cell.FileAct{Act: cell.FileStat, Path: "/d/f"}, "", false},
		{cell.FileAct{Act: cell.FileList, Path: "/d"}, "", false},
		{cell.FileAct{Act: cell.FileRead, Path: "/d/f"}, "", false},
		{cell.FileAct{Act: cell.FileMove, Path: "/d/f", To: "/d/g"}, "", true},
		{cell.FileAct{Act: cell.FileRemove, Path: "/d/g"}, "", true},
	} {
		c.act.UID, c.act.GID = os.Getuid(), os.Getgid()
		if err := k.c.Manage(k.ctx, one, c.act, strings.NewReader(c.in), io.Discard); err != nil {
			t.Fatalf("%s: %v", c.act.Act, err)
		}
		if c.writes {
			told++
		}
		if got := d.told.Load(); got != told {
			t.Fatalf("after %s it was told %d times, and not %d", c.act.Act, got, told)
		}
	}
	archive := func(write bool) proto.Archive {
		return proto.Archive{Cell: one, Path: "/", Write: write, UID: os.Getuid(), GID: os.Getgid()}
	}
	var out bytes.Buffer
	if err := k.c.Files(k.ctx, archive(false), nil, &out); err != nil || d.told.Load() != told {
		t.Fatalf("reading: told %d times, %v", d.told.Load(), err)
	}
	if err := k.c.Files(k.ctx, archive(true), &out, nil); err != nil || d.told.Load() != told+1 {
		t.Fatalf("writing: told %d times, %v", d.told.Load(), err)
	}
}
