package engine

import (
	"fmt"
	"strings"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/policy"
)

// networkMarkdown tells what a run said to the outside.
func networkMarkdown(b *strings.Builder, n *api.Network) {
	if n == nil {
		return
	}
	if n.Tried > 0 {
		fmt.Fprintf(b, "\n## Network\n\nThe cell had none. %d packets of the command found nobody to go to.\n", n.Tried)
		return
	}
	fmt.Fprintf(b, "\n## Network\n\n%d decisions: %d denied, %d allowed by a person. %s out of the cell, %s into it.\n",
		n.Decisions, n.Denied, n.Approved, policy.FormatSize(n.Sent), policy.FormatSize(n.Received))
	if len(n.Peers) > 0 {
		b.WriteString("\n| talked to | times | out | in | looked into | credentials put in |\n|---|---|---|---|---|---|\n")
		for _, p := range n.Peers {
			opened := "no"
			if p.Opened {
				opened = "yes"
			}
			fmt.Fprintf(b, "| `%s` | %d | %s | %s | %s | %s |\n", cell1(fmt.Sprintf("%s:%d", p.Host, p.Port)), p.Flows, policy.FormatSize(p.Sent), policy.FormatSize(p.Received),
				opened, orElse(strings.Join(p.Credential, ", "), "–"))
		}
	}
	if len(n.Denials) > 0 {
		b.WriteString("\n| denied | times | by | because |\n|---|---|---|---|\n")
		for _, d := range n.Denials {
			fmt.Fprintf(b, "| `%s` | %d | %s | %s |\n", cell1(d.Want), d.Times, cell1(d.Rule+" ("+d.Origin+")"), cell1(d.Reason))
		}
	}
	if n.More > 0 {
		fmt.Fprintf(b, "\n%d more are not listed; the event stream has all.\n", n.More)
	}
}

// cell1 makes text fit into one cell of a table.
func cell1(s string) string {
	return strings.NewReplacer("|", "\\|", "`", "'", "\n", " ").Replace(s)
}
