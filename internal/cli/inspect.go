package cli

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/agent"
	"github.com/pando-dev/pando/internal/agent/catalog"
	"github.com/pando-dev/pando/internal/policy"
)

func (a *app) inspectCmd() *cobra.Command {
	var r runFlags
	var withHome []string
	of := api.AgentRequest{}
	c := &cobra.Command{
		Use:   "inspect [flags] [AGENT|CELL|RUN] [-- ARGS…]",
		Short: "Say what starting an agent here would do, before anything starts",
		Long: `Say on one page what pando claude, or another agent, would do here with these flags: its
program and login, its mode, the workspace, what of the repository is off, what of your
home comes along, and what governs it: hosts, credentials, limits and files, each with
its origin: a file with its line, a flag, "mode …", "config …" of pando config, or
"agent …", which it needs to work. Nothing is started, and no value of a credential
is read. What is missing for a start is named, and is no error.

Without AGENT it is the first that has a login and a program here. A cell or a run by its
name or id is shown as pando show does, with --json as JSON: docker inspect.`,
		Example: `  pando inspect
  pando inspect codex --mode development --with-home memory
  pando inspect --json claude`,
		ValidArgsFunction: func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			others, d := a.completeRuns(cmd, args, prefix)
			return append(catalog.All().Names(), others...), d
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			rest := []string{}
			if dash := cmd.ArgsLenAtDash(); dash >= 0 {
				args, rest = args[:dash], args[dash:]
			}
			if len(args) > 1 {
				return usage("it takes one AGENT, CELL or RUN, not %d; arguments of an agent's program come after --", len(args))
			}
			known, ok := catalog.All().Find(arg(args))
			if !ok && len(args) > 0 {
				changed := ""
				cmd.Flags().Visit(func(f *pflag.Flag) {
					if f.Name != "json" {
						changed = f.Name
					}
				})
				if changed != "" || len(rest) > 0 {
					return usage("flags and ARGS are for an agent (%s), and %s is none", strings.Join(catalog.All().Names(), ", "), printable(args[0]))
				}
				return a.show(cmd.Context(), args[0])
			}
			if !ok {
				stored, err := a.client.Credentials(cmd.Context())
				if err != nil {
					return err
				}
				known = likelyAgent(stored)
			}
			of.Name = known.About().Name
			r.req.Command, r.req.Agent, r.req.DryRun, r.req.Inspect = rest, &of, true, true
			r.req.TTY = of.Prompt == ""
			var left []agent.Left
			r.ready = func() (err error) {
				left, err = a.takeHome(&of, known, withHome)
				return err
			}
			r.page = func(w io.Writer, p api.Plan) { a.inspectPage(w, p, known, withHome, left) }
			return a.startAs(cmd, &r)
		},
	}
	a.addRunFlags(c, &r)
	addAgentFlags(c, &of, &withHome)
	c.Flags().SetInterspersed(true)
	for _, name := range []string{"detach", "detach-keys", "dry-run"} {
		c.Flags().Lookup(name).Hidden = true
	}
	return c
}

// sheet prints fields with texts of several lines.
type sheet struct {
	w     io.Writer
	width int // columns; 0: lines are not broken
	last  string
}

// line prints a text of a field. Its name stands before the first one.
func (s *sheet) line(name, text string) {
	label := name
	if s.last == name {
		label = ""
	}
	s.last = name
	for i, l := range wrap(printable(text), s.width-13) {
		if i > 0 {
			label, l = "", "  "+l
		}
		fmt.Fprintf(s.w, "%-12s %s\n", label, l)
	}
}

// gap separates groups of fields.
func (s *sheet) gap() { fmt.Fprintln(s.w); s.last = "" }

// wrap breaks a text at spaces into lines of at most width columns, those after the first of two less;
// not at all for a width of zero or less.
func wrap(text string, width int) (lines []string) {
	if width <= 0 {
		return []string{text}
	}
	line, room := "", width
	for word := range strings.SplitSeq(text, " ") {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > room {
			lines, line, room = append(lines, line), "", width-2
		}
		line += strings.Repeat(" ", min(len(line), 1)) + word
	}
	return append(lines, line)
}

// modeWords says what a mode of an agent adds to what it reaches.
func modeWords(mode string) string {
	return map[string]string{policy.AgentStrict: "no host", policy.AgentDevelopment: "package registries",
		policy.AgentBuild: "package registries, mirrors and GitHub", policy.AgentBreakglass: "any public host"}[mode]
}

// maxPage bounds how many files and notes the page names of a kind.
const maxPage = 4

// inspectPage prints what a plan says of the start of an agent. left is what of the home stays outside.
func (a *app) inspectPage(w io.Writer, p api.Plan, known agent.Adapter, withHome []string, left []agent.Left) {
	s := &sheet{w: w}
	if a.terminalOut {
		s.width = a.width
	}
	ag := p.Agent
	more := "pando " + ag.Name + " --dry-run"
	few := func(name string, list []string, full string) {
		for i, l := range list {
			if i == maxPage && len(list) > maxPage+1 {
				s.line(name, fmt.Sprintf("and %d more: %s", len(list)-i, full))
				return
			}
			s.line(name, l)
		}
	}
	title := strings.TrimSpace(ag.Title + " " + ag.Version)
	lacks := func(what string) bool {
		return slices.ContainsFunc(p.Missing, func(f api.Finding) bool { return f.Name == what })
	}
	switch {
	case ag.Path != "":
		s.line("agent", title+": "+ag.Path)
		if ag.Tested != "" {
			s.line("agent", "this version is untested: pando was tried with "+ag.Tested)
		}
	case lacks("program"):
		s.line("agent", title+": its program "+ag.Program+" is not there")
	default:
		s.line("agent", title+": "+ag.Program+", as it is in the cell")
	}
	switch {
	case lacks("login"):
		s.line("login", "none")
	case ag.ModelURL != "":
		s.line("login", cmp.Or(ag.Login, "none")+", for the model server "+ag.ModelURL+origin(ag.LoginOrigin))
	case strings.HasPrefix(ag.LoginOrigin, policy.OriginAgent):
		s.line("login", ag.Login+", stored by pando login "+ag.Name+" or pando credential add")
	default:
		s.line("login", ag.Login+origin(ag.LoginOrigin))
	}
	s.line("mode", ag.Mode+": it adds "+modeWords(ag.Mode)+" to that of its model")
	s.line("autonomy", ag.Autonomy+map[string]string{api.AutonomyFull: ": it asks nothing", api.AutonomyPrompting: ": it asks before it uses a tool"}[ag.Autonomy])
	if len(p.DowngradeWords) > 0 {
		s.line("weaker", strings.Join(p.DowngradeWords, ", ")+" (than by default)")
	}
	for _, m := range p.Missing {
		s.line("missing", strings.TrimPrefix(m.Found, "cannot start "+ag.Title+": ")+": "+m.Fix)
	}

	s.gap()
	state := "new"
	if p.CellExists {
		state = "exists: its workspace is as it was left"
	}
	s.line("cell", p.Cell+", "+state)
	source := p.Source
	if !p.CellExists {
		source += ": " + plural(p.Files, "file") + ", " + size(p.Bytes) + "; it works on a copy"
	}
	s.line("source", source)
	var out []string
	for _, l := range p.LeftOut {
		out = append(out, leftOutWords(l))
	}
	few("left out", out, more)
	switch {
	case ag.TrustRepository:
		s.line("repository", "what it configures for the agent runs (--trust-repository)")
	case len(ag.Off)+len(ag.Runs) == 0:
		s.line("repository", "it has nothing that would run by itself in the agent: nothing is switched off")
	}
	if len(ag.Off) > 0 {
		s.line("repository", "off: "+strings.Join(ag.Off, ", ")+" (--trust-repository switches it on)")
		if ag.Content != "" {
			s.line("repository", "always on, as long as it is what it is now: pando config add --here trust-repository "+ag.Content)
		}
	}
	if len(ag.Runs) > 0 {
		s.line("repository", "runs: "+strings.Join(ag.Runs, ", ")+"; this program has no switch for it at a terminal")
	}
	a.homeLines(s, p, known, withHome, left, few, more)
	s.line("backend", p.Backend+", "+p.Isolation+"; "+imageWords(p.Image, ""))
	if len(p.Enforced) > 0 {
		s.line("backend", strings.Join(p.Enforced, "; "))
	}
	var could []string
	for _, d := range p.Downgrades {
		could = append(could, "weaker than it could be: "+d)
	}
	few("backend", could, more)

	s.gap()
	for _, l := range p.Lines {
		text := l.Text + origin(l.Origin)
		if l.Force == "not enforced" {
			text += ", not enforced: " + l.How
		}
		switch l.Section {
		case "network", "credentials", "limits", "prices", "approvals":
			s.line(l.Section, text)
		default:
			if l.Origin != policy.DefaultOrigin && !strings.HasPrefix(l.Origin, policy.OriginAgent) {
				s.line(l.Section, text)
			}
		}
	}
	if b := p.Budget; b != nil {
		s.line("used", budgetWord(b)+" of its budget")
	}
	for _, d := range p.Defaults {
		of := "of this source"
		if d.Of == ofUser {
			of = "of the user"
		}
		s.line("config", d.Key+" "+strings.Join(d.Values, " ")+" ("+of+")")
	}
	few("note", p.Notes, more)
	a.say("nothing was started; %s lists mounts and variables, too", more)
}

// origin is the origin of a line, in brackets.
func origin(of string) string {
	if of == "" {
		return ""
	}
	return " (" + of + ")"
}

// homeLines print what of the user's home comes along, what stays, and what could come.
func (a *app) homeLines(s *sheet, p api.Plan, known agent.Adapter, withHome []string, left []agent.Left, few func(string, []string, string), more string) {
	var comes []string
	for _, h := range p.Home {
		comes = append(comes, h.Kind+": "+h.Path+", "+size(int64(h.Bytes)))
	}
	few("home", comes, more)
	if len(left) > 0 {
		s.line("home", "stays outside: "+staysWords(left))
	}
	kinds, err := homeKinds(withHome)
	home, homeErr := os.UserHomeDir()
	if err != nil || homeErr != nil {
		return
	}
	var could []string // that is not asked for
	for _, k := range agent.Kinds() {
		if slices.Contains(kinds, k) {
			continue
		}
		if files, _, err := homeOf(home, known, []string{k}); err == nil && len(files) > 0 {
			bytes := 0
			for _, f := range files {
				bytes += len(f.Content)
			}
			could = append(could, k+" ("+plural(len(files), "file")+", "+size(int64(bytes))+")")
		}
	}
	switch {
	case len(could) > 0:
		s.line("home", "--with-home would bring "+strings.Join(could, ", "))
	case len(comes) == 0:
		s.line("home", "nothing of yours comes along, and --with-home finds nothing")
	}
}
