package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
)

func (a *app) approvalsCmd() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:   "approvals",
		Short: "Show what waits for a person, and decide on it",
		Long: `Show what cells wait for: requests that a rule of the policy says a person
decides on. The command in the cell is held until then, or until the time is
over; then the request is denied.

An approval is good for exactly what was asked, under the policy that asked:
once, or as often as the run asks for the same, or for a time.`,
		Example: `  pando approvals
  pando approvals approve q-1a2b --for run
  pando approvals approve q-1a2b --for 10m
  pando approvals deny q-1a2b`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := a.client.Approvals(cmd.Context(), all)
			if err != nil {
				return err
			}
			return a.print(list, func(w io.Writer) { a.showApprovals(w, list, all) })
		},
	}
	c.Flags().BoolVar(&all, "all", false, "also what was decided, in the last 30 days")
	var scope string
	approve := &cobra.Command{
		Use: "approve ID", Short: "Allow what is asked", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeApprovals,
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := a.approvalID(cmd, args[0])
			if err != nil {
				return err
			}
			v, err := a.client.Approve(cmd.Context(), id, api.ApprovalRequest{Scope: scope})
			if err != nil {
				return err
			}
			return a.print(v, func(io.Writer) { a.say("approved %s: %s", scopeWords(v.Scope), printable(v.Want)) })
		},
	}
	approve.Flags().StringVar(&scope, "for", "once", "once, run, or a time such as 10m")
	complete(approve, "for", "once", "run", "10m", "1h")
	deny := &cobra.Command{
		Use: "deny ID", Short: "Refuse what is asked", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeApprovals,
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := a.approvalID(cmd, args[0])
			if err != nil {
				return err
			}
			v, err := a.client.Deny(cmd.Context(), id)
			if err != nil {
				return err
			}
			return a.print(v, func(io.Writer) { a.say("denied: %s", printable(v.Want)) })
		},
	}
	c.AddCommand(approve, deny)
	return c
}

// approvalID completes a prefix of the identifier of something that waits.
func (a *app) approvalID(cmd *cobra.Command, prefix string) (string, error) {
	list, err := a.client.Approvals(cmd.Context(), false)
	if err != nil {
		return "", err
	}
	found := ""
	for _, v := range list {
		if len(prefix) >= 4 && len(prefix) < len(v.ID) && v.ID[:len(prefix)] == prefix {
			if found != "" {
				return "", usage("%s is more than one approval; give more of it", prefix)
			}
			found = v.ID
		}
	}
	if found == "" {
		return prefix, nil
	}
	return found, nil
}

func scopeWords(scope string) string {
	switch scope {
	case "once", "":
		return "once"
	case "run":
		return "for the run"
	}
	return "for " + scope
}

func (a *app) showApprovals(w io.Writer, list []api.Approval, all bool) {
	if len(list) == 0 {
		fmt.Fprintln(w, "nothing waits for you")
		return
	}
	t := a.newTable(w)
	t.row("ID", "CELL", "WANTS", "BECAUSE OF", "STATE")
	for _, v := range list {
		name := v.CellName
		if name == "" {
			name = v.Cell
		}
		state := v.State
		switch v.State {
		case "waiting":
			state = "waits " + time.Until(v.Expires).Round(time.Second).String()
		case "approved":
			state = "approved " + scopeWords(v.Scope)
		}
		t.row(v.ID, name, printable(v.Want), printable(v.Rule+" ("+v.Origin+")"), state)
	}
	t.flush()
	if !all {
		a.say("pando approvals approve ID [--for once|run|10m], or deny ID")
	}
}

func (a *app) completeApprovals(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 || a.prepare() != nil || !a.client.Alive(cmd.Context()) {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	if list, err := a.client.Approvals(cmd.Context(), false); err == nil {
		for _, v := range list {
			out = append(out, v.ID+"\t"+v.Want)
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}
