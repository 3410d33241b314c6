package backendtest

import (
	"path/filepath"
	"strings"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/testenv"
)

// language is a kind of interpreter, with code in its language.
type language struct {
	kind, program            string // program is its path on the host
	setup, ready, state      string // state is 42 after both
	say, endless, at, reason string // at is its working directory
}

func testEvalNode(k *bench) {
	k.speaks(language{kind: cell.WarmNode, program: testenv.Program(k, "node"), setup: "let n = 40", ready: "++n > 41", state: "n",
		say: "console.log('out'); console.error('err')", endless: "await 0; for (;;);", at: "process.cwd()", reason: "Node"})
}

func testEvalJava(k *bench) {
	testenv.JShell(k)
	k.speaks(language{kind: cell.WarmJava, program: testenv.Program(k, "java"), setup: "int n = 40;", ready: "++n > 41", state: "n",
		say: `System.out.println("out"); System.err.println("err");`, endless: "while (true);", at: `System.getProperty("user.dir")`, reason: "Java"})
}

// speaks tests that an interpreter evaluates, can be interrupted, and reports that it cannot be
// forked.
func (k *bench) speaks(l language) {
	k.Helper()
	if !strings.HasPrefix(l.program, "/usr/") {
		k.Skipf("needs %s below /usr, which is what the cells here see", filepath.Base(l.program))
	}
	s := k.spec()
	for _, pattern := range []string{"/etc/alternatives", "/etc/java-*"} { // parts of Debian's Java
		found, _ := filepath.Glob(pattern)
		for _, dir := range found {
			s.Mounts = append(s.Mounts, cell.Mount{Kind: cell.Bind, Source: dir, Target: dir, ReadOnly: true})
		}
	}
	i := k.create(s)
	w := k.warmer(i)
	spec := cell.Warm{Kind: l.kind, Setup: l.setup, Ready: l.ready, Timeout: time.Minute,
		Process: cell.Process{Args: []string{l.kind}, Path: []string{l.program}, Env: []string{"PATH=/usr/bin:/bin", "HOME=/home/u"}, Workdir: work}}
	st, err := w.Warm(k.ctx, spec, nil)
	k.must(err)
	if st.Kind != l.kind || !strings.HasPrefix(st.Version, l.reason+" ") || !strings.HasPrefix(st.CannotFork, l.reason+" has threads") {
		k.Errorf("it is %+v", st)
	}
	p := &snake{bench: k, Warmer: w, spec: s, warmth: st}
	p.is(l.state, "42")
	if ev, out, errs := p.eval(l.say); !ev.OK || out != "out\n" || errs != "err\n" {
		k.Errorf("it wrote %q and %q: %+v", out, errs, ev)
	}
	ev, _, _ := p.evalFor(k.ctx, l.endless, 300*time.Millisecond)
	if ev.OK || ev.Cause != "timeout" {
		k.Errorf("an endless loop: %+v", ev)
	}
	p.is(l.state, "42")
	if ev, _, _ := p.eval(l.at); k.caps.Isolation == "" && (ev.Value == nil || !strings.Contains(ev.Value.Repr, work)) {
		k.Errorf("it works in %+v", ev.Value)
	}
	list, err := i.List(k.ctx)
	k.must(err)
	if len(list) != 1 || list[0].Command != l.kind+" (interpreter)" {
		k.Errorf("the cell's processes are %+v", list)
	}
	k.must(w.Dismiss(k.ctx))
}
