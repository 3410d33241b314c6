package gvisor

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/backend/backendtest"
	"github.com/pando-dev/pando/internal/cell"
)

func TestTry(t *testing.T) {
	cfg := config(t)
	b := New(cfg)
	defer b.Close()
	if _, err := b.Probe(t.Context()); err != nil {
		t.Skip(err)
	}
	if err := b.Try(t.Context()); err != nil {
		t.Error(err)
	}
	if left, err := b.Leftovers(t.Context(), true); len(left) > 0 || err != nil {
		t.Errorf("left: %v, %v", left, err)
	}
	if left := backendtest.KeeperFiles(cfg.Keepers); len(left) > 0 {
		t.Errorf("left: %v", left)
	}

	// A cancelled Try leaves nothing behind either, wherever it was.
	for _, most := range []time.Duration{50 * time.Millisecond, 200 * time.Millisecond, 350 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), most)
		if err := b.Try(ctx); err == nil {
			t.Logf("done in %v", most)
		}
		cancel()
		var left []string // an abandoned Try removes what it had begun
		var err error
		for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
			if left, err = b.Leftovers(t.Context(), true); len(left) == 0 {
				break
			}
		}
		if len(left) > 0 || err != nil {
			t.Errorf("left after %v: %v, %v", most, left, err)
		}
	}

	// What Probe takes for the runtime, and is none, says why it is none.
	bad := filepath.Join(t.TempDir(), "pando-runsc")
	if err := os.WriteFile(bad, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cfg.Runsc = bad
	b = New(cfg)
	defer b.Close()
	if _, err := b.Probe(t.Context()); err != nil {
		t.Errorf("Probe starts it: %v", err)
	}
	err := b.Try(t.Context())
	if err == nil || !strings.Contains(err.Error(), "cannot start gVisor") {
		t.Errorf("%v (%s)", err, cell.HintOf(err))
	}
	if left, err := b.Leftovers(t.Context(), true); len(left) > 0 || err != nil {
		t.Errorf("left: %v, %v", left, err)
	}
}
