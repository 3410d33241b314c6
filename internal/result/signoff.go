package result

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace/diff"
)

// A policy can demand that approvers sign a result before it is accepted (accept in policy files). What is signed is the cell, the runs
// and the digest of the offer, so a sign-off of other changes, or of the same changes elsewhere, does not count. Signatures are verified at
// each accept with the keys that the policies of the host and the user name then: records are not trusted.

// maxSignOffs bounds what a cell's record keeps of sign-offs.
const maxSignOffs = 200

// maxSignOffText bounds the message of a sign-off, and clockAhead how far its time may be in the future.
const (
	maxSignOffText = 500
	clockAhead     = 5 * time.Minute
)

// contributing are the runs that made the changes of an offer: what has to be signed, and further ones that were accepted before.
func (m *Manager) contributing(o *offer) (must, all []string) {
	for _, r := range o.covers {
		must = append(must, r.ID)
	}
	if o.run != nil && !slices.Contains(must, o.run.ID) {
		must = append(must, o.run.ID)
	}
	if o.during != "" {
		must = append(must, string(o.during))
	}
	all = slices.Clone(must)
	if o.run == nil {
		for _, id := range m.acceptedIn(o) {
			all = append(all, string(id))
		}
	}
	slices.Sort(all)
	return must, slices.Compact(all)
}

// comesFrom are further runs that what a cell is comes from: accepted ones that changed nothing since, and those of the cells that it was
// forked from. A fork takes neither what they demanded nor the callers that asked for them away.
func (m *Manager) comesFrom(o *offer, but []string) (list []state.Run) {
	if o.run != nil {
		return nil
	}
	here, cells := m.cfg.Records.Ancestors(o.at.ID), map[cell.ID]bool{}
	for id := range here {
		k, err := m.cfg.Records.Checkpoint(id)
		if err != nil || cells[k.Cell] {
			continue
		}
		cells[k.Cell] = true
		for _, r := range m.cfg.Records.Runs(k.Cell) {
			if here[r.In.After] && !r.OffersNothing() && !slices.Contains(but, r.ID) {
				list = append(list, r)
			}
		}
	}
	return list
}

// headCommit is the commit that is checked out in the cell of an offer, "" for none.
func (o *offer) headCommit() (string, error) {
	h, err := newGitFiles(o.after, gitFolder).head()
	return h.Commit, err
}

// signed is an offer with what the policy demands for it and what was signed.
type signed struct {
	api.SignOffs
	keys        map[string]int // index of Approvers by the id of a key
	withCommits bool           // those of the cell are to come, too
	refuse      []string       // approvers that rejected exactly this, by their newest word
	by          []state.SignedBy
}

// signOffs says what the policy demands for an offer, and which sign-offs count. With ignored, files that git ignores are part of it, and withCommits
// the commits.
func (m *Manager) signOffs(ctx context.Context, o *offer, ignored, withCommits bool) (signed, error) {
	must, all := m.contributing(o)
	c := o.c
	s := signed{withCommits: withCommits, keys: map[string]int{}, SignOffs: api.SignOffs{Ledger: m.cfg.Evidence.Origin(), Cell: string(c.ID), Runs: all, Digest: o.digest.String(), Base: o.base.Tree.ContentDigest().String(),
		After: o.after.Tree.ContentDigest().String(), Why: []string{}, Approvers: []api.Approver{}, SignOffs: []api.SignOff{}}}
	runs, newest := make([]state.Run, 0, len(all)), time.Time{}
	for _, id := range all {
		r, err := m.cfg.Records.Run(cell.RunID(id))
		if err != nil {
			return s, err
		}
		if newest.Before(r.Created) {
			newest, s.Policy = r.Created, r.Policy
		}
		runs = append(runs, r)
	}
	from := m.comesFrom(o, all)
	rule, err := m.cfg.Decides.SignOffs(c, runs, from)
	if err != nil || rule.Needs == 0 && len(rule.Approvers) == 0 {
		return s, err
	}
	if s.Commit, err = o.headCommit(); err != nil && withCommits { // without them it does not matter what the cell made of its repository
		return s, err
	}
	if s.Why, err = m.whySigned(ctx, o, rule, runs, from, ignored); err != nil {
		return s, err
	}
	if len(s.Why) > 0 {
		s.Needs = rule.Needs
	}
	s.approvers(rule, m.askers(c, slices.Concat(runs, from)))
	s.count(c, must)
	return s, nil
}

// whySigned says why an offer needs sign-offs under a rule; nothing where it needs none.
func (m *Manager) whySigned(ctx context.Context, o *offer, rule policy.Accept, runs, from []state.Run, ignored bool) ([]string, error) {
	why := []string{}
	if rule.Asks(policy.ForAll) {
		why = append(why, "the policy demands it for all results")
	}
	if rule.Asks(policy.ForControlPaths) {
		is, _, err := m.ignoredBy(ctx, o.c, o.base, o.after)
		if err != nil {
			return nil, err
		}
		if ignored {
			is = nil
		}
		_, held, err := m.review(o.c, o.base, o.after, is, nil)
		if err != nil {
			return nil, err
		}
		for i, h := range held {
			if i == 5 {
				why = append(why, fmt.Sprintf("%d more control paths", len(held)-i))
				break
			}
			why = append(why, h.Path+": "+h.Why)
		}
	}
	if rule.Asks(policy.ForHighFindings) {
		more, err := m.highFindings(ctx, o, runs, from, ignored)
		if err != nil {
			return nil, err
		}
		why = append(why, more...)
	}
	return why, nil
}

// askers are the names by which the callers are known that asked for runs and made the cell. unknown is a run of which that is not known.
func (m *Manager) askers(c *state.Cell, runs []state.Run) (list []asker) {
	for i := range runs {
		r := &runs[i]
		switch a := r.Asked; {
		case a == nil || a.User == "" && a.Token == "":
			list = append(list, asker{of: "run " + r.ID, unknown: true})
		default:
			list = append(list, asker{of: "run " + r.ID, names: []string{a.User, a.Token, a.TokenName}})
		}
	}
	maker := asker{of: "cell " + c.Title(), names: []string{m.cfg.User}} // on this host
	if l := m.cfg.Records.Lease(c.ID); l != nil && l.Owner != "" {
		maker.names = []string{l.Owner, l.OwnerName}
	}
	list = append(list, maker)
	return list
}

type asker struct {
	of      string
	names   []string
	unknown bool
}

func (s *signed) approvers(rule policy.Accept, askers []asker) {
	for _, a := range rule.Approvers {
		v := api.Approver{Name: a.Name, Key: a.Key}
		for _, q := range askers {
			switch {
			case q.unknown:
				v.Denied = "it is not known which caller asked for " + q.of
			case slices.ContainsFunc(q.names, a.Is):
				v.Denied = a.Name + " asked for " + q.of
			}
		}
		if raw, err := policy.ApproverKey(a.Key); err == nil {
			if key, err := receipt.PublicKeyOf(raw); err == nil {
				s.keys[key.ID()] = len(s.Approvers)
			}
		}
		s.Approvers = append(s.Approvers, v)
	}
}

// count counts the approvers that approved exactly this, by the newest sign-off of each.
func (s *signed) count(c *state.Cell, must []string) {
	newest := map[string]receipt.SignOff{}
	for _, o := range c.SignOffs {
		s.SignOffs.SignOffs = append(s.SignOffs.SignOffs, o.API())
		void := func(format string, args ...any) {
			s.Void = append(s.Void, fmt.Sprintf("that of %s does not count: ", o.Approver)+fmt.Sprintf(format, args...))
		}
		a, why, says, digest := s.open([]byte(o.Envelope))
		if why != "" {
			void("%s", why)
			continue
		}
		if why := s.fits(digest, &says, c, must); why != "" {
			void("%s", why)
			continue
		}
		if old, ok := newest[a.Name]; !ok || says.At.After(old.At) {
			newest[a.Name] = says
		}
	}
	for _, name := range slices.Sorted(maps.Keys(newest)) {
		if newest[name].Decision == receipt.SignApprove {
			s.Given++
			by := newest[name]
			s.by = append(s.by, state.SignedBy{Approver: name, Key: s.keyOf(name), At: by.At.UTC()})
		} else {
			s.refuse = append(s.refuse, name)
		}
	}
}

// keyOf is the key of an approver, as the policy has it.
func (s *signed) keyOf(name string) string {
	i := slices.IndexFunc(s.Approvers, func(a api.Approver) bool { return a.Name == name })
	return s.Approvers[i].Key
}

// open verifies a sign-off with the key of one of the approvers; why says why it does not count.
func (s *signed) open(envelope []byte) (a api.Approver, why string, says receipt.SignOff, digest cell.Digest) {
	i, ok := s.keys[receipt.SignOffKey(envelope)]
	if !ok {
		return a, "the policies of the host and the user name no approver with its key", says, digest
	}
	a = s.Approvers[i]
	raw, err := policy.ApproverKey(a.Key)
	if err != nil {
		return a, err.Error(), says, digest
	}
	key, err := receipt.PublicKeyOf(raw)
	if err != nil {
		return a, err.Error(), says, digest
	}
	if digest, says, err = receipt.OpenSignOff(envelope, key); err != nil {
		return a, err.Error(), says, digest
	}
	return a, a.Denied, says, digest
}

// fits says why a sign-off is not one of this offer; "" if it is.
func (s *signed) fits(digest cell.Digest, says *receipt.SignOff, c *state.Cell, must []string) string {
	switch {
	case says.Ledger != s.Ledger:
		return "it was made for another installation"
	case says.Cell != string(c.ID):
		return "it is of cell " + cell.Clip(says.Cell)
	case digest.String() != s.Digest || says.Base != s.Base || says.After != s.After:
		return fmt.Sprintf("it is of the changes %s, and these are %s", digest.Short(), s.Digest[len("sha256:"):][:12])
	case says.Policy != s.Policy:
		return "the policy of the newest run is another"
	case s.withCommits && says.Commit != s.Commit:
		return "the commits in the cell are others than those that were signed"
	}
	for _, id := range must {
		if !slices.Contains(says.Runs, id) {
			return "it is not of run " + id
		}
	}
	return ""
}

// signedOff refuses an accept without the sign-offs that the policy demands. by are those that it
// goes by; none where none is needed.
func (m *Manager) signedOff(ctx context.Context, o *offer, req api.AcceptRequest) (by []state.SignedBy, err error) {
	s, err := m.signOffs(ctx, o, req.Ignored, req.Commits)
	if err != nil || s.Needs == 0 {
		return nil, err
	}
	why := strings.Join(s.Why, "; ")
	refuse := func(hint, format string, args ...any) error {
		return cell.Errorf(cell.Unsigned, "result.Accept", hint, "cannot accept %s: "+format, append([]any{o.title()}, args...)...)
	}
	if len(s.refuse) > 0 {
		return nil, refuse("change what they object to; or they approve it after all", "%s rejected it", strings.Join(s.refuse, ", "))
	}
	if s.Given >= s.Needs {
		return s.by, nil
	}
	able, all := []string{}, 0
	for _, a := range s.Approvers {
		all++
		if a.Denied == "" {
			able = append(able, a.Name)
		}
	}
	missing := fmt.Sprintf("it needs %s, and has %d (%s)", counted(s.Needs, "sign-off"), s.Given, why)
	if len(s.Void) > 0 {
		missing += "; " + strings.Join(s.Void, "; ")
	}
	switch {
	case all == 0:
		return nil, refuse("name approvers in your policy or the host's: accept: approvers: [{name: NAME, key: KEY}]", "%s, and no policy names approvers", missing)
	case int64(len(able)) < s.Needs:
		return nil, refuse("name further approvers in your policy or the host's; the caller that asked for a run can't sign it off", "%s, and only %d of %d approvers may sign it", missing, len(able), all)
	}
	return nil, refuse("have it signed by "+strings.Join(able, ", ")+": pando approve "+o.title(), "%s", missing)
}

func counted(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// SignOffs says what there is to sign off of a target, and what was signed.
func (m *Manager) SignOffs(ctx context.Context, t Target) (out api.SignOffs, err error) {
	err = m.decide(ctx, t, "accept", nil, func(c *state.Cell, run *state.Run, within cell.RunID) error {
		o, err := m.offerFor(ctx, c, run, within)
		if err != nil {
			return err
		}
		s, err := m.signOffs(ctx, o, false, false)
		out = s.SignOffs
		return err
	})
	return out, err
}

func (m *Manager) offerFor(ctx context.Context, c *state.Cell, run *state.Run, within cell.RunID) (*offer, error) {
	if within != "" && run == nil {
		return m.offerSoFar(ctx, c, within, api.AcceptRequest{DryRun: true})
	}
	return m.offerNow(ctx, c, run)
}

// SignOff records what an approver signed about a target, with its receipt. The signature alone says which approver it is.
func (m *Manager) SignOff(ctx context.Context, t Target, req api.SignOffRequest) (out api.SignOffs, err error) {
	const opName = "result.SignOff"
	var envelope []byte
	if envelope, err = compact(req.Envelope); err != nil {
		return out, cell.Errorf(cell.Invalid, opName, "make it with pando approve", "cannot use the sign-off: %w", err)
	}
	err = m.decide(ctx, t, "accept", nil, func(c *state.Cell, run *state.Run, within cell.RunID) error {
		o, err := m.offerFor(ctx, c, run, within)
		if err != nil {
			return err
		}
		s, err := m.signOffs(ctx, o, false, false)
		if err != nil {
			return err
		}
		must, _ := m.contributing(o)
		a, why, says, digest := s.open(envelope)
		if why == "" {
			why = s.fits(digest, &says, c, must)
		}
		if why == "" && !slices.Equal(says.Runs, s.Runs) {
			why = "it is of runs " + names(says.Runs) + ", and the changes are of " + names(s.Runs)
		}
		if why == "" && says.Commit != "" && says.Commit != s.Commit {
			why = "it is of commit " + cell.Clip(says.Commit) + ", and another is checked out"
		}
		if why == "" && says.Approver != a.Name {
			why = "it is made for approver " + cell.Clip(says.Approver) + ", and the key is " + a.Name + "'s"
		}
		if why != "" {
			return cell.Errorf(cell.Denied, opName, "pando approve "+o.title()+" signs what there is now, with the key of an approver", "cannot sign off %s: %s", o.title(), why)
		}
		if err := m.sayable(&says); err != nil {
			return err
		}
		if err := newer(c, a, &says); err != nil {
			return err
		}
		if err := m.recordSignOff(ctx, o, state.SignOff{Approver: a.Name, Key: a.Key, Decision: says.Decision, Digest: digest.String(), Commit: says.Commit, Runs: says.Runs,
			Message: says.Message, At: says.At.UTC(), Envelope: string(envelope)}); err != nil {
			return err
		}
		s, err = m.signOffs(ctx, o, false, false)
		out = s.SignOffs
		return err
	})
	return out, err
}

// sayable refuses a message that receipts and terminals can't have: the statement is kept as it was signed, and nothing can be taken out of it.
func (m *Manager) sayable(says *receipt.SignOff) error {
	const opName = "result.SignOff"
	switch {
	case len(says.Message) > maxSignOffText:
		return cell.Errorf(cell.TooLarge, opName, "sign it again with less", "cannot use the sign-off: its message has more than %d bytes", maxSignOffText)
	case diff.Visible(says.Message) != says.Message:
		return cell.Errorf(cell.Invalid, opName, "sign it again with a message of one line", "cannot use the sign-off: its message has characters that are not shown as they are")
	case m.cfg.Redactor.String(says.Message) != says.Message:
		return cell.Errorf(cell.Invalid, opName, "sign it again without; replace the credential, as the statement has it", "cannot use the sign-off: its message has what looks like a credential")
	}
	return nil
}

// newer refuses a sign-off that is not newer than the last of its approver: an old one must not take back what was said since.
func newer(c *state.Cell, a api.Approver, says *receipt.SignOff) error {
	const opName = "result.SignOff"
	if says.At.After(time.Now().Add(clockAhead)) {
		return cell.Errorf(cell.Denied, opName, "set the clock of the machine that signs", "cannot use the sign-off: its time, %s, is in the future", says.At.UTC().Format(time.RFC3339))
	}
	for _, o := range c.SignOffs {
		if o.Key == a.Key && !says.At.After(o.At) {
			return cell.Errorf(cell.Exists, opName, "sign it again", "cannot use the sign-off: there is one of %s that is as new, of %s", a.Name, o.At.Format(time.RFC3339Nano))
		}
	}
	if len(c.SignOffs) >= maxSignOffs {
		return cell.Errorf(cell.Conflict, opName, "fork the cell", "cell %s has %d sign-offs already", c.Title(), maxSignOffs)
	}
	return nil
}

// recordSignOff makes a sign-off and its receipt durable.
func (m *Manager) recordSignOff(ctx context.Context, o *offer, so state.SignOff) error {
	c := o.c
	c.SignOffs = append(slices.Clone(c.SignOffs), so)
	objects := []any{c}
	for _, id := range so.Runs {
		r, err := m.cfg.Records.Run(cell.RunID(id))
		if err != nil {
			return err
		}
		if len(r.Receipts) == 0 { // it goes on, and its own comes first
			continue
		}
		r.SignOffs = append(slices.Clone(r.SignOffs), so.Kept())
		objects = append(objects, &r)
	}
	act := state.ActOn(c, so.Decision, "", so.Message)
	act.Verdict, act.Digest, act.To, act.SignOff, act.Downgrades = nil, so.Digest, o.at.Point(), &so, c.Setup.Downgrades
	_, err := m.cfg.Evidence.Seal(ctx, "sign-off/"+newKey(), act, objects...)
	return err
}

// Demand says which sign-offs the result of a run needs, for its record; nil for none.
func (m *Manager) Demand(ctx context.Context, c *state.Cell, run *state.Run) (*state.SignOffNeed, error) {
	o, err := m.runOffer(ctx, c, run)
	if err != nil {
		return nil, err
	}
	s, err := m.signOffs(ctx, o, false, false)
	if err != nil || s.Needs == 0 {
		return nil, err
	}
	return &state.SignOffNeed{Needs: s.Needs, Why: s.Why}, nil
}

func compact(b []byte) ([]byte, error) {
	var e struct {
		Payload     string `json:"payload"`
		PayloadType string `json:"payloadType"`
		Signatures  []struct {
			KeyID string `json:"keyid"`
			Sig   string `json:"sig"`
		} `json:"signatures"`
	}
	if err := json.Unmarshal(b, &e); err != nil {
		return nil, err
	}
	return json.Marshal(e)
}
