package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/agent"
	"github.com/pando-dev/pando/internal/agent/catalog"
	"github.com/pando-dev/pando/internal/credential"
	"github.com/pando-dev/pando/internal/secret"
)

// loginFlags say where the value of a login comes from.
type loginFlags struct {
	env, file, service string
	host               bool // the login file of the program on this host
	setup              bool // the program's own login, in a cell
}

// ways is the number of places that the value would come from.
func (f loginFlags) ways() (n int) {
	for _, given := range []bool{f.env != "", f.file != "", f.host, f.setup} {
		if given {
			n++
		}
	}
	return n
}

func (a *app) loginCmd() *cobra.Command {
	var from loginFlags
	c := &cobra.Command{
		Use:   "login [AGENT]",
		Short: "Log a coding agent in, or show which agents are",
		Long: `Store the credential that an agent's cells are lent: an API key, or for Claude Code the
token of a subscription, as claude setup-token prints it. At a terminal it asks which; the
value is typed or pasted without being shown, or comes from a variable, a file or standard
input. It is kept encrypted, and goes only to the hosts that are named: a cell has a
placeholder. It is an ordinary credential (pando credential ls), and takes the place of the
one before, also in running cells. The login of an account with ChatGPT or Google comes
before keys that are stored for other agents, too.

With --from-host it is the login of the agent's program on this host: Claude Code's, Codex'
with ChatGPT, Gemini CLI's with Google, or an API key of Codex or opencode. The token in the
program's login file is lent and not stored, and the file is read again when it changes. The
program alone refreshes the login: when the token has expired, requests are refused, and say
to run it once. The file must be yours alone, no link, and outside of repositories and
sources. A login in a keyring is no file.

With --setup-token the program's own login runs here, at this terminal: claude setup-token,
for a subscription of Claude Code. It runs in a cell of its own, which has an empty
workspace, none of your files and logins, and reaches @anthropic-login alone; the cell is
removed afterwards. Open the address that it shows, and paste the code that the last page
shows there. The token that it shows at its end is kept and not shown.

Without AGENT it lists which agents are logged in, and by what.`,
		Example: `  pando login claude
  pando login claude --from-host
  pando login claude --setup-token
  pando login codex --from-env OPENAI_API_KEY
  pando login copilot --service anthropic < key`,
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: completeAgents,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				if from != (loginFlags{}) {
					return usage("say which agent: pando login AGENT")
				}
				return a.listLogins(cmd.Context())
			}
			switch {
			case from.host && from.ways() > 1:
				return usage("leave one out: with --from-host the value comes from the login file")
			case from.setup && from.ways() > 1:
				return usage("leave one out: with --setup-token the value comes from the program's own login")
			}
			known, err := agentNamed(args[0])
			if err != nil {
				return err
			}
			return a.login(cmd.Context(), known, from)
		},
	}
	f := c.Flags()
	f.StringVar(&from.env, "from-env", "", "take the value from this variable")
	f.StringVar(&from.file, "from-file", "", "take the value from this file (readable by its owner alone, outside of repositories and sources)")
	f.BoolVar(&from.host, "from-host", false, "lend the login of the agent's program on this host, by its file")
	f.BoolVar(&from.setup, "setup-token", false, "run the program's own login in a cell without your files (claude setup-token), and keep its token")
	f.StringVar(&from.service, "service", "", "of an agent with several: openai, anthropic, chatgpt, gemini, google (default: as the value begins)")
	complete(c, "service", "anthropic", "chatgpt", "gemini", "google", "openai")
	return c
}

func (a *app) logoutCmd() *cobra.Command {
	var service string
	c := &cobra.Command{
		Use:   "logout AGENT",
		Short: "Delete an agent's credential, and take it back from all cells",
		Args:  cobra.ExactArgs(1), ValidArgsFunction: completeAgents,
		RunE: func(cmd *cobra.Command, args []string) error {
			known, err := agentNamed(args[0])
			if err != nil {
				return err
			}
			about := known.About()
			logins, err := loginsOf(about, service)
			if err != nil {
				return err
			}
			stored, err := a.client.Credentials(cmd.Context())
			if err != nil {
				return err
			}
			i := slices.IndexFunc(logins, func(l agent.Login) bool { return credentialIn(stored, l.Credential) != nil })
			if i < 0 {
				return &api.Error{Kind: "not-found", Message: "cannot log " + about.Title + " out: it is not logged in", Hint: "pando login lists the agents that are"}
			}
			r, err := a.client.RemoveCredential(cmd.Context(), logins[i].Credential)
			if err != nil {
				return err
			}
			return a.print(r, func(w io.Writer) {
				also := ""
				if others := sharing(about, r.Credential); len(others) > 0 {
					also = ", also for " + strings.Join(others, ", ")
				}
				fmt.Fprintf(w, "%s is logged out%s: credential %s is forgotten; %s had it\n", about.Title, also, r.Credential, plural(len(r.Cells), "cell"))
			})
		},
	}
	c.Flags().StringVar(&service, "service", "", "of an agent with several: openai, anthropic, chatgpt, gemini, google (default: the one that is lent)")
	complete(c, "service", "anthropic", "chatgpt", "gemini", "google", "openai")
	return c
}

func completeAgents(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return catalog.All().Names(), cobra.ShellCompDirectiveNoFileComp
}

func agentNamed(name string) (agent.Adapter, error) {
	known, ok := catalog.All().Find(name)
	if !ok {
		return nil, usage("there is no agent %s: %s", printable(name), strings.Join(catalog.All().Names(), ", "))
	}
	return known, nil
}

// loginsOf lists the logins of an agent with a service; all of them for "".
func loginsOf(about agent.About, service string) ([]agent.Login, error) {
	var services []string
	for _, l := range about.Logins {
		if l.Credential == service {
			return []agent.Login{l}, nil
		}
		services = append(services, l.Credential)
	}
	if service != "" {
		return nil, usage("%s takes no key of %s: %s", about.Title, printable(service), strings.Join(services, ", "))
	}
	return about.Logins, nil
}

// sharing lists the other agents that a credential is lent to by themselves.
func sharing(about agent.About, name string) (titles []string) {
	for _, other := range catalog.All() {
		o := other.About()
		if o.Name != about.Name && slices.ContainsFunc(o.Logins, func(l agent.Login) bool { return l.Credential == name }) {
			titles = append(titles, o.Title)
		}
	}
	return titles
}

// credentialIn returns the credential of a name; nil if there is none.
func credentialIn(list []api.Credential, name string) *api.Credential {
	i := slices.IndexFunc(list, func(c api.Credential) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return &list[i]
}

// login stores the credential of an agent.
func (a *app) login(ctx context.Context, known agent.Adapter, from loginFlags) error {
	about := known.About()
	logins, err := loginsOf(about, from.service)
	if err != nil {
		return err
	}
	if from.ways() == 0 && term.IsTerminal(int(a.stdin.Fd())) {
		if err := a.chooseWay(about, logins, &from); err != nil {
			return err
		}
	}
	if from.host {
		return a.loginFromHost(ctx, about, logins)
	}
	if from.setup {
		return a.loginBySetup(ctx, known)
	}
	value, err := a.readSecret(ctx, about.Title+"'s key", from.env, from.file)
	if err != nil {
		return err
	}
	login, err := loginFor(about, ofVariable(logins, from.env), value)
	if err != nil {
		return err
	}
	c, err := a.client.AddCredential(ctx, api.CredentialRequest{Name: login.Credential, Secret: value, Replace: true})
	if err != nil {
		return err
	}
	return a.loggedIn(ctx, about, c)
}

// few are the first of some places.
func few(places []string) string {
	if len(places) > 3 {
		return fmt.Sprintf("%s and %d more", places[0], len(places)-1)
	}
	return strings.Join(places, ", ")
}

// supersede forgets what the new credential of an agent takes the place of: the login of an account, which no
// other agent has, and what was read from the same login file.
func (a *app) supersede(ctx context.Context, about agent.About, c api.Credential) error {
	stored, err := a.client.Credentials(ctx)
	if err != nil {
		return err
	}
	for _, l := range about.Logins {
		old := credentialIn(stored, l.Credential)
		if old == nil || old.Name == c.Name || !l.Account && (c.Path == "" || old.Path != c.Path) {
			continue
		}
		if _, err := a.client.RemoveCredential(ctx, old.Name); err != nil {
			return err
		}
		a.say("credential %s is forgotten: %s takes its place", old.Name, c.Name)
	}
	return nil
}

// loggedIn says what was stored, and what is wrong with it.
func (a *app) loggedIn(ctx context.Context, about agent.About, c api.Credential) error {
	if err := a.supersede(ctx, about, c); err != nil {
		return err
	}
	if check, err := a.client.CheckCredential(ctx, c.Name); err == nil {
		for _, p := range check.Problems {
			a.say("warning: %s: %s", c.Name, printable(p))
		}
	}
	return a.print(c, func(w io.Writer) {
		fmt.Fprintf(w, "%s is logged in: credential %s, as %s, for %s\n", about.Title, c.Name, strings.Join(c.Env, " "), few(goesTo(c)))
		if c.Path != "" {
			fmt.Fprintf(w, "the token is that of %s%s\n", printable(c.Path), until(c.Expires))
		}
		a.say("start it in a repository: pando %s", about.Name)
	})
}

// until says when a token expires, after what has it.
func until(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return ", which expires at " + t.Local().Format(time.DateTime)
}

// loginFromHost stores a credential that is read from the login file of an agent's program: of the first
// service that it has a token of.
func (a *app) loginFromHost(ctx context.Context, about agent.About, logins []agent.Login) error {
	what := "use " + about.Title + "'s login"
	if a.remote {
		return &api.Error{Kind: "unsupported", Message: "cannot " + what + ": the daemon is on another host, and reads the file there", Hint: "run pando login " + about.Name + " --from-host on that host, or give a key here: pando login " + about.Name}
	}
	at, err := loginFile(about)
	if err != nil {
		return apiError(err)
	}
	b, err := a.readSecretFile(ctx, what, at, credential.MaxLogin)
	if err != nil {
		if e, ok := errors.AsType[*api.Error](err); ok && e.Kind == "not-found" {
			e.Hint = "log in with " + about.Program + " on this host; a login that it keeps in a keyring is no file: then pando login " + about.Name + ", with a key"
		}
		return err
	}
	login := logins[0]
	for _, l := range logins {
		if _, _, err := credential.ParseLogin(about.Name, l.Credential, b); err == nil {
			login = l
			break
		}
	}
	c, err := a.client.AddCredential(ctx, api.CredentialRequest{Name: login.Credential, Login: about.Name, Path: at, Replace: true})
	if err != nil {
		return err
	}
	return a.loggedIn(ctx, about, c)
}

// loginFile is the path of the login file of an agent's program, without symbolic links in its
// directory.
func loginFile(about agent.About) (string, error) {
	at, err := credential.LoginFile(about.Name, os.Getenv)
	if err != nil {
		return "", err
	}
	if dir, err := filepath.EvalSymlinks(filepath.Dir(at)); err == nil {
		at = filepath.Join(dir, filepath.Base(at))
	}
	return at, nil
}

// chooseWay asks at a terminal where the value comes from, and sets that. It asks nothing when
// there is nothing to choose from.
func (a *app) chooseWay(about agent.About, logins []agent.Login, from *loginFlags) error {
	var set []string
	for _, l := range logins {
		for _, v := range l.Variables {
			if os.Getenv(v) != "" && !slices.Contains(set, v) {
				set = append(set, v)
			}
		}
	}
	ways := make([]string, 0, len(set)+2)
	for _, v := range set {
		ways = append(ways, "the variable "+v+" of this shell")
	}
	at, host := a.hostLogin(about, logins)
	if host {
		ways = append(ways, "the login of "+about.Program+" on this host, "+printable(at))
	}
	if len(ways) == 0 {
		return nil
	}
	a.say("Log %s in with", about.Title)
	ways = append(ways, "a key that you type or paste")
	for i, way := range ways {
		a.say("  %d  %s", i+1, way)
	}
	fmt.Fprint(a.stderr, "which? [1] ")
	line, err := bufio.NewReader(io.LimitReader(a.stdin, 64)).ReadString('\n')
	if err != nil {
		return fmt.Errorf("cannot read the answer: %w", err)
	}
	n := 1
	if line = strings.TrimSpace(line); line != "" {
		if n, err = strconv.Atoi(line); err != nil || n < 1 || n > len(ways) {
			return usage("%s is none of the ways", printable(line))
		}
	}
	switch {
	case n <= len(set):
		from.env = set[n-1]
	case n < len(ways):
		from.host = true
	}
	return nil
}

// hostLogin returns the login file of an agent's program, and whether it can be lent.
func (a *app) hostLogin(about agent.About, logins []agent.Login) (at string, usable bool) {
	at, err := loginFile(about)
	if err != nil || a.remote {
		return "", false
	}
	f, err := OpenSecretFile("look at the login", at)
	if err != nil {
		return at, false
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, credential.MaxLogin))
	return at, err == nil && slices.ContainsFunc(logins, func(l agent.Login) bool {
		_, _, err := credential.ParseLogin(about.Name, l.Credential, b)
		return err == nil
	})
}

// ofVariable puts the login that reads a variable first.
func ofVariable(logins []agent.Login, variable string) []agent.Login {
	i := slices.IndexFunc(logins, func(l agent.Login) bool { return slices.Contains(l.Variables, variable) })
	if i <= 0 {
		return logins
	}
	return slices.Concat(logins[i:], logins[:i])
}

// loginFor returns the login that a value is for, as it begins. A value of another service is
// refused; one that begins as none that is known is for the first.
func loginFor(about agent.About, logins []agent.Login, value string) (agent.Login, error) {
	if strings.HasPrefix(value, "sk-ant-ort") {
		return agent.Login{}, &api.Error{Kind: "invalid", Message: "cannot log " + about.Title + " in: this is a refresh token, which is used once, by the program that it was made for", Hint: "use an API key, or what `claude setup-token` prints"}
	}
	service := serviceOf(value)
	if i := slices.IndexFunc(logins, func(l agent.Login) bool { return l.Credential == service }); i >= 0 {
		return logins[i], nil
	}
	if service != "" {
		var takes []string
		for _, l := range logins {
			takes = append(takes, l.Credential)
		}
		return agent.Login{}, &api.Error{Kind: "invalid", Message: fmt.Sprintf("cannot log %s in: this is a key of %s", about.Title, service), Hint: "use one of " + strings.Join(takes, " or ")}
	}
	i := slices.IndexFunc(logins, func(l agent.Login) bool { return !l.Account })
	return logins[max(i, 0)], nil
}

// serviceOf returns the service with tokens that begin as a value does; "" if none is known.
func serviceOf(value string) (service string) {
	longest := 0
	for _, name := range credential.KnownNames() {
		for _, p := range secret.Prefixes(name) {
			if len(p) > longest && strings.HasPrefix(value, p) {
				service, longest = name, len(p)
			}
		}
	}
	return service
}

// listLogins shows which agents are logged in.
func (a *app) listLogins(ctx context.Context) error {
	stored, err := a.client.Credentials(ctx)
	if err != nil {
		return err
	}
	list := []api.AgentLogin{}
	for _, known := range catalog.All() {
		about := known.About()
		l := api.AgentLogin{Agent: about.Name, Title: about.Title}
		for _, of := range about.Logins {
			c := credentialIn(stored, of.Credential)
			if c != nil && (len(c.Env) == 0 && c.Problem != "" || slices.ContainsFunc(c.Env, func(v string) bool { return slices.Contains(of.Variables, v) })) {
				l.Credential, l.Env, l.For, l.Since, l.Problem = c.Name, c.Env, goesTo(*c), c.Created, c.Problem
				l.Path, l.Expires = c.Path, c.Expires
				break
			}
		}
		list = append(list, l)
	}
	return a.print(list, func(w io.Writer) {
		t := a.newTable(w)
		t.row("AGENT", "LOGGED IN BY", "SINCE", "EXPIRES", "FOR")
		for _, l := range list {
			by, expires := l.Credential+", as "+strings.Join(l.Env, " "), "–"
			if l.Path != "" {
				by += ", of " + printable(l.Path)
			}
			if !l.Expires.IsZero() {
				expires = l.Expires.Local().Format(time.DateTime)
			}
			switch {
			case l.Credential == "":
				t.row(l.Agent, "–", "–", "–", "pando login "+l.Agent)
			case l.Problem != "":
				t.row(l.Agent, by, ago(l.Since), expires, printable(l.Problem))
			default:
				t.row(l.Agent, by, ago(l.Since), expires, few(l.For))
			}
		}
		t.flush()
	})
}
