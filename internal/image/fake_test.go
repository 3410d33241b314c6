package image

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// canary is the content of every file that no cell may see.
const canary = "CANARY"

// A fake is a host below a temporary directory, with the system directories
// that every plan needs and the home /home/u.
type fake struct {
	t    testing.TB
	root string
	etc  string
	req  HostRequest

	lenient bool // link leaves alone what is there
}

func newFake(t testing.TB) *fake {
	t.Helper()
	f := &fake{t: t, root: t.TempDir(), etc: t.TempDir()}
	for _, d := range []string{"/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib64", "/usr/local/bin", "/usr/share", "/etc", "/home/u", "/home/other", "/root", "/tmp", "/var/tmp", "/run", "/proc", "/dev"} {
		f.dir(d)
	}
	f.link("/var/run", "/run")
	for _, d := range []string{"bin", "sbin", "lib", "lib64"} {
		f.link("/"+d, "usr/"+d)
	}
	for _, p := range []string{"env", "bash", "sh", "make", "git"} {
		f.prog("/usr/bin/"+p, "\x7fELF")
	}
	f.file("/etc/os-release", "ID=fake\n")
	f.file("/etc/shadow", canary)
	f.req = HostRequest{
		Root: f.root, Home: "/home/u", Cwd: "/home/u/src/proj", Source: "/home/u/src/proj", Workdir: "/home/u/src/proj",
		User: cell.User{UID: 1000, GID: 1000, Name: "u", Home: "/home/u"}, EtcDir: f.etc,
		State: []string{"/home/u/.local/share/pando", "/home/u/.cache/pando"},
		Env:   []string{"HOME=/home/u", "PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8", "TERM=xterm"},
	}
	f.file("/home/u/src/proj/main.txt", "x")
	return f
}

func (f *fake) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fake) dir(at string) { f.t.Helper(); f.must(os.MkdirAll(f.root+at, 0o755)) }

func (f *fake) file(at, content string) {
	f.t.Helper()
	f.dir(path.Dir(at))
	f.must(os.WriteFile(f.root+at, []byte(content), 0o644))
}

func (f *fake) prog(at, content string) {
	f.t.Helper()
	f.file(at, content)
	f.must(os.Chmod(f.root+at, 0o755))
}

func (f *fake) link(at, text string) {
	f.t.Helper()
	f.dir(path.Dir(at))
	if f.lenient && f.exists(at) {
		return
	}
	f.must(os.Symlink(text, f.root+at))
}

func (f *fake) exists(at string) bool {
	_, err := os.Lstat(f.root + at)
	return err == nil
}

func (f *fake) socket(at string) {
	f.t.Helper()
	f.dir(path.Dir(at))
	f.must(unix.Mknod(f.root+at, unix.S_IFSOCK|0o666, 0))
}

// env sets a variable of the caller.
func (f *fake) env(name, value string) {
	f.req.Env = append(slices.DeleteFunc(f.req.Env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") }), name+"="+value)
}

// path puts directories before the system's in PATH.
func (f *fake) path(dirs ...string) {
	f.env("PATH", strings.Join(append(dirs, "/usr/local/bin", "/usr/bin", "/bin"), ":"))
}

func (f *fake) plan() *HostPlan {
	f.t.Helper()
	p, err := Host(f.req)
	f.must(err)
	checkOrder(f.t, p.Mounts)
	return p
}

// fails plans and expects an error of the kind.
func (f *fake) fails(kind cell.Kind) error {
	f.t.Helper()
	_, err := Host(f.req)
	if cell.KindOf(err) != kind {
		f.t.Errorf("Host(%v) = %v, want an error of kind %s", f.req.Mounts, err, kind)
	} else if !strings.HasPrefix(err.Error(), "cannot ") {
		f.t.Errorf("%q does not begin with cannot", err)
	}
	return err
}

func mountAt(p *HostPlan, target string) (cell.Mount, bool) {
	for _, m := range p.Mounts {
		if m.Target == target {
			return m, true
		}
	}
	return cell.Mount{}, false
}

// wants expects a mount of the host's file at its own path.
func (f *fake) wants(p *HostPlan, kind cell.MountKind, targets ...string) {
	f.t.Helper()
	for _, at := range targets {
		m, ok := mountAt(p, at)
		if !ok || m.Kind != kind || m.Source != f.root+at || m.ReadOnly != (kind == cell.Bind) || m.Why == "" {
			f.t.Errorf("mount at %s = %+v, want %s of the same path\n%s", at, m, kind, show(p))
		}
		// An unprivileged test owns the whole fake host; root owns none of it
		// but its home. What is linked from something else is never owned.
		mine := (strings.HasPrefix(at, "/home/u/") || os.Getuid() != 0) && !strings.HasPrefix(m.Why, linkedFrom)
		if ok && m.Owned != (mine && m.Why != "system") {
			f.t.Errorf("mount at %s: owned = %v", at, m.Owned)
		}
	}
}

func (f *fake) wantsLink(p *HostPlan, at, text string) {
	f.t.Helper()
	if m, ok := mountAt(p, at); !ok || m.Kind != cell.Link || m.Source != text {
		f.t.Errorf("mount at %s = %+v, want a link to %s\n%s", at, m, text, show(p))
	}
}

func (f *fake) wantsNone(p *HostPlan, targets ...string) {
	f.t.Helper()
	for _, at := range targets {
		if m, ok := mountAt(p, at); ok {
			f.t.Errorf("there is a mount at %s: %+v", at, m)
		}
	}
}

// wantsNote expects a note about the path with the words.
func wantsNote(t testing.TB, p *HostPlan, at string, words ...string) {
	t.Helper()
	for _, n := range p.Notes {
		if n.Path != at {
			continue
		}
		all := true
		for _, w := range words {
			all = all && strings.Contains(n.What+" "+n.Fix, w)
		}
		if all {
			return
		}
	}
	t.Errorf("no note about %s with %q; notes: %+v", at, words, p.Notes)
}

func show(p *HostPlan) string {
	var b strings.Builder
	for _, m := range p.Mounts {
		b.WriteString("  " + string(m.Kind) + " " + m.Target + " ← " + m.Source + " (" + m.Why + ")\n")
	}
	for _, n := range p.Notes {
		b.WriteString("  note " + n.Path + " " + n.What + " | " + n.Fix + "\n")
	}
	return b.String()
}

func envOf(p *HostPlan, name string) (string, bool) {
	for _, kv := range p.Env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v, true
		}
	}
	return "", false
}

// A view is what a cell with the plan sees: for each file its content, for
// each symlink "→" and its text, for each directory "/". It is worked out
// from the mounts alone, with none of the package's own functions.
type view map[string]string

func (f *fake) view(p *HostPlan) view {
	f.t.Helper()
	v := view{}
	for _, m := range p.Mounts {
		// A mount hides what was there.
		for at := range v {
			if at == m.Target || strings.HasPrefix(at, m.Target+"/") {
				delete(v, at)
			}
		}
		switch m.Kind {
		case cell.Link:
			v[m.Target] = "→" + m.Source
		case cell.Tmpfs:
			v[m.Target] = "/"
		case cell.Bind, cell.Cache:
			f.must(filepath.WalkDir(m.Source, func(at string, d fs.DirEntry, err error) error {
				if err != nil {
					return err
				}
				to := m.Target + strings.TrimPrefix(at, m.Source)
				switch {
				case d.IsDir():
					v[to] = "/"
				case d.Type() == fs.ModeSymlink:
					text, err := os.Readlink(at)
					v[to] = "→" + text
					return err
				case d.Type().IsRegular():
					b, err := os.ReadFile(at)
					v[to] = string(b)
					return err
				default:
					v[to] = "special " + d.Type().String()
				}
				return nil
			}))
		default:
			f.t.Errorf("mount of kind %q", m.Kind)
		}
	}
	return v
}

// read follows symlinks in the view. Below private places nothing is there.
func (v view) read(at string) (string, bool) {
	real := "/"
	rest := at
	for n := 0; rest != ""; {
		name, after, _ := strings.Cut(rest, "/")
		rest = after
		if name == "" || name == "." {
			continue
		}
		if name == ".." {
			real = path.Dir(real)
			continue
		}
		next := path.Join(real, name)
		if text, ok := strings.CutPrefix(v[next], "→"); ok {
			if n++; n > 40 {
				return "", false
			}
			if path.IsAbs(text) {
				real = "/"
			}
			rest = text + "/" + rest
			continue
		}
		real = next
	}
	c, ok := v[real]
	return c, ok
}

// checkOrder asserts what every list of mounts must fulfil.
func checkOrder(t testing.TB, mounts []cell.Mount) {
	t.Helper()
	at := map[string]int{}
	for i, m := range mounts {
		if !path.IsAbs(m.Target) || path.Clean(m.Target) != m.Target || m.Target == "/" {
			t.Errorf("target %q is not a clean absolute path", m.Target)
		}
		if j, ok := at[m.Target]; ok {
			t.Errorf("mounts %d and %d both at %s", j, i, m.Target)
		}
		at[m.Target] = i
	}
	for i, m := range mounts {
		for dir := path.Dir(m.Target); dir != "/"; dir = path.Dir(dir) {
			j, ok := at[dir]
			if !ok {
				continue
			}
			if j > i {
				t.Errorf("%s comes before %s above it", m.Target, dir)
			}
			if mounts[j].Kind == cell.Link {
				t.Errorf("%s goes through the link %s", m.Target, dir)
			}
			if up := mounts[j]; m.Kind == cell.Bind && m.ReadOnly && up.Kind == cell.Bind && up.Source+strings.TrimPrefix(m.Target, up.Target) == m.Source {
				t.Errorf("%s is already there by %s", m.Target, dir)
			}
		}
	}
}
