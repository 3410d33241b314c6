package namespace

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/backend/kept"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper"
	"github.com/pando-dev/pando/internal/reexec"
)

func TestMain(m *testing.M) {
	if r, ok := reexec.Role(os.Args[0]); ok && r == kept.Role {
		if err := kept.Main(map[string]func() (keeper.Driver, error){Name: NewDriver}, nil); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestQuick(t *testing.T) {
	dir := t.TempDir()
	defer os.Chmod(dir+"/up/work/work", 0o700) // the kernel leaves it closed
	os.Mkdir(dir+"/keepers", 0o700)
	for _, d := range []string{"home", "tmp", "l1", "up/fs", "up/work"} {
		os.MkdirAll(dir+"/"+d, 0o755)
	}
	os.WriteFile(dir+"/l1/hello", []byte("hi\n"), 0o644)
	b := New(Config{Keepers: dir + "/keepers", Scratch: dir + "/scratch", Installation: "test", IDBase: 1 << 30, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	defer b.Close()
	os.MkdirAll(dir+"/scratch", 0o700)
	ctx := context.Background()
	t0 := time.Now()
	spec := cell.Spec{ID: cell.NewID(), Hostname: "quick", User: cell.User{UID: os.Getuid(), GID: os.Getgid(), Name: "x", Home: "/home/x"}, Workdir: "/work/x",
		Limits: cell.Limits{Memory: 1 << 30, PIDs: 100, Disk: 1 << 30}, Writes: []string{dir + "/home", dir + "/tmp", dir + "/up"},
		Mounts: []cell.Mount{
			{Kind: cell.Bind, Source: "/usr", Target: "/usr", ReadOnly: true},
			{Kind: cell.Link, Source: "usr/bin", Target: "/bin"}, {Kind: cell.Link, Source: "usr/lib", Target: "/lib"}, {Kind: cell.Link, Source: "usr/lib64", Target: "/lib64"},
			{Kind: cell.Tmpfs, Target: "/run"},
			{Kind: cell.Bind, Source: dir + "/home", Target: "/home/x", Owned: true},
			{Kind: cell.Bind, Source: dir + "/tmp", Target: "/tmp", Owned: true},
			{Kind: cell.Overlay, Target: "/work/x", Lower: []string{dir + "/l1"}, Upper: dir + "/up/fs", Work: dir + "/up/work", Owned: true},
		}}
	inst, err := b.Create(ctx, spec)
	if err != nil {
		bb, _ := os.ReadFile(dir + "/keepers/keeper.log")
		t.Fatalf("%v\n%s", err, bb)
	}
	t.Log("create", time.Since(t0), inst.Assurance())
	out, _ := os.Create(dir + "/out")
	for i := range 3 {
		t1 := time.Now()
		p, err := inst.Start(ctx, fmt.Sprint("p", i), cell.Start{Process: cell.Process{Args: []string{"sh", "-c", "id; cat hello; ls -la . /; echo new > f; cat /proc/self/mountinfo | head -40; ps aux 2>/dev/null | head; hostname; cat /proc/self/cgroup"}, Env: []string{"PATH=/usr/bin:/bin"}, Path: []string{"/bin/sh"}, Workdir: "/work/x"}, LogLimit: 1 << 20}, [3]*os.File{out, out, nil})
		if err != nil {
			t.Fatal(err)
		}
		st, err := p.Wait(ctx)
		t.Log("exec", time.Since(t1), st.Exit, err, p.Assurance().Canaries)
	}
	out.Seek(0, 0)
	bb, _ := io.ReadAll(out)
	t.Logf("%.3500s", bb)
	t2 := time.Now()
	if err := inst.Remove(ctx, "done"); err != nil {
		t.Error(err)
	}
	t.Log("remove", time.Since(t2))
}
