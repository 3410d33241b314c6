package cli

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
)

// remoteHelper is the name under which git executes this program for remotes of the form pando::CELL
// (gitremote-helpers(7)), and helperVerb the command that it is then.
const (
	remoteHelper = "git-remote-pando"
	helperVerb   = "git-remote"
)

func (a *app) fetchCmd() *cobra.Command {
	c := &cobra.Command{
		Use: "fetch [CELL]", Short: "Fetch the commits that were made in a cell",
		Long: `Fetch the commits on the branches of a cell's repository into the repository of its source,
as refs/remotes/pando/CELL/*, in place of those of earlier fetches; nothing else of it
changes. git packs the commits in the cell, and what it made is checked outside, in a
repository of pando's own, before it comes here: broken objects, and names that git refuses,
are refused. No git runs over the source, so that nothing of its configuration is executed.

In any repository, git fetch pando::CELL does the same by your git, when git-remote-pando,
which lies beside pando, is on PATH. It may be done while a run is under way. Tags, notes and
submodules' commits stay in the cell. It takes git in the cell and on the daemon's host.
Without a name it is the cell that pando diff shows.`,
		Example: `  pando fetch web && git log HEAD..pando/web/main
  git fetch pando::web`,
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: a.completeCells,
		RunE: func(cmd *cobra.Command, args []string) error {
			res, err := a.client.FetchCell(cmd.Context(), arg(args))
			if err != nil {
				return err
			}
			return a.print(res, func(w io.Writer) {
				t := a.newTable(w)
				of := func(b api.FetchedBranch) string { // of several repositories
					if b.Source == res.Source {
						return ""
					}
					return "in " + printable(b.Source)
				}
				for _, b := range res.Branches {
					state := "new"
					switch b.Was {
					case "":
					case b.Commit:
						state = "same"
					default:
						state = "moved"
					}
					t.row(state, printable(strings.TrimPrefix(b.Ref, "refs/remotes/")), b.Commit[:min(len(b.Commit), 10)], printable(b.Subject), of(b))
				}
				for _, b := range res.Removed {
					t.row("gone", printable(strings.TrimPrefix(b.Ref, "refs/remotes/")), b.Was[:min(len(b.Was), 10)], "", of(b))
				}
				t.flush()
				if len(res.Branches) > 0 {
					git, b := "git", res.Branches[0]
					if b.Source != res.Source {
						git += " -C " + shellWord(b.Source)
					}
					a.say("see them with: %s log HEAD..%s", git, shellWord(strings.TrimPrefix(b.Ref, "refs/remotes/")))
				}
			})
		},
	}
	return c
}

// helperCmd is what git executes for remotes of the form pando::CELL. It speaks gitremote-helpers(7) on stdin and
// stdout: one connection to git's upload-pack, which the daemon has on the cell's commits.
func (a *app) helperCmd() *cobra.Command {
	return &cobra.Command{
		Use: helperVerb + " REMOTE CELL", Short: "Connect git to a cell, as " + remoteHelper, Hidden: true, Args: cobra.ExactArgs(2),
		Long: `Connect git to the commits of a cell. git executes this under the name git-remote-pando for
remotes of the form pando::CELL.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			in := bufio.NewReader(a.stdin)
			for {
				line, err := in.ReadString('\n')
				if err != nil || line == "\n" {
					return nil
				}
				switch line = strings.TrimSuffix(line, "\n"); line {
				case "capabilities":
					fmt.Fprint(a.stdout, "connect\n\n")
				case "connect git-upload-pack":
					return a.connectGit(cmd.Context(), args[1], in)
				default:
					return &api.Error{Kind: "unsupported", Message: "cannot " + line + " with cell " + args[1] + ": commits are fetched from cells, and not pushed to them", Hint: "pando sync brings files of the source into a cell"}
				}
			}
		},
	}
}

func (a *app) connectGit(ctx context.Context, cell string, in io.Reader) error {
	conn, err := a.client.FetchFrom(ctx, cell)
	if err != nil {
		return err
	}
	defer conn.Close()
	fmt.Fprintln(a.stdout)
	go func() {
		io.Copy(conn, in)
		if c, ok := conn.(interface{ CloseWrite() error }); ok {
			c.CloseWrite()
		}
	}()
	_, err = io.Copy(a.stdout, conn)
	return err
}
