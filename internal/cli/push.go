package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/push"
)

// followEvery is how often the ledger is asked for new receipts; followMost is the longest wait after failures.
const (
	followEvery = 2 * time.Second
	followMost  = time.Minute
)

func (a *app) receiptPushCmd() *cobra.Command {
	var tokenFile string
	var look, follow bool
	c := &cobra.Command{
		Use: "push DIR|URL", Short: "Copy new receipts and the files they name off this machine", Args: cobra.ExactArgs(1),
		Long: `Copy new receipts, with the files of the runs that they name, to a directory of the machine
where this command runs, or with HTTP PUT to a server. A copy is bundles of consecutive
receipts, each of which pando receipt verify and docs/verify/verify.py check, and the newest
signed head. What was copied is not written again; the next call goes on where the last one
ended, also after a failure. A copy of another ledger, and one that this ledger does not go
on from, are refused.

--follow copies at once whatever is new, and again after a failure, until it is stopped.
--dry-run says how far behind the copy is.`,
		Example: `  pando receipt push /mnt/evidence/pando
  pando receipt push https://objects.example.com/evidence/pando --token-file token
  pando receipt push /mnt/evidence/pando --follow`,
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if look && follow {
				return usage("give one of --dry-run and --follow")
			}
			token := ""
			if tokenFile != "" {
				text, err := os.ReadFile(tokenFile)
				if err != nil {
					return &api.Error{Kind: "not-found", Message: "cannot read the token: " + err.Error()}
				}
				token = strings.TrimSpace(string(text))
			}
			to, err := push.Open(args[0], token)
			if err != nil {
				return apiError(err)
			}
			if follow {
				return a.pushOn(cmd.Context(), to)
			}
			do := push.Push
			if look {
				do = func(ctx context.Context, src push.Source, to push.Target) (push.Status, error) {
					s, _, err := push.Look(ctx, src, to)
					return s, err
				}
			}
			s, err := do(cmd.Context(), a.client, to)
			if err != nil {
				if s.Behind > 0 {
					a.say("%s is %s behind", printable(s.Target), plural(int(s.Behind), "receipt"))
				}
				return apiError(err)
			}
			if err := a.print(s, func(io.Writer) { a.pushed(s) }); err != nil {
				return err
			}
			if len(s.Problems) > 0 {
				a.exit = api.ExitVerifyFailure
			}
			return nil
		},
	}
	c.Flags().BoolVar(&look, "dry-run", false, "copy nothing, and say how far behind the copy is")
	c.Flags().BoolVar(&follow, "follow", false, "go on: copy whatever is new, and again after a failure")
	c.Flags().StringVar(&tokenFile, "token-file", "", "file with a bearer token for the server")
	return c
}

func (a *app) pushed(s push.Status) {
	for _, p := range s.Problems {
		a.say("copied as it is, and wrong: %s", printable(p))
	}
	what := "nothing new"
	switch {
	case s.Copied > 0:
		what = plural(int(s.Copied), "receipt") + " copied"
	case s.Behind > 0:
		what = plural(int(s.Behind), "receipt") + " behind"
	}
	a.say("%s: %s, %d of %d are there", printable(s.Target), what, s.Had+s.Copied, s.Receipts)
}

// pushOn copies what is new until it is stopped. A failure is said once, and tried again, ever later.
func (a *app) pushOn(ctx context.Context, to push.Target) error {
	said, wait := "", followEvery
	for first := true; ; first = false {
		s, err := push.Push(ctx, a.client, to)
		if len(s.Problems) > 0 {
			a.exit = api.ExitVerifyFailure
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && final(err):
			return apiError(err)
		case err != nil:
			if text := err.Error(); text != said {
				a.say("%s; it is %s behind, and is tried again", printable(text), plural(int(s.Behind), "receipt"))
				said = text
			}
			wait = min(2*wait, followMost)
		default:
			if first || said != "" || s.Copied > 0 {
				a.pushed(s)
			}
			said, wait = "", followEvery
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// final reports whether an error stays as it is, however often it is tried.
func final(err error) bool {
	kind := api.Kind(cell.KindOf(err))
	if e := (*api.Error)(nil); errors.As(err, &e) {
		kind = e.Kind
	}
	return kind == "conflict" || kind == "invalid" || kind == "denied"
}
