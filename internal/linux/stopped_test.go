package linux

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// A process has stopped when each of its threads has, also those that outlive the first one.
func TestUnstopped(t *testing.T) {
	proc := t.TempDir()
	for pid, states := range map[string]string{"2": "T", "3": "TS", "4": "ZR", "5": "Tt", "6": "TD", "7": "DS", "8": "Z", "self": "R"} {
		for i, state := range states {
			dir := filepath.Join(proc, pid, "task", pid+string(rune('0'+i)))
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "stat"), []byte(pid+" (a) R b) "+string(state)+" 1 1"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	runs, waits, err := Unstopped(proc)
	slices.Sort(runs)
	if err != nil || !slices.Equal(runs, []int{3, 4, 7}) || !slices.Equal(waits, []int{6}) {
		t.Errorf("%v run and %v wait, %v", runs, waits, err)
	}
}
