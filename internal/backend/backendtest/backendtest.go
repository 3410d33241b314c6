// Package backendtest is the conformance suite of backends: it tests one against the contract
// of package backend. It never learns a backend's name. Permitted differences are in the
// backend's Caps, and the suite checks that those are true both ways.
package backendtest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/internal/backend"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/keeper/proto"
	"github.com/pando-dev/pando/internal/keeper/server"
	"github.com/pando-dev/pando/internal/reexec"
)

// Machine is an empty host, as a backend sees it.
type Machine struct {
	// Open returns the backend as a daemon has it, and a function that ends that daemon.
	Open func() (b backend.Backend, end func())
	// Left lists the backend's objects on the machine by name. It is empty once every cell has
	// been removed.
	Left func() []string
}

// Main is the TestMain of a backend with cells in keepers. The test's own executable is the
// keeper, with these drivers.
func Main(m *testing.M, drivers map[string]func() (server.Driver, error)) {
	MainWith(m, drivers, server.Gateways{})
}

// MainWith is Main with the test's own gateways.
func MainWith(m *testing.M, drivers map[string]func() (server.Driver, error), networks server.Networks) {
	if r, ok := reexec.Role(os.Args[0]); ok && r == proto.Role {
		if err := server.Main(drivers, nil, networks); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// ShowLog prints the keepers' log if the test fails.
func ShowLog(t testing.TB, dir string) {
	t.Cleanup(func() {
		if b, err := os.ReadFile(filepath.Join(dir, "keeper.log")); err == nil && t.Failed() {
			t.Logf("keepers say:\n%s", b)
		}
	})
}

// Removable makes the test's directories removable at its end. overlayfs makes private ones
// below a layer's work directory.
func Removable(t testing.TB, work string) {
	t.Cleanup(func() {
		for _, d := range []string{"", "/incompat", "/incompat/volatile"} {
			os.Chmod(work+"/work"+d, 0o700)
		}
	})
}

// KeeperFiles lists a directory of sockets and locks, except for the keepers' log.
func KeeperFiles(dir string) (left []string) {
	names, _ := os.ReadDir(dir)
	for _, n := range names {
		if n.Name() != "keeper.log" {
			left = append(left, n.Name())
		}
	}
	return left
}

// Run runs all tests, or only those that are named. machine is called for each test.
func Run(t *testing.T, machine func(t *testing.T) *Machine, only ...string) {
	missing := slices.Clone(only)
	for _, x := range []struct {
		name string
		f    func(*bench)
	}{
		{"Exit", testExit}, {"Streams", testStreams}, {"Input", testInput}, {"Environment", testEnvironment}, {"Workdir", testWorkdir},
		{"Names", testNames}, {"Programs", testPrograms}, {"Signals", testSignals}, {"WaitObeysItsContext", testWaitContext}, {"Do", testDo},
		{"F29TimeoutEndsTheGroup", testTimeout}, {"F29FirstThreadEnds", testFirstThreadEnds}, {"EndsCell", testEndsCell}, {"KillAll", testKillAll}, {"OrphansAreReaped", testOrphans},
		{"Freeze", testFreeze}, {"Stats", testStats}, {"Terminal", testTerminal}, {"F27ReusedPIDIsNeverSignalled", testReusedPID},
		{"Exists", testExists}, {"Attach", testAttach}, {"Remove", testRemove}, {"NotFound", testNotFound},
		{"Network", testNetwork}, {"F65NoPolicyNoCell", testNetworkPolicy},
		{"Isolation", testIsolation}, {"Mounts", testMounts}, {"RootDirectory", testRootDirectory}, {"Files", testFiles},
		{"EvalKeepsState", testEvalKeepsState}, {"F48EvalValues", testEvalValues}, {"EvalOutput", testEvalOutput}, {"F49EvalTimeout", testEvalTimeout}, {"EvalNode", testEvalNode}, {"EvalJava", testEvalJava},
		{"EvalOneAtATime", testEvalWaits}, {"EvalAttach", testEvalAttach}, {"EvalDeaths", testEvalDeaths}, {"WarmFails", testWarmFails},
		{"F50EvalSocketIsItsOwn", testEvalSocketIsItsOwn}, {"EvalMemoryBites", testEvalMemory},
		{"D34Fork", testFork}, {"D40Branch", testBranch}, {"D35Copies", testCopies}, {"D42CopiedInterpreter", testCopiedInterpreter},
		{"F33Limits", testLimits}, {"F33MemoryBites", testMemory}, {"F33ProcessesBite", testProcesses}, {"F33CPUsBite", testCPUs}, {"DiskBites", testDisk},
	} {
		if len(only) > 0 && !slices.Contains(only, x.name) {
			continue
		}
		missing = slices.DeleteFunc(missing, func(name string) bool { return name == x.name })
		t.Run(x.name, func(t *testing.T) {
			m := machine(t)
			ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
			defer cancel()
			k := &bench{T: t, m: m, ctx: ctx, dir: t.TempDir()}
			k.open()
			defer func() {
				for _, i := range k.made {
					if err := i.Remove(context.Background(), "the test ended"); err != nil {
						t.Errorf("cannot remove a cell at the end: %v", err)
					}
				}
				k.end()
				k.nothingLeft()
			}()
			if slices.Contains(evals, x.name) && k.caps.Eval != "" {
				k.noEval()
				return
			}
			x.f(k)
		})
	}
	if len(missing) > 0 {
		t.Errorf("there are no tests %q", missing)
	}
}

// evals lists the tests that need an interpreter of the host.
var evals = []string{"EvalKeepsState", "F48EvalValues", "EvalOutput", "F49EvalTimeout", "EvalNode", "EvalJava", "EvalOneAtATime", "EvalAttach", "EvalDeaths",
	"WarmFails", "F50EvalSocketIsItsOwn", "EvalMemoryBites", "D34Fork", "D40Branch", "D42CopiedInterpreter"}

// bench is the machine of one test, with a backend.
type bench struct {
	*testing.T
	m    *Machine
	ctx  context.Context
	dir  string // parent of the cells' own directories
	b    backend.Backend
	end  func()
	caps backend.Caps
	made []backend.Instance
	n    int // number of processes so far
}

func (k *bench) open() {
	k.b, k.end = k.m.Open()
	var err error
	if k.caps, err = k.b.Probe(k.ctx); err != nil {
		k.end()
		k.Skipf("the backend can't run here: %v", err)
	}
}

func (k *bench) must(err error) {
	k.Helper()
	if err != nil {
		k.Fatal(err)
	}
}

// wantKind asserts the kind of an error.
func (k *bench) wantKind(what string, err error, want cell.Kind) {
	k.Helper()
	if got := cell.KindOf(err); got != want {
		k.Errorf("%s: %v (kind %q), want kind %q", what, err, got, want)
	}
}

// nothingLeft asserts that the machine is empty again.
func (k *bench) nothingLeft() {
	k.Helper()
	var left []string
	for range 200 { // a dismissed keeper needs a moment to end
		if left = k.m.Left(); len(left) == 0 {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	k.Errorf("left on the machine: %s", strings.Join(left, ", "))
}

// work is the path of a cell's own directory, inside it.
const work = "/work/x"

// folder is its path on the host.
func (k *bench) folder(s cell.Spec) string { return filepath.Join(k.dir, string(s.ID), "work") }

// spec describes a new cell: the host's programs, its own directory, /tmp.
func (k *bench) spec() cell.Spec {
	k.Helper()
	id := cell.NewID()
	s := cell.Spec{ID: id, Hostname: "cell", Workdir: work, User: cell.User{UID: os.Getuid(), GID: os.Getgid(), Name: "u", Home: "/home/u"},
		Mounts: []cell.Mount{{Kind: cell.Bind, Source: "/usr", Target: "/usr", ReadOnly: true}}, Limits: cell.Limits{Disk: 1 << 30}}
	for _, d := range []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64"} {
		if to, err := os.Readlink(d); err == nil {
			s.Mounts = append(s.Mounts, cell.Mount{Kind: cell.Link, Source: to, Target: d})
		} else if _, err := os.Stat(d); err == nil {
			s.Mounts = append(s.Mounts, cell.Mount{Kind: cell.Bind, Source: d, Target: d, ReadOnly: true})
		}
	}
	s.Mounts = append(s.Mounts, cell.Mount{Kind: cell.Tmpfs, Target: "/run"})
	for target, name := range map[string]string{work: "work", "/home/u": "home", "/tmp": "tmp"} {
		dir := filepath.Join(k.dir, string(id), name)
		k.must(os.MkdirAll(dir, 0o755))
		s.Mounts = append(s.Mounts, cell.Mount{Kind: cell.Bind, Source: dir, Target: target, Owned: true})
		s.Writes = append(s.Writes, dir)
	}
	return s
}

// create makes a cell, and removes it at the end.
func (k *bench) create(s cell.Spec) backend.Instance {
	k.Helper()
	i, err := k.b.Create(k.ctx, s)
	k.must(err)
	k.made = append(k.made, i)
	return i
}

func (k *bench) cell() (backend.Instance, cell.Spec) {
	k.Helper()
	s := k.spec()
	return k.create(s), s
}

// sh returns a shell command.
func sh(script string) cell.Start {
	return cell.Start{LogLimit: 1 << 20, Process: cell.Process{Args: []string{"sh", "-c", script}, Env: []string{"PATH=/usr/bin:/bin"},
		Path: []string{"/bin/sh"}, Workdir: work}}
}

// command is a process with its output files.
type command struct {
	backend.Process
	k        *bench
	name     string
	out, err string // files
}

// start starts a command under a new name, with files for its output.
func (k *bench) start(i backend.Instance, s cell.Start) *command {
	k.Helper()
	k.n++
	c := &command{k: k, name: fmt.Sprintf("p%d", k.n), out: filepath.Join(k.dir, fmt.Sprintf("out%d", k.n)), err: filepath.Join(k.dir, fmt.Sprintf("err%d", k.n))}
	var logs [3]*os.File
	for n, p := range []string{c.out, c.err} {
		f, err := os.Create(p)
		k.must(err)
		defer f.Close()
		logs[n] = f
	}
	var err error
	c.Process, err = i.Start(k.ctx, c.name, s, logs)
	k.must(err)
	return c
}

// wait returns its exit status.
func (c *command) wait() cell.Status {
	c.k.Helper()
	st, err := c.Wait(c.k.ctx)
	c.k.must(err)
	if st.Running || st.Exit == nil {
		c.k.Fatalf("Wait came back from something that runs: %+v", st)
	}
	return st
}

func (c *command) stdout() string { b, _ := os.ReadFile(c.out); return string(b) }

func (c *command) stderr() string { b, _ := os.ReadFile(c.err); return string(b) }

// run runs a script to its end.
func (k *bench) run(i backend.Instance, script string) (cell.Status, *command) {
	k.Helper()
	c := k.start(i, sh(script))
	return c.wait(), c
}

// eventually waits until so returns true.
func (k *bench) eventually(what string, so func() bool) {
	k.Helper()
	for range 1000 {
		if so() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	k.Fatalf("it never came that %s", what)
}

func (k *bench) says(c *command, text string) {
	k.Helper()
	k.eventually("it said "+text, func() bool { return strings.Contains(c.stdout(), text) })
}

// empty reports whether a cell has no processes.
func (k *bench) empty(i backend.Instance) bool {
	list, err := i.List(k.ctx)
	k.must(err)
	return len(list) == 0
}

func grows(path string) func() bool {
	first, _ := os.ReadFile(path)
	return func() bool {
		now, _ := os.ReadFile(path)
		return len(bytes.TrimPrefix(now, first)) > 0
	}
}
