package daemon

import (
	"context"
	"encoding/json"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/paths"
)

// A state that a daemon on another host has is refused, naming it; one that it left, or
// has not touched for long, is free.
func TestX19AnotherHost(t *testing.T) {
	dir := t.TempDir()
	h := paths.Home{State: dir, Run: dir}
	sign := func(o paths.Holder, age time.Duration) {
		t.Helper()
		b, _ := json.Marshal(o)
		if err := os.WriteFile(h.Lock(), b, 0o600); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(-age)
		if err := os.Chtimes(h.Lock(), at, at); err != nil {
			t.Fatal(err)
		}
	}
	away := paths.Holder{PID: 7, Host: "x", HostName: "north"}
	sign(away, 0)
	_, err := Lock(h)
	if cell.KindOf(err) != cell.Unavailable || cell.HintOf(err) == "" {
		t.Errorf("a daemon on another host: %v", err)
	}
	for what, free := range map[string]func(){
		"stale": func() { sign(away, lockStale+time.Second) },
		"ended": func() { ended := away; ended.Ended = true; sign(ended, 0) },
		"ours":  func() { sign(paths.Holder{PID: 7, Host: paths.Host()}, 0) },
		"empty": func() { os.Truncate(h.Lock(), 0) },
	} {
		free()
		f, err := Lock(h)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		if o := h.Holder(); o.PID != os.Getpid() || o.Host != paths.Host() || o.Run != dir || o.Ended {
			t.Errorf("%s: it says %+v", what, o)
		}
		if _, err := Lock(h); cell.KindOf(err) != cell.Exists {
			t.Errorf("%s: a second one: %v", what, err)
		}
		Unlock(h, f)
		if o := h.Holder(); !o.Ended {
			t.Errorf("%s: at its end it says %+v", what, o)
		}
	}
}

// A daemon that lives touches its lock more often than a lock gets stale.
func TestX19TheLockIsTouched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		h := paths.Home{State: dir, Run: dir}
		f, err := Lock(h)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go KeepLock(ctx, h)
		for range 3 {
			time.Sleep(lockStale)
			synctest.Wait()
			st, err := os.Stat(h.Lock())
			if err != nil || time.Since(st.ModTime()) >= lockTouched {
				t.Errorf("it was touched at %v, and it is %v: %v", st.ModTime(), time.Now(), err)
			}
		}
		cancel()
		synctest.Wait()
		Unlock(h, f)
	})
}
