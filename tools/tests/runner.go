package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// A runner runs the tests of selections that have the same -run and -skip.
type runner interface {
	run(ctx context.Context, g []selection, rep *report) error
	close()
}

func newRunner(ctx context.Context, o options, packages []string) (runner, error) {
	if o.user == "" {
		return here{o}, nil
	}
	return newAs(ctx, o)
}

// here runs go test as the caller.
type here struct{ options }

func (h here) close() {}

func (h here) run(ctx context.Context, g []selection, rep *report) error {
	// Scripts run programs that go test's cache does not see; make test has vetted all.
	args := []string{"test", "-json", "-count=1", "-trimpath", "-vet=off", "-timeout", h.timeout.String()}
	if h.race {
		args = append(args, "-race")
	}
	if h.shuffle {
		args = append(args, "-shuffle=on")
	}
	if h.packages > 0 {
		args = append(args, "-p", strconv.Itoa(h.packages))
	}
	if h.parallel > 0 {
		args = append(args, "-parallel", strconv.Itoa(h.parallel))
	}
	if g[0].run != "" {
		args = append(args, "-run", g[0].run)
	}
	if g[0].skip != "" {
		args = append(args, "-skip", g[0].skip)
	}
	for _, s := range g {
		args = append(args, "./"+s.pkg)
	}
	c := exec.CommandContext(ctx, "go", args...)
	if h.race {
		c.Env = append(os.Environ(), "CGO_ENABLED=1")
	}
	return feed(c, rep)
}

// feed gives a command's output to a report. That tests failed is the report's.
func feed(c *exec.Cmd, rep *report) error {
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	rerr := rep.read(out)
	io.Copy(io.Discard, out)
	err = c.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 && rep.anyFailed() {
		err = nil
	}
	return errors.Join(rerr, err)
}

// as runs tests as an ordinary user. The tests are compiled by the caller; the user
// gets a copy of the sources, the programs, and nothing else of the caller's.
type as struct {
	options
	dir string // the copy

	mu       sync.Mutex // held while tests are compiled
	compiled map[string]bool
}

func newAs(ctx context.Context, o options) (_ *as, err error) {
	if os.Getuid() != 0 {
		return nil, errors.New("-user needs root")
	}
	dir, err := os.MkdirTemp("", "pando-as-user-")
	if err != nil {
		return nil, err
	}
	a := &as{options: o, dir: dir, compiled: map[string]bool{}}
	c := exec.CommandContext(ctx, "sh", "-euc", `
id "$1" >/dev/null 2>&1 || useradd --create-home --shell /bin/sh "$1"
chmod 755 "$2"
git ls-files -z | xargs -0 cp --parents -t "$2"
mkdir -p "$2/bin"
cp bin/pando bin/pandod bin/pando-bench bin/pando-guest bin/pando-runsc "$2/bin"
mkdir "$2/bin/faults"
CGO_ENABLED=0 go build -trimpath -tags faults -o "$2/bin/faults/" ./cmd/pando ./cmd/pandod
cp -R "$(go list -m -f '{{.Dir}}' github.com/spf13/pflag)" "$2/project" # for TestRealProject
chown -R "$1" "$2"
`, "sh", o.user, dir)
	c.Stderr = os.Stderr
	if err := c.Run(); err != nil {
		a.close()
		return nil, fmt.Errorf("cannot prepare the user %s (run make first): %w", o.user, err)
	}
	return a, nil
}

func (a *as) close() { os.RemoveAll(a.dir) }

func (a *as) run(ctx context.Context, g []selection, rep *report) error {
	for _, s := range g {
		if err := a.one(ctx, s, rep); err != nil {
			return err
		}
	}
	return nil
}

// compile returns the path of a package's tests.
func (a *as) compile(ctx context.Context, pkg string) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	program := filepath.Join(a.dir, pkg, "user.test")
	if a.compiled[pkg] {
		return program, nil
	}
	c := exec.CommandContext(ctx, "go", "test", "-c", "-trimpath", "-o", program, "./"+pkg)
	if b, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot compile the tests of %s: %w\n%s", pkg, err, b)
	}
	a.compiled[pkg] = true
	return program, nil
}

func (a *as) one(ctx context.Context, s selection, rep *report) error {
	dir := filepath.Join(a.dir, s.pkg)
	program, err := a.compile(ctx, s.pkg)
	if err != nil {
		return err
	}
	goProgram, err := exec.LookPath("go")
	if err != nil {
		return err
	}
	args := []string{program, "-test.v=test2json", "-test.timeout=" + a.timeout.String()}
	if a.parallel > 0 {
		args = append(args, "-test.parallel="+strconv.Itoa(a.parallel))
	}
	if s.run != "" {
		args = append(args, "-test.run="+s.run)
	}
	if s.skip != "" {
		args = append(args, "-test.skip="+s.skip)
	}
	for i, arg := range args {
		args[i] = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
	}
	env := []string{"PATH=" + filepath.Dir(goProgram) + ":$PATH", "PANDO_BIN=" + filepath.Join(a.dir, "bin/pando"),
		"PANDO_FAULTS_BIN=" + filepath.Join(a.dir, "bin/faults/pando"), "E2E_PROJECT=" + filepath.Join(a.dir, "project"),
	}
	for _, name := range []string{"E2E_CLAUDE", "E2E_CODEX", "E2E_COPILOT", "E2E_GEMINI", "E2E_OPENCODE", "E2E_SOAK", "PANDO_TEST_SLOW"} {
		env = append(env, name+"="+os.Getenv(name))
	}
	// su's shell ignores an interrupt that its own parent ignores; tests send some.
	line := fmt.Sprintf("cd '%s' && %s env --default-signal=INT %s 2>&1", dir, strings.Join(env, " "), strings.Join(args, " "))
	c := exec.CommandContext(ctx, "sh", "-c", `su "$1" -c "$2" | go tool test2json -t -p "$3"`, "sh", a.user, line, module+s.pkg)
	return feed(c, rep)
}
