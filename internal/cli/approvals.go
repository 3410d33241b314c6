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
		Short: "List requests that wait for a decision, and decide them",
		Long: `List the requests of cells that a rule of the policy leaves to a person. The command
in the cell waits for the decision; at the time limit the request is denied. A budget
that is used up is asked about, too: its cells stay paused until as much again is granted.

An approval is valid for exactly this request, under the policy that asked: once, for
all equal requests of the run, or for a time.`,
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
	c.Flags().BoolVar(&all, "all", false, "also decisions of the last 30 days")
	var scope string
	approve := &cobra.Command{
		Use: "approve ID", Short: "Allow a request", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeApprovals,
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
		Use: "deny ID", Short: "Deny a request", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeApprovals,
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

// approvalID completes a prefix of the identifier of a pending approval.
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
		fmt.Fprintln(w, "no request waits for a decision")
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
			if state = "waits"; v.Expires.IsZero() {
				break
			}
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
