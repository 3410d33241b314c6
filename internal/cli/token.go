package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
)

func (a *app) tokenCmd() *cobra.Command {
	c := &cobra.Command{
		Use: "token", Short: "Let callers from elsewhere in, and shut them out", Args: cobra.NoArgs,
		Long: `Make tokens for callers of pando serve. A token is shown once, when it is made;
only its digest is kept. One that is removed is worthless at once, and what was
begun with it ends.

  pando token create ci --scope run --expires 30d
  pando token rm ci`,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(a.tokenCreateCmd(), a.tokenLsCmd(), a.tokenRmCmd())
	return c
}

func (a *app) tokenCreateCmd() *cobra.Command {
	var req api.TokenRequest
	var expires string
	c := &cobra.Command{
		Use: "create [NAME]", Short: "Make a token, and show it this once", Args: cobra.MaximumNArgs(1),
		Long: `Make a token. Its scope is what it allows: read looks, run starts and changes
things in cells, admin also writes to sources, removes, approves, and makes
tokens.

The token is all that goes to standard output.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Name = arg(args)
			if expires != "" {
				d, err := span(expires)
				if err != nil {
					return err
				}
				req.Expires = time.Now().Add(d).UTC().Truncate(time.Second)
			}
			t, err := a.client.CreateToken(cmd.Context(), req)
			if err != nil {
				return err
			}
			return a.print(t, func(w io.Writer) {
				fmt.Fprintln(w, t.Secret)
				end := "never expires"
				if !t.Expires.IsZero() {
					end = "expires " + t.Expires.Local().Format("2006-01-02 15:04")
				}
				a.say("token %s of scope %s, %s; for programs written for E2B it begins with e2b_ instead of pando_", t.Name, t.Scope, end)
			})
		},
	}
	c.Flags().StringVar(&req.Scope, "scope", "run", "read, run or admin")
	c.Flags().StringVar(&expires, "expires", "", "how long it is good for: 90m, 12h, 30d (default: until it is removed)")
	complete(c, "scope", "read", "run", "admin")
	return c
}

// span reads a length of time; days are allowed.
func span(s string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.Atoi(days)
		if err == nil && n > 0 && n <= 36500 {
			return time.Duration(n) * 24 * time.Hour, nil
		}
	} else if d, err := time.ParseDuration(s); err == nil && d > 0 {
		return d, nil
	}
	return 0, usage("--expires takes a length of time such as 90m, 12h or 30d, not %q", s)
}

func (a *app) tokenLsCmd() *cobra.Command {
	return &cobra.Command{
		Use: "ls", Short: "List tokens", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := a.client.Tokens(cmd.Context())
			if err != nil {
				return err
			}
			return a.print(list, func(w io.Writer) {
				if len(list) == 0 {
					a.say("no tokens yet: pando token create NAME makes one")
					return
				}
				t := a.newTable(w)
				t.row("NAME", "ID", "SCOPE", "CREATED", "EXPIRES", "LAST USED")
				for _, k := range list {
					expires, used := "never", "–"
					if !k.Expires.IsZero() {
						expires = k.Expires.Local().Format("2006-01-02 15:04")
					}
					if k.Expired {
						expires = "has expired"
					}
					if !k.Used.IsZero() {
						used = ago(k.Used)
					}
					t.row(k.Name, k.ID, k.Scope, ago(k.Created), expires, used)
				}
				t.flush()
			})
		},
	}
}

func (a *app) tokenRmCmd() *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME…", Short: "Make tokens worthless, at once", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			list := []api.Token{}
			for _, name := range args {
				t, err := a.client.RemoveToken(cmd.Context(), name)
				if err != nil {
					return err
				}
				list = append(list, t)
			}
			return a.print(list, func(w io.Writer) {
				for _, t := range list {
					fmt.Fprintf(w, "token %s is worthless now\n", t.Name)
				}
			})
		},
	}
}
