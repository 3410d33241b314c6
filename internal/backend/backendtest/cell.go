package backendtest

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pando-dev/pando/internal/cell"
)

// The isolation that Caps states is real: two cells see nothing of each other or of the host,
// or they see everything.
func testIsolation(k *bench) {
	isolated := k.caps.Isolation == ""
	a, sa := k.cell()
	b, sb := k.cell()
	mark := fmt.Sprintf("3%d", os.Getpid())
	sleeper := k.start(a, sh("echo up; exec sleep "+mark))
	k.says(sleeper, "up")
	k.must(os.WriteFile(filepath.Join(k.folder(sa), "private"), []byte("of another cell\n"), 0o644))
	for what, script := range map[string]string{
		"sees its process":    "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -q 'slee[p] " + mark + "'",
		"can signal it":       fmt.Sprintf("kill -0 %d 2>/dev/null", sleeper.PID()),
		"reads its files":     "cat " + filepath.Join(k.folder(sa), "private"),
		"sees the host's net": "test -n \"$(tail -n +3 /proc/net/dev | grep -v '^ *lo:')\"",
	} {
		if what == "can signal it" && sleeper.PID() == 0 {
			continue // it has no PID on the host
		}
		if what == "sees the host's net" && !isolated {
			continue // optional on a host
		}
		st, _ := k.run(b, script)
		if can := st.Exit.Code == 0; can == isolated {
			k.Errorf("a cell %s: %v, while Caps say %q", what, can, k.caps.Isolation)
		}
	}
	list, err := b.List(k.ctx)
	k.must(err)
	for _, p := range list {
		if strings.Contains(p.Command, mark) {
			k.Errorf("cell b lists a process of cell a: %+v", p)
		}
	}
	if _, err := b.KillAll(k.ctx, "stopped"); err != nil {
		k.Error(err)
	}
	if st, err := sleeper.Status(k.ctx); err != nil || !st.Running {
		k.Errorf("KillAll of cell b reached cell a: %+v, %v", st.Exit, err)
	}
	if n := len(sb.Mounts); n == 0 {
		k.Fatal("the cells have no mounts")
	}
	as := sleeper.Assurance()
	switch {
	case as.Backend != k.b.Name():
		k.Errorf("assurance of backend %q", as.Backend)
	case isolated && (len(as.Isolation) == 0 || as.Canaries.Total == 0 || as.Canaries.Passed != as.Canaries.Total || len(as.Canaries.Bites) == 0):
		k.Errorf("nothing was measured in an isolated cell: %+v", as)
	case !isolated && (len(as.Isolation) > 0 || len(as.Canaries.Bites) > 0 || !strings.Contains(strings.Join(as.Downgrades, "\n"), "no isolation")):
		k.Errorf("assurance of a cell without isolation: %+v", as)
	}
}

func testMounts(k *bench) {
	s := k.spec()
	lower, top := filepath.Join(k.dir, "lower"), filepath.Join(k.dir, "top")
	for _, d := range []string{lower, top + "/fs", top + "/work"} {
		k.must(os.MkdirAll(d, 0o755))
	}
	k.must(os.WriteFile(filepath.Join(lower, "f"), []byte("from below\n"), 0o644))
	s.Mounts = append(s.Mounts, cell.Mount{Kind: cell.Overlay, Target: "/layered", Lower: []string{lower}, Upper: top + "/fs", Work: top + "/work", Owned: true})
	if k.caps.Mounts != "" {
		_, err := k.b.Create(k.ctx, s)
		k.wantKind("an overlay that Caps deny", err, cell.Unsupported)
		k.nothingLeft()
		return
	}
	// Two folders of one overlay, each a mount of its own; nothing else of it is seen.
	parts := filepath.Join(k.dir, "parts")
	for _, d := range []string{"lower/a", "lower/x/b", "lower/x/c", "fs", "work"} {
		k.must(os.MkdirAll(filepath.Join(parts, d), 0o755))
	}
	for _, f := range []string{"lower/a/f", "lower/x/b/f", "lower/x/c/f"} {
		k.must(os.WriteFile(filepath.Join(parts, f), []byte(f+"\n"), 0o644))
	}
	for target, part := range map[string]string{"/one": "a", "/two/b": "x/b"} {
		s.Mounts = append(s.Mounts, cell.Mount{Kind: cell.Overlay, Target: target, Part: part, Lower: []string{parts + "/lower"}, Upper: parts + "/fs", Work: parts + "/work", Owned: true})
	}
	Removable(k.T, parts+"/work")
	// A covered directory of the workspace, with something below it that is not covered.
	private := filepath.Join(k.folder(s), "private")
	k.must(os.MkdirAll(filepath.Join(private, "open"), 0o755))
	k.must(os.WriteFile(filepath.Join(private, "secret"), []byte("secret\n"), 0o644))
	k.must(os.WriteFile(filepath.Join(private, "open", "note"), []byte("to be read\n"), 0o644))
	s.Mounts = append(s.Mounts,
		cell.Mount{Kind: cell.Tmpfs, Target: work + "/private", ReadOnly: true},
		cell.Mount{Kind: cell.Bind, Source: filepath.Join(private, "open"), Target: work + "/private/open", Owned: true, ReadOnly: true},
		cell.Mount{Kind: cell.Tmpfs, Target: "/scratch"},
		cell.Mount{Kind: cell.Link, Source: "usr/bin", Target: "/programs"})
	Removable(k.T, top+"/work")
	i := k.create(s)
	for _, x := range []struct {
		script string
		works  bool
	}{
		{"test \"$(cat /layered/f)\" = 'from below' && echo changed > /layered/f", true},
		{"touch /usr/x", false},
		{"touch /x", false},
		{"test \"$(ls -A private)\" = open", true},
		{"cat private/open/note", true},
		{"touch private/x", false},
		{"touch private/open/x", false},
		{"mkdir private/d", false},
		{"chmod 0777 private", k.caps.Refuses != ""},
		{"test \"$(stat -c %a private)\" = 777", false},
		{"touch /scratch/x /tmp/x", true},
		{"cat /one/f /two/b/f && echo changed > /one/f && echo new > /two/b/new && rm /two/b/f", true},
		{"ls /two/c || ls /one/../x || ls /one/b", false},
		{"rmdir /two/b", false},
		{"/programs/true", true},
	} {
		st, c := k.run(i, x.script)
		if (st.Exit.Code == 0) != x.works {
			k.Errorf("%q ended with %d (%s)", x.script, st.Exit.Code, c.stderr())
		}
	}
	if b, _ := os.ReadFile(filepath.Join(lower, "f")); string(b) != "from below\n" {
		k.Errorf("the lower layer was written: %q", b)
	}
	if b, _ := os.ReadFile(filepath.Join(top, "fs", "f")); string(b) != "changed\n" {
		k.Errorf("the writable layer has %q", b)
	}
	if b, _ := os.ReadFile(filepath.Join(parts, "fs/a/f")); string(b) != "changed\n" {
		k.Errorf("a file of the first folder is %q", b)
	}
	if b, _ := os.ReadFile(filepath.Join(parts, "fs/x/b/new")); string(b) != "new\n" {
		k.Errorf("a file of the second folder is %q", b)
	}
	if b, _ := os.ReadFile(filepath.Join(private, "secret")); string(b) != "secret\n" {
		k.Errorf("what was covered is now %q", b)
	}
}

// A cell that makes an image has a root directory that it writes to; what is mounted below stays what it is.
func testRootDirectory(k *bench) {
	s := k.spec()
	dir := filepath.Join(k.dir, "root")
	k.must(os.MkdirAll(filepath.Join(dir, "kept"), 0o755))
	k.must(os.WriteFile(filepath.Join(dir, "entry"), []byte("of the image\n"), 0o644))
	k.must(os.WriteFile(filepath.Join(dir, "gone"), nil, 0o644))
	s.Mounts = append([]cell.Mount{{Kind: cell.Bind, Source: dir, Target: "/", Owned: true, Role: cell.RoleTop}}, s.Mounts...)
	s.Writes = append(s.Writes, dir)
	if k.caps.Mounts != "" {
		_, err := k.b.Create(k.ctx, s)
		k.wantKind("a root directory that Caps deny", err, cell.Unsupported)
		k.nothingLeft()
		return
	}
	i := k.create(s)
	for _, script := range []string{
		"cat /entry && test -d /kept && test -d /proc/self",
		"echo new > /made && mkdir /folder && rm /gone && mv /kept /moved && ln -s made /link && echo more >> /entry",
		"! touch /usr/x 2>/dev/null && ! rmdir /usr 2>/dev/null && echo x > " + work + "/x",
	} {
		if st, c := k.run(i, script); st.Exit.Code != 0 {
			k.Errorf("%q ended with %d (%s)", script, st.Exit.Code, c.stderr())
		}
	}
	k.must(i.Remove(k.ctx, "removed"))
	if b, err := os.ReadFile(filepath.Join(dir, "entry")); string(b) != "of the image\nmore\n" {
		k.Errorf("what was changed is %q, %v", b, err)
	}
	for name, there := range map[string]bool{"made": true, "folder": true, "link": true, "moved": true, "kept": false, "gone": false, "work/x/x": false} {
		if _, err := os.Lstat(filepath.Join(dir, name)); (err == nil) != there {
			k.Errorf("%s in the root directory: %v", name, err)
		}
	}
}

func testFiles(k *bench) {
	i, s := k.cell()
	var in bytes.Buffer
	t := tar.NewWriter(&in)
	t.WriteHeader(&tar.Header{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o755})
	t.WriteHeader(&tar.Header{Name: "d/f", Typeflag: tar.TypeReg, Mode: 0o640, Size: 6})
	io.WriteString(t, "hello\n")
	t.Close()
	archive := in.Bytes()
	err := i.WriteFiles(k.ctx, work+"/in", s.User, bytes.NewReader(archive))
	if k.caps.Files != "" {
		k.wantKind("writing files that Caps deny", err, cell.Unsupported)
		k.wantKind("reading files that Caps deny", i.ReadFiles(k.ctx, work, io.Discard), cell.Unsupported)
		return
	}
	k.must(err)
	if _, c := k.run(i, "cat in/d/f"); c.stdout() != "hello\n" {
		k.Errorf("the cell reads %q (%s)", c.stdout(), c.stderr())
	}
	if b, _ := os.ReadFile(filepath.Join(k.folder(s), "in/d/f")); string(b) != "hello\n" {
		k.Errorf("the folder has %q", b)
	}
	var out bytes.Buffer
	k.must(i.ReadFiles(k.ctx, work+"/in/d", &out))
	names := ""
	for r := tar.NewReader(&out); ; {
		h, err := r.Next()
		if err != nil {
			break
		}
		names += h.Name + " "
	}
	if names != "d/ d/f " {
		k.Errorf("the archive has %q", names)
	}
	k.wantKind("a path that is not there", i.ReadFiles(k.ctx, work+"/nothing", io.Discard), cell.NotFound)
	k.wantKind("a read-only place", i.WriteFiles(k.ctx, "/usr", s.User, bytes.NewReader(archive)), cell.Denied)
	k.wantKind("rubbish for an archive", i.WriteFiles(k.ctx, work, s.User, strings.NewReader(strings.Repeat("rubbish ", 100))), cell.Invalid)
	// Symlinks of the cell resolve inside the cell.
	outside := filepath.Join(k.dir, "outside")
	k.must(os.WriteFile(outside, []byte("the host's\n"), 0o644))
	k.run(i, "ln -s "+outside+" link; ln -s "+k.dir+" dir")
	k.wantKind("a symlink out of the cell", i.ReadFiles(k.ctx, work+"/dir/outside", io.Discard), cell.NotFound)
	if err := i.WriteFiles(k.ctx, work+"/dir", s.User, bytes.NewReader(archive)); err == nil {
		k.Log("written through a dangling symlink, inside the cell")
	}
	if _, err := os.Stat(filepath.Join(k.dir, "d")); err == nil {
		k.Error("an archive was extracted outside the cell")
	}
}

// limited lists the limits that a backend may be unable to apply.
func (k *bench) limited() []struct{ name, why, word string } {
	return []struct{ name, why, word string }{
		{"memory", k.caps.MemoryLimit, "memory"}, {"cpus", k.caps.CPULimit, "cpu"}, {"pids", k.caps.ProcessLimit, "p"},
	}
}

func (k *bench) limitedSpec(asked ...string) cell.Spec {
	s := k.spec()
	s.Limits.Memory, s.Limits.CPUs, s.Limits.PIDs = 256<<20, 0.5, 50
	s.Asked = asked
	return s
}

// A limit that was asked for is applied, or nothing starts. A default limit is applied, or is a
// named downgrade.
func testLimits(k *bench) {
	i := k.create(k.limitedSpec())
	for _, l := range k.limited() {
		found := false
		for _, a := range i.Assurance().Limits {
			if a.Name == l.name {
				found = a.Applied != ""
				if a.Asked != "" {
					k.Errorf("%s is a default and said to be asked for: %+v", l.name, a)
				}
			}
		}
		if found != (l.why == "") {
			k.Errorf("%s is applied: %v, while Caps say %q (%+v)", l.name, found, l.why, i.Assurance().Limits)
		}
		if l.why != "" && !strings.Contains(strings.Join(i.Assurance().Downgrades, "\n"), l.word) {
			k.Errorf("no downgrade says that %s is not limited: %q", l.name, i.Assurance().Downgrades)
		}
	}
	for _, l := range k.limited() {
		s := k.limitedSpec(l.name)
		i, err := k.b.Create(k.ctx, s)
		if l.why != "" {
			k.wantKind("asked for "+l.name+", which Caps deny", err, cell.Unsupported)
			if cell.HintOf(err) == "" {
				k.Errorf("no remedy in %v", err)
			}
			if _, err := k.b.Attach(k.ctx, s.ID, ""); cell.KindOf(err) != cell.NotFound {
				k.Errorf("a cell without its %s limit is there: %v", l.name, err)
			}
			continue
		}
		k.must(err)
		k.made = append(k.made, i)
		asked := false
		for _, a := range i.Assurance().Limits {
			asked = asked || a.Name == l.name && a.Asked != "" && a.Applied == a.Asked && a.How != ""
		}
		if !asked {
			k.Errorf("%s was asked for; applied is %+v", l.name, i.Assurance().Limits)
		}
	}
}

func testMemory(k *bench) {
	if k.caps.MemoryLimit != "" {
		return // F33Limits has tested the refusal
	}
	s := k.limitedSpec("memory")
	s.Limits.Memory = 64 << 20
	i, eats := k.create(s), hungry("x=0123456789abcdef; while :; do x=$x$x; done")
	c := k.start(i, eats)
	if st := c.wait(); st.Exit.Cause != "memory limit" || st.Exit.Signal != "SIGKILL" {
		k.Errorf("ended as %+v (%s)", *st.Exit, c.stderr())
	}
	// The cause of death is also recorded in a cell without an event listener. A process that
	// exits by itself later did not die of the limit.
	for name, x := range map[string]struct {
		start cell.Start
		cause string
	}{"again": {eats, "memory limit"}, "itself": {sh("kill -9 $$"), ""}} {
		d, err := i.Do(k.ctx, name, x.start)
		k.must(err)
		if d.Status.Exit.Signal != "SIGKILL" || d.Status.Exit.Cause != x.cause {
			k.Errorf("%s: ended as %+v", name, *d.Status.Exit)
		}
	}
}

func testProcesses(k *bench) {
	if k.caps.ProcessLimit != "" {
		return
	}
	s := k.limitedSpec("pids")
	s.Limits.PIDs = 16
	c := k.start(k.create(s), hungry("for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do sleep 10 & done; wait"))
	if st := c.wait(); st.Exit.Code == 0 || st.Exit.Cause != "" || !strings.Contains(c.stderr(), "fork") {
		k.Errorf("ended as %+v (%s)", *st.Exit, c.stderr())
	}
}

func testCPUs(k *bench) {
	if k.caps.CPULimit != "" {
		return
	}
	s := k.limitedSpec("cpus")
	s.Limits.CPUs = 0.2
	p := hungry("while :; do :; done")
	p.Timeout = time.Second
	st := k.start(k.create(s), p).wait()
	if used := st.Usage.UserMS + st.Usage.SystemMS; used == 0 || used > 500 { // a fifth of a second is intended; five fifths would be no limit
		k.Errorf("it used %d ms of one second", used)
	}
}

func testDisk(k *bench) {
	s := k.spec()
	s.Limits.Disk, s.Asked = 8<<20, []string{"disk"}
	i := k.create(s)
	c := k.start(i, hungry("n=0; while :; do n=$((n+1)); head -c 500000 /dev/zero > f$n; sleep 0.01; done"))
	if st := c.wait(); st.Exit.Cause != "disk limit" {
		k.Errorf("ended as %+v (%s)", *st.Exit, c.stderr())
	}
	found := false
	for _, a := range i.Assurance().Limits {
		found = found || a.Name == "disk" && a.Asked != "" && strings.Contains(a.How, "accounted")
	}
	if !found {
		k.Errorf("limits %+v", i.Assurance().Limits)
	}
}

// hungry returns a script that never ends without a limit.
func hungry(script string) cell.Start {
	s := sh(script)
	s.Timeout = 30 * time.Second
	return s
}
