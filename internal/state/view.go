package state

import (
	"fmt"
	"strings"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/workspace/diff"
)

// API is what the API shows of a run's record. It does not know which clients are attached.
func (r *Run) API() api.Run {
	return api.Run{
		ID: r.ID, Cell: r.Cell, CellName: r.CellName, Command: r.Command, Source: r.Source, Repositories: r.Repositories, Backend: r.Backend, Isolation: r.Isolation,
		Image: r.Image, ImageID: r.ImageID, Phase: string(r.Phase), Created: r.Created, Started: r.Started, Ended: r.Ended,
		ExitCode: r.ExitCode, Signal: r.Signal, Cause: r.Cause, Verdict: string(r.Verdict), Reason: r.Reason, By: r.By, Applied: r.Applied,
		Before: r.Before.API(), After: r.After.API(), Receipt: r.Receipt, Receipts: r.Receipts, Policy: r.Policy,
		Changes: r.Changes.API(), LeftOut: LeftOutAPI(r.LeftOut), Notes: r.Notes, Conflicts: r.Conflicts, Commits: r.Commits.API(),
		Check: (*api.Check)(r.Check), Usage: api.Usage(r.Usage), Output: r.Output.API(), Timings: api.Timings(r.Timings),
		Assurance: r.Assurance.API(), Provider: api.Provider(r.Provider), TTY: r.TTY, Agent: r.Agent, Mode: r.Mode, Autonomy: r.Autonomy, ModelURL: r.ModelURL, ReplayOf: r.ReplayOf, Ref: r.Ref, Asked: r.Asked.API(), NeedsSignOff: r.NeedsSignOff.API(), SignOffs: each(r.SignOffs, SignOff.API), Hold: r.Hold.API(), Erased: each(r.Erased, Erased.API), ModeReason: r.ModeReason, DowngradeWords: r.DowngradeWords, Interactive: r.Interactive, Downgrades: r.Downgrades,
		Network: r.Network.API(), MissingCalls: r.MissingCalls, Caches: each(r.Caches, func(c CacheUse) api.CacheUse { return api.CacheUse(c) }), Services: each(r.Services, func(s ServiceUse) api.ServiceUse { return api.ServiceUse(s) }), Error: r.Error.API(), Folder: r.Folder, Secrets: r.Secrets.API(), Recording: recordingAPI(r.Recording),
	}
}

func recordingAPI(r *cell.Recording) *api.Recording {
	if r == nil {
		return nil
	}
	return &api.Recording{Digest: r.Digest.String(), Exchanges: r.Exchanges, Bytes: r.Bytes, Cut: r.Cut, NotRecorded: r.NotRecorded, Incomplete: r.Incomplete}
}

// API is what the API shows of a point; nil for nil.
func (p *Point) API() *api.Point { return (*api.Point)(p) }

// API is what the API shows of what was changed.
func (c Changes) API() api.Changes {
	return api.Changes{Files: c.Files, Added: c.Added, Deleted: c.Deleted, Ignored: c.Ignored, Bytes: c.Bytes,
		First: LooksAPI(c.First), FirstMore: c.FirstMore}
}

// LooksAPI is what the API shows of what to look at first.
func LooksAPI(list []Look) []api.Look {
	return each(list, func(l Look) api.Look { return api.Look(l) })
}

// LeftOutAPI is what the API shows of what import left out.
func LeftOutAPI(list []LeftOut) []api.LeftOut {
	return each(list, func(l LeftOut) api.LeftOut { return api.LeftOut(l) })
}

// API is what the API shows of commits; nil for nil.
func (c *CellCommits) API() *api.CellCommits {
	if c == nil {
		return nil
	}
	return &api.CellCommits{Source: c.Source, Commits: c.Commits, More: c.More, Branches: c.Branches, Since: c.Since, CheckedOut: c.CheckedOut,
		Submodules: each(c.Submodules, func(s SubmoduleCommits) api.SubmoduleCommits { return api.SubmoduleCommits(s) })}
}

// API is what the API shows of both streams.
func (o Outputs) API() api.Outputs {
	return api.Outputs{Stdout: api.Output1(o.Stdout), Stderr: api.Output1(o.Stderr)}
}

// API is what the API shows of how strong the isolation was.
func (a Assurance) API() api.Assurance {
	return api.Assurance{Isolation: a.Isolation, Limits: each(a.Limits, func(l AppliedLimit) api.AppliedLimit { return api.AppliedLimit(l) }),
		Canaries: api.Canaries(a.Canaries), Network: a.Network, IDs: a.IDs}
}

// API is what the API shows of a run's network; nil for nil.
func (n *Network) API() *api.Network {
	if n == nil {
		return nil
	}
	out := &api.Network{Link: n.Link, Decisions: n.Decisions, Denied: n.Denied, Approved: n.Approved, Requests: n.Requests, Sent: n.Sent,
		Received: n.Received, Tried: n.Tried, Unchecked: n.Unchecked,
		Unresolved: each(n.Unresolved, func(u Unresolved) api.Unresolved { return api.Unresolved(u) }),
		Peers:      each(n.Peers, func(p Peer) api.Peer { return api.Peer(p) }),
		Denials:    each(n.Denials, func(d Denial) api.Denial { return api.Denial(d) }), More: n.More, Prices: n.Prices}
	for _, u := range n.Models {
		out.Models = append(out.Models, api.ModelUse(u))
	}
	for _, b := range n.Budget {
		out.Budget = append(out.Budget, api.BudgetNote(b))
	}
	return out
}

// API is what the API shows of an error; nil for nil.
func (e *Error) API() *api.Error {
	if e == nil {
		return nil
	}
	return &api.Error{Kind: api.Kind(e.Kind), Subject: string(e.Subject), Message: e.Message, Hint: e.Hint}
}

// API is what the API shows of the search for lent credentials; nil for nil.
func (s *Secrets) API() *api.Secrets {
	if s == nil {
		return nil
	}
	return &api.Secrets{Lent: each(s.Lent, func(l SecretLent) api.SecretLent { return api.SecretLent(l) }), Scanned: s.Scanned,
		Found: each(s.Found, func(f SecretFound) api.SecretFound { return api.SecretFound(f) }), More: s.More, NotScanned: s.NotScanned, TookMS: s.TookMS}
}

// each makes a list of another, entry by entry; nil of nil.
func each[A, B any](list []A, f func(A) B) []B {
	if list == nil {
		return nil
	}
	out := make([]B, len(list))
	for i, a := range list {
		out[i] = f(a)
	}
	return out
}

// Line is a change to look at first, in a line.
func (l Look) Line() string {
	name := diff.Quote(l.Path)
	if l.Files > 1 {
		name += fmt.Sprintf(" (%d files)", l.Files)
	}
	return name + ": " + strings.ToValidUTF8(l.Why, "?")
}

// Covers reports whether a path is what l names, or below it.
func (l Look) Covers(path string) bool {
	return path == l.Path || strings.HasSuffix(l.Path, "/") && strings.HasPrefix(path, l.Path)
}

// CountProcesses is a number of processes in words.
func CountProcesses(n int) string {
	if n == 1 {
		return "1 process"
	}
	return fmt.Sprintf("%d processes", n)
}

// Asked is the caller that asked for a run.
type Asked struct {
	User      string `json:"user"`                 // of the operating system, for a caller on this host
	Token     string `json:"token,omitempty"`      // its id
	TokenName string `json:"token_name,omitempty"` // for people
	Door      string `json:"door,omitempty"`       // see package ceiling
}

// API returns the view of the API; nil for nil.
func (a *Asked) API() *api.Asked {
	if a == nil {
		return nil
	}
	v := api.Asked(*a)
	return &v
}
