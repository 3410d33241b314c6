package gvisor

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/backend/backendtest"
	"github.com/pando-dev/pando/internal/backend/namespace"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper"
)

type probeDriver struct {
	*namespace.Driver
}

func (d *probeDriver) Create(id cell.ID, spec json.RawMessage, files []*os.File) (json.RawMessage, error) {
	var in namespace.Inner
	if err := json.Unmarshal(spec, &in); err != nil {
		return nil, err
	}
	runsc := files[0]
	m, err := d.Driver.Create(id, in.Wire, files[in.Programs:])
	if err != nil {
		return nil, err
	}
	body, _ := bundleOf(&in.Spec)
	body = []byte(strings.Replace(string(body), `"/run/pando-guest"`, `"/bin/sh","-c","id; ls -la / /work; mount; echo hi > /work/x; ps aux"`, 1))
	st, err := d.Driver.Stage(id, map[string][]byte{"/bundle/config.json": body, "/state/x": nil})
	if err != nil {
		return nil, err
	}
	out, _ := os.Create("/tmp/gv/out")
	null, _ := os.Open("/dev/null")
	began := time.Now()
	c, err := st.Start(runsc, append(runscArgs(false), "run", "-bundle", "/bundle", "c1"), null, out, out)
	if err != nil {
		return nil, err
	}
	ws, _, err := c.Wait()
	fmt.Fprintln(out, "exit", ws.ExitStatus(), err, time.Since(began))
	out.Close()
	return m, nil
}

func TestMain(m *testing.M) {
	backendtest.Main(m, map[string]func() (keeper.Driver, error){Name: func() (keeper.Driver, error) {
		d, err := namespace.NewDriver()
		return &probeDriver{d.(*namespace.Driver)}, err
	}})
}

func TestExperiment(t *testing.T) {
	dir := t.TempDir()
	cfg := namespace.Config{Keepers: filepath.Join(dir, "keepers"), Scratch: filepath.Join(dir, "scratch"), IDBase: 1 << 30,
		Installation: "gvtest", Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	os.Mkdir(cfg.Keepers, 0o700)
	os.Mkdir(cfg.Scratch, 0o700)
	work := filepath.Join(dir, "work")
	os.Mkdir(work, 0o755)
	backendtest.ShowLog(t, cfg.Keepers)
	b := New(Config{cfg, "/tmp/pando-runsc", "/bin/busybox"})
	defer b.Close()
	spec := cell.Spec{ID: cell.NewID(), Hostname: "cell", User: cell.User{UID: 0, GID: 0, Name: "root", Home: "/root"}, Workdir: "/work", Private: dir, Writes: []string{work}, Limits: cell.Limits{Disk: 1 << 30},
		Mounts: []cell.Mount{
			{Kind: cell.Bind, Source: "/usr", Target: "/usr", ReadOnly: true},
			{Kind: cell.Link, Source: "usr/bin", Target: "/bin"}, {Kind: cell.Link, Source: "usr/lib", Target: "/lib"}, {Kind: cell.Link, Source: "usr/lib64", Target: "/lib64"},
			{Kind: cell.Tmpfs, Target: "/tmp"}, {Kind: cell.Tmpfs, Target: "/run"},
			{Kind: cell.Bind, Source: work, Target: "/work", Owned: true},
		}}
	i, err := b.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	o, _ := os.ReadFile("/tmp/gv/out")
	t.Logf("%s", o)
	i.Remove(t.Context(), "x")
	t.Fail()
}
