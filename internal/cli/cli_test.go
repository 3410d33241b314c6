package cli

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pando-dev/pando/api"
)

// deaf returns a command line without output, in an installation without a daemon.
func deaf(t *testing.T) *app {
	t.Helper()
	t.Setenv("PANDO_HOME", filepath.Join(t.TempDir(), "home"))
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { null.Close() })
	return &app{stdin: null, stdout: io.Discard, stderr: io.Discard, told: map[string]bool{}}
}

// runnable are all commands, as they are written.
func runnable(c *cobra.Command) (paths [][]string) {
	if c.Runnable() && c.HasParent() {
		paths = append(paths, strings.Fields(c.CommandPath())[1:])
	}
	for _, sub := range c.Commands() {
		paths = append(paths, runnable(sub)...)
	}
	return paths
}

// An empty argument is wrong usage, for every command and every flag that takes a value.
func TestX20EmptyArguments(t *testing.T) {
	root := deaf(t).root()
	for _, path := range runnable(root) {
		cmd, _, err := root.Find(path)
		if err != nil {
			t.Fatal(err)
		}
		tries := [][]string{{""}, {"web", ""}, {"", "web"}}
		cmd.InheritedFlags() // has them merged
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Value.Type() != "bool" && f.Value.Type() != "int" && !strings.HasSuffix(f.Value.Type(), "ints") {
				tries = append(tries, []string{"--" + f.Name + "=", "web", "true"})
			}
		})
		if takes := map[string]int{"run": 1, "exec": 2}[cmd.Name()]; takes == 1 { // what comes next is the command's
			tries = slices.DeleteFunc(tries, func(try []string) bool { return try[0] == "web" })
		}
		for _, try := range tries {
			a := deaf(t)
			r := a.root()
			r.SetArgs(append(slices.Clone(path), try...))
			ran, err := r.ExecuteC()
			if !errors.Is(err, errUsage) {
				t.Errorf("pando %s %q: %v", strings.Join(path, " "), try, err)
				continue
			}
			want := api.ReasonOf("invalid").Exit
			if n := cmd.Name(); cmd.Parent() == root && (n == "run" || n == "exec") {
				want = api.ExitPandoFailed
			}
			if got := a.fail(ran, err); got != want {
				t.Errorf("pando %s %q: exit code %d, want %d", strings.Join(path, " "), try, got, want)
			}
		}
	}
}

// In what runs in a cell, an empty argument is an argument.
func TestX20EmptyArgumentsOfCommands(t *testing.T) {
	for _, args := range [][]string{{"run", "--", "echo", ""}, {"run", "echo", ""}, {"exec", "web", "--", "echo", ""}, {"exec", "web", "echo", "", "x"}} {
		a := deaf(t)
		r := a.root()
		var got error
		for _, c := range r.Commands() {
			if c.Name() == args[0] {
				c.RunE = func(*cobra.Command, []string) error { return nil }
			}
		}
		r.SetArgs(args)
		if _, got = r.ExecuteC(); got != nil {
			t.Errorf("%q: %v", args, got)
		}
	}
}
