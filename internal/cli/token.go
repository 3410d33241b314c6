package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
)

func (a *app) tokenCmd() *cobra.Command {
	c := &cobra.Command{
		Use: "token", Short: "Manage the tokens of callers over the network", Args: cobra.NoArgs,
		Long: `Make and revoke tokens for callers of pando serve. A token is printed once, when it is
made; only its digest is kept. Revoking a token takes effect at once and ends the
requests that were begun with it.

  pando token create ci --scope run --expires 30d
  pando token create team-a --label team=a --max-cells 20 --ttl 8h
  pando token rm ci`,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(a.tokenCreateCmd(), a.tokenLsCmd(), a.tokenRmCmd())
	return c
}

func (a *app) tokenCreateCmd() *cobra.Command {
	var req api.TokenRequest
	var expires, ttl string
	var labels []string
	var cells int
	var rate float64
	c := &cobra.Command{
		Use: "create [NAME]", Short: "Make a token, and print it once", Args: cobra.MaximumNArgs(1),
		Long: `Make a token. Its scope says what it allows: read reads; run also starts runs and
changes cells; admin also writes to sources, removes, approves, and makes tokens.

With --label the token is restricted to cells that have all of the labels, and to
their runs, checkpoints, receipts and approvals; all others do not exist for it. Cells
made with the token get the labels, and so do their forks and branches. Such a token
can't reach the host or anything that belongs to the whole installation.

--max-cells, --ttl and --rate bound its use. A cell is paused at the end of its
lifetime and keeps everything; the lifetime can be extended.

The token is all that goes to standard output.`,
		Example: `  pando token create ci --scope run --expires 30d
  pando token create team-a --label team=a --max-cells 20 --ttl 8h --rate 50`,
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Name = arg(args)
			if expires != "" {
				d, err := span("--expires", expires)
				if err != nil {
					return err
				}
				req.Expires = time.Now().Add(d).UTC().Truncate(time.Millisecond)
			}
			var err error
			if req.Labels, err = labelsOf(labels); err != nil {
				return err
			}
			if cmd.Flags().Changed("max-cells") {
				req.MaxCells = &cells
			}
			if cmd.Flags().Changed("rate") {
				req.Rate = &rate
			}
			if cmd.Flags().Changed("ttl") {
				d, err := span("--ttl", ttl)
				if err != nil {
					return err
				}
				req.TTL = d.String()
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
				if bounds := boundsText(t); bounds != "" {
					end += "; " + bounds
				}
				a.say("token %s of scope %s, %s; for programs written for E2B it begins with e2b_ instead of pando_", t.Name, t.Scope, end)
			})
		},
	}
	c.Flags().StringVar(&req.Scope, "scope", "run", "read, approve, run or admin")
	c.Flags().StringVar(&expires, "expires", "", "lifetime: 90m, 12h, 30d (default: until it is removed)")
	c.Flags().StringArrayVar(&labels, "label", nil, "restrict it to cells with label NAME=VALUE (repeatable)")
	c.Flags().IntVar(&cells, "max-cells", 0, "maximum number of cells made with it at a time (default: any)")
	c.Flags().StringVar(&ttl, "ttl", "", "maximum lifetime of a cell made with it: 90m, 12h, 30d (default: unlimited)")
	c.Flags().Var((*rateValue)(&rate), "rate", "requests per second, in a burst twice as many (default: the daemon's limit)")
	complete(c, "scope", "read", "approve", "run", "admin")
	return c
}

// labelWords formats labels for people.
func labelWords(labels map[string]string) string {
	var list []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		list = append(list, k+"="+labels[k])
	}
	return strings.Join(list, " ")
}

// labelsOf parses NAME=VALUE; each name may occur once.
func labelsOf(list []string) (map[string]string, error) {
	var out map[string]string
	for _, s := range list {
		k, v, ok := strings.Cut(s, "=")
		if !ok || k == "" || v == "" {
			return nil, usage("--label takes NAME=VALUE, not %q", s)
		}
		if old, twice := out[k]; twice && old != v {
			return nil, usage("--label says %s=%s and %s=%s: no cell has both", k, old, k, v)
		}
		if out == nil {
			out = map[string]string{}
		}
		out[k] = v
	}
	return out, nil
}

// boundsText describes the bounds of a token beside its scope.
func boundsText(t api.Token) string {
	var list []string
	for _, k := range slices.Sorted(maps.Keys(t.Labels)) {
		list = append(list, k+"="+t.Labels[k])
	}
	if t.MaxCells > 0 {
		list = append(list, fmt.Sprintf("%d of %s", t.Cells, plural(t.MaxCells, "cell")))
	}
	if t.TTL != "" {
		ttl := t.TTL
		if strings.HasSuffix(ttl, "m0s") {
			ttl = strings.TrimSuffix(ttl, "0s")
		}
		if strings.HasSuffix(ttl, "h0m") {
			ttl = strings.TrimSuffix(ttl, "0m")
		}
		list = append(list, ttl+" each")
	}
	if t.Rate > 0 {
		list = append(list, fmt.Sprintf("%g requests/s", t.Rate))
	}
	return strings.Join(list, ", ")
}

// span parses a length of time; it knows days.
func span(flag, s string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.Atoi(days)
		if err == nil && n > 0 && n <= 36500 {
			return time.Duration(n) * 24 * time.Hour, nil
		}
	} else if d, err := time.ParseDuration(s); err == nil && d > 0 {
		return d, nil
	}
	return 0, usage("%s takes a length of time such as 90m, 12h or 30d, not %q", flag, s)
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
				t.row("NAME", "ID", "SCOPE", "CREATED", "EXPIRES", "LAST USED", "BOUNDS")
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
					t.row(k.Name, k.ID, k.Scope, ago(k.Created), expires, used, boundsText(k))
				}
				t.flush()
			})
		},
	}
}

func (a *app) tokenRmCmd() *cobra.Command {
	return &cobra.Command{
		Use: "rm NAME…", Short: "Revoke tokens", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			list := []api.Token{}
			err := inTurn(args, func(name string) (api.Token, error) { return a.client.RemoveToken(cmd.Context(), name) }, func(t api.Token) {
				list = append(list, t)
			})
			return a.printWith(err, list, func(w io.Writer) {
				for _, t := range list {
					fmt.Fprintf(w, "revoked token %s\n", t.Name)
				}
			})
		},
	}
}
