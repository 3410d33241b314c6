package repl

import (
	"strings"
	"testing"
)

// A rehearsal leaves nothing that code sees, says nothing, calls no hooks, and does no
// harm to an interpreter in which code has replaced what it uses.
func TestRehearsal(t *testing.T) {
	p := startPython(t)
	p.run(`import json, os, pando, random, threading, uuid
told = []
_ = pando.at_fork(lambda: told.append(1))
def state(): return sorted(globals()), told, dict(os.environ), threading.active_count(), os.getcwd(), repr(_), In if "In" in globals() else None
_ = 41
seen = None
seen = state()`)
	rehearse := func() {
		t.Helper()
		if err := p.Rehearse(p.ctx); err != nil {
			t.Fatal(err)
		}
		if out, err := p.out.take(), p.err.take(); out != "" || err != "" {
			t.Errorf("it says %q and %q", out, err)
		}
	}
	rehearse()
	if v := p.value("state() == seen"); v.Repr != "True" {
		v = p.value("[x for x in zip(seen, state()) if x[0] != x[1]]")
		t.Errorf("it has left something: %s", v.Repr)
	}
	p.run("uuid.uuid4 = random.Random = None")
	rehearse()
	if v := p.value("1 + 1"); v.Repr != "2" {
		t.Error(v.Repr)
	}
	// What it does is done: a failure would not have been reported.
	if v := p.value("__import__('sys')._getframe(1).f_globals['exercise_language']() is None"); !strings.Contains(v.Repr, "True") {
		t.Errorf("the exercise: %s", v.Repr)
	}
}
