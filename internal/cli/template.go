package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
)

func (a *app) templateCmd() *cobra.Command {
	c := &cobra.Command{
		Use: "template", Short: "Build, list, show and remove templates: warm cells to be forked", Args: cobra.NoArgs,
		Long: templatesHelp,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(a.templateBuildCmd(), a.templateLsCmd(), a.templateShowCmd(), a.templateRmCmd(), a.templateSchemaCmd())
	return c
}

const templatesHelp = `A template is a cell with a warm interpreter, kept to be forked: modules are imported,
data is loaded. A fork is a cell of its own that begins with the template's memory,
copied page by page when it is written, and with its files.

  pando template build pyagent --from ~/proj --setup 'import numpy'
  pando fork pyagent -n 100 --eval 'numpy.zeros(5).tolist()'
  pando eval pyagent-17 'x = 41'
  pando branch pyagent-17 -n 5            # in the middle of its life
  pando eval pyagent-17-b3 'x + 1'        # 42

--warm python (the default) is the image's python3, 3.8 or later. --warm COMMAND
is a program that speaks the protocol of evaluations; one that can't be forked
safely is refused. With --backend gvisor or microvm all that runs in a cell is
captured and copied, so that Node, Java and any server can be kept warm, too:

  pando template build jvm --backend gvisor --from . --warm 'java -jar app.jar' \
      --ready 'curl -fs localhost:8080/health'

The template is ready when the set-up has ended and --ready is
true; it is never waited for by the clock.

A template can be described by a file, and is then rebuilt from it:

  # pando.template.yaml
  version: 1
  name: pyagent
  from: .
  setup: |
    import numpy
    table = numpy.load("table.npy")
  ready: len(table) > 0
  allow: ["@pypi"]
  limits: {memory: 1G, pids: 64}

  pando template build -f pando.template.yaml

Paths in it are relative to the file. ` + "`pando template schema`" + ` has all words, for an
editor.

What the set-up leaves behind is in every fork: files, variables, modules. What
must not be shared is made new in each fork before its first evaluation, and
` + "`pando show CELL`" + ` says what was measured: randomness, names, descriptors. Code
that has more to renew registers it in the set-up: pando.at_fork(function).

Cells of a template see nothing of each other. After a restart of the host a
template is cold: the next fork warms it first, which takes as long as its set-up.`

// completeTemplates completes names of templates.
func (a *app) completeTemplates(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if a.prepare() != nil || !a.client.Alive(cmd.Context()) {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	list, err := a.client.Templates(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for _, t := range list {
		out = append(out, t.Name+"\ttemplate, "+t.State)
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// completeForkable completes names of cells and templates.
func (a *app) completeForkable(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	out, _ := a.completeTemplates(cmd, args, prefix)
	cells, d := a.completeCells(cmd, args, prefix)
	return append(out, cells...), d
}

func (a *app) templateBuildCmd() *cobra.Command {
	var req api.TemplateRequest
	var file, policyFile string
	var env []string
	c := &cobra.Command{
		Use:   "build [flags] [NAME]",
		Short: "Build a template: run a set-up in a cell, and keep its interpreter warm",
		Long: `Build a template: import the source into a cell, start its interpreter, evaluate
the set-up, wait until --ready is true, and keep it. A name that is taken by a
template is built anew; when that fails, the template stays as it was.`,
		Example: `  pando template build pyagent --setup 'import numpy'
  pando template build tests --from . --setup @warm.py --memory 512M
  pando template build -f pando.template.yaml`,
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: a.completeTemplates,
		RunE: func(cmd *cobra.Command, args []string) error {
			if file != "" {
				if err := a.readTemplateFile(file, &req, cmd.Flags().Changed); err != nil {
					return err
				}
			}
			req.Backend = cmp.Or(req.Backend, os.Getenv(backendVar))
			if len(args) == 1 {
				req.Name = args[0]
			}
			if req.Name == "" {
				return usage("name the template: pando template build NAME, or -f FILE")
			}
			if err := a.completeTemplate(&req, cmd.Flags().Changed("setup"), policyFile, env); err != nil {
				return err
			}
			if a.remote && req.From != "" {
				up, err := a.send(cmd.Context(), req.From, req.WithSecret, masks(req.Policy))
				if err != nil {
					return err
				}
				req.From, req.Upload = "", up.ID
			}
			return a.buildTemplate(cmd.Context(), req)
		},
	}
	f := c.Flags()
	f.StringVarP(&file, "file", "f", "", "description of the template (YAML); flags win over it")
	f.StringVar(&req.From, "from", "", "source directory or repository (default: an empty workspace)")
	f.StringVar(&req.Image, "image", "", "root file system: host, dir:PATH, oci:REF or dockerfile:PATH (default: host)")
	f.StringVar(&req.Backend, "backend", "", "isolation: auto, namespace, or gvisor, microvm (which copy all of a cell, whatever runs in it) (default: PANDO_BACKEND, or auto)")
	f.StringVar(&req.Kernel, "kernel", "", "microVM cells: boot this kernel, IMAGE or IMAGE:MODULES (default: one of the host's packages)")
	f.StringVar(&req.Warm, "warm", "", "what is kept warm: "+strings.Join(interpreters, ", ")+", or a command that speaks the protocol (default: python)")
	f.StringVar(&req.Setup, "setup", "", "code that is evaluated once; @FILE for a file's, - for standard input's")
	f.StringVar(&req.Ready, "ready", "", "an expression; the template is ready when it is true (gvisor and microvm, with --warm COMMAND: a command that succeeds then)")
	f.StringVar(&req.Timeout, "timeout", "", "limit of set-up and readiness together (default: 2m)")
	f.StringArrayVar(&req.Allow, "allow", nil, "what its cells may reach: HOST[:PORT], *.HOST, an address, or a preset such as @pypi")
	f.StringArrayVar(&req.Credential, "credential", nil, "lend a credential to its cells, by its name")
	f.StringVar(&policyFile, "policy", "", "policy file")
	f.StringVar(&req.Limits.CPUs, "cpus", "", "limit of each cell: cores, such as 1.5")
	f.StringVar(&req.Limits.Memory, "memory", "", "limit of each cell: bytes, such as 512M")
	f.StringVar(&req.Limits.PIDs, "pids", "", "limit of each cell: processes and threads")
	f.StringVar(&req.Limits.Disk, "disk", "", "limit of each cell: bytes written and kept, such as 10G")
	f.StringArrayVar(&env, "env", nil, "set a variable: NAME=VALUE, or NAME to pass your own")
	f.StringArrayVar(&req.WithSecret, "with-secret", nil, "import this file although it looks secret")
	f.BoolVar(&req.DryRun, "dry-run", false, "check all values, build nothing")
	complete(c, "backend", "auto", "namespace", "gvisor", "microvm")
	complete(c, "warm", interpreters...)
	return c
}

// completeTemplate adds to a request the data that only this process has.
func (a *app) completeTemplate(req *api.TemplateRequest, setup bool, policyFile string, env []string) (err error) {
	if req.From != "" {
		if req.From, err = filepath.Abs(req.From); err != nil {
			return err
		}
	}
	if setup {
		if req.Setup, err = a.code(req.Setup, "set-up"); err != nil {
			return err
		}
	}
	if policyFile != "" {
		if req.Policy, err = a.readPolicyFile(policyFile); err != nil {
			return err
		}
	}
	more, err := passEnv(env)
	if err != nil {
		return err
	}
	req.Env = append(req.Env, more...)
	if !a.remote { // paths of this host mean nothing to a daemon elsewhere
		req.CallerEnv, req.CallerDir = callerEnv(), a.dir
	}
	return nil
}

// maxCode bounds code that is read from a file, in bytes.
const maxCode = 8 << 20

// code returns the code of an argument: the code itself, @FILE, or - for standard input.
func (a *app) code(s, what string) (string, error) {
	var b []byte
	var err error
	switch {
	case s == "-":
		b, err = io.ReadAll(io.LimitReader(a.stdin, maxCode+1))
	case strings.HasPrefix(s, "@"):
		b, err = readSome(s[1:])
	default:
		return s, nil
	}
	if err != nil {
		return "", &api.Error{Kind: "not-found", Message: "cannot read the " + what + ": " + err.Error(), Hint: "give the code itself, @FILE, or - for standard input"}
	}
	if len(b) > maxCode {
		return "", usage("the %s is longer than %s", what, size(maxCode))
	}
	return string(b), nil
}

// readSome reads a file up to a byte more than maxCode.
func readSome(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxCode+1))
}

func (a *app) buildTemplate(ctx context.Context, req api.TemplateRequest) error {
	p := &progress{a: a}
	defer p.clear()
	out := a.followed(a.stderr)
	write := func(b []byte) { // output of the set-up is not this command's result
		p.clear()
		out.Write(b)
	}
	t, err := a.client.BuildTemplate(ctx, req, client.Listener{Progress: p.show, Stdout: write, Stderr: write})
	p.clear()
	if err != nil {
		return err
	}
	return a.print(t, func(w io.Writer) {
		for _, n := range t.Notes {
			a.say("pando: note: %s", printable(n))
		}
		if req.DryRun {
			a.say("template %s can be built", t.Name)
			return
		}
		fmt.Fprintln(w, t.Name)
		say := fmt.Sprintf("template %s is %s", t.Name, t.State)
		if t.Version != "" {
			say += ": " + t.Version
		}
		if t.Memory > 0 {
			say += ", " + size(t.Memory)
		}
		does := "--eval CODE"
		if t.Spec.Warm != "" && !slices.Contains(interpreters, strings.TrimSpace(t.Spec.Warm)) { // its answer may be empty
			does = "-- COMMAND"
		}
		a.say("%s, in %s: pando fork %s -n 10 %s", printable(say), took(t.TookMS), t.Name, does)
		for _, g := range t.Inherited {
			a.say("inherited by its forks: %s", printable(g))
		}
	})
}

// took formats milliseconds for people.
func took(ms float64) string {
	switch {
	case ms < 10:
		return fmt.Sprintf("%.1f ms", ms)
	case ms < 10_000:
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.1f s", ms/1000)
}

func (a *app) templateLsCmd() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List templates", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := a.client.Templates(cmd.Context())
			if err != nil {
				return err
			}
			if list == nil {
				list = []api.Template{}
			}
			return a.print(list, func(w io.Writer) {
				if len(list) == 0 {
					a.say("no templates yet: pando template build NAME makes one")
					return
				}
				t := a.newTable(w)
				t.row("TEMPLATE", "STATE", "WARM", "CELLS", "READY", "FORKS", "BUILT", "SOURCE")
				for _, x := range list {
					t.row(x.Name, x.State, cmp.Or(x.Version, x.Spec.Warm, "python"), fmt.Sprint(len(x.Cells)), fmt.Sprint(x.Ready), fmt.Sprint(x.Forks),
						ago(x.Built), cmp.Or(x.Spec.From, "–"))
				}
				t.flush()
			})
		},
	}
}

func (a *app) templateShowCmd() *cobra.Command {
	return &cobra.Command{
		Use: "show TEMPLATE", Short: "Show a template, with the file that rebuilds it", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeTemplates,
		Long: `Show a template as the file that rebuilds it; how it stands is in the comments
above: pando template show NAME > pando.template.yaml`,
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := a.client.Template(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.print(t, func(w io.Writer) { showTemplate(w, t) })
		},
	}
}

// showTemplate prints a file that rebuilds a template, with its state as a comment.
func showTemplate(w io.Writer, t api.Template) {
	note := func(name, value string) {
		if value != "" {
			field(w, "# "+name, value)
		}
	}
	state := t.State
	if t.Cause != "" {
		state += ": " + t.Cause
	}
	if t.State == "cold" {
		state += " (the next fork warms it)"
	}
	note("template", t.Name)
	note("state", state)
	note("warm", t.Version)
	if t.Memory > 0 {
		note("memory", size(t.Memory))
	}
	note("built", ago(t.Built)+", in "+took(t.TookMS))
	note("digest", t.Digest)
	note("policy", short(t.Policy))
	forks := fmt.Sprintf("%s alive, %d ever", plural(len(t.Cells), "cell"), t.Forks)
	if t.Ready > 0 {
		forks += fmt.Sprintf(", %d ready in the pool", t.Ready)
	}
	note("forks", forks)
	if n := len(t.Cells); n > 0 {
		list := slices.Clone(t.Cells)
		if n > 8 {
			list = append(list[:7], fmt.Sprintf("… (%d)", n))
		}
		note("cells", strings.Join(list, " "))
	}
	note("receipt", t.Receipt)
	for _, n := range t.Notes {
		note("note", n)
	}
	for _, g := range t.Inherited {
		note("inherited", g)
	}
	fmt.Fprintln(w)
	w.Write(templateYAML(t.Spec))
}

func (a *app) templateRmCmd() *cobra.Command {
	var req api.TemplateRemoval
	c := &cobra.Command{
		Use: "rm TEMPLATE…", Short: "Remove templates", Args: cobra.MinimumNArgs(1), ValidArgsFunction: a.completeTemplates,
		Long: `Remove templates. A template with live forks is removed only with --cascade, which
removes the forks, too, or with --force, which keeps them: they continue, and the memory
that they share with the template stays until the last of them is removed.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if req.Cascade && req.Force {
				return usage("--cascade removes the template's cells, --force leaves them: give one of them")
			}
			gone := []api.Template{}
			err := inTurn(args, func(n string) (api.Template, error) { return a.client.RemoveTemplate(cmd.Context(), n, req) }, func(t api.Template) {
				gone = append(gone, t)
				if a.json {
					return
				}
				with := ""
				switch n := len(t.Cells); {
				case n > 0 && req.Cascade:
					with = ", with " + plural(n, "cell")
				case n > 0:
					with = "; " + plural(n, "cell") + " of it go on"
					if n == 1 {
						with = "; a cell of it goes on"
					}
				}
				if req.DryRun {
					a.say("would remove template %s%s", t.Name, with)
				} else {
					a.say("removed template %s%s", t.Name, with)
				}
			})
			return a.printWith(err, gone, func(io.Writer) {})
		},
	}
	c.Flags().BoolVar(&req.Cascade, "cascade", false, "also remove the cells that were forked from it")
	c.Flags().BoolVar(&req.Force, "force", false, "keep the cells that were forked from it")
	c.Flags().BoolVar(&req.DryRun, "dry-run", false, "only print what would be removed")
	return c
}
