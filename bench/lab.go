package bench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
	"github.com/pando-dev/pando/internal/paths"
)

// lab is the place where everything happens: one temporary directory with
// trees, installations and the peers' belongings.
type lab struct {
	dir     string
	backend string // of cells; "" as pando chooses
	exe     string
	path    string
	runs    int
	quick   bool
	keep    bool
	pause   time.Duration
	n       []int
	limit   int
	sink    func(string)

	installed []*installation
	runscs    []*runscPeer
	programs  map[string]*program
	hosts     *privateHost // see crun; nil until it is needed
	trees     map[string]string
	made      int
	gone      []string // to be removed when no clock runs
}

func newLab(o Options) (*lab, error) {
	exe, err := o.exe()
	if err != nil {
		return nil, err
	}
	if exe, err = filepath.Abs(exe); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(o.Dir, "pando-bench-")
	if err != nil {
		return nil, fmt.Errorf("cannot make a directory to measure in: %w", err)
	}
	// Containers of peers run as ids without an account here and must get through.
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, err
	}
	if dir, err = filepath.EvalSymlinks(dir); err == nil {
		dir, err = filepath.Abs(dir)
	}
	if err != nil {
		return nil, err
	}
	l := &lab{dir: dir, backend: o.Backend, exe: exe, path: o.Path, runs: o.Runs, quick: o.Quick, keep: o.Keep, pause: o.Pause, sink: o.Log, n: o.N, limit: o.Limit,
		programs: map[string]*program{}, trees: map[string]string{}}
	if l.path == "" {
		l.path = os.Getenv("PATH")
	}
	if l.runs <= 0 {
		l.runs = Enough
		if o.Quick {
			l.runs = 3
		}
	}
	if len(l.n) == 0 {
		l.n = []int{1, 10, 100, 1000}
		if o.Quick {
			l.n = []int{1, 10}
		}
	}
	if l.limit == 0 && o.Quick {
		l.limit = 50
	}
	if l.pause == 0 {
		l.pause = 150 * time.Millisecond
	}
	return l, nil
}

func (l *lab) log(format string, args ...any) {
	if l.sink != nil {
		l.sink(fmt.Sprintf(format, args...))
	}
}

// fresh makes a new empty directory.
func (l *lab) fresh(kind string) (string, error) {
	l.made++
	dir := filepath.Join(l.dir, fmt.Sprintf("%s-%d", kind, l.made))
	return dir, os.Mkdir(dir, 0o755)
}

// discard removes a directory of the lab.
func (l *lab) discard(dir string) error {
	if !strings.HasPrefix(dir, l.dir+"/") {
		return fmt.Errorf("cannot remove %s: it is not ours", dir)
	}
	return removeTree(dir)
}

// enough is how much must be free to leave things where they are until the
// end of a contest, in bytes.
const enough = 24 << 30

// later removes a directory when the contest is over. Removing many files in between would
// slow down the next program that makes files (see journal in machine.go), and dirty the
// caches.
func (l *lab) later(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(l.dir, &st); err != nil || int64(st.Bavail)*st.Bsize < enough {
		return l.discard(dir)
	}
	l.made++
	away := filepath.Join(l.dir, fmt.Sprintf("gone-%d", l.made))
	if err := os.Rename(dir, away); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	l.gone = append(l.gone, away)
	return nil
}

// clear removes what was left for later.
func (l *lab) clear() error {
	var errs []error
	for _, dir := range l.gone {
		errs = append(errs, l.discard(dir))
	}
	l.gone = nil
	return errors.Join(errs...)
}

// removeTree removes a directory, also one with folders that forbid it.
func removeTree(dir string) error {
	if err := os.RemoveAll(dir); err == nil {
		return nil
	}
	filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			os.Chmod(p, 0o700)
		}
		return nil
	})
	return os.RemoveAll(dir)
}

// settle writes what is dirty, so that the next contestant doesn't wait for
// what the last one left to be written.
func (l *lab) settle() error {
	f, err := os.Open(l.dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}

// datasync returns when what was written to f survives power loss.
func datasync(f *os.File) error { return unix.Fdatasync(int(f.Fd())) }

// close ends everything and removes the directory.
func (l *lab) close(ctx context.Context) error {
	var errs []error
	for _, i := range l.installed {
		errs = append(errs, i.close(ctx))
	}
	for _, p := range l.runscs {
		errs = append(errs, p.close())
	}
	if l.hosts != nil {
		l.hosts.close()
	}
	if l.keep {
		l.log("kept: %s (an installation in it is used with PANDO_HOME)", l.dir)
		return errors.Join(errs...)
	}
	return errors.Join(append(errs, removeTree(l.dir))...)
}

// installation is a pando of its own: state, daemon, cells.
type installation struct {
	l      *lab
	dir    string // PANDO_HOME
	client *client.Client
	env    []string
}

// install makes an installation. Nothing runs in it yet.
func (l *lab) install() (*installation, error) {
	dir, err := l.fresh("home")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, err
	}
	i := &installation{l: l, dir: dir}
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "PANDO_") {
			i.env = append(i.env, kv)
		}
	}
	// A daemon that we could not end ends by itself.
	i.env = append(i.env, "PANDO_HOME="+dir, "PANDO_IDLE=10m", "NO_COLOR=1")
	h, err := i.home()
	if err != nil {
		return nil, err
	}
	i.client = client.New(client.Config{Socket: h.Socket()})
	l.installed = append(l.installed, i)
	return i, nil
}

func (i *installation) home() (paths.Home, error) {
	return paths.Find(func(name string) string {
		if name == "PANDO_HOME" {
			return i.dir
		}
		return ""
	}, os.Geteuid())
}

// pando is a command line of this installation, in a directory.
func (i *installation) pando(dir string, args ...string) command {
	return command{dir: dir, env: i.env, args: append([]string{i.l.exe}, args...)}
}

// start makes sure that the daemon runs and everything is there that the first
// command brings.
func (i *installation) start(ctx context.Context) error {
	dir, err := i.l.tree(1, 10)
	if err != nil {
		return err
	}
	_, err = i.pando(dir, i.l.run("--", "true")...).run(ctx)
	return err
}

// stop ends the daemon and waits for that.
func (i *installation) stop(ctx context.Context) error {
	_, err := i.pando(i.l.dir, "daemon", "stop").run(ctx)
	return err
}

// close removes all cells, ends the daemon and, unless they are kept, removes
// the files, whatever became of ctx. Closing again does nothing.
func (i *installation) close(ctx context.Context) error {
	if i.dir == "" {
		return nil
	}
	dir := i.dir
	i.dir = ""
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	var errs []error
	if i.client.Alive(ctx) {
		templates, err := i.client.Templates(ctx) // with which keepers live on
		errs = append(errs, err)
		for _, t := range templates {
			_, err = i.client.RemoveTemplate(ctx, t.Name, api.TemplateRemoval{Cascade: true})
			errs = append(errs, err)
		}
		cells, err := i.client.Cells(ctx)
		errs = append(errs, err)
		for _, c := range cells {
			if i.l.keep {
				_, err = i.client.Stop(ctx, c.ID)
			} else {
				_, err = i.client.Remove(ctx, c.ID, false)
			}
			errs = append(errs, err)
		}
		errs = append(errs, i.stop(ctx))
	}
	if !i.l.keep {
		errs = append(errs, i.l.discard(dir))
	}
	return errors.Join(errs...)
}
