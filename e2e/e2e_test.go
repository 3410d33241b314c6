package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/testenv"
)

// built is the pando under test.
var built string

func TestMain(m *testing.M) {
	if os.Getenv(probeEnv) != "" {
		probe() // inside a cell: see TestEscape
		return
	}
	if what := os.Getenv(wayEnv); what != "" {
		goWays(what) // see TestWaysRound
		return
	}
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "pando-e2e-bin-")
		if err == nil {
			defer os.RemoveAll(dir)
			built, err = binary(dir)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

// binary returns PANDO_BIN, or builds one now.
func binary(dir string, flags ...string) (string, error) {
	if b := os.Getenv("PANDO_BIN"); b != "" && len(flags) == 0 {
		return filepath.Abs(b)
	}
	out := filepath.Join(dir, "pando")
	cmd := exec.Command("go", append(append([]string{"build", "-trimpath"}, flags...), "-o", dir+"/", "../cmd/pando", "../cmd/pandod", "../cmd/pando-bench")...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if b, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot build pando: %w\n%s", err, b)
	}
	for _, name := range []string{"pando-runsc", "pando-guest"} { // what `make` has built beside it
		if at, err := filepath.Abs("../bin/" + name); err == nil {
			os.Symlink(at, filepath.Join(dir, name))
		}
	}
	return out, nil
}

// hasGvisor reports whether what gVisor cells need is beside the binary.
func hasGvisor() bool {
	_, rerr := os.Stat(filepath.Join(filepath.Dir(built), "pando-runsc"))
	_, gerr := os.Stat(filepath.Join(filepath.Dir(built), "pando-guest"))
	return rerr == nil && gerr == nil
}

// passed are the variables of toolchains that scripts see.
var passed = []string{"GOMODCACHE", "GOCACHE", "GOFLAGS", "GOPROXY", "CARGO_HOME", "RUSTUP_HOME", "PYENV_ROOT"}

func TestScripts(t *testing.T) { runScripts(t, testscript.Params{Dir: "testdata"}, nil) }

// runScripts runs scripts, with more variables in their environment.
func runScripts(t *testing.T, p testscript.Params, more map[string]string) {
	bin := built
	p = testscript.Params{
		Dir: p.Dir, Files: p.Files,
		// TMPDIR decides where scripts work: set E2E_DIR to try another file system.
		WorkdirRoot: os.Getenv("E2E_DIR"),
		Setup: func(env *testscript.Env) error {
			home := filepath.Join(env.WorkDir, "home")
			if err := os.MkdirAll(home, 0o755); err != nil {
				return err
			}
			env.Setenv("HOME", home)
			env.Setenv("HOST_HOME", os.Getenv("HOME"))
			env.Setenv("PANDO_HOME", filepath.Join(env.WorkDir, ".pando"))
			env.Setenv("PANDO_IDLE", "10m")
			env.Setenv("PATH", filepath.Dir(bin)+":"+os.Getenv("PATH"))
			env.Setenv("GIT_AUTHOR_NAME", "t")
			env.Setenv("GIT_AUTHOR_EMAIL", "t@example.com")
			env.Setenv("GIT_COMMITTER_NAME", "t")
			env.Setenv("GIT_COMMITTER_EMAIL", "t@example.com")
			env.Setenv("GIT_CONFIG_NOSYSTEM", "1")
			env.Setenv("NO_COLOR", "1")
			for k, v := range more {
				env.Setenv(k, v)
			}
			for _, k := range passed {
				if v := os.Getenv(k); v != "" {
					env.Setenv(k, v)
				}
			}
			env.Defer(func() { stopAll(bin, env.WorkDir) })
			return nil
		},
		Condition: func(cond string) (bool, error) {
			switch {
			case cond == "root":
				return os.Geteuid() == 0, nil
			case cond == "user":
				return os.Geteuid() != 0, nil
			case strings.HasPrefix(cond, "prog:"):
				_, err := exec.LookPath(cond[5:])
				return err == nil, nil
			case strings.HasPrefix(cond, "env:"):
				return os.Getenv(cond[4:]) != "", nil
			case cond == "gvisor":
				return more["PANDO_BACKEND"] == "gvisor", nil
			case cond == "microvm":
				return more["PANDO_BACKEND"] == "microvm", nil
			case cond == "whole": // cells are copied whole
				return more["PANDO_BACKEND"] == "gvisor" || more["PANDO_BACKEND"] == "microvm", nil
			case cond == "records": // the kernel can record what a process writes (userfaultfd)
				var u unix.Utsname
				var major, minor int
				unix.Uname(&u)
				fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor)
				return major > 6 || major == 6 && minor >= 7, nil
			case cond == "soak":
				return os.Getenv("E2E_SOAK") != "", nil
			}
			return false, fmt.Errorf("unknown condition %q", cond)
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"leftovers":       leftovers,
			"peak-memory":     peakMemory,
			"killdaemon":      killDaemon,
			"killkeeper":      killKeeper,
			"waitfor":         waitFor,
			"eventually-gone": eventuallyGone,
			"json":            jsonField,
			"symlink-to":      symlinkTo,
			"exits":           exits,
			"tty":             tty,
			"api":             rawAPI,
			"remember":        remember,
			"unchanged":       unchanged,
			"let":             let,
			"edit":            edit,
			"setxattr":        setXAttr,
			"upstream":        upstreamCmd,
			"sshd":            sshdCmd,
			"ocsf":            validOCSF,
			"registry":        registryCmd,
			"asked":           askedCmd,
			"packimage":       packImage,
			"noimages":        noImages,
			"holdings":        holdings,
		},
	}
	testscript.Run(t, p)
}

// stopAll ends the processes that a script has left.
func stopAll(bin, work string) {
	env := append(os.Environ(), "PANDO_HOME="+filepath.Join(work, ".pando"), "HOME="+filepath.Join(work, "home"))
	for _, args := range [][]string{{"stop", "--all"}, {"daemon", "stop"}} {
		if _, err := os.Stat(filepath.Join(work, ".pando", "run", "pando.sock")); err != nil {
			break
		}
		c := exec.Command(bin, args...)
		c.Env = env
		c.Run()
	}
	for _, p := range ours(work) {
		syscall.Kill(p, syscall.SIGKILL)
	}
	if b, err := os.ReadFile("/proc/self/mountinfo"); err == nil {
		for _, l := range strings.Split(string(b), "\n") {
			if f := strings.Fields(l); len(f) > 4 && strings.HasPrefix(f[4], work+"/") { // a script's own, such as a small disk
				syscall.Unmount(f[4], syscall.MNT_DETACH)
			}
		}
	}
}

// ours lists the pando processes (daemons, keepers) of a script: those with an open file below
// its installation or, since an ordinary user may not see a keeper's files, with the name of one
// of its cells.
func ours(work string) (pids []int) {
	home := filepath.Join(work, ".pando") + "/"
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		cmd, err := os.ReadFile(d + "/cmdline")
		if err != nil || !strings.HasPrefix(string(cmd), "pando-") {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(d))
		if keeps(d, home) {
			pids = append(pids, pid)
			continue
		}
		fds, _ := os.ReadDir(d + "/fd")
		for _, f := range fds {
			to, err := os.Readlink(d + "/fd/" + f.Name())
			if err == nil && strings.HasPrefix(to, home) {
				pids = append(pids, pid)
				break
			}
		}
	}
	return pids
}

// commLength is the length of a process name in the kernel.
const commLength = 15

// keeps reports whether the process of a directory in /proc is the keeper of a
// cell of the installation at home.
func keeps(proc, home string) bool {
	comm, _ := os.ReadFile(proc + "/comm")
	name := strings.TrimSpace(string(comm))
	if len(name) < commLength || !strings.HasPrefix(name, "c-") {
		return false
	}
	for _, dir := range []string{"run/keepers/", "state/cells/"} {
		if found, _ := filepath.Glob(home + dir + name + "*"); len(found) > 0 {
			return true
		}
	}
	return false
}

func leftovers(ts *testscript.TestScript, neg bool, args []string) {
	var found []string
	for end := time.Now().Add(testenv.Patience()); ; time.Sleep(50 * time.Millisecond) { // what is being taken down may take a moment
		if found = leftOn(ts.Getenv("WORK")); (len(found) > 0) == neg || time.Now().After(end) {
			break
		}
	}
	if (len(found) > 0) != neg {
		ts.Fatalf("left over: %s", strings.Join(found, "; "))
	}
}

func processName(pid int) string {
	cmd, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.TrimSpace(strings.ReplaceAll(string(cmd), "\x00", " "))
}

// leftOn lists leftovers on the host of an installation at rest: keepers, processes of cells,
// mounts, sockets, locks, cgroups, folders of removed cells, incomplete files.
func leftOn(work string) (found []string) {
	for _, p := range ours(work) {
		name := processName(p)
		if name == "pando-daemon" || (name == "pando-keeper" && isSpare(p)) {
			continue
		}
		found = append(found, fmt.Sprintf("process %d %s", p, name))
	}
	home := filepath.Join(work, ".pando")
	procs, _ := filepath.Glob("/proc/[0-9]*/mountinfo")
	for _, f := range procs {
		b, err := os.ReadFile(f)
		pid := strings.Split(f, "/")[2]
		n, _ := strconv.Atoi(pid)
		// Our own processes see the disks of cells at rest.
		if err == nil && strings.Contains(string(b), home+"/state/cells/c-") && !strings.HasPrefix(processName(n), "pando-") {
			found = append(found, fmt.Sprintf("process %s %s in a cell", pid, processName(n)))
		}
	}
	if b, err := os.ReadFile("/proc/self/mountinfo"); err == nil {
		for _, l := range strings.Split(string(b), "\n") {
			if strings.Contains(l, home+"/") {
				found = append(found, "mount "+l)
			}
		}
	}
	for _, pattern := range []string{"run/keepers/c-*", "run/mnt/*", "state/apply/*", "state/*.tmp*", "state/*/*.tmp*", "state/*/*.new", "cache/*/*.tmp*"} {
		names, _ := filepath.Glob(filepath.Join(home, pattern))
		found = append(found, names...)
	}
	if b, err := os.ReadFile(filepath.Join(home, "state/installation")); err == nil {
		inst := strings.Fields(string(b))[0]
		for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
			names, _ := filepath.Glob(filepath.Join(root, "pando", inst, "c-*"))
			found = append(found, names...)
		}
	}
	// Interfaces of cells are in the cells' own namespaces, and go with them.
	if b, err := os.ReadFile("/proc/self/net/dev"); err == nil && strings.Contains(string(b), "pando") {
		found = append(found, "interfaces "+string(b))
	}
	return found
}

// isSpare reports whether a keeper waits for a cell: it is named after none.
func isSpare(pid int) bool {
	comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return !strings.HasPrefix(string(comm), "c-")
}

func killDaemon(ts *testscript.TestScript, neg bool, args []string) {
	for _, p := range ours(ts.Getenv("WORK")) {
		if processName(p) == "pando-daemon" {
			kill(p)
			return
		}
	}
	ts.Fatalf("no daemon to kill")
}

func killKeeper(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("usage: killkeeper CELL-ID")
	}
	if p := keeperOf(ts.Getenv("WORK"), args[0]); p != 0 {
		kill(p)
		return
	}
	ts.Fatalf("cell %s has no keeper", args[0])
}

// keeperOf finds the process that keeps a cell; 0 if there is none.
func keeperOf(work, id string) int {
	for _, p := range ours(work) {
		if comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p)); strings.TrimSpace(string(comm)) == id[:commLength] {
			return p
		}
	}
	return 0
}

// kill kills a process and waits until all its threads and descriptors are gone; its first
// thread alone may be dead long before.
func kill(pid int) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 5000)
}

// emulatedSlowness is how much longer scripts wait for what happens in a machine that
// may be emulated.
const emulatedSlowness = 6

func waitFor(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: waitfor SECONDS COMMAND…")
	}
	n, err := strconv.Atoi(args[0])
	ts.Check(err)
	if ts.Getenv("PANDO_BACKEND") == "microvm" {
		n *= emulatedSlowness
	}
	deadline := time.Now().Add(max(time.Duration(n)*time.Second, testenv.Patience())) // no verdict rests on the number
	for {
		err = ts.Exec(args[1], args[2:]...)
		if (err == nil) != neg {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%s: %v, and so it stays", strings.Join(args[1:], " "), err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func eventuallyGone(ts *testscript.TestScript, neg bool, args []string) {
	for end := time.Now().Add(testenv.Patience()); ; time.Sleep(25 * time.Millisecond) {
		if _, err := os.Lstat(ts.MkAbs(args[0])); os.IsNotExist(err) {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("%s is still there", args[0])
		}
	}
}

// jsonField compares one field of the JSON document on the last stdout.
func jsonField(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: json .path.to.field VALUE")
	}
	got := lookUp(ts, args[0])
	if (got == args[1]) == neg {
		ts.Fatalf("%s is %q", args[0], got)
	}
}

// lookUp reads a field of the JSON document on the last stdout; a missing one is empty.
func lookUp(ts *testscript.TestScript, path string) string {
	var v any
	ts.Check(json.Unmarshal([]byte(ts.ReadFile("stdout")), &v))
	for _, k := range strings.Split(strings.Trim(path, "."), ".") {
		switch c := v.(type) {
		case map[string]any:
			v = c[k]
		case []any:
			if k == "length" {
				return strconv.Itoa(len(c))
			}
			i, err := strconv.Atoi(k)
			if err != nil || i >= len(c) {
				ts.Fatalf("%s: no element %s", path, k)
			}
			v = c[i]
		default:
			v = nil
		}
	}
	switch f := v.(type) {
	case nil:
		return ""
	case float64:
		return strconv.FormatFloat(f, 'f', -1, 64)
	case []any:
		if strings.HasSuffix(path, ".length") {
			return strconv.Itoa(len(f))
		}
	}
	return fmt.Sprint(v)
}

// symlinkTo makes a symlink to anything: testscript's own wants a file of the
// script.
func symlinkTo(ts *testscript.TestScript, neg bool, args []string) {
	ts.Check(os.Symlink(args[1], ts.MkAbs(args[0])))
}
