// Package cli is the command line: one file per command, with its flags, its
// progress and its words for people. It reaches the system only through
// package client.
package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
	"github.com/pando-dev/pando/internal/agent/catalog"
	"github.com/pando-dev/pando/internal/paths"
)

// Start starts a daemon for an installation.
type Start func(ctx context.Context, h paths.Home) error

// app is the state that all commands share.
type app struct {
	version string
	start   Start
	serve   Serve
	bench   func(args []string) error
	mcp     MCP
	screen  func(rows, cols uint16) (Screen, error)
	home    paths.Home
	client  *client.Client
	remote  bool   // the daemon is on another host: PANDO_HOST
	dir     string // the working directory

	stdin  *os.File
	stdout io.Writer
	stderr io.Writer
	cursor cursor // the cursor of stderr
	json   bool
	colour bool // stdout gets colours
	width  int  // columns of stdout; 80 when it is no terminal
	// terminalOut says that stdout is a terminal.
	terminalOut bool
	isTTY       bool      // stderr is a terminal, so progress is drawn
	began       time.Time // when the command was started

	told map[string]bool // denials already printed during the run

	bare bool // the run or cell has no isolation: every line says so

	exit int // exit code of the command in the cell

	unhelped error // the error of help for an unknown command
}

// Parts are the functions that the executable gives to the command line.
type Parts struct {
	Start Start
	Serve Serve
	Bench func(args []string) error // runs pando-bench with these arguments
	MCP   MCP
	// Screen makes a screen of this size.
	Screen func(rows, cols uint16) (Screen, error)
}

// Main runs the command line and returns the exit code.
func Main(args []string, version string, p Parts) int {
	out := &output{file: os.Stdout}
	a := &app{version: version, start: p.Start, serve: p.Serve, bench: p.Bench, mcp: p.MCP, screen: p.Screen, began: time.Now(), stdin: os.Stdin, stdout: out, stderr: os.Stderr, told: map[string]bool{}}
	if len(args) == 1 && args[0] == "--version" { // --version needs nothing else
		fmt.Fprintln(a.stdout, "pando", version)
		return a.written(nil, out, 0, nil)
	}
	if filepath.Base(os.Args[0]) == remoteHelper {
		args = append([]string{helperVerb}, args...)
	}
	root := a.root()
	root.SetOut(out)
	root.SetArgs(args)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cmd, err := root.ExecuteContextC(ctx)
	code := a.exit
	if err = cmp.Or(err, a.unhelped); err != nil {
		code = a.fail(cmd, err)
	}
	return a.written(cmd, out, code, err)
}

// fail prints an error and returns its exit code.
func (a *app) fail(cmd *cobra.Command, err error) int {
	var code *exitError
	if errors.As(err, &code) {
		return code.code
	}
	if r, ok := err.(*refusals); ok {
		return a.refused(cmd, r)
	}
	e, ok := errors.AsType[*api.Error](err)
	if !ok {
		e = &api.Error{Kind: "internal", Message: err.Error()}
		if errors.Is(err, errUsage) || !cmd.HasParent() {
			about := cmd
			if cmd.Name() == "help" {
				about = cmd.Root()
			}
			e.Kind, e.Hint = "invalid", "run `"+about.CommandPath()+" --help`"
		}
	}
	e.Message = strings.TrimPrefix(e.Message, errUsage.Error()+": ")
	if !strings.HasPrefix(e.Message, "cannot ") {
		e.Message = "cannot " + cannot(cmd) + ": " + e.Message
	}
	if a.json {
		b, _ := json.Marshal(map[string]*api.Error{"error": e})
		fmt.Fprintln(a.stdout, string(b))
	} else {
		a.say("pando: %s", printableLines(e.Message)) // the message may contain output of a cell
		if e.Hint != "" {
			fmt.Fprintln(a.stderr, "hint:", printableLines(e.Hint))
		}
	}
	reason := api.ReasonOf(e.Kind)
	if startsProgram(cmd) && cmd.Name() != "run" && cmd.Name() != "exec" && errors.Is(err, errUsage) {
		return reason.Exit
	}
	if startsProgram(cmd) {
		switch e.Kind {
		case "not-runnable", "no-such-binary", "timeout", "interrupted":
			return reason.Exit
		case "invalid":
			return api.ExitPandoFailed
		}
		return api.ExitPandoFailed
	}
	return reason.Exit
}

// startsProgram reports whether a command's exit code is that of a program in a cell.
func startsProgram(cmd *cobra.Command) bool {
	return cmd != nil && (slices.Contains([]string{"run", "exec", "shell"}, cmd.Name()) || slices.Contains(catalog.All().Names(), cmd.Name()))
}

// refused prints what was refused for some of several names, and returns the exit code.
func (a *app) refused(cmd *cobra.Command, r *refusals) int {
	if a.json {
		first, ok := r.errs[0].(*api.Error)
		if !ok {
			first = &api.Error{Kind: "internal"}
		}
		b, _ := json.Marshal(map[string]*api.Error{"error": {Kind: first.Kind, Message: r.Error(), Hint: first.Hint}})
		fmt.Fprintln(a.stdout, string(b))
		return exitRefused
	}
	told := map[string]bool{}
	for _, err := range r.errs {
		if told[err.Error()] {
			continue
		}
		told[err.Error()] = true
		a.fail(cmd, err)
	}
	return exitRefused
}

// cannot describes the failed command for an error message.
func cannot(cmd *cobra.Command) string {
	if !cmd.HasParent() {
		return "run pando"
	}
	return "do `" + cmd.CommandPath() + "`"
}

// exitError ends a command with an exit code and without a message.
type exitError struct{ code int }

func (e *exitError) Error() string { return fmt.Sprintf("exit code %d", e.code) }

var errUsage = errors.New("wrong usage")

func usage(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errUsage, fmt.Sprintf(format, args...))
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "pando",
		Short: "Run agents, and the code they write, in cells that fork, roll back and leave evidence",
		Long: `pando runs AI agents, and the code they write, in cells: isolated places that
fork like processes, roll back like transactions, obey a policy, and leave
signed evidence.

  pando run -- COMMAND          run something in a cell, on a copy of this directory
  pando diff                    look at what it did
  pando accept --apply          take it, or
  pando discard                 throw it away`,
		SilenceErrors: true, SilenceUsage: true,
		Version: a.version, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(cmd *cobra.Command, args []string) error {
			if err := nothingEmpty(cmd, args); err != nil {
				return err
			}
			return a.prepare()
		},
	}
	root.SetVersionTemplate("pando {{.Version}}\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if bad, ok := errors.AsType[*pflag.InvalidValueError](err); ok && (errors.Is(err, strconv.ErrSyntax) || errors.Is(err, strconv.ErrRange)) {
			takes := map[string]string{"int": "a number", "bool": "true or false"}[bad.GetFlag().Value.Type()]
			return usage("--%s takes %s, not %q", bad.GetFlag().Name, cmp.Or(takes, "something else"), bad.GetValue())
		}
		return flagError(cmd, err)
	})
	root.PersistentFlags().BoolVar(&a.json, "json", false, "one JSON document on stdout (JSON Lines where it streams)")
	groups := []struct {
		id, title string
		cmds      []*cobra.Command
	}{
		{"work", "Work", []*cobra.Command{a.runCmd(), a.execCmd(), a.shellCmd(), a.attachCmd(), a.sendCmd(), a.evalCmd(), a.cpCmd(), a.uploadCmd(), a.forwardCmd(), a.openCmd(), a.sshConfigCmd(), a.logsCmd(), a.waitCmd()}},
		{"agents", "Agents", append(a.agentCmds(), a.inspectCmd(), a.sessionCmd(), a.loginCmd(), a.logoutCmd())},
		{"fork", "Fork", []*cobra.Command{a.templateCmd(), a.forkCmd(), a.branchCmd(), a.raceCmd()}},
		{"results", "Results", []*cobra.Command{a.diffCmd(), a.acceptCmd(), a.revertCmd(), a.syncCmd(), a.fetchCmd(), a.discardCmd(), a.undoCmd(), a.restoreCmd(), a.checkpointCmd()}},
		{"look", "Look", []*cobra.Command{a.statusCmd(), a.lsCmd(), a.showCmd(), a.runsCmd(), a.eventsCmd(), a.timelineCmd(), a.historyCmd(), a.treeCmd(), a.psCmd(), a.statsCmd(), a.reportCmd(), a.compareCmd(), a.replayCmd(), a.receiptCmd()}},
		{"cells", "Cells", []*cobra.Command{a.pauseCmd(), a.resumeCmd(), a.stopCmd(), a.rmCmd(), a.imageCmd(), a.cacheCmd()}},
		{"govern", "Govern", []*cobra.Command{a.policyCmd(), a.approveCmd(), a.approvalsCmd(), a.holdCmd(), a.eraseCmd(), a.credentialCmd(), a.configCmd()}},
		{"system", "System", []*cobra.Command{a.doctorCmd(), a.dfCmd(), a.gcCmd(), a.daemonCmd(), a.serveCmd(), a.tokenCmd(), a.mcpCmd(), a.benchCmd(), a.versionCmd()}},
	}
	for _, g := range groups {
		root.AddGroup(&cobra.Group{ID: g.id, Title: g.title + ":"})
		for _, c := range g.cmds {
			c.GroupID = g.id
			root.AddCommand(c)
		}
	}
	root.AddCommand(topics()...)
	root.AddCommand(a.helperCmd(), a.sshConnectCmd())
	root.SetHelpCommand(a.helpCmd())
	root.SetHelpCommandGroupID("system")
	root.SetCompletionCommandGroupID("system")
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		if rest := cmd.Flags().Args(); len(rest) > 0 && cmd.HasAvailableSubCommands() { // pando frok --help
			a.unhelped = unknownCommand(cmd, rest[0])
			return
		}
		help(cmd, args)
	})
	wrongArgs(root)
	nameValues(root)
	a.completeFlags(root)
	return root
}

// wrongArgs turns a wrong number of arguments into wrong usage, in every command.
func wrongArgs(c *cobra.Command) {
	if check := c.Args; check != nil {
		c.Args = func(cmd *cobra.Command, args []string) error {
			if check(cmd, args) == nil {
				return nil
			}
			if cmd.HasAvailableSubCommands() {
				return unknownCommand(cmd, args[0])
			}
			if _, takes, ok := strings.Cut(strings.Replace(cmd.Use, " [flags]", "", 1), " "); ok {
				if cmd.Name() == "ps" && len(args) == 0 {
					return &api.Error{Kind: "invalid", Message: "cannot do `pando ps`: it lists the processes of one CELL", Hint: "`pando ls` lists the cells"}
				}
				return usage("it takes %s, not %s", takes, plural(len(args), "argument"))
			}
			return usage("it takes no arguments")
		}
	}
	for _, sub := range c.Commands() {
		wrongArgs(sub)
	}
}

// unknownCommand is the error for an unknown subcommand of cmd.
func unknownCommand(cmd *cobra.Command, word string) error {
	if hint := foreignVerb(word); hint != "" && !cmd.HasParent() {
		return noCommand(word, hint)
	}
	return usage("cannot run `%s %s`: there is no such command%s", cmd.CommandPath(), printable(word), instead(cmd, word))
}

// nothingEmpty rejects empty arguments and flag values, which usually come from unset variables
// of a script. Arguments of the command that runs in the cell may be empty.
func nothingEmpty(cmd *cobra.Command, args []string) error {
	if cmd.Name() == cobra.ShellCompRequestCmd { // the word under completion may be empty
		return nil
	}
	checked := args
	if dash := cmd.ArgsLenAtDash(); dash >= 0 {
		checked = args[:min(dash+1, len(args))] // and the program
	} else if n, takes := map[string]int{"run": 1, "exec": 2, "shell": 2}[cmd.Name()]; takes {
		checked = args[:min(n, len(args))]
	}
	for i, arg := range checked {
		if arg == "" {
			return usage("argument %d is empty", i+1)
		}
	}
	var err error
	cmd.Flags().Visit(func(f *pflag.Flag) {
		empty := f.Value.String() == "" && f.Value.Type() != "bool"
		if list, ok := f.Value.(pflag.SliceValue); ok {
			empty = len(list.GetSlice()) == 0 || slices.Contains(list.GetSlice(), "")
		}
		if empty {
			err = usage("the value of --%s is empty", f.Name)
		}
	})
	return err
}

// instead suggests similar words, or lists the possible ones.
func instead(cmd *cobra.Command, word string) string {
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(word); len(near) > 0 {
		return "; did you mean " + strings.Join(near, " or ") + "?"
	}
	if !cmd.HasParent() {
		return ""
	}
	var all []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			all = append(all, c.Name())
		}
	}
	return "; there is " + strings.Join(all, ", ")
}

// startSilence is how long a daemon may take to start before a message says what the client
// waits for.
const startSilence = time.Second

// prepare finds the installation and makes the client; it contacts nothing.
func (a *app) prepare() error {
	var err error
	if a.home, err = paths.Find(os.Getenv, os.Geteuid()); err != nil && os.Getenv("PANDO_HOST") == "" {
		return err
	}
	if a.dir, err = os.Getwd(); err != nil {
		return fmt.Errorf("cannot find the working directory: %w", err)
	}
	host, token := os.Getenv("PANDO_HOST"), ""
	if a.remote = host != ""; a.remote { // the daemon of this host's user knows them without
		token = os.Getenv("PANDO_TOKEN")
	}
	a.client = client.New(client.Config{Socket: a.home.Socket(), Host: host, Token: token, Dir: a.dir, Trace: traceparent(os.Getenv("TRACEPARENT")), Start: func(ctx context.Context) error {
		if err := a.home.Make(); err != nil {
			return err
		}
		defer time.AfterFunc(startSilence, func() {
			if a.home.Locked() {
				a.say("pando: waiting for %s, which holds the lock %s, to end or to answer", a.holder(), a.home.Lock())
			}
		}).Stop()
		return apiError(a.start(ctx, a.home))
	}})
	out, isFile := fileOf(a.stdout)
	a.width = 80
	if isFile && term.IsTerminal(int(out.Fd())) {
		a.terminalOut = true
		a.colour = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
		if w, _, err := term.GetSize(int(out.Fd())); err == nil && w > 20 {
			a.width = w
		}
	}
	if errs, ok := a.stderr.(*os.File); ok {
		a.isTTY = term.IsTerminal(int(errs.Fd()))
	}
	return nil
}

// traceparent returns s if it has the form of a W3C traceparent (version, trace, span and flags
// in hex), else "".
func traceparent(s string) string {
	if len(s) != 55 || s[2] != '-' || s[35] != '-' || s[52] != '-' || strings.Trim(s, "0123456789abcdef-") != "" {
		return ""
	}
	return s
}

// print writes v as JSON, or calls people.
func (a *app) print(v any, people func(w io.Writer)) error {
	if a.json {
		enc := json.NewEncoder(a.stdout)
		enc.SetEscapeHTML(false)
		return enc.Encode(v)
	}
	a.mark(isolationIn(v))
	people(a.stdout)
	return nil
}

// say writes a line for people to stderr. It first ends a line that a command left open there.
func (a *app) say(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	if a.bare {
		line = marked(line, api.NotIsolated)
	}
	io.WriteString(a.stderr, a.cursor.line(line))
}
