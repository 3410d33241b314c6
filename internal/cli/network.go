package cli

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/pando-dev/pando/api"
)

// denials prints what a run was denied, and the flag that would allow it.
func (a *app) denials(run api.Run) {
	n := run.Network
	if n == nil {
		return
	}
	// A command that succeeds without a network did not need it.
	if n.Tried > 0 && run.ExitCode != nil && *run.ExitCode != 0 {
		a.say("pando: the command tried to use the network, and this cell has none: allow it with --allow HOST or --allow @PRESET (pando help policy)")
	}
	for _, u := range n.Unresolved {
		a.say("pando: %s is allowed, and this host could not look it up: %s", printable(u.Host), printable(u.Error))
	}
	const shown = 8
	for i, d := range n.Denials {
		if i == shown {
			a.say("pando: and %s more; pando show RUN lists them", plural(len(n.Denials)+n.More-shown, "denial"))
			break
		}
		once := d
		once.Times = 0
		if a.told[once.String()] {
			continue
		}
		a.say("pando: denied: %s", printable(d.String()))
	}
}

// modelLine is the use of a model in one line.
func modelLine(u api.ModelUse, prices string) string {
	s := fmt.Sprintf("%s: %s, %d tokens in, %d from a cache, %d out", printable(cmp.Or(u.Model, "not named")), plural(int(u.Requests), "answer"), u.Input+u.CacheWrite, u.CacheRead, u.Output)
	if u.Unseen > 0 {
		s += fmt.Sprintf(", %d without usage", u.Unseen)
	}
	if u.Unpriced {
		return s + ", no price known"
	}
	if u.OwnPrice {
		return s + fmt.Sprintf(", $%.4f (by the policy's prices)", float64(u.MicroUSD)/1e6)
	}
	return s + fmt.Sprintf(", $%.4f (prices of %s)", float64(u.MicroUSD)/1e6, prices)
}

// showNetwork lists the hosts that a run connected to, and its denials.
func showNetwork(w io.Writer, n *api.Network) {
	if n == nil {
		return
	}
	if n.Tried > 0 {
		field(w, "network", fmt.Sprintf("none; %s of the command found no network", plural(int(n.Tried), "packet")))
		return
	}
	line := fmt.Sprintf("%s, %d denied", plural(n.Decisions, "decision"), n.Denied)
	if n.Approved > 0 {
		line += fmt.Sprintf(", %d allowed by a person", n.Approved)
	}
	field(w, "network", fmt.Sprintf("%s; %s out, %s in", line, size(n.Sent), size(n.Received)))
	for _, u := range n.Unresolved {
		field(w, "not found", printable(u.Host)+" is allowed, and this host could not look it up: "+printable(u.Error))
	}
	for _, p := range n.Peers {
		s := fmt.Sprintf("%s:%d, %s out, %s in", printable(p.Host), p.Port, size(p.Sent), size(p.Received))
		switch {
		case p.Requests > 0:
			s += ", " + plural(p.Requests, "request")
		case p.Flows > 0:
			s += ", " + plural(p.Flows, "connection")
		}
		if len(p.Credential) > 0 {
			s += ", with credential " + strings.Join(p.Credential, ", ")
		}
		field(w, "connected to", s)
	}
	for _, u := range n.Models {
		field(w, "model", modelLine(u, n.Prices))
	}
	for _, b := range n.Budget {
		field(w, "budget", printable(b.Text))
	}
	for _, d := range n.Denials {
		field(w, "denied", printable(d.String()))
	}
	if n.More > 0 {
		field(w, "more", fmt.Sprintf("%d that are not listed: pando events", n.More))
	}
}
