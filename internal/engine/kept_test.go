package engine

import (
	"reflect"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/govern"
	"github.com/pando-dev/pando/internal/state"
)

const smallPolicy = "version: 1\nlimits:\n  executions: 30\n"

// A cell keeps its policy, grants and limits until it is told others, says which, and
// its forks keep them, too.
func TestX23CellsKeepTheirPolicy(t *testing.T) {
	t.Parallel()
	b := newBed(t, "f: 0")
	req := b.request("w", "echo 1 > f")
	req.Policy, req.PolicyName, req.Limits.Disk, req.Limits.Timeout = smallPolicy, "p.yaml", "1G", "1h"
	first := b.do(req)
	plain := b.do(b.request("x", "true"))
	if first.Policy == plain.Policy {
		t.Fatal("the policy makes no difference")
	}
	notes := func(r api.Run) string { return strings.Join(r.Notes, "\n") }
	if strings.Contains(notes(first), "keeps") {
		t.Errorf("of the run that said it: %q", first.Notes)
	}
	policy := func(name string) string {
		c, err := b.reg.Cell(b.id(name))
		b.must(err)
		return c.Setup.PolicyText
	}
	text := policy("w")

	next := b.do(b.request("w", "echo 2 > f"))
	if n := notes(next); !strings.Contains(n, "keeps --policy p.yaml --disk 1G ") || strings.Contains(n, "1h") {
		t.Errorf("the run says %q", n)
	}
	if got := policy("w"); got != strings.Replace(text, `"timeout_ms":3600000`, `"timeout_ms":0`, 1) {
		t.Errorf("the policy is %s, and was %s", got, text)
	}
	b.must(second(b.Fork(b.ctx, b.id("w"), api.ForkRequest{Name: "child"})))
	if r := b.do(b.request("child", "true")); r.Policy != next.Policy || !strings.Contains(notes(r), "keeps --policy p.yaml") {
		t.Errorf("the fork has policy %s and says %q", r.Policy, r.Notes)
	}

	req = b.request("w", "true")
	req.Limits.Disk = "2G"
	third := b.do(req)
	if n := notes(third); !strings.Contains(n, "keeps --policy p.yaml (") || third.Policy == next.Policy {
		t.Errorf("with another limit: %q", n)
	}
	if r := b.do(b.request("w", "true")); r.Policy != third.Policy || !strings.Contains(notes(r), "--disk 2G") {
		t.Errorf("after it: %q", r.Notes)
	}

	req = b.request("w", "true")
	req.Anew = true
	anew := b.do(req)
	if anew.Policy != plain.Policy || strings.Contains(notes(anew), "keeps") {
		t.Errorf("anew: %s, not %s; %q", anew.Policy, plain.Policy, anew.Notes)
	}
	if r := b.do(b.request("w", "true")); r.Policy != plain.Policy || strings.Contains(notes(r), "keeps") {
		t.Errorf("and it is forgotten: %q", r.Notes)
	}
	b.verified()
}

// A run that waited goes by what the run before it was told.
func TestX23WhoWaitedKeepsIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, "f: 0")
		b.run("w", "true")
		_, err := b.StartRun(b.ctx, b.request("w", "sleep 10"))
		b.must(err)
		synctest.Wait()
		req := b.request("w", "true") // it waits, too
		req.Policy, req.PolicyName = smallPolicy, "p.yaml"
		first, err := b.StartRun(b.ctx, req)
		b.must(err)
		synctest.Wait()
		next, err := b.StartRun(b.ctx, b.request("w", "true"))
		b.must(err)
		next, err = b.runs.Wait(b.ctx, cell.RunID(next.ID))
		b.must(err)
		if next.Policy != first.Policy || !strings.Contains(strings.Join(next.Notes, "\n"), "keeps --policy p.yaml") {
			t.Errorf("it has policy %s, not %s, and says %q", next.Policy, first.Policy, next.Notes)
		}
		b.verified()
	})
}

// Each flag is kept by itself.
func TestX23EachFlagIsKept(t *testing.T) {
	k := state.Kept{Policy: "version: 1\n", PolicyName: "p.yaml", Mounts: []string{"/a:/b"}, Allow: []string{"a.example", "b.example"}, Credentials: []string{"key"},
		Limits: state.Limits{CPUs: "1", Memory: "1G", PIDs: "9", Disk: "2G"},
		Config: []string{"allow b.example", "memory 1G"}}
	var req api.RunRequest
	words := strings.Join(fillKept(&k, &req), " ")
	if words != "--policy p.yaml --allow a.example --allow b.example --credential key --mount /a:/b --cpus 1 --memory 1G --pids 9 --disk 2G" {
		t.Errorf("it says %q", words)
	}
	if got, err := (&runPlan{req: req}).keeps(); err != nil || !reflect.DeepEqual(got, k) {
		t.Errorf("it is %+v, %v", got, err)
	}
	if want := []api.Default{{Key: "allow", Values: []string{"b.example"}}, {Key: "memory", Values: []string{"1G"}}}; !reflect.DeepEqual(req.Defaults, want) {
		t.Errorf("of it were defaults %+v", req.Defaults)
	}
	told := api.RunRequest{Policy: "x", Mounts: []string{"m"}, Allow: []string{"a"}, Credentials: []string{"c"}, Limits: api.Limits{CPUs: "2", Memory: "2G", PIDs: "2", Disk: "1G"}}
	want := told
	if words := fillKept(&k, &told); len(words) > 0 || !reflect.DeepEqual(told, want) {
		t.Errorf("what is told becomes %+v, %q", told, words)
	}
}

// A policy file is kept as it is, unless something in it may be a secret: then its rules.
func TestX23WhatIsKeptOfAPolicy(t *testing.T) {
	const token = "ghp_2cK2mXq7Lw3Zt8Rb5Yc1Vd4Ne6Pf0Hj2Su7Q"
	for _, c := range []struct {
		text      string
		same, had bool
	}{
		{"", true, false},
		{"# why\nversion: 1\n", true, false},
		{"# " + token + "\nversion: 1\n", false, false},
		{"version: 1\nenvironment: {set: {A: " + token + "}}\n", false, true},
	} {
		kept, had, err := govern.Keepable(&redactor, c.text)
		if err != nil || had != c.had || (kept == c.text) != c.same || strings.Contains(kept, token) {
			t.Errorf("of %q %q is kept, %v, %v", c.text, kept, had, err)
		}
	}
	b := newBed(t, "f: 0")
	req := b.spec("warm", "x = 1")
	req.Policy = "version: 1\nenvironment: {set: {A: " + token + "}}\n"
	tm, err := b.BuildTemplate(b.ctx, req, nil)
	if err != nil || tm.Spec.Policy == "" || strings.Contains(tm.Spec.Policy, token) || !strings.Contains(strings.Join(tm.Notes, " "), "its policy's variables") {
		t.Errorf("of a template %q is kept, with notes %q, %v", tm.Spec.Policy, tm.Notes, err)
	}
	req.Policy = "version: 1\nenvironment: {set: {CI: \"true\"}}\n"
	if tm, err := b.BuildTemplate(b.ctx, req, nil); err != nil || tm.Spec.Policy != req.Policy || strings.Contains(strings.Join(tm.Notes, " "), "its policy's variables") {
		t.Errorf("of a template %q is kept, with notes %q, %v", tm.Spec.Policy, tm.Notes, err)
	}
}
