package operation

import (
	"encoding/json"
	"log/slog"
	"testing"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/durable/durabletest"
)

// A journal of keys with any record in it is read, or said to be damaged; what is
// read of it answers without breaking.
func FuzzKeyRecord(f *testing.F) {
	f.Add([]byte(`{"at":"2026-01-01T00:00:00Z","key":"k","asked":"a","over":true,"answer":"e30=","status":202,"location":"/v1/operations/o-1"}`))
	f.Add([]byte(`{"key":"k","failed":true}`))
	f.Add([]byte(`{"over":true,"status":-1}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, rec []byte) {
		fsys := journal(t, "keys.log", rec)
		o, err := OpenKeys(fsys, "keys.log")
		if err != nil {
			if err.Error() == "" {
				t.Error("no reason")
			}
			return
		}
		defer o.Close()
		for k, d := range o.all {
			gone := make(chan struct{})
			close(gone)
			o.begin(k, d.Asked, gone)
		}
	})
}

// The same of operations: each that is read has ended.
func FuzzOperationRecord(f *testing.F) {
	f.Add([]byte(`{"operation":"o-1","kind":"build","state":"running","by":"a","owner":"b","began":"2026-01-01T00:00:00Z"}`))
	f.Add([]byte(`{"operation":"o-1","state":"done","ended":"2999-01-01T00:00:00Z"}`))
	f.Add([]byte(`{"state":"odd","error":"internal"}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, rec []byte) {
		o, err := Open(journal(t, "operations.log", rec), "operations.log", slog.New(slog.DiscardHandler))
		if err != nil {
			return
		}
		defer o.Close()
		if o.Busy() {
			t.Error("one goes on")
		}
		for _, v := range o.List(access.Local) {
			op, err := o.Get(access.Local, v.ID)
			if err != nil {
				t.Fatal(err)
			}
			if v.State == api.OperationRunning {
				t.Errorf("%+v", v)
			}
			if _, _, more := o.After(op, 1<<62); more != nil {
				t.Errorf("%+v says more", v)
			}
			o.Abort(op)
			if _, err := json.Marshal(o.Look(op)); err != nil {
				t.Error(err)
			}
		}
	})
}

// journal is a disk with a journal that has one record.
func journal(t *testing.T, name string, rec []byte) durable.FS {
	t.Helper()
	fsys := durabletest.New()
	log, err := durable.OpenLog(fsys, name, func([]byte) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	log.Append(rec) // one that is empty or too long is none
	log.Close()
	return fsys
}
