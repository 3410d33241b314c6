package durabletest

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/pando-dev/pando/internal/durable"
)

func TestDiskKeepsContract(t *testing.T) {
	Contract(t, func(*testing.T) durable.FS { return New() })
}

func create(t *testing.T, d *Disk, name, content string) durable.File {
	t.Helper()
	f, err := d.CreateTemp(name, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(write(f, content), d.Rename(f.Name(), name)); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestCrashKeepsOnlyWhatWasSynced(t *testing.T) {
	d := New()
	f := create(t, d, "a", "one")
	if got := d.Crash().Files(); len(got) != 0 {
		t.Errorf("names that were not synced survive: %v", got)
	}
	must(t, d.SyncDir("."))
	if got := d.Crash().Get("a"); got == nil || len(got) != 0 {
		t.Errorf("content that was not synced survives: %q", got)
	}
	must(t, f.SyncData(), write(f, "two"))
	if got := string(d.Crash().Get("a")); got != "one" {
		t.Errorf("content %q, want what was synced", got)
	}
	must(t, d.Remove("a"))
	if got := string(d.Crash().Get("a")); got != "one" {
		t.Errorf("a removal that was not synced came true: %q", got)
	}
	if got := string(d.Kill().Get("a")); got != "" || len(d.Kill().Files()) != 0 {
		t.Errorf("the end of the process undid a removal: %q", got)
	}
}

// The seeds must reach every kind of loss, or tests that use them prove less
// than they seem to.
func TestCrashSomeReachesAllCases(t *testing.T) {
	seen := map[string]bool{}
	for seed := range uint64(300) {
		d := New()
		f := create(t, d, "a", strings.Repeat("x", 3*sector))
		must(t, d.SyncDir("."), f.Sync(), write(f, strings.Repeat("y", 3*sector)))
		must(t, d.Rename("a", "b"))
		c := d.CrashSome(seed)
		got := string(c.Get("a")) + string(c.Get("b"))
		seen["old name"] = seen["old name"] || c.Get("a") != nil
		seen["new name"] = seen["new name"] || c.Get("b") != nil
		if got[:3*sector] != strings.Repeat("x", 3*sector) {
			t.Fatal("what was synced was lost")
		}
		tail := got[3*sector:]
		seen["nothing written"] = seen["nothing written"] || tail == ""
		seen["all written"] = seen["all written"] || tail == strings.Repeat("y", 3*sector)
		seen["beginning written"] = seen["beginning written"] || len(tail) > 0 && len(tail) < 3*sector && strings.Trim(tail, "y") == ""
		seen["hole"] = seen["hole"] || strings.HasPrefix(tail, "\x00") && strings.HasSuffix(tail, "y")
	}
	for _, want := range []string{"old name", "new name", "nothing written", "all written", "beginning written", "hole"} {
		if !seen[want] {
			t.Errorf("no seed led to: %s", want)
		}
	}
}

// Linux forgets what a failed sync was to write; a disk that kept it would
// hide that a program merely tries again.
func TestFailedSyncDropsWrites(t *testing.T) {
	d := New()
	f := create(t, d, "a", "one")
	must(t, d.SyncDir("."))
	d.Before = func(c Call) error {
		if c.Op == "sync" {
			return syscall.EIO
		}
		return nil
	}
	if err := f.Sync(); !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	must(t, f.SyncData(), write(f, "two"), f.SyncData())
	if got := string(d.Crash().Get("a")); got != "\x00\x00\x00two" {
		t.Errorf("after power loss %q", got)
	}
}

func TestLimit(t *testing.T) {
	d := New()
	f := create(t, d, "a", "12345")
	d.Limit(3)
	n, err := f.Write([]byte("6789"))
	if n != 3 || !errors.Is(err, syscall.ENOSPC) || string(d.Get("a")) != "12345678" {
		t.Errorf("%d, %v, %q", n, err, d.Get("a"))
	}
	must(t, f.Truncate(5), write(f, "abc"))
	if string(d.Get("a")) != "12345abc" {
		t.Errorf("%q", d.Get("a"))
	}
}
