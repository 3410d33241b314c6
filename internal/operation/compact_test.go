package operation

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"runtime"
	"sync"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/testenv"
)

// hookedDisk calls synced, if it is set, when data of a file is synced.
type hookedDisk struct {
	durable.FS
	synced func()
}

func (d *hookedDisk) OpenAppend(name string) (durable.File, error) {
	f, err := d.FS.OpenAppend(name)
	return hookedFile{f, d}, err
}

func (d *hookedDisk) CreateTemp(name string, perm fs.FileMode) (durable.File, error) {
	f, err := d.FS.CreateTemp(name, perm)
	return hookedFile{f, d}, err
}

type hookedFile struct {
	durable.File
	d *hookedDisk
}

func (f hookedFile) SyncData() error {
	if then := f.d.synced; then != nil {
		f.d.synced = nil
		then()
	}
	return f.File.SyncData()
}

// An end that is written while the journal is compacted is in it afterwards.
func TestCompactionLosesNoEnd(t *testing.T) {
	dir := t.TempDir()
	disk := &hookedDisk{FS: durable.Disk(dir)}
	// during starts a compaction when the next record is written, and lets it go on as far as
	// it can; it tells the compaction's end.
	during := func(compact func(int64) error, rewriting *sync.RWMutex) <-chan error {
		ended := make(chan error, 1)
		disk.synced = func() {
			go func() { ended <- compact(0) }()
			testenv.Eventually(t, func() bool {
				free := rewriting.TryRLock()
				if free {
					rewriting.RUnlock()
				}
				return !free
			}, "a compaction")
			for range 100 {
				runtime.Gosched()
			}
		}
		return ended
	}
	keys, err := OpenKeys(disk, "keys.log")
	if err != nil {
		t.Fatal(err)
	}
	d, _, err := keys.begin("k", "a", nil)
	if err != nil {
		t.Fatal(err)
	}
	compacted := during(keys.compact, &keys.rewriting)
	if err := keys.End(d, &Answer{Body: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	if err, _ := testenv.Receive(t, compacted, "the end of the compaction"); err != nil {
		t.Error(err)
	}
	ops, err := Open(disk, "operations.log", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	goOn := make(chan bool)
	v, err := ops.Begin(t.Context(), access.Local, api.Operation{Kind: "eval"}, t.Context(), func(context.Context, func(api.StreamLine)) (any, error) {
		<-goOn
		return nil, nil
	}, func(api.Operation, bool) {})
	if err != nil {
		t.Fatal(err)
	}
	compacted = during(ops.compact, &ops.rewriting)
	close(goOn)
	ops.Wait()
	if err, _ := testenv.Receive(t, compacted, "the end of the compaction"); err != nil {
		t.Error(err)
	}
	// The next daemon finds both ended.
	if err := errors.Join(keys.Close(), ops.Close()); err != nil {
		t.Fatal(err)
	}
	if keys, err = OpenKeys(durable.Disk(dir), "keys.log"); err != nil {
		t.Fatal(err)
	}
	defer keys.Close()
	if again, mine, err := keys.begin("k", "a", nil); err != nil || mine || string(again.Body) != "x" {
		t.Errorf("%+v %v %v", again, mine, err)
	}
	if ops, err = Open(durable.Disk(dir), "operations.log", slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	defer ops.Close()
	if op, err := ops.Get(access.Local, v.ID); err != nil || ops.Look(op).State != api.OperationDone {
		t.Errorf("%+v, %v", op, err)
	}
}
