package cli

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
)

func (a *app) cacheCmd() *cobra.Command {
	c := &cobra.Command{
		Use: "cache", Short: "List, verify and remove the caches that are kept for sources", Args: cobra.NoArgs,
		Long: `With --cache, what tools write to their caches in a cell is kept for later cells of the
same source: modules, packages, objects of compilers.

  pando run --cache go -- go test ./...
  pando claude --cache go,npm
  pando run --cache ~/.cache/tool -- tool
  pando config set cache go

What a run wrote is kept when its result is accepted; a run that changes no file is
accepted by itself, and keeps what it wrote if its cell has no name, and it is no agent's. With --cache-write always it is kept when
the run ends. A discarded run leaves nothing there. A check sees caches as they were
before its run. Caches of two sources, or of two images, never meet, and the caches of
the host stay as they are: they lie below, read-only.

A program that can write a cache can have later builds use what it put there. What is named
by its content is verified before it is kept (modules and outputs of Go, packages of npm
and pnpm); the rest is as trustworthy as the runs that you accept.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(a.cacheLsCmd(), a.cacheVerifyCmd(), a.cacheRmCmd())
	return c
}

func (a *app) cacheLsCmd() *cobra.Command {
	var here bool
	c := &cobra.Command{
		Use: "ls", Short: "List caches", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			source, err := a.cacheSource(here)
			if err != nil {
				return err
			}
			list, err := a.client.Caches(cmd.Context(), source)
			if err != nil {
				return err
			}
			return a.print(list, func(w io.Writer) {
				if len(list) == 0 {
					a.say("no caches yet: pando run --cache go keeps one")
					return
				}
				t := a.newTable(w)
				t.row("CACHE", "NAME", "SIZE", "WRITTEN", "USED", "SOURCE")
				for _, k := range list {
					name := k.Name
					if k.Image != "host" {
						name += " (" + k.Image + ")"
					}
					t.row(k.ID, printable(name), size(k.Bytes), ago(k.Written), ago(k.Used), printable(k.Source))
				}
				t.flush()
			})
		},
	}
	c.Flags().BoolVar(&here, "here", false, "of this directory's source alone")
	return c
}

// cacheSource is the source of the directory that the command runs in; "" without here.
func (a *app) cacheSource(here bool) (string, error) {
	if !here {
		return "", nil
	}
	at, err := filepath.Abs(a.repository())
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(at)
}

func (a *app) cacheVerifyCmd() *cobra.Command {
	return &cobra.Command{
		Use: "verify [CACHE…]", Short: "Compare files of caches with their names", Args: cobra.ArbitraryArgs, ValidArgsFunction: a.completeCaches,
		Long: `Compare the files that are named by what they hold with their names: modules and
outputs of Go, packages of npm and pnpm. Other caches have no such names. CACHE is an id,
or a name of this directory's source; without one all are compared.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := a.cachesOf(cmd, args)
			if err != nil {
				return err
			}
			out, bad := []api.CacheCheck{}, 0
			for _, k := range list {
				found, err := a.client.CheckCache(cmd.Context(), k.ID)
				if err != nil {
					return err
				}
				out = append(out, found)
				bad += len(found.Bad)
			}
			err = a.print(out, func(w io.Writer) {
				for _, c := range out {
					fmt.Fprintf(w, "%s %s of %s: %s compared, %d wrong\n", c.Cache.ID, printable(c.Cache.Name), printable(c.Cache.Source), plural(c.Files, "file"), len(c.Bad))
					for _, p := range c.Bad {
						fmt.Fprintf(w, "  %s\n", printable(p))
					}
				}
			})
			if err == nil && bad > 0 {
				err = &api.Error{Kind: "corrupt", Message: fmt.Sprintf("%s of caches are not what their names say", plural(bad, "file")), Hint: "remove the cache: pando cache rm CACHE"}
			}
			return err
		},
	}
}

func (a *app) cacheRmCmd() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use: "rm CACHE…", Short: "Remove caches", ValidArgsFunction: a.completeCaches,
		Long: `Remove caches. CACHE is an id, or a name of this directory's source. Cells that have one
keep what they began with.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if all != (len(args) == 0) {
				return usage("name caches, or all of them with --all")
			}
			list, err := a.cachesOf(cmd, args)
			if err != nil {
				return err
			}
			out, freed := []api.Cache{}, int64(0)
			for _, k := range list {
				gone, err := a.client.RemoveCache(cmd.Context(), k.ID)
				if err != nil {
					return err
				}
				out = append(out, gone)
				freed += gone.Bytes
			}
			return a.print(out, func(w io.Writer) { a.say("removed %s, %s", plural(len(out), "cache"), size(freed)) })
		},
	}
	c.Flags().BoolVar(&all, "all", false, "all caches of all sources")
	return c
}

// cachesOf finds the caches that arguments name; without any, all.
func (a *app) cachesOf(cmd *cobra.Command, args []string) (out []api.Cache, err error) {
	all, err := a.client.Caches(cmd.Context(), "")
	if err != nil || len(args) == 0 {
		return all, err
	}
	source, err := a.cacheSource(true)
	if err != nil {
		return nil, err
	}
	here, err := a.client.Caches(cmd.Context(), source)
	if err != nil {
		return nil, err
	}
	for _, arg := range args {
		found := slices.DeleteFunc(slices.Clone(all), func(k api.Cache) bool {
			return k.ID != arg && (k.Name != arg || !slices.ContainsFunc(here, func(h api.Cache) bool { return h.ID == k.ID }))
		})
		if len(found) == 0 {
			return nil, &api.Error{Kind: "not-found", Message: "no cache " + arg + " is kept for this source", Hint: "pando cache ls shows those there are"}
		}
		out = append(out, found...)
	}
	return out, nil
}

func (a *app) completeCaches(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	if a.prepare() != nil || !a.client.Alive(cmd.Context()) {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	list, err := a.client.Caches(cmd.Context(), "")
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for _, k := range list {
		out = append(out, k.ID+"\t"+strings.TrimSpace(k.Name+" of "+k.Source))
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}
