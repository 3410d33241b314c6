package evidence

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/state"
)

// TestF12RecordTriedAgain: a receipt is written, and then the record can't be;
// the next try to record the run says what its receipt says.
func TestF12RecordTriedAgain(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	run := b.run()
	ended, was := run.Ended, run.Receipt
	run.Ended, run.Error, run.Cause = time.Now().Add(time.Hour).UTC(), &state.Error{Kind: "internal", Message: "cannot do it"}, "interrupted"
	b.must(b.SealRun(b.ctx, &run, nil))
	if run.Receipt != was || len(run.Receipts) != 1 || !run.Ended.Equal(ended) || run.Error != nil || run.Cause != "" {
		t.Errorf("receipts %v, ended %v, error %v, cause %q; recorded was %s, %v", run.Receipts, run.Ended, run.Error, run.Cause, was, ended)
	}
	b.must(b.reg.Commit(&run))
	b.verified()
}

// TestF12NamesThatAreNoUTF8: bytes that are no UTF-8 change once when a record is
// written. A receipt is no less true for them: neither in the daemon that made the
// run, nor in the next.
func TestF12NamesThatAreNoUTF8(t *testing.T) {
	t.Parallel()
	run := state.Run{Command: []string{"printf", "\xff<"}, LeftOut: []state.LeftOut{{Path: "id\xfe_rsa"}}}
	run.Error = &state.Error{Kind: "not-found", Message: "cannot find \xc3\x28"}
	p := runPredicate{Command: run.Command, Error: run.Error}
	p.Source.LeftOut = run.LeftOut
	b, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	var read runPredicate
	if err := json.Unmarshal(b, &read); err != nil {
		t.Fatal(err)
	}
	for _, name := range unsealed(&run, &read) {
		if name == "command" || name == "left_out" || name == "error" {
			t.Errorf("the record's %s is not what the receipt says", name)
		}
	}
	read.Command[1] += "x"
	if !slices.Contains(unsealed(&run, &read), "command") {
		t.Error("another command is not noticed")
	}
}

// unsealedFields are those of a run's record that its own receipt does not say.
var unsealedFields = map[string]string{
	"phase": "of work, not of its result", "created": "started is sealed", "timings_ms": "go on while the receipt is written", "-": "where records are now, and in none", "internal": "for the next daemon; what of it a receipt says is compared",
	"receipt": "leads to the receipt", "receipts": "lead to receipts", "verdict": "compared with the newest receipt, see VerifyRun", "applied": "is later",
	"notes": "text for a person", "conflicts": "of source and result, as they were", "tty": "in the manifest", "detached": "of its clients now", "sign_offs": "compared with later receipts, see VerifyRun", "needs_sign_off": "of a list; each accept looks again",
	"interactive": "only decides what happens to a failure",
}

// TestF12EveryFieldOfARecordIsSealed: a record with any other value than its
// receipt's is named. A new field is sealed, or has a reason here.
func TestF12EveryFieldOfARecordIsSealed(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	run := b.run()
	entry, err := b.ledger.Find(run.Receipt)
	b.must(err)
	sealed, err := predicate[runPredicate](entry)
	b.must(err)
	if names := unsealed(&run, &sealed); len(names) > 0 {
		t.Fatalf("of a record that is as it was: %v", names)
	}
	typ := reflect.TypeFor[state.Run]()
	for i := range typ.NumField() {
		name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
		edited := run
		f := reflect.ValueOf(&edited).Elem().Field(i)
		if f.Kind() == reflect.Pointer {
			if f.IsNil() {
				f.Set(reflect.New(f.Type().Elem()))
			} else {
				f.SetZero()
			}
		} else if !disturb(f) {
			t.Errorf("%s can't be changed by this test", name)
		}
		why, exempt := unsealedFields[name]
		if named := len(unsealed(&edited, &sealed)) > 0; named == exempt {
			t.Errorf("%s of a record was edited: named %v; exempt: %q", name, named, why)
		}
	}
}

// disturb gives a value another one.
func disturb(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.String:
		v.SetString(v.String() + "x")
	case reflect.Int, reflect.Int64:
		v.SetInt(v.Int() + 1)
	case reflect.Float64:
		v.SetFloat(v.Float() + 1)
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Slice:
		more := reflect.New(v.Type().Elem()).Elem()
		if !disturb(more) {
			return false
		}
		v.Set(reflect.Append(reflect.MakeSlice(v.Type(), 0, 1), more))
	case reflect.Struct:
		if at, ok := v.Interface().(time.Time); ok {
			v.Set(reflect.ValueOf(at.Add(time.Hour)))
			return true
		}
		for i := range v.NumField() {
			if v.Field(i).CanSet() && disturb(v.Field(i)) {
				return true
			}
		}
		return false
	default:
		return false
	}
	return true
}

// TestX34RecordsAreRegularFiles: what took the place of a run's file is named; a FIFO
// does not hold its reader, and a symlink to the same bytes is no record.
func TestX34RecordsAreRegularFiles(t *testing.T) {
	t.Parallel()
	for name, replace := range map[string]func(path string) error{
		"a FIFO":    func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a symlink": func(path string) error { return os.Symlink(path+".moved", path) },
		"a folder":  func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		for _, file := range []string{"stdout", "events.jsonl"} {
			b := newBed(t)
			r := b.run()
			path := filepath.Join(r.Folder, file)
			b.must(os.Rename(path, path+".moved"))
			b.must(replace(path))
			v, err := b.Verify(b.all(), r.ID, "")
			b.must(err)
			if v.OK || !slices.ContainsFunc(v.Problems, func(p api.Problem) bool { return p.File == r.ID+"/"+file }) {
				t.Errorf("%s in the place of %s: %+v", name, file, v.Problems)
			}
			if _, err := b.Manager.Log(r.RunID(), file); err == nil {
				t.Errorf("%s in the place of %s is opened as a log", name, file)
			}
		}
	}
}
