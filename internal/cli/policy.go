package cli

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
)

func (a *app) policyCmd() *cobra.Command {
	c := &cobra.Command{
		Use: "policy", Short: "Write, check and ask policies", Args: cobra.NoArgs,
		Long: policyHelp,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(a.policyInitCmd(), a.policyCheckCmd(), a.policyShowCmd(), a.policyWhyCmd(), a.policyDiffCmd(), a.policyReplayCmd(),
		a.policyAllowCmd(), a.policySchemaCmd())
	return c
}

const policyHelp = `A policy says what a cell may do. Layers make it, the uppermost first:

  host      /etc/pando/policy.yaml: bounds, and gives nothing by itself
  user      $PANDO_HOME/policy.yaml, or ~/.config/pando/policy.yaml
  project   ` + projectPolicy + ` at the top of the source, once you have allowed it
  run       --policy FILE, with the flags of the run

A lower layer can only narrow the ones above it. Where several layers have rules for
a request, all of them decide, and the strictest answer counts. In a layer, deny wins
over ask, ask over allow; a request without a rule is denied. The digest
of the effective policy is in every receipt.

A policy file is YAML. Every section may be left out; an unknown word is an error.

  version: 1
  isolation: {least: gvisor}         # none, namespace, gvisor or microvm; a host
                                     # policy without it means namespace
  secrets: mask                      # secrets that git tracks stay outside, too;
                                     # name (the default) lets them in and names them
  files:
    mounts:
      - {source: ../shared, target: /srv/shared}
      - {source: /data/out, target: /out, writable: true}
    hidden: [config/keys]            # the cell finds them empty
    read_only: [LICENSE]
  environment:
    set: {CI: "true"}
  processes:
    deny: [curl, /usr/bin/ssh*]
  network:
    allow:
      - "@npm"                       # a preset: ` + "`pando policy show --allow @npm`" + `
      - registry.example.com:8443    # without a port: 80 and 443
      - "*.example.org"              # all below it, not itself
      - 10.1.2.3:5432                # private addresses must be named
      - host: api.github.com
        methods: [GET]               # HEAD too
        paths: [/repos/me/**]        # * for one segment, ** for any number
        credential: github
    ask:                             # a person decides: pando approvals
      - {host: api.github.com, methods: [POST], except: [{paths: /repos/me/**}]}
    deny:                            # on every port, unless ports are given
      - evil.example.org
  credentials: [github]
  limits: {cpus: 2, memory: 4G, pids: 512, disk: 10G, timeout: 30m,
           egress: 100M, forks: 8, executions: 100}
  prices:                            # of models, before those that pando knows:
    "my-model*": {input: 0.50, output: 2}   # US dollars for a million tokens
  approvals: {timeout: 10m, webhook: "https://hooks.example.com/pando"}`

// projectPolicy is the name of a project's policy file.
const projectPolicy = "pando.policy.yaml"

func (a *app) policyInitCmd() *cobra.Command {
	var from string
	c := &cobra.Command{
		Use: "init", Short: "Write a first policy for the project here, with comments", Args: cobra.NoArgs,
		Example: "  pando policy init > pando.policy.yaml",
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir := from
			if dir == "" {
				dir = a.dir
			}
			text := policy.Starter(os.DirFS(dir))
			return a.print(map[string]string{"name": projectPolicy, "text": text}, func(w io.Writer) { io.WriteString(w, text) })
		},
	}
	c.Flags().StringVar(&from, "from", "", "directory of the project (default: this directory)")
	return c
}

// readPolicyFile reads a policy file; - is standard input.
func (a *app) readPolicyFile(name string) (string, error) {
	var b []byte
	var err error
	if name == "-" {
		b, err = io.ReadAll(io.LimitReader(a.stdin, 2<<20))
	} else {
		b, err = os.ReadFile(name)
	}
	if err != nil {
		return "", &api.Error{Kind: "not-found", Message: "cannot read the policy: " + err.Error(), Hint: "name a file; `pando policy init` writes one"}
	}
	return string(b), nil
}

func (a *app) policyCheckCmd() *cobra.Command {
	return &cobra.Command{
		Use: "check [FILE]", Short: "Check a policy file", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := arg(args)
			if name == "" {
				name = projectPolicy
			}
			text, err := a.readPolicyFile(name)
			if err != nil {
				return err
			}
			v, err := a.client.CheckPolicy(cmd.Context(), api.PolicyCheckRequest{Name: name, Text: text})
			if err != nil {
				return err
			}
			return a.print(v, func(w io.Writer) {
				fmt.Fprintf(w, "%s can be used: %s\n", printable(v.Name), ruleWords(v.Lines))
				a.policyLines(w, v.Lines)
				if len(v.Remarks) > 0 {
					fmt.Fprintln(w)
				}
				for _, r := range v.Remarks {
					fmt.Fprintln(w, "remark:", printable(r))
				}
			})
		},
	}
}

// policyFlags are the flags of a planned run.
type policyFlags struct {
	file, from         string
	allow, credentials []string
}

func (f *policyFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.file, "policy", "", "policy file of the run")
	c.Flags().StringVar(&f.from, "from", "", "source directory of the run (default: this directory)")
	c.Flags().StringArrayVar(&f.allow, "allow", nil, "as with pando run")
	c.Flags().StringArrayVar(&f.credentials, "credential", nil, "as with pando run")
}

func (f *policyFlags) given() bool {
	return f.file != "" || f.from != "" || len(f.allow)+len(f.credentials) > 0
}

// policyOf makes the request for the policy of a file, a cell, a run, or a planned run with
// these flags.
func (a *app) policyOf(sel string, f policyFlags) (api.PolicyRequest, error) {
	req := api.PolicyRequest{Dir: a.dir}
	if sel != "" && isPolicyFile(sel) {
		if f.file != "" {
			return req, usage("%s is a policy file, and --policy names another", sel)
		}
		f.file = sel
	} else if sel != "" {
		if f.given() {
			return req, usage("%s has a policy already; the flags are for a planned run", sel)
		}
		req.Of = sel
		return req, nil
	}
	req.Run.Allow, req.Run.Credentials = f.allow, f.credentials
	var err error
	if f.file != "" {
		if req.Run.Policy, err = a.readPolicyFile(f.file); err != nil {
			return req, err
		}
		req.Run.PolicyName = f.file
	}
	req.Run.From = a.dir
	if f.from != "" {
		req.Run.From, err = filepath.Abs(f.from)
	}
	return req, err
}

// isPolicyFile reports whether a word names a file and not a cell.
func isPolicyFile(s string) bool {
	if s == "-" || strings.ContainsRune(s, '/') {
		return true
	}
	st, err := os.Stat(s)
	return err == nil && st.Mode().IsRegular()
}

func (a *app) policyShowCmd() *cobra.Command {
	var f policyFlags
	var asCedar bool
	c := &cobra.Command{
		Use: "show [CELL|RUN|FILE]", Short: "Show an effective policy: every line, where it comes from, what enforces it",
		Long: `Show what a policy comes to, after all layers and flags were put together: with
every preset written out, the place that each line comes from, and what enforces
it. Without a cell or run it is the policy that a run from here would have.`,
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: a.completeRuns,
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := a.policyOf(arg(args), f)
			if err != nil {
				return err
			}
			v, err := a.client.ShowPolicy(cmd.Context(), req)
			if err != nil {
				return err
			}
			return a.print(v, func(w io.Writer) {
				if asCedar {
					io.WriteString(w, v.Cedar)
					return
				}
				a.showPolicy(w, v)
			})
		},
	}
	f.add(c)
	c.Flags().BoolVar(&asCedar, "cedar", false, "in the words of Cedar, which makes the decisions")
	return c
}

func (a *app) showPolicy(w io.Writer, v api.Policy) {
	fmt.Fprintf(w, "policy of %s: %s\n", printable(v.Of), short(v.Digest))
	for _, l := range v.Layers {
		fmt.Fprintf(w, "  %-8s %s, %s\n", l.Layer, printable(l.File), short(l.Digest))
	}
	a.policyLines(w, v.Lines)
	if v.Bound != "" {
		fmt.Fprintf(w, "\n%s is the maximum of what may be allowed; --allow can't add to it\n", printable(v.Bound))
	}
	for _, n := range v.Skipped {
		a.say("pando: note: %s", printable(n))
	}
}

// policyLines lists the rules of a policy by section.
func (a *app) policyLines(w io.Writer, lines []api.PolicyLine) {
	section := ""
	t := a.newTable(w)
	for _, l := range lines {
		if l.Section != section {
			t.flush()
			fmt.Fprintf(w, "\n%s:\n", l.Section)
			section, t = l.Section, a.newTable(w)
		}
		name := ""
		if l.Section == "network" {
			name = l.Name
		}
		cells := []string{"  " + name, printable(l.Text), printable(l.Origin)}
		if l.Force != "" {
			cells = append(cells, l.Force+": "+l.How)
		}
		t.row(cells...)
	}
	t.flush()
}

// ruleWords counts the rules of a policy file by section.
func ruleWords(lines []api.PolicyLine) string {
	if len(lines) == 0 {
		return "it is empty, so the defaults apply"
	}
	var sections, words []string
	count := map[string]int{}
	for _, l := range lines {
		if count[l.Section]++; count[l.Section] == 1 {
			sections = append(sections, l.Section)
		}
	}
	for _, s := range sections {
		words = append(words, fmt.Sprintf("%d of %s", count[s], s))
	}
	return plural(len(lines), "rule") + " (" + strings.Join(words, ", ") + ")"
}

func (a *app) policyWhyCmd() *cobra.Command {
	var f policyFlags
	c := &cobra.Command{
		Use: "why [CELL|RUN|FILE] REQUEST", Short: "Explain a policy's decision on a request: the rule, and what would allow it",
		Example: `  pando policy why web 'POST https://api.github.com/repos/x/y/issues'
  pando policy why pando.policy.yaml 'connect db.internal:5432'
  pando policy why --allow @npm 'resolve registry.npmjs.org'
  pando policy why web 'execute curl'`,
		Args: cobra.RangeArgs(1, 2),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return []string{"connect ", "resolve ", "GET https://", "POST https://", "execute "}, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
			}
			return a.completeRuns(cmd, args, prefix)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			sel := ""
			if len(args) == 2 {
				sel = args[0]
			}
			req, err := a.policyOf(sel, f)
			if err != nil {
				return err
			}
			req.Request = args[len(args)-1]
			v, err := a.client.WhyPolicy(cmd.Context(), req)
			if err != nil {
				return err
			}
			return a.print(v, func(w io.Writer) { showWhy(w, v) })
		},
	}
	f.add(c)
	return c
}

func showWhy(w io.Writer, v api.PolicyAnswer) {
	fmt.Fprintf(w, "%s  %s\n", v.Effect, printable(v.Request))
	for _, s := range v.Steps {
		opened := ""
		if s.Open {
			opened = "; the gateway looks into the connection"
		}
		if s.Credential != "" {
			opened += "; with credential " + s.Credential
		}
		fmt.Fprintf(w, "  %-5s %s: %s (%s)%s\n", s.Effect, printable(s.Want), printable(s.Reason), printable(s.Origin), opened)
	}
	last := v.Steps[len(v.Steps)-1]
	if v.Effect != "deny" {
		return
	}
	in := "allow it in"
	if last.Permit != "" {
		fmt.Fprintln(w, "allow it with:", printable(last.Permit))
		in = "or in"
	}
	if last.Line != "" {
		fmt.Fprintln(w, in, "a policy file, under network.allow:", printable(last.Line))
	}
}

func (a *app) policyDiffCmd() *cobra.Command {
	return &cobra.Command{
		Use: "diff A B", Short: "Diff two policies: of files, cells or runs", Args: cobra.ExactArgs(2), ValidArgsFunction: a.completeRuns,
		RunE: func(cmd *cobra.Command, args []string) error {
			var req api.PolicyDiffRequest
			var err error
			if req.A, err = a.policyOf(args[0], policyFlags{}); err != nil {
				return err
			}
			if req.B, err = a.policyOf(args[1], policyFlags{}); err != nil {
				return err
			}
			v, err := a.client.DiffPolicies(cmd.Context(), req)
			if err != nil {
				return err
			}
			return a.print(v, func(w io.Writer) {
				if len(v.Changes) == 0 {
					fmt.Fprintln(w, "the policies are equal")
					return
				}
				t := a.newTable(w)
				for _, c := range v.Changes {
					t.row(c.Change, c.Section, printable(c.Text), printable(c.Origin))
				}
				t.flush()
			})
		},
	}
}

func (a *app) policyReplayCmd() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use: "replay [RUN] --policy FILE", Short: "Repeat the decisions of a run with another policy, and list the differences",
		Example: "  pando policy replay r-1a2b --policy stricter.yaml",
		Args:    cobra.MaximumNArgs(1), ValidArgsFunction: a.completeRuns,
		RunE: func(cmd *cobra.Command, args []string) error {
			if file == "" {
				return usage("the policy is missing: --policy FILE")
			}
			text, err := a.readPolicyFile(file)
			if err != nil {
				return err
			}
			v, err := a.client.ReplayPolicy(cmd.Context(), arg(args), api.PolicyReplayRequest{Name: file, Text: text, Dir: a.dir})
			if err != nil {
				return err
			}
			return a.print(v, func(w io.Writer) {
				if len(v.Flips) > 0 {
					t := a.newTable(w)
					t.row("WAS", "NOW", "TIMES", "REQUEST", "BECAUSE")
					for _, f := range v.Flips {
						t.row(f.Was, f.Now, fmt.Sprint(f.Times), printable(f.Want), printable(f.Reason))
					}
					t.flush()
				}
				fmt.Fprintf(w, "%d of %s of %s would differ\n", total(v.Flips), plural(v.Decisions, "decision"), v.Run)
			})
		},
	}
	c.Flags().StringVar(&file, "policy", "", "policy file to try")
	return c
}

func total(flips []api.PolicyFlip) (n int64) {
	for _, f := range flips {
		n += f.Times
	}
	return n
}

func (a *app) policyAllowCmd() *cobra.Command {
	var yes, forget, list bool
	c := &cobra.Command{
		Use: "allow [FILE]", Short: "Allow a project's policy file, as it is now",
		Long: `A project's policy file, ` + projectPolicy + ` at its top, comes with the
repository: it takes effect only after you have read and allowed it. When it changes,
it is ignored until you allow it again.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if list {
				return a.listAllowed(cmd)
			}
			name := arg(args)
			if name == "" {
				name = projectPolicy
			}
			path, err := filepath.Abs(name)
			if err != nil {
				return err
			}
			req := api.PolicyAllowRequest{Path: path, Forget: forget}
			if !forget {
				if st, err := os.Stat(path); err == nil && st.IsDir() {
					path = filepath.Join(path, projectPolicy)
				}
				text, err := a.readPolicyFile(path)
				if err != nil {
					return err
				}
				req.Digest = cell.Sum([]byte(text)).String()
				if !yes && !a.json && a.isTTY && term.IsTerminal(int(a.stdin.Fd())) {
					io.WriteString(a.stderr, indent(printableLines(text))+"\n")
					fmt.Fprint(a.stderr, "use it for runs from "+printable(filepath.Dir(path))+"? [yes/NO] ")
					if answer, _ := bufio.NewReader(a.stdin).ReadString('\n'); strings.TrimSpace(answer) != "yes" {
						return &api.Error{Kind: "interrupted", Message: "cannot allow it: you did not say yes"}
					}
				}
			}
			v, err := a.client.AllowPolicy(cmd.Context(), req)
			if err != nil {
				return err
			}
			return a.print(v, func(w io.Writer) { fmt.Fprintf(w, "%s: %s, %s\n", printable(v.Path), v.State, short(v.Digest)) })
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "don't ask")
	c.Flags().BoolVar(&forget, "forget", false, "withdraw: the file is no longer used")
	c.Flags().BoolVar(&list, "list", false, "show the files that were allowed")
	return c
}

// printableLines is printable, line by line.
func printableLines(s string) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	for i := range lines {
		lines[i] = printable(lines[i])
	}
	return strings.Join(lines, "\n")
}

func (a *app) listAllowed(cmd *cobra.Command) error {
	list, err := a.client.AllowedPolicies(cmd.Context())
	if err != nil {
		return err
	}
	return a.print(list, func(w io.Writer) {
		t := a.newTable(w)
		t.row("FILE", "STATE", "ALLOWED", "DIGEST")
		for _, v := range list {
			t.row(printable(v.Path), v.State, ago(v.At), short(v.Digest))
		}
		t.flush()
	})
}

func (a *app) policySchemaCmd() *cobra.Command {
	return &cobra.Command{
		Use: "schema", Short: "Print the JSON Schema of policy files", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, err := a.client.PolicySchema(cmd.Context())
			if err != nil {
				return err
			}
			return a.print(json.RawMessage(b), func(w io.Writer) { w.Write(b) })
		},
	}
}
