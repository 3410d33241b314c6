package daemon

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/home"
)

// A state that a daemon on another host has is refused, naming it; one that it left, or
// has not touched for long, is free.
func TestX19AnotherHost(t *testing.T) {
	dir := t.TempDir()
	h := home.Home{State: dir, Run: dir}
	sign := func(o home.Holder, age time.Duration) {
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
	away := home.Holder{PID: 7, Host: "x", HostName: "north"}
	sign(away, 0)
	_, err := Lock(h)
	if cell.KindOf(err) != cell.Unavailable || cell.HintOf(err) == "" {
		t.Errorf("a daemon on another host: %v", err)
	}
	for what, free := range map[string]func(){
		"stale": func() { sign(away, lockStale+time.Second) },
		"ended": func() { ended := away; ended.Ended = true; sign(ended, 0) },
		"ours":  func() { sign(home.Holder{PID: 7, Host: home.Host()}, 0) },
		"empty": func() { os.Truncate(h.Lock(), 0) },
	} {
		free()
		f, err := Lock(h)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		if o := h.Holder(); o.PID != os.Getpid() || o.Host != home.Host() || o.Run != dir || o.Ended {
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
