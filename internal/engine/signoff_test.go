package engine

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/access"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/durable"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/receipt"
	"github.com/pando-dev/pando/internal/result"
)

// approver is a person of a test, with a key.
type approver struct {
	name string
	key  *receipt.Key
}

func newApprover(t *testing.T, name string) approver {
	key, err := receipt.OpenKey(durable.Disk(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	return approver{name, key}
}

func (a approver) line(as ...string) string {
	b, _ := json.Marshal(map[string]any{"name": a.name, "key": policy.ApproverKeyText(a.key.Public().Raw()), "as": append(as, "other-"+a.name)})
	return "\n    - " + string(b)
}

// sign signs what there is to sign, after change.
func (a approver) sign(s api.SignOffs, decision string, change func(*receipt.SignOff)) api.SignOffRequest {
	digest, _ := cell.ParseDigest(s.Digest)
	o := receipt.SignOff{Decision: decision, Approver: a.name, Ledger: s.Ledger, Cell: s.Cell, Runs: s.Runs, Base: s.Base, After: s.After, Commit: s.Commit, Policy: s.Policy, At: time.Now()}
	if change != nil {
		change(&o)
		digest = receipt.ChangesDigest(o.Base, o.After)
	}
	b, _ := receipt.SignOffBy(a.key, digest, o)
	return api.SignOffRequest{Envelope: b}
}

// demand writes the policy of the user.
func (b *bed) demand(words string, approvers ...string) {
	b.Helper()
	text := "version: 1\naccept:\n  " + words + "\n"
	if len(approvers) > 0 {
		text += "  approvers:" + strings.Join(approvers, "") + "\n"
	}
	b.must(os.WriteFile(b.home.Policy, []byte(text), 0o600))
}

// asked has a token ask for a run.
func (b *bed) asked(token, name, script string) api.Run {
	b.Helper()
	v := b.All().As(access.Principal{Name: token, Token: "t-" + token, Level: access.Admin, Here: true, Process: os.Getpid()})
	r, err := v.StartRun(b.ctx, b.request(name, script))
	b.must(err)
	r, err = b.runs.Wait(b.ctx, cell.RunID(r.ID))
	b.must(err)
	return r
}

func (b *bed) signOffs(r api.Run) api.SignOffs {
	b.Helper()
	s, err := b.All().SignOffs(b.ctx, runTarget(r))
	b.must(err)
	return s
}

func (b *bed) signOff(r api.Run, req api.SignOffRequest) error {
	_, err := b.All().SignOff(b.ctx, runTarget(r), req)
	return err
}

func (b *bed) accepts(r api.Run) error {
	_, err := b.All().Accept(context.WithoutCancel(b.ctx), runTarget(r), api.AcceptRequest{Apply: true})
	return err
}

// A result that the policy demands sign-offs for is accepted when as many approvers have signed exactly it.
func TestSignOffs(t *testing.T) {
	t.Parallel()
	b := newBed(t, "a")
	alice, bob, mallory := newApprover(t, "alice"), newApprover(t, "bob"), newApprover(t, "mallory")
	b.demand("needs: 2", alice.line(), bob.line("laptop"))
	r := b.asked("carol", "web", "echo 1 > b")
	if r.NeedsSignOff == nil || r.NeedsSignOff.Needs != 2 {
		t.Errorf("the run's record needs %+v", r.NeedsSignOff)
	}
	b.wantKind("accept", b.accepts(r), cell.Unsigned, "needs 2 sign-offs, and has 0")
	b.wantKind("a foreign key", b.signOff(r, mallory.sign(b.signOffs(r), "approve", nil)), cell.Denied, "no approver with its key")
	for what, change := range map[string]func(*receipt.SignOff){
		"other changes":        func(o *receipt.SignOff) { o.After = o.Base },
		"another cell":         func(o *receipt.SignOff) { o.Cell = "c-1" },
		"another run":          func(o *receipt.SignOff) { o.Runs = []string{"r-1"} },
		"another installation": func(o *receipt.SignOff) { o.Ledger = "pando.dev/ledger/1" },
		"another policy":       func(o *receipt.SignOff) { o.Policy = "sha256:1" },
		"another name":         func(o *receipt.SignOff) { o.Approver = "bob" },
		"another commit":       func(o *receipt.SignOff) { o.Commit = strings.Repeat("0", 40) },
		"the future":           func(o *receipt.SignOff) { o.At = o.At.Add(time.Hour) },
	} {
		b.wantKind(what, b.signOff(r, alice.sign(b.signOffs(r), "approve", change)), cell.Denied, "cannot")
	}
	for what, message := range map[string]string{"control characters": "a\x1b[2J", "two lines": "a\nb", "a credential": "ghp_0123456789abcdefghijABCDEFGHIJ012345"} {
		b.wantKind(what, b.signOff(r, alice.sign(b.signOffs(r), "approve", func(o *receipt.SignOff) { o.Message = message })), cell.Invalid, "its message has")
	}
	b.wantKind("a long message", b.signOff(r, alice.sign(b.signOffs(r), "approve", func(o *receipt.SignOff) { o.Message = strings.Repeat("a", 501) })), cell.TooLarge, "more than 500 bytes")
	first := alice.sign(b.signOffs(r), "approve", nil)
	b.must(b.signOff(r, first))
	b.wantKind("the same again", b.signOff(r, first), cell.Exists, "as new")
	b.must(b.signOff(r, alice.sign(b.signOffs(r), "approve", nil)))
	b.wantKind("one approver twice", b.accepts(r), cell.Unsigned, "needs 2 sign-offs, and has 1")
	b.must(b.signOff(r, bob.sign(b.signOffs(r), "reject", nil)))
	b.wantKind("a rejection", b.accepts(r), cell.Unsigned, "bob rejected it")
	b.must(b.signOff(r, bob.sign(b.signOffs(r), "approve", nil)))
	b.reopen()
	b.demand("needs: 2", alice.line())
	b.wantKind("an approver that is none any more", b.accepts(r), cell.Unsigned, "has 1", "no approver with its key")
	b.demand("needs: 2", alice.line(), bob.line())
	if _, err := os.Stat(filepath.Join(b.src, "b")); err == nil {
		t.Error("the source has b before the accept")
	}
	b.must(b.accepts(r))
	if _, err := os.Stat(filepath.Join(b.src, "b")); err != nil {
		t.Error(err)
	}
	b.verified()
	if now, err := b.All().Run(cell.RunID(r.ID)); err != nil || len(now.SignOffs) != 4 || now.Verdict != "accepted" {
		t.Errorf("the run has %d sign-offs and verdict %s, %v", len(now.SignOffs), now.Verdict, err)
	}
}

// The caller that asked for a run can't sign it off, under no name that the policy has for it; nor can any approver where it is not known.
func TestSignOffOfTheAsker(t *testing.T) {
	t.Parallel()
	b := newBed(t, "a")
	alice, bob := newApprover(t, "alice"), newApprover(t, "bob")
	b.demand("needs: 1", alice.line("ci"), bob.line())
	r := b.asked("ci", "one", "echo 1 > b")
	b.wantKind("the asker", b.signOff(r, alice.sign(b.signOffs(r), "approve", nil)), cell.Denied, "alice asked for")
	b.must(b.signOff(r, bob.sign(b.signOffs(r), "approve", nil)))
	b.must(b.accepts(r))

	b.demand("needs: 1", alice.line("ci"), bob.line(b.cfg.User.Name))
	r = b.asked("carol", "here", "echo 1 > d")
	b.wantKind("the user of this host, who made the cell", b.signOff(r, bob.sign(b.signOffs(r), "approve", nil)), cell.Denied, "bob asked for")
	b.must(b.signOff(r, alice.sign(b.signOffs(r), "approve", nil)))

	b.demand("needs: 1", alice.line("ci"), bob.line())
	r = b.run("two", "echo 1 > c") // of the engine's own
	b.wantKind("an asker that is not known", b.signOff(r, bob.sign(b.signOffs(r), "approve", nil)), cell.Denied, "it is not known which caller asked")
	b.wantKind("accept", b.accepts(r), cell.Unsigned, "only 0 of 2 approvers may sign it")
}

// A sign-off is of one run's changes in one cell: more changes, and the same ones elsewhere, need their own.
func TestSignOffIsOfOneResult(t *testing.T) {
	t.Parallel()
	b := newBed(t, "a")
	alice := newApprover(t, "alice")
	b.demand("needs: 1", alice.line())
	one, same := b.asked("carol", "one", "echo 1 > b"), b.asked("carol", "two", "echo 1 > b")
	req := alice.sign(b.signOffs(one), "approve", nil)
	b.wantKind("elsewhere", b.signOff(same, req), cell.Denied, "it is of cell")
	b.must(b.signOff(one, req))
	again := b.asked("carol", "one", "echo 1 > c")
	_, err := b.All().Accept(b.ctx, result.Target{Cell: b.id("one")}, api.AcceptRequest{Apply: true})
	b.wantKind("with more in the cell", err, cell.Unsigned, "that of alice does not count: it is of the changes")
	b.wantKind("the later run", b.accepts(again), cell.Unsigned, "has 0")
	all, err := b.All().SignOffs(b.ctx, result.Target{Cell: b.id("one")})
	b.must(err)
	if len(all.Runs) != 2 {
		t.Errorf("the cell's changes are of %v", all.Runs)
	}
	_, err = b.All().SignOff(b.ctx, result.Target{Cell: b.id("one")}, alice.sign(all, "approve", nil))
	b.must(err)
	_, err = b.All().Accept(b.ctx, result.Target{Cell: b.id("one")}, api.AcceptRequest{Apply: true})
	b.must(err)
}

// The same changes of another run in the same cell need a sign-off of their own.
func TestSignOffIsOfOneRun(t *testing.T) {
	t.Parallel()
	b := newBed(t, "a")
	alice := newApprover(t, "alice")
	b.demand("needs: 1", alice.line())
	first := b.asked("carol", "web", "echo 1 > b")
	signed := b.signOffs(first)
	b.must(b.signOff(first, alice.sign(signed, "approve", nil)))
	_, err := b.All().Discard(b.ctx, runTarget(first), api.DiscardRequest{})
	b.must(err)
	again := b.asked("carol", "web", "echo 1 > b")
	if s := b.signOffs(again); s.Digest != signed.Digest {
		t.Fatalf("the changes are %s", s.Digest)
	}
	b.wantKind("the second run", b.accepts(again), cell.Unsigned, "it is not of run "+again.ID)
}

// A fork of a cell is no way round: what its runs demanded and which callers asked for them goes with what it has of them.
func TestSignOffOfForks(t *testing.T) {
	t.Parallel()
	b := newBed(t, "a")
	alice, bob := newApprover(t, "alice"), newApprover(t, "bob")
	b.demand("needs: 1\n  for: control-paths", alice.line("ci"), bob.line())
	v := b.All().As(access.Principal{Name: "ci", Token: "t-ci", Level: access.Admin, Here: true, Process: os.Getpid()})
	req := b.request("one", "echo 1 > b")
	req.Policy, req.PolicyName = "version: 1\naccept: {needs: 1, for: all}\n", "own.yaml"
	r, err := v.StartRun(b.ctx, req)
	b.must(err)
	_, err = b.runs.Wait(b.ctx, cell.RunID(r.ID))
	b.must(err)
	_, err = b.Fork(b.ctx, b.id("one"), api.ForkRequest{Count: 1, Name: "two"})
	b.must(err)
	two := result.Target{Cell: b.id("two")}
	_, err = b.All().Accept(b.ctx, two, api.AcceptRequest{Apply: true})
	b.wantKind("the fork", err, cell.Unsigned, "needs 1 sign-off")
	s, err := b.All().SignOffs(b.ctx, two)
	b.must(err)
	_, err = b.All().SignOff(b.ctx, two, alice.sign(s, "approve", nil))
	b.wantKind("the caller that asked before the fork", err, cell.Denied, "alice asked for run")
	_, err = b.All().SignOff(b.ctx, two, bob.sign(s, "approve", nil))
	b.must(err)
	_, err = b.All().Accept(b.ctx, two, api.AcceptRequest{Apply: true})
	b.must(err)
}

// No way to accept goes round it, and what a run or a lower policy says makes it no weaker.
func TestSignOffWays(t *testing.T) {
	t.Parallel()
	b := newBed(t, "a")
	alice := newApprover(t, "alice")
	b.demand("needs: 1", alice.line())
	v := b.All().As(access.Principal{Name: "carol", Token: "t-1", Level: access.Admin, Here: true, Process: os.Getpid()})
	for _, on := range []string{"accept", "apply"} {
		req := b.request("on-"+on, "echo 1 > "+on)
		req.OnSuccess = on
		r, err := v.StartRun(b.ctx, req)
		b.must(err)
		r, err = b.runs.Wait(b.ctx, cell.RunID(r.ID))
		b.must(err)
		if r.Verdict != "pending" {
			t.Errorf("--on-success %s: the verdict is %s", on, r.Verdict)
		}
		if _, err := os.Stat(filepath.Join(b.src, on)); err == nil {
			t.Errorf("--on-success %s wrote to the source", on)
		}
	}
	r := b.asked("carol", "web", "echo 1 > b")
	for what, req := range map[string]api.AcceptRequest{
		"alone": {}, "dry": {DryRun: true}, "forced": {Force: true, Reason: "x"}, "a part": {Apply: true, Paths: []string{"b"}}, "merged": {Apply: true, Merge: true},
	} {
		_, err := b.All().Accept(b.ctx, runTarget(r), req)
		b.wantKind(what, err, cell.Unsigned, "needs 1 sign-off")
	}
	for what, text := range map[string]string{
		"approvers of a run's own": "version: 1\naccept:\n  approvers:" + newApprover(t, "eve").line() + "\n",
	} {
		req := b.request("", "echo 1 > x")
		req.Policy, req.PolicyName = text, "own.yaml"
		_, err := v.StartRun(b.ctx, req)
		b.wantKind(what, err, cell.Denied, "cannot name approvers at own.yaml:3")
	}
	// A run's own policy can demand more, and the user's can't take that back later.
	b.must(os.Remove(b.home.Policy))
	req := b.request("strict", "echo 1 > y")
	req.Policy, req.PolicyName = "version: 1\naccept: {needs: 1}\n", "own.yaml"
	strict, err := v.StartRun(b.ctx, req)
	b.must(err)
	strict, err = b.runs.Wait(b.ctx, cell.RunID(strict.ID))
	b.must(err)
	b.wantKind("what the run's policy said", b.accepts(strict), cell.Unsigned, "no policy names approvers")
}

// Changes to control paths alone, or findings of severity high, need it where the policy says so.
func TestSignOffFor(t *testing.T) {
	t.Parallel()
	b := newBed(t, "a", "a_test.go")
	alice := newApprover(t, "alice")
	b.demand("needs: 1\n  for: [control-paths]", alice.line())
	plain, ci := b.asked("carol", "plain", "echo 1 > b"), b.asked("carol", "ci", "mkdir -p .github/workflows/ && echo 1 > .github/workflows/x.yml")
	if plain.NeedsSignOff != nil {
		t.Errorf("a plain change needs %+v", plain.NeedsSignOff)
	}
	b.must(b.accepts(plain))
	b.wantKind("a control path", b.accepts(ci), cell.Unsigned, ".github/workflows/x.yml")
	b.demand("needs: 1\n  for: high-findings", alice.line())
	b.wantKind("a finding", b.accepts(ci), cell.Unsigned, "finding of severity high", "ci-changed")
	b.must(b.accepts(b.asked("carol", "fine", "echo 1 > c")))
}

// A part of what was signed is accepted; what a merge would make of it is not.
func TestSignOffOfParts(t *testing.T) {
	t.Parallel()
	b := newBed(t, "a: 1\n2\n3\n4\n5\n6\n7\n8\n")
	alice := newApprover(t, "alice")
	b.demand("needs: 1", alice.line())
	r := b.asked("carol", "web", "printf '1\\n2\\n3\\n4\\n5\\n6\\n7\\neight\\n' > a && echo 1 > b && echo 1 > c")
	b.must(b.signOff(r, alice.sign(b.signOffs(r), "approve", nil)))
	_, err := b.All().Accept(b.ctx, runTarget(r), api.AcceptRequest{Apply: true, Paths: []string{"b"}})
	b.must(err)
	b.write("a", "one\n2\n3\n4\n5\n6\n7\n8\n")
	b.wantKind("a file that changed", b.accepts(r), cell.Conflict, "a")
	_, err = b.All().Accept(b.ctx, runTarget(r), api.AcceptRequest{Apply: true, Merge: true})
	b.wantKind("a merge", err, cell.Unsigned, "what the merge makes is not what was signed")
	if text, err := os.ReadFile(filepath.Join(b.src, "a")); err != nil || !strings.HasPrefix(string(text), "one\n") || strings.Contains(string(text), "eight") {
		t.Errorf("a is %q, %v", text, err)
	}
	_, err = b.All().Accept(b.ctx, runTarget(r), api.AcceptRequest{Apply: true, Paths: []string{"c"}})
	b.must(err)
}

// A finding is of what a run did: what was changed beside runs, before a fork, or where git does not look, needs sign-offs like a finding does.
func TestSignOffOfWhatNothingLookedAt(t *testing.T) {
	t.Parallel()
	const ci = "mkdir -p .github/workflows && echo 1 > .github/workflows/x.yml"
	b := newBed(t, "a", ".gitignore: ignored\n", ".git/HEAD: ref: refs/heads/main\n")
	alice := newApprover(t, "alice")
	b.demand("needs: 1\n  for: high-findings", alice.line())
	accept := func(name string, req api.AcceptRequest) error {
		req.Apply, req.Include = true, []string{"."}
		_, err := b.All().Accept(b.ctx, result.Target{Cell: b.id(name)}, req)
		return err
	}
	b.asked("carol", "web", "echo 1 > b")
	_, err := b.StartExec(b.ctx, b.id("web"), api.ExecRequest{Command: []string{"sh", "-c", ci}, Wait: true})
	b.must(err)
	b.asked("carol", "web", "echo 1 > c")
	b.wantKind("what an exec changed between runs", accept("web", api.AcceptRequest{}), cell.Unsigned, "nothing was looked for")

	b.asked("carol", "one", ci)
	b.must(second(b.Fork(b.ctx, b.id("one"), api.ForkRequest{Count: 1, Name: "two"})))
	b.asked("carol", "two", "echo 1 > d")
	b.wantKind("what a run changed before a fork", accept("two", api.AcceptRequest{}), cell.Unsigned, "ci-changed")

	b.asked("carol", "ignored", "mkdir ignored && echo 1 > ignored/x && echo 1 > g")
	b.wantKind("what git ignores", accept("ignored", api.AcceptRequest{Ignored: true}), cell.Unsigned, "files that git ignores")
	b.must(accept("ignored", api.AcceptRequest{}))

	b.asked("carol", "plain", "echo 1 > e")
	b.asked("carol", "plain", "echo 1 > f")
	b.must(accept("plain", api.AcceptRequest{}))
	b.asked("carol", "plain", "echo 2 > e")
	b.must(accept("plain", api.AcceptRequest{}))
	b.must(second(b.Fork(b.ctx, b.id("plain"), api.ForkRequest{Count: 1, Name: "fork"})))
	b.asked("carol", "fork", "echo 3 > e")
	b.must(accept("fork", api.AcceptRequest{}))
}

// What a cell made of its repository keeps nothing from being accepted without the commits.
func TestAcceptWithAHeadThatCantBeRead(t *testing.T) {
	t.Parallel()
	b := newBed(t, "a")
	alice := newApprover(t, "alice")
	script := "echo 1 > b; mkdir -p .git && echo 'ref: refs/heads/.invalid' > .git/HEAD"
	b.must(b.accepts(b.asked("carol", "web", script)))
	b.demand("needs: 1", alice.line())
	r := b.asked("carol", "signed", "echo 2 > c; "+script)
	b.must(b.signOff(r, alice.sign(b.signOffs(r), "approve", nil)))
	b.must(b.accepts(r))
}

// The caller that asked for a race asked for its attempts, also for those that a later daemon starts.
func TestSignOffOfARace(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	alice, bob := newApprover(t, "alice"), newApprover(t, "bob")
	b.demand("needs: 1", alice.line("ci"), bob.line())
	req := b.raceOf("echo {{.n}} > g")
	req.Name, req.Count, req.Until = "q", 2, "all"
	_, err := b.All().As(access.Principal{Name: "far", Token: "t-far", Level: access.Admin}).StartRace(b.ctx, req, "")
	b.wantKind("a directory of another host", err, cell.Invalid, "a path of another host")
	v := b.All().As(access.Principal{Name: "ci", Token: "t-ci", Level: access.Admin, Here: true, Process: os.Getpid()})
	started, err := v.StartRace(b.ctx, req, "")
	b.must(err)
	_, err = b.All().WaitRace(b.ctx, cell.RaceID(started.ID))
	b.must(err)
	rec, list, err := b.reg.Race(cell.RaceID(started.ID))
	b.must(err)
	rec.State, rec.Winner, rec.Why = api.RaceRunning, 0, "" // as if the daemon had ended before the second attempt
	was := list[1].Run
	list[1].Run, list[1].Over, list[1].Starts = "", "", 0
	b.must(b.reg.Commit(&rec, &list[1]))
	b.reopen()
	now, err := b.All().WaitRace(b.ctx, rec.ID)
	b.must(err)
	if now.Attempts[1].Run == string(was) {
		t.Fatalf("the second attempt was not started again: %+v", now.Attempts[1])
	}
	for _, a := range now.Attempts {
		r, err := b.All().Run(cell.RunID(a.Run))
		b.must(err)
		if r.Asked == nil || r.Asked.Token != "t-ci" || r.Asked.TokenName != "ci" || r.Asked.User != b.cfg.User.Name {
			t.Errorf("attempt %d was asked for by %+v", a.Number, r.Asked)
		}
		b.wantKind("the caller that asked", b.signOff(r, alice.sign(b.signOffs(r), "approve", nil)), cell.Denied, "alice asked for")
		b.must(b.signOff(r, bob.sign(b.signOffs(r), "approve", nil)))
	}
}
