// Package sibling finds and runs the other programs of pando: pandod, pando-bench. They lie
// beside the program that runs, or in ../libexec/pando, and are of the same version. The
// caller decides what they do.
//
//	pando ── exec, PANDO_CALLER=version ──▶ pandod serve …   the process goes on as pandod
//	pando ── child, home on its stdin ────▶ pandod start     until the daemon answers
package sibling

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/paths"
)

// StartWord is the argument that has pandod start a daemon.
const StartWord = "start"

// callerVar names the variable with the caller's version.
const callerVar = "PANDO_CALLER"

// Find returns the path of a program of pando's. NotFound says where it was looked for.
func Find(name string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	dir := filepath.Dir(self)
	for _, at := range []string{filepath.Join(dir, name), filepath.Join(dir, "../libexec/pando", name)} {
		if st, err := os.Stat(at); err == nil && st.Mode().IsRegular() {
			return at, nil
		}
	}
	return "", cell.Errorf(cell.NotFound, "sibling.Find", "install all programs of one build into one directory; make builds them into bin",
		"cannot find %s: it is neither in %s nor in %s", name, dir, filepath.Join(dir, "../libexec/pando"))
}

// Exec replaces this process by a program of pando's. It returns when that fails.
func Exec(name, version string, args []string) error {
	at, err := Find(name)
	if err != nil {
		return err
	}
	err = syscall.Exec(at, append([]string{name}, args...), append(os.Environ(), callerVar+"="+version))
	return fmt.Errorf("cannot run %s: %w", at, err)
}

// Check compares the caller's version with this program's, and forgets it: what this program
// starts is not called by it.
func Check(version string) error {
	caller, ok := os.LookupEnv(callerVar)
	os.Unsetenv(callerVar)
	if ok && caller != version {
		return cell.Errorf(cell.Conflict, "sibling.Check", "install all programs of one build together",
			"cannot go on: pando is of version %s, and %s beside it of version %s", caller, filepath.Base(os.Args[0]), version)
	}
	return nil
}

// failure is how a program tells its caller why it failed.
type failure struct {
	Kind  cell.Kind `json:"kind"`
	Error string    `json:"error"`
	Hint  string    `json:"hint,omitempty"`
}

// Fail writes an error for Start, and returns the exit code. nil is 0, and writes nothing.
func Fail(w io.Writer, err error) int {
	if err == nil {
		return 0
	}
	json.NewEncoder(w).Encode(failure{cell.KindOf(err), err.Error(), cell.HintOf(err)})
	return 1
}

// Start has pandod start a daemon, and returns when that answers.
func Start(ctx context.Context, name, version string, h paths.Home) error {
	at, err := Find(name)
	if err != nil {
		return err
	}
	input, err := json.Marshal(h)
	if err != nil {
		return err
	}
	var out, log bytes.Buffer
	c := exec.CommandContext(ctx, at, StartWord)
	c.Stdin, c.Stdout, c.Stderr = bytes.NewReader(input), &out, &log
	c.Env = append(os.Environ(), callerVar+"="+version)
	err = c.Run()
	if err == nil {
		return nil
	}
	var f failure
	if json.Unmarshal(out.Bytes(), &f) == nil && f.Error != "" {
		return &cell.Error{Op: "sibling.Start", Kind: f.Kind, Hint: f.Hint, Err: errors.New(f.Error)}
	}
	return fmt.Errorf("cannot start the daemon: %s: %w", cmp.Or(string(bytes.TrimSpace(log.Bytes())), at), err)
}

// ReadHome reads what Start writes.
func ReadHome(r io.Reader) (h paths.Home, err error) {
	if err := json.NewDecoder(r).Decode(&h); err != nil {
		return h, fmt.Errorf("cannot start the daemon: it was not told where: %w", err)
	}
	return h, nil
}
