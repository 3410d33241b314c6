package isolation

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pando-dev/pando/internal/backend/backendtest"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
)

// What a cell wrote into its home when it ran before never leads the next
// start outside: every kind of mount below a symlink fails the start, and
// where the symlink leads nothing is made.
func TestMountTargetsAreNotFollowed(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} { // as root, the keeper is "nobody" here
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	victim := filepath.Join(dir, "victim")
	file := filepath.Join(dir, "file")
	for _, d := range []string{"keepers", "scratch", "home", "upper", "src", "victim"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(victim, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	backendtest.Removable(t, filepath.Join(dir, "upper", "work"))
	b := NewHost(Config{Backend: plain, Keepers: filepath.Join(dir, "keepers"), Scratch: filepath.Join(dir, "scratch"), Installation: "test", IDBase: 1 << 30, Log: slog.New(slog.DiscardHandler)})
	defer b.Close()
	home := cell.Mount{Kind: cell.Bind, Source: filepath.Join(dir, "home"), Target: "/home/x", Owned: true}
	for _, tc := range []struct {
		name string
		m    cell.Mount
	}{
		{"directory", cell.Mount{Kind: cell.Bind, Source: filepath.Join(dir, "src"), Target: "/home/x/go/pkg/mod", ReadOnly: true}},
		{"file", cell.Mount{Kind: cell.Bind, Source: file, Target: "/home/x/go/made", ReadOnly: true}},
		{"link", cell.Mount{Kind: cell.Link, Source: "to", Target: "/home/x/go/link"}},
		{"tmpfs", cell.Mount{Kind: cell.Tmpfs, Target: "/home/x/go/tmp"}},
		{"tmpfs at the symlink", cell.Mount{Kind: cell.Tmpfs, Target: "/home/x/go"}},
		{"cache", cell.Mount{Kind: cell.Cache, Source: filepath.Join(dir, "src"), Upper: filepath.Join(dir, "upper"), Target: "/home/x/go/cache", Owned: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			link := filepath.Join(dir, "home", "go")
			os.Remove(link)
			if err := os.Symlink("/oldroot"+victim, link); err != nil {
				t.Fatal(err)
			}
			spec := cell.Spec{ID: cell.NewID(), Hostname: "x", User: cell.User{UID: os.Getuid(), GID: os.Getgid(), Name: "x", Home: "/home/x"}, Workdir: "/",
				Limits: cell.Limits{Disk: 1 << 30}, Writes: []string{filepath.Join(dir, "home")},
				Mounts: []cell.Mount{{Kind: cell.Bind, Source: "/usr", Target: "/usr", ReadOnly: true}, {Kind: cell.Tmpfs, Target: "/run"}, home, tc.m}}
			inst, err := b.Create(t.Context(), spec)
			if err == nil {
				inst.Remove(t.Context(), "done")
				t.Error("the cell was made")
			} else if !strings.Contains(err.Error(), "symbolic links") {
				t.Errorf("refused for another reason: %v", err)
			}
			made, err := os.ReadDir(victim)
			if err != nil || len(made) > 0 {
				t.Errorf("made outside: %v %v", made, err)
				os.RemoveAll(victim)
				os.Mkdir(victim, 0o777)
				os.Chmod(victim, 0o777)
			}
		})
	}
}

// Where there is no Landlock, what a command is forked from is not a file of the host.
func TestKeepersFromMemory(t *testing.T) {
	b := NewHost(Config{Backend: plain, Keepers: t.TempDir(), Scratch: t.TempDir(), Installation: "test", IDBase: 1 << 30, Log: slog.New(slog.DiscardHandler)})
	defer b.Close()
	if want := linux.LandlockABI() == 0; b.keepers.FromMemory != want {
		t.Errorf("keepers from memory: %v, want %v", b.keepers.FromMemory, want)
	}
	b.keepers.FromMemory = true
	for range 2 {
		k, err := b.keepers.Take()
		if err != nil {
			t.Fatal(err)
		}
		defer k.Kill()
		exe := procPath(k.PID, "exe")
		if to, err := os.Readlink(exe); err != nil || to != "/memfd:pando (deleted)" {
			t.Errorf("the keeper runs %s, %v", to, err)
		}
		if f, err := os.OpenFile(exe, os.O_WRONLY, 0); err == nil {
			if _, err := f.WriteAt([]byte{0}, 0); err == nil {
				t.Error("its program can be written to")
			}
			f.Close()
		}
	}
}
