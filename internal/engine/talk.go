package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/state"
)

// listed is how many peers, and how many denials, a run lists.
const listed = 100

// toldAtOnce is how many denials a run tells while it goes on.
const toldAtOnce = 20

// tellDenials tells whoever watches the run what it is refused on the network,
// each thing once, while its command may still try for minutes. The end tells
// all. stop ends it.
func (x *execution) tellDenials(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	over := make(chan struct{})
	go func() {
		defer close(over)
		t := newEventTail(ctx, filepath.Join(x.run.Folder, eventsFile), nil, true)
		defer t.close()
		told := map[string]bool{}
		for ev, err := range receipt.ReadEvents(t, x.run.RunID()) {
			if err != nil || len(told) == toldAtOnce {
				return
			}
			d, ok := fieldsOf[cell.Decided](ev)
			if ev.Kind != "decision" || !ok || d.Decision.Effect != cell.Deny || d.Access.Act == cell.Execute {
				continue
			}
			if w := d.Access.Want(); !told[w] {
				told[w] = true
				x.l.report(api.Progress{Step: api.StepDenied, Note: api.Denial{Want: w, Reason: d.Decision.Reason, Permit: d.Decision.Permit}.String()})
			}
		}
	}()
	return func() {
		cancel()
		<-over
	}
}

// talk reads a run's event stream for what was said to the outside; nil: there is
// nothing of that kind in it. And for the system calls that were missing.
func talk(folder string, run cell.RunID) (_ *state.Network, missing []string, _ error) {
	f, err := openRecord(folder, "events.jsonl")
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	n := &state.Network{}
	peers, denials := map[string]*state.Peer{}, map[string]*state.Denial{}
	var order []*state.Denial
	seen := false
	for ev, err := range receipt.ReadEvents(f, run) {
		if err != nil {
			return nil, nil, err
		}
		switch ev.Kind {
		case "decision":
			var d cell.Decided
			if json.Unmarshal(ev.Fields, &d) != nil {
				continue
			}
			seen = true
			times := max(d.Count, 1)
			n.Decisions += int(times)
			switch {
			case d.Decision.Allowed() && d.Decision.By == "person":
				n.Approved += int(times)
			case d.Decision.Effect == cell.Ask: // what became of it is told by itself
			case !d.Decision.Allowed():
				n.Denied += int(times)
				key := d.Access.Want() + "\x00" + d.Decision.Rule
				if denials[key] == nil {
					denials[key] = &state.Denial{Want: d.Access.Want(), Rule: d.Decision.Rule, Origin: d.Decision.Origin, Reason: d.Decision.Reason,
						Permit: d.Decision.Permit, Line: d.Decision.Line, Narrower: d.Decision.Narrower, By: d.Decision.By}
					order = append(order, denials[key])
				}
				denials[key].Times += times
			}
		case "kernel.missing":
			if f, ok := fieldsOf[missingFields](ev); ok {
				missing = append(missing, missingCalls(f)...)
			}
		case "network.none":
			if none, ok := fieldsOf[noneFields](ev); ok {
				seen = true
				n.Tried += none.Tries
			}
		case "network.unresolved":
			f, ok := fieldsOf[cell.Unresolved](ev)
			if !ok {
				continue
			}
			seen = true
			if !slices.ContainsFunc(n.Unresolved, func(u state.Unresolved) bool { return u.Host == f.Host }) && len(n.Unresolved) < listed {
				n.Unresolved = append(n.Unresolved, state.Unresolved{Host: f.Host, Error: f.Error})
			}
		case "flow":
			var fl cell.Flow
			if json.Unmarshal(ev.Fields, &fl) != nil {
				continue
			}
			seen = true
			host := fl.Host
			if host == "" {
				host = fl.Addr.String()
			}
			key := host + ":" + strconv.Itoa(int(fl.Port))
			p := peers[key]
			if p == nil {
				p = &state.Peer{Host: host, Port: int(fl.Port)}
				peers[key] = p
			}
			p.Flows++
			if fl.Unchecked {
				n.Unchecked++
			}
			p.Sent += fl.Sent
			p.Received += fl.Received
			p.Opened = p.Opened || fl.Opened
			if fl.Method != "" {
				p.Requests++
				n.Requests++
			}
			if fl.Secret != "" && !slices.Contains(p.Credential, fl.Secret) {
				p.Credential = append(p.Credential, fl.Secret)
			}
			n.Sent += fl.Sent
			n.Received += fl.Received
		}
	}
	if !seen {
		return nil, missing, nil
	}
	for _, p := range peers {
		n.Peers = append(n.Peers, *p)
	}
	slices.SortFunc(n.Peers, func(a, b state.Peer) int {
		return cmp.Or(cmp.Compare(b.Sent+b.Received, a.Sent+a.Received), cmp.Compare(a.Host, b.Host), cmp.Compare(a.Port, b.Port))
	})
	for _, d := range order {
		n.Denials = append(n.Denials, *d)
	}
	if x := len(n.Peers) - listed; x > 0 {
		n.Peers, n.More = n.Peers[:listed], n.More+x
	}
	if x := len(n.Denials) - listed; x > 0 {
		n.Denials, n.More = n.Denials[:listed], n.More+x
	}
	return n, missing, nil
}

// missingCalls are the words for system calls that a kernel does not have.
func missingCalls(f missingFields) []string {
	if f.Others > 0 {
		return append(f.Calls, "and others")
	}
	return f.Calls
}

// networkMarkdown tells what a run said to the outside.
func networkMarkdown(b *strings.Builder, n *state.Network) {
	if n == nil {
		return
	}
	if n.Tried > 0 {
		fmt.Fprintf(b, "\n## Network\n\nThe cell had none. %d packets of the command found nobody to go to.\n", n.Tried)
		return
	}
	fmt.Fprintf(b, "\n## Network\n\n%d decisions: %d denied, %d allowed by a person. %s out of the cell, %s into it.\n",
		n.Decisions, n.Denied, n.Approved, policy.FormatSize(n.Sent), policy.FormatSize(n.Received))
	if n.Unchecked > 0 {
		fmt.Fprintf(b, "\n%d connections or requests went through the proxy of the host to names that the host itself does not find: which addresses they led to was not checked.\n", n.Unchecked)
	}
	for _, u := range n.Unresolved {
		fmt.Fprintf(b, "\n`%s` is allowed, and could not be looked up: %s.\n", cell1(u.Host), cell1(u.Error))
	}
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
