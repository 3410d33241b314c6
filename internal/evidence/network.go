package evidence

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"iter"
	"os"
	"slices"
	"strconv"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/agent/price"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/state"
)

// listed is how many peers, and how many denials, a run lists.
const listed = 100

// Denials yields what a run is refused on the network, each thing once, while its command goes
// on, until ctx ends.
func Denials(ctx context.Context, run *state.Run) iter.Seq[api.Denial] {
	return func(yield func(api.Denial) bool) {
		t := newEventTail(ctx, run.Folder, ctx.Done(), true)
		defer t.close()
		told := map[string]bool{}
		for ev, err := range receipt.ReadEvents(t, run.RunID()) {
			if err != nil {
				return
			}
			d, ok := fieldsOf[cell.Decided](ev)
			if ev.Kind != "decision" || !ok || d.Decision.Effect != cell.Deny || d.Access.Act == cell.Execute {
				continue
			}
			w := d.Access.Want()
			if told[w] {
				continue
			}
			told[w] = true
			if !yield(api.Denial{Want: w, Reason: d.Decision.Reason, Permit: d.Decision.Permit}) {
				return
			}
		}
	}
}

// Network reads a run's event stream for what was said to the outside; nil: there is
// nothing of that kind in it. And for the system calls that were missing. own are the
// user's own prices of models.
func Network(folder string, run cell.RunID, own []price.Own) (_ *state.Network, missing []string, _ error) {
	f, err := OpenRecord(folder, eventsFile)
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
	var models []cell.ModelUse
	seen := false
	for ev, err := range receipt.ReadEvents(f, run) {
		if err != nil {
			return nil, nil, err
		}
		switch ev.Kind {
		case "decision":
			d, ok := fieldsOf[cell.Decided](ev)
			if !ok {
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
			fl, ok := fieldsOf[cell.Flow](ev)
			if !ok {
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
			if fl.Model != nil {
				models = cell.AddUse(models, *fl.Model)
			}
		case "budget":
			if b, ok := fieldsOf[cell.BudgetNote](ev); ok {
				seen = true
				if len(n.Budget) < listed {
					n.Budget = append(n.Budget, state.BudgetNote(b))
				}
			}
		}
	}
	if !seen {
		return nil, missing, nil
	}
	for _, u := range models {
		cost := price.Of(u, own)
		n.Models = append(n.Models, state.ModelUse{Model: u.Model, Requests: u.Requests, Input: u.Input, Output: u.Output, CacheRead: u.CacheRead, CacheWrite: u.CacheWrite,
			Unseen: u.Unseen, Calls: u.Calls, MicroUSD: cost.MicroUSD, Unpriced: !cost.Known, OwnPrice: cost.Own})
		if !cost.Own {
			n.Prices = price.Date()
		}
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

// ExitOf reads how the command of a run ended from what its keeper wrote before it was gone.
func ExitOf(run *state.Run) (cell.Status, error) {
	lost := cell.Errorf(cell.Unavailable, "evidence.ExitOf", "", "the keeper is gone, and did not write how the command ended")
	f, err := OpenRecord(run.Folder, eventsFile)
	if err != nil {
		return cell.Status{}, lost
	}
	defer f.Close()
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, receipt.MaxEvent)
	for sc.Scan() {
		var ev receipt.Event
		if json.Unmarshal(sc.Bytes(), &ev) != nil || ev.Kind != "process.exit" {
			continue
		}
		if x, ok := fieldsOf[exitFields](ev); ok {
			return cell.Status{Exit: &cell.Exit{Code: x.Code, Signal: x.Signal, Cause: cmp.Or(x.Cause, "daemon lost")}, Started: run.Started,
				Ended: ev.Time, Stdout: x.Stdout, Stderr: x.Stderr, Usage: x.Usage, Stats: x.Stats}, nil
		}
	}
	return cell.Status{}, lost
}
