package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/notice"
	"github.com/pando-dev/pando/internal/paths"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/receipt"
)

// configVar says with "off" that the user's defaults don't count.
const configVar = "PANDO_CONFIG"

// Annotations of flags, about their defaults.
const (
	perStart = "per start" // it has none: it is about one start
	ofCell   = "of cell"   // it is for cells that are made: one that exists keeps what it has
	anewCell = "anew"      // as ofCell, and --anew asks for it again
)

// annotate notes something about flags.
func annotate(f *pflag.FlagSet, note string, names ...string) {
	for _, name := range names {
		f.SetAnnotation(name, note, []string{})
	}
}

func noted(f *pflag.Flag, note string) bool {
	_, ok := f.Annotations[note]
	return ok
}

// starting are the flags of all commands that start a run, apart from a command.
type starting struct {
	cmd   *cobra.Command
	run   runFlags
	agent api.AgentRequest
}

func (a *app) starting() *starting {
	s := &starting{cmd: &cobra.Command{}}
	a.addRunFlags(s.cmd, &s.run)
	addAgentFlags(s.cmd, &s.agent, new([]string))
	return s
}

// keys are the flags that may have a default.
func (s *starting) keys() (keys []string) {
	s.cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && !noted(f, perStart) {
			keys = append(keys, f.Name)
		}
	})
	return keys
}

// checkDefault accepts the values of a default. Each is what the flag accepts, and means the
// same in every directory.
func (a *app) checkDefault(key string, values []string) error {
	s := a.starting()
	if !slices.Contains(s.keys(), key) {
		return usage("there is no default of %q; the keys are %s", printable(key), strings.Join(s.keys(), ", "))
	}
	f := s.cmd.Flags().Lookup(key)
	if _, list := f.Value.(pflag.SliceValue); !list && len(values) != 1 {
		return usage("%s takes one value, not %d", key, len(values))
	}
	var words []string
	if complete, closed := s.cmd.GetFlagCompletionFunc(key); closed {
		words, _ = complete(s.cmd, nil, "")
	}
	var known receipt.Redactor
	for _, v := range values {
		if known.String(v) != v {
			return usage("a value of %s has the form of a secret, which is kept with pando credential add", key)
		}
		if words != nil && !slices.Contains(words, v) {
			return usage("%s is one of %s, not %q", key, strings.Join(words, ", "), printable(v))
		}
		if err := f.Value.Set(v); err != nil {
			return usage("%s: %v", key, err)
		}
	}
	relative := func(at string) error {
		return usage("%s %s: the path of a default is absolute, so that it is the same in every directory", key, printable(at))
	}
	r := &s.run
	for _, kind := range []string{"dir:", "dockerfile:"} {
		if at, ok := strings.CutPrefix(r.req.Image, kind); ok && !filepath.IsAbs(at) {
			return relative(at)
		}
	}
	if ref := strings.TrimPrefix(r.req.Image, "oci:"); paths.IsImage(ref) && !filepath.IsAbs(ref) {
		return relative(ref)
	}
	for _, at := range append(slices.Clone(r.req.Mounts), r.req.Kernel) {
		if at != "" && !filepath.IsAbs(at) {
			return relative(at)
		}
	}
	if _, err := parseKeys(r.keys); err != nil {
		return err
	}
	for _, way := range r.req.Notify {
		if err := notice.Check(way); err != nil {
			return apiError(err)
		}
	}
	if api.IsolationOf(r.req.Backend) == api.NotIsolated {
		return usage("backend none is not isolated: it is asked for at each start, or with %s", backendVar)
	}
	if s.agent.Mode == policy.AgentBreakglass {
		return usage("mode breakglass is acknowledged at each start")
	}
	env := slices.Clone(r.env)
	for i, kv := range env {
		if !strings.Contains(kv, "=") {
			env[i] += "="
		}
	}
	_, err := policy.Merge(policy.Defaults(policy.Host{CPUs: 1, Memory: 1 << 40}), nil, policy.Flags{
		Mounts: r.req.Mounts, ReadOnly: r.req.ReadOnly, Env: env, Limits: policy.FileLimits(r.req.Limits), Allow: r.req.Allow, Credentials: r.req.Credentials,
	})
	return apiError(err)
}

// useDefaults gives the flags of a start the values of the user's configuration: those of a flag
// that may be repeated come before the command line's, others count where it has none.
func (a *app) useDefaults(cmd *cobra.Command, r *runFlags) error {
	if r.noConfig || os.Getenv(configVar) == "off" {
		return nil
	}
	source, err := a.sourceAt(r.req.From)
	if err != nil {
		return err
	}
	c, err := a.readConfig()
	if err != nil {
		return err
	}
	all := c.list(ofUser, source)
	if len(all) == 0 {
		return nil
	}
	if err := a.outside(source); err != nil {
		return err
	}
	exists, err := a.startsIn(cmd.Context(), all, r)
	if err != nil {
		return err
	}
	flags, lists, inUse := cmd.Flags(), map[string][]string{}, []api.Default{}
	for _, d := range all {
		if err := a.checkDefault(d.Key, d.Values); err != nil {
			return fmt.Errorf("%w (%s)", err, a.home.Config())
		}
		f := flags.Lookup(d.Key)
		switch {
		case f == nil: // of agents
			continue
		case exists && (noted(f, ofCell) || noted(f, anewCell) && !r.req.Anew):
			continue
		case (f.Name == "cache" || f.Name == "trust-repository") && f.Changed: // the flag says all: which, or none
			continue
		case f.Name == "notify" && a.remote: // it is of this host, and of its user
			continue
		case f.Name == "backend":
			if os.Getenv(backendVar) != "" || f.Changed {
				continue
			}
			r.prefer = d.Values[0]
		default:
			if _, list := f.Value.(pflag.SliceValue); list {
				lists[d.Key] = append(lists[d.Key], d.Values...)
				break
			}
			if f.Changed {
				continue
			}
			if err := f.Value.Set(d.Values[0]); err != nil {
				return err
			}
		}
		if lists[d.Key] == nil { // the source's is nearer than the user's
			inUse = slices.DeleteFunc(inUse, func(o api.Default) bool { return o.Key == d.Key })
		}
		inUse = append(inUse, d)
	}
	var words []string
	for _, d := range inUse {
		if list, is := flags.Lookup(d.Key).Value.(pflag.SliceValue); is { // a flag with the same value is the flag's
			same := func(a, b string) bool { return a == b }
			if d.Key == "env" { // the flag's value of a variable counts
				same = func(a, b string) bool { return variableName(a) == variableName(b) }
			}
			d.Values = slices.DeleteFunc(slices.Clone(d.Values), func(v string) bool {
				return slices.ContainsFunc(list.GetSlice(), func(given string) bool { return same(given, v) })
			})
		}
		if d.Key == "env" { // the names alone: values may be secrets, and are in the request already
			d.Values = slices.Clone(d.Values)
			for i, kv := range d.Values {
				d.Values[i] = variableName(kv)
			}
		}
		if len(d.Values) > 0 {
			r.req.Defaults = append(r.req.Defaults, d)
			words = append(words, defaultWords(flags.Lookup(d.Key), d.Values))
		}
	}
	for key, values := range lists {
		list := flags.Lookup(key).Value.(pflag.SliceValue)
		if err := list.Replace(append(values, list.GetSlice()...)); err != nil {
			return err
		}
	}
	if len(words) > 0 && r.page == nil {
		a.say("pando: defaults: %s (pando config ls; --no-config goes without)", printable(strings.Join(words, " ")))
	}
	return nil
}

// startsIn reports whether a run starts in a cell that exists, when that matters for defaults.
func (a *app) startsIn(ctx context.Context, all []api.Default, r *runFlags) (bool, error) {
	if r.req.Cell == "" {
		return r.req.Agent != nil && r.req.Agent.Continue, nil
	}
	f := a.starting().cmd.Flags()
	if !slices.ContainsFunc(all, func(d api.Default) bool {
		is := f.Lookup(d.Key)
		return is != nil && (noted(is, ofCell) || noted(is, anewCell))
	}) {
		return false, nil
	}
	cells, err := a.client.Cells(ctx)
	return slices.ContainsFunc(cells, func(c api.Cell) bool { return c.Name == r.req.Cell || c.ID == r.req.Cell }), err
}

// defaultWords are values of a flag as flags.
func defaultWords(f *pflag.Flag, values []string) string {
	var words []string
	for _, v := range values {
		if f.Value.Type() == "bool" {
			words = append(words, "--"+f.Name+"="+v)
			continue
		}
		words = append(words, "--"+f.Name+" "+v)
	}
	return strings.Join(words, " ")
}

// variableName is the name of a variable, NAME or NAME=value.
func variableName(kv string) string {
	name, _, _ := strings.Cut(kv, "=")
	return name
}

func (a *app) configCmd() *cobra.Command {
	c := &cobra.Command{
		Use: "config", Short: "Keep defaults of flags, of the user and of one source", Args: cobra.NoArgs,
		Long: `Keep defaults of the flags of pando run and of the agents: for all sources, or with
--here or --source for one. They are yours: they are in config.json beside your policy
(PANDO_HOME, or ~/.config/pando), by the path of the source. No file of a source says
any.

What counts, the last first: flags; ` + backendVar + `; defaults of the source; those of the
user; what is built in. Of a flag that may be repeated (--allow, --env) all of them count.
Policy files bound them as they bound flags. A cell that exists keeps the hosts,
credentials, mounts and limits that it has; --anew takes the defaults of today.

A start names the defaults that it uses. --no-config, or ` + configVar + `=off, goes without.`,
		Example: `  pando config set allow @npm @go
  pando config set --here check 'go test ./...'
  pando config ls`,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(a.configSetCmd(), a.configAddCmd(), a.configGetCmd(), a.configUnsetCmd(), a.configLsCmd())
	return c
}

// levelFlags are the flags that choose of which origin defaults are.
type levelFlags struct {
	here   bool
	source string
}

func (l *levelFlags) add(c *cobra.Command) {
	c.Flags().BoolVar(&l.here, "here", false, "of the repository that this directory is in, or of the directory")
	c.Flags().StringVar(&l.source, "source", "", "of this source: a directory, as for --from")
	c.MarkFlagsMutuallyExclusive("here", "source")
}

// origin returns the origin that was chosen.
func (l *levelFlags) origin(a *app) (string, error) {
	if !l.here && l.source == "" {
		return ofUser, nil
	}
	return a.sourceAt(l.source)
}

// changeConfig changes the defaults of an origin.
func (a *app) changeConfig(l *levelFlags, change func(settings) error) error {
	of, err := l.origin(a)
	if err != nil {
		return err
	}
	unlock, err := a.lockConfig()
	if err != nil {
		return err
	}
	defer unlock()
	c, err := a.readConfig()
	if err != nil {
		return err
	}
	if err := change(c.level(of)); err != nil {
		return err
	}
	return a.writeConfig(c)
}

func (a *app) configSetCmd() *cobra.Command {
	var l levelFlags
	c := &cobra.Command{
		Use: "set [flags] KEY VALUE…", Short: "Set a default, in place of what it was", Args: cobra.MinimumNArgs(2), ValidArgsFunction: a.completeKeys,
		RunE: func(_ *cobra.Command, args []string) error {
			if err := a.checkDefault(args[0], args[1:]); err != nil {
				return err
			}
			return a.changeConfig(&l, func(s settings) error { s[args[0]] = args[1:]; return nil })
		},
	}
	l.add(c)
	return c
}

func (a *app) configAddCmd() *cobra.Command {
	var l levelFlags
	c := &cobra.Command{
		Use: "add [flags] KEY VALUE…", Short: "Add values to a default that may have several", Args: cobra.MinimumNArgs(2), ValidArgsFunction: a.completeKeys,
		RunE: func(_ *cobra.Command, args []string) error {
			return a.changeConfig(&l, func(s settings) error {
				values := slices.Clone(s[args[0]])
				for _, v := range args[1:] {
					if !slices.Contains(values, v) {
						values = append(values, v)
					}
				}
				s[args[0]] = values
				return a.checkDefault(args[0], values)
			})
		},
	}
	l.add(c)
	return c
}

func (a *app) configUnsetCmd() *cobra.Command {
	var l levelFlags
	c := &cobra.Command{
		Use: "unset [flags] KEY…", Short: "Take defaults back", Args: cobra.MinimumNArgs(1), ValidArgsFunction: a.completeKeys,
		RunE: func(_ *cobra.Command, args []string) error {
			return a.changeConfig(&l, func(s settings) error {
				for _, key := range args {
					if s[key] == nil {
						return noDefault(key)
					}
					delete(s, key)
				}
				return nil
			})
		},
	}
	l.add(c)
	return c
}

func noDefault(key string) error {
	return &api.Error{Kind: "not-found", Message: fmt.Sprintf("cannot find a default of %s", printable(key)), Hint: "`pando config ls` lists those of the user and of this source, with --all those of all sources"}
}

// inForce lists the defaults that the flags choose: without one, those that a start here uses.
func (a *app) inForce(l *levelFlags) ([]api.Default, config, error) {
	of, err := l.origin(a)
	if err != nil {
		return nil, config{}, err
	}
	c, err := a.readConfig()
	if err != nil || l.here || l.source != "" {
		return c.list(of), c, err
	}
	here, err := a.sourceAt("")
	return c.list(ofUser, here), c, err
}

func (a *app) configGetCmd() *cobra.Command {
	var l levelFlags
	c := &cobra.Command{
		Use: "get [flags] KEY", Short: "Print the values of a default, as a start here uses them", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeKeys,
		RunE: func(_ *cobra.Command, args []string) error {
			all, _, err := a.inForce(&l)
			if err != nil {
				return err
			}
			all = slices.DeleteFunc(all, func(d api.Default) bool { return d.Key != args[0] })
			if len(all) == 0 {
				return noDefault(args[0])
			}
			if f := a.starting().cmd.Flags().Lookup(args[0]); f != nil {
				if _, list := f.Value.(pflag.SliceValue); !list {
					all = all[len(all)-1:] // the source's is nearer than the user's
				}
			}
			return a.print(all, func(w io.Writer) {
				for _, d := range all {
					for _, v := range d.Values {
						fmt.Fprintln(w, printable(v))
					}
				}
			})
		},
	}
	l.add(c)
	return c
}

func (a *app) configLsCmd() *cobra.Command {
	var l levelFlags
	var every bool
	c := &cobra.Command{
		Use: "ls [flags]", Aliases: []string{"list"}, Short: "List defaults: of the user, and of this source", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			all, c, err := a.inForce(&l)
			if err != nil {
				return err
			}
			if every {
				all = c.list(append([]string{ofUser}, slices.Sorted(maps.Keys(c.Sources))...)...)
			}
			return a.print(all, func(w io.Writer) {
				if len(all) == 0 {
					a.say("no defaults: pando config set KEY VALUE… sets one")
					return
				}
				t := a.newTable(w)
				t.row("KEY", "OF", "VALUES")
				for _, d := range all {
					t.row(d.Key, d.Of, strings.Join(d.Values, " "))
				}
				t.flush()
			})
		},
	}
	l.add(c)
	c.Flags().BoolVarP(&every, "all", "a", false, "of all sources")
	return c
}

// completeKeys completes the key of a default, and values where they are known words.
func (a *app) completeKeys(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	s := a.starting()
	if len(args) == 0 || cmd.Name() == "unset" {
		return s.keys(), cobra.ShellCompDirectiveNoFileComp
	}
	if slices.Contains(s.keys(), args[0]) && (cmd.Name() == "set" || cmd.Name() == "add") {
		a.completeFlags(s.cmd)
		if words, ok := s.cmd.GetFlagCompletionFunc(args[0]); ok {
			return words(cmd, nil, prefix)
		}
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}
