package engine

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/pando-dev/pando/internal/workspace"
)

// A folder with more files than are looked at is said to have them, also if it is the last that is looked at.
func TestMoreFilesBesideTranscriptsAreTold(t *testing.T) {
	home := t.TempDir()
	for _, name := range []string{"a", "b", "c"} {
		if err := os.WriteFile(filepath.Join(home, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	root, err := workspace.OpenRoot(home)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for looks, told := range map[int]bool{2: true, 3: false, 4: false} {
		x, left := &calls{}, looks
		if list := x.names(root, ".", &left); len(list) != min(3, looks) || slices.Contains(x.out.Problems, tooManyLooks) != told {
			t.Errorf("of %d looks: %d files, %q", looks, len(list), x.out.Problems)
		}
	}
}
