package report

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/pando-dev/pando/api"
)

// Bounds of what is added up over the runs of a cell.
const (
	cellPeers    = 100
	cellFindings = 500
)

// AddRun adds the complete report of a run to that of its cell. Runs are added oldest first.
func AddRun(to *api.CellReport, r *api.Report) {
	run := &r.Run
	one := api.CellRun{Run: run.ID, Command: run.Command, Agent: run.Agent, Outcome: Outcome(run), Good: run.ExitCode != nil && *run.ExitCode == 0, Verdict: run.Verdict,
		Reason: run.Reason, Started: run.Started, Took: Took(run), Files: run.Changes.Files, Evidence: r.Evidence, Unjudged: r.Unjudged(), Receipts: r.Receipts, Verification: r.Verification}
	if one.Command == nil {
		one.Command = []string{}
	}
	if run.ExitCode == nil && len(run.Receipts) == 0 && run.Phase == "ended" {
		one.Unjudged = "" // it never started, so there is nothing to judge
	}
	if c := run.Check; c != nil {
		one.Check = "passed"
		if c.ExitCode != 0 || c.Cause != "" {
			one.Check = fmt.Sprintf("failed with exit code %d", c.ExitCode)
			one.Good = false
		}
	}
	to.Runs = append(to.Runs, one)
	for _, f := range r.Findings {
		addFinding(to, f, run.ID)
	}
	for _, p := range r.Problems {
		to.Problems = append(to.Problems, "run "+run.ID+": "+p)
	}
	for _, w := range run.DowngradeWords {
		if !slices.Contains(to.Weaker, w) {
			to.Weaker = append(to.Weaker, w)
		}
	}
	to.Usage.WallMS += run.Usage.WallMS
	to.Usage.CPUMS += run.Usage.CPUMS
	to.Usage.PeakMemory = max(to.Usage.PeakMemory, run.Usage.PeakMemory)
	to.Usage.Written += run.Usage.Written
	if run.Network != nil {
		if to.Network == nil {
			to.Network = &api.Network{}
		}
		addNetwork(to.Network, run.Network)
	}
}

// addFinding adds what was found in a run. The same in several runs is one.
func addFinding(to *api.CellReport, f api.RunFinding, run string) {
	for i := range to.Findings {
		if o := &to.Findings[i]; o.Rule == f.Rule && o.Severity == f.Severity && o.Path == f.Path && o.Line == f.Line && o.What == f.What {
			o.Runs, o.See = append(o.Runs, run), f.See
			return
		}
	}
	f.Runs = []string{run}
	to.Findings = append(to.Findings, f)
}

// addNetwork adds the traffic of a run.
func addNetwork(to, n *api.Network) {
	to.Decisions += n.Decisions
	to.Denied += n.Denied
	to.Approved += n.Approved
	to.Requests += n.Requests
	to.Sent += n.Sent
	to.Received += n.Received
	to.Tried += n.Tried
	to.Unchecked += n.Unchecked
	to.More += n.More
	for _, p := range n.Peers {
		i := slices.IndexFunc(to.Peers, func(o api.Peer) bool { return o.Host == p.Host && o.Port == p.Port })
		switch {
		case i >= 0:
			o := &to.Peers[i]
			o.Requests, o.Flows, o.Sent, o.Received, o.Opened = o.Requests+p.Requests, o.Flows+p.Flows, o.Sent+p.Sent, o.Received+p.Received, o.Opened || p.Opened
			for _, c := range p.Credential {
				if !slices.Contains(o.Credential, c) {
					o.Credential = append(o.Credential, c)
				}
			}
		case len(to.Peers) < cellPeers:
			p.Credential = slices.Clone(p.Credential)
			to.Peers = append(to.Peers, p)
		default:
			to.More++
		}
	}
	for _, d := range n.Denials {
		i := slices.IndexFunc(to.Denials, func(o api.Denial) bool { return o.Want == d.Want && o.Rule == d.Rule && o.By == d.By })
		switch {
		case i >= 0:
			to.Denials[i].Times += d.Times
		case len(to.Denials) < cellPeers:
			to.Denials = append(to.Denials, d)
		default:
			to.More++
		}
	}
	for _, m := range n.Models {
		i := slices.IndexFunc(to.Models, func(o api.ModelUse) bool { return o.Model == m.Model })
		if i < 0 {
			to.Models = append(to.Models, m)
			continue
		}
		o := &to.Models[i]
		o.Requests, o.Input, o.Output, o.CacheRead, o.CacheWrite = o.Requests+m.Requests, o.Input+m.Input, o.Output+m.Output, o.CacheRead+m.CacheRead, o.CacheWrite+m.CacheWrite
		o.Unseen, o.Calls, o.MicroUSD = o.Unseen+m.Unseen, o.Calls+m.Calls, o.MicroUSD+m.MicroUSD
		o.Unpriced, o.OwnPrice = o.Unpriced || m.Unpriced, o.OwnPrice || m.OwnPrice
	}
	to.Prices = cmp.Or(n.Prices, to.Prices)
}

// CompleteCell adds to the report of a cell what follows from the rest of it.
func CompleteCell(r *api.CellReport) {
	r.Evidence = cellEvidence(r)
	if n := len(r.Findings) - cellFindings; n > 0 { // the most severe come first
		r.Findings = r.Findings[:cellFindings]
		r.Problems = append(r.Problems, fmt.Sprintf("findings: %d more of the same or lower severity are not listed", n))
	}
	r.Unknown = cellUnknown(r)
	r.Headline = cellHeadline(r)
}

// cellEvidence is the least of what holds of the runs.
func cellEvidence(r *api.CellReport) string {
	is := verified
	if len(r.Runs) == 0 || r.MoreRuns > 0 {
		is = unproven
	}
	for _, x := range r.Runs {
		switch {
		case x.Evidence == broken:
			return broken
		case x.Evidence != verified:
			is = unproven
		}
	}
	return is
}

// ends counts the runs that did not succeed, and those that go on.
func ends(runs []api.CellRun) (failed, open int) {
	for _, x := range runs {
		switch {
		case x.Outcome == underWay:
			open++
		case !x.Good:
			failed++
		}
	}
	return failed, open
}

func cellHeadline(r *api.CellReport) string {
	failed, open := ends(r.Runs)
	s := count(len(r.Runs)+r.MoreRuns, "run")
	if failed > 0 {
		s += fmt.Sprintf(", of which %d did not succeed", failed)
	}
	if open > 0 {
		s += fmt.Sprintf(", of which %d under way", open)
	}
	turns, beside := 0, 0
	for _, x := range r.Steps {
		switch x.Kind {
		case "turn":
			turns++
		case "exec", "eval":
			beside++
		}
	}
	if turns > 0 {
		s += ", " + count(turns, "turn")
	}
	if beside > 0 {
		s += ", " + count(beside, "command") + " beside them"
	}
	switch n := len(r.Files) + r.More; {
	case r.To == "":
		s += "; what changed is not known"
	case n == 0:
		s += "; nothing differs from " + r.From
	default:
		s += "; " + count(n, "changed file")
	}
	severe := 0
	for _, f := range r.Findings {
		if f.Severity == api.SeverityHigh {
			severe++
		}
	}
	if severe > 0 {
		s += "; " + count(severe, "thing") + " to look at before anything is taken"
	}
	if r.Evidence == broken {
		s += "; its evidence does not hold"
	}
	return s + "."
}

// cellUnknown says what can't be concluded from the evidence of a cell.
func cellUnknown(r *api.CellReport) []string {
	list := []string{"That the result is right. Exit codes and checks say what they test, and no more."}
	for _, s := range r.Steps {
		if s.Kind == "exec" || s.Kind == "eval" {
			list = append(list, "That the lines about commands and evaluations beside runs are as they were: no receipt has them. What they changed is in the changes above.")
			break
		}
	}
	for _, s := range r.Steps {
		if s.Basis == api.Reported {
			list = append(list, "That the reported tool calls were made so: they are the agent's words.")
			break
		}
	}
	list = append(list, "What was there in between: a file that was changed and changed back is in no line of the changes. The report of each run has its own.")
	if r.MoreRuns > 0 {
		list = append(list, "What "+count(r.MoreRuns, "earlier run")+" did: they are not looked at here.")
	}
	if r.Cell.Isolation != "isolated" {
		list = append(list, "That nothing else on the host changed: the cell is not isolated.")
	}
	if r.Cell.Parent != nil {
		list = append(list, "What was done in the cell that it was forked from: that has a report of its own.")
	}
	for _, x := range r.Runs {
		if x.Verification == nil && x.Outcome != underWay {
			list = append(list, "That the evidence of run "+x.Run+" is what was signed: it could not be verified.")
		} else if x.Verification != nil && len(x.Verification.Unproven) > 0 {
			list = append(list, "What could not be verified of run "+x.Run+": "+first(x.Verification.Unproven, 3)+".")
		}
	}
	return append(list, "That nothing else was signed with the key of this installation: a copy of the ledger's head that was kept elsewhere shows that (pando receipt export).")
}
