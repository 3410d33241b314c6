package repl

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/testenv"
)

// TestJava is one test with parts: a Java takes a second to begin.
func TestJava(t *testing.T) {
	testenv.JShell(t)
	p := startKind(t, cell.WarmJava, testenv.Program(t, "java"), nil, "CLASSPATH="+library(t))
	if !strings.HasPrefix(p.ready.Version, "Java ") || p.ready.Kind != "java" || p.ready.Fork || !strings.Contains(p.ready.Reason, "threads") {
		t.Errorf("ready: %+v", p.ready)
	}
	for _, part := range []struct {
		name string
		f    func(p *python)
	}{
		{"KeepsItsState", javaKeepsItsState}, {"F48Values", valuesOfJava}, {"Errors", errorsOfJava}, {"Output", outputOfJava},
		{"IsInterrupted", javaIsInterrupted}, {"IsAdopted", javaIsAdopted},
	} {
		t.Run(part.name, func(t *testing.T) {
			q := *p
			q.T = t
			part.f(&q)
		})
	}
}

// library is a folder with a file, as CLASSPATH names it.
func library(t *testing.T) string {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "found"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

func javaKeepsItsState(p *python) {
	p.run("int x = 41; int f(int y) {\n  return x + y;\n}\nclass C { int v = f(1); }")
	want := cell.Value{Type: "Integer", JSON: json.RawMessage("42"), Repr: "42"}
	if diff := cmp.Diff(want, p.value("new C().v")); diff != "" {
		p.Error(diff)
	}
	p.run("import java.time.*;")
	p.run("String x = \"declared again\"; // with another type")
	for code, want := range map[string]string{
		"x": `"declared again"`, "Duration.ofSeconds(3)": "PT3S", "List.of(1).stream().map(i -> i + 1).collect(Collectors.toList())": "[2]",
		"var l = new ArrayList<Integer>();\nfor (int i = 0; i < 3; i++) {\n  l.add(i);\n}\nl": "[0, 1, 2]", `new Object() { }.getClass().getClassLoader().getResource("found") != null`: "true",
		"1 +\n1 // and no more": "2", "new Scanner(System.in).hasNext()": "false",
	} {
		if v := p.value(code); v.Repr != want {
			p.Errorf("%s is %s, want %s", code, v.Repr, want)
		}
	}
	for _, code := range []string{"void v() {} v()", "/* nothing */ // at all", "", "if (true) { }", "int q;"} {
		if ev := p.eval(code); !ev.OK || ev.Value != nil {
			p.Errorf("%q is %s", code, show(ev))
		}
	}
	// What is not there yet is told, and does no harm.
	p.run("int later() { return sooner(); }")
	if said := p.err.until(p.T, "sooner"); !strings.Contains(said, "until these are declared: method sooner()") {
		p.Errorf("it said %q", said)
	}
	if ev := p.eval("later()"); ev.Error == nil || !strings.Contains(ev.Error.Message, "method sooner()") {
		p.Errorf("a method that needs what is not there: %s", show(ev))
	}
	p.run("int sooner() { return 9; }")
	if v := p.value("later()"); v.Repr != "9" {
		p.Errorf("later() is %s", v.Repr)
	}
}

func valuesOfJava(p *python) {
	p.run("class Bad { public String toString() { throw new IllegalStateException(); } }")
	for _, x := range []struct{ code, typ, json, repr string }{
		{"new double[] {Double.NaN, Double.NEGATIVE_INFINITY, -0.0, 0.1, 1e300}", "double[]", `[{"$float":"NaN"},{"$float":"-Infinity"},-0.0,0.1,1.0E300]`, "double[5] { NaN, -Infinity, -0.0, 0.1, 1.0E300 }"},
		{"new long[] {1L << 53, (1L << 53) + 1}", "long[]", `[9007199254740992,{"$int":"9007199254740993"}]`, "long[2] { 9007199254740992, 9007199254740993 }"},
		{"BigInteger.TWO.pow(70).negate()", "java.math.BigInteger", `{"$int":"-1180591620717411303424"}`, "-1180591620717411303424"},
		{"new byte[] {-1, 0}", "byte[]", `{"$bytes":"/wA="}`, "byte[2] { -1, 0 }"},
		{`"a\ud800"`, "String", `{"$str":"Ye2ggA=="}`, "\"a\ufffd\""},
		{`"ä\0\n\u2029😀"`, "String", "\"ä\\u0000\\n\u2029😀\"", "\"ä\\000\\n\u2029😀\""},
		{"'c'", "Character", `"c"`, "'c'"},
		{"Set.of(2)", "java.util.ImmutableCollections$Set12", `{"$set":[2]}`, "[2]"},
		{"Map.of(1, List.of())", "java.util.ImmutableCollections$Map1", `{"$dict":[[1,[]]]}`, "{1=[]}"},
		{`new TreeMap<>(Map.of("a", true, "b", 0.5f))`, "java.util.TreeMap", `{"a":true,"b":0.5}`, "{a=true, b=0.5}"},
		{`Map.of("$int", "x")`, "java.util.ImmutableCollections$Map1", `{"$dict":[["$int","x"]]}`, "{$int=x}"},
		{"(Object) null", "null", "null", "null"},
		{"var own = new ArrayList<Object>(); own.add(own); own", "java.util.ArrayList", ``, "[(this Collection)]"},
		{"Arrays.asList(Optional.of(1), 2)", "java.util.Arrays$ArrayList", `[{"$opaque":{"type":"java.util.Optional","repr":"Optional[1]"}},2]`, "[Optional[1], 2]"},
		{"Optional.of(1)", "java.util.Optional", ``, "Optional[1]"},
		{"new Bad()", "Bad", ``, "<Bad: it can't be shown: IllegalStateException>"},
		{"new ArrayList<Object>() { public int size() { throw new IllegalStateException(); } }.getClass().getName().isEmpty()", "Boolean", `false`, "false"},
	} {
		v := p.value(x.code)
		if diff := cmp.Diff(cell.Value{Type: x.typ, JSON: raw(x.json), JSONCut: x.repr == "[(this Collection)]", Repr: x.repr}, v); diff != "" {
			p.Errorf("%s:\n%s", x.code, diff)
		}
	}
	v := p.value(`"x".repeat(3000000)`)
	if v.JSON != nil || len(v.Repr) != 1<<20 || v.Cut != 3000002-1<<20 {
		p.Errorf("of a long string: %d bytes of JSON, %d of repr, %d cut", len(v.JSON), len(v.Repr), v.Cut)
	}
	if ev := p.eval("new java.awt.image.BufferedImage(1, 1, 1)"); ev.OK && !strings.HasPrefix(ev.Value.MIME["image/png"], "iVBORw0KGgo") {
		p.Errorf("a picture: %s", show(ev))
	}
}

func errorsOfJava(p *python) {
	p.run("int div(int x) {\n  return 1 / x;\n}")
	n := p.eval("0").N
	ev := p.eval("int one = 1;\n\ndiv(0)")
	want := "java.lang.ArithmeticException: / by zero\n\tat div (<eval " + num(n-1) + ">:2)\n\tat (<eval " + num(n+1) + ">:3)\n"
	if ev.Error == nil || ev.Error.Type != "ArithmeticException" || ev.Error.Message != "/ by zero" || ev.Error.Line != 3 || ev.Error.Traceback != want {
		p.Errorf("%s\nwant %s", show(ev), want)
	}
	ev = p.eval("int kept = 7;\nint two = \"a\";\nint three = 3;")
	want = "<eval " + num(n+2) + ">:2: error: incompatible types: java.lang.String cannot be converted to int\nint two = \"a\";\n          ^\n"
	if ev.Error == nil || ev.Error.Type != "CompilationError" || ev.Error.Line != 2 || ev.Error.Traceback != want {
		p.Errorf("%s\nwant %s", show(ev), want)
	}
	// What can't be read is told before anything is done.
	if ev := p.eval("int unread = 1;\nint y = (;"); ev.Error == nil || ev.Error.Line != 2 {
		p.Errorf("what can't be read: %s", show(ev))
	}
	if ev := p.eval("unread"); ev.OK {
		p.Error("half of what can't be read was evaluated")
	}
	ev = p.eval(`throw new IllegalStateException("outer", new java.io.IOException("inner"))`)
	if ev.Error == nil || ev.Error.Message != "outer" || !strings.Contains(ev.Error.Traceback, "Caused by: java.io.IOException: inner") || strings.Contains(ev.Error.Traceback, "pando") {
		p.Errorf("a cause: %s", show(ev))
	}
	if ev := p.eval("int deep() { return deep() + 1; } deep()"); ev.Error == nil || ev.Error.Type != "StackOverflowError" {
		p.Errorf("without end: %.400s", show(ev))
	}
	if v := p.value("kept"); v.Repr != "7" {
		p.Error("what was done before the error is gone")
	}
}

func num(n int64) string { b, _ := json.Marshal(n); return string(b) }

func outputOfJava(p *python) {
	p.out.take()
	p.run(`System.out.println("out"); System.err.println("err"); System.out.print("no end");`)
	if out, errs := p.out.until(p.T, "no end"), p.err.until(p.T, "err"); out != "out\nno end" || errs != "err\n" {
		p.Errorf("stdout %q, stderr %q", out, errs)
	}
}

func javaIsInterrupted(p *python) {
	p.run("int n = 3;")
	p.run("class Endless { public String toString() { while (true); } }")
	for _, code := range []string{
		"while (true);", "Thread.sleep(100000);", "for (;;) try { Thread.sleep(1000); } catch (Exception e) { }",
		"synchronized (Object.class) { Object.class.wait(); }", "new Endless()", "n = 4; for (;;) if (n == 0) break; n = 5;",
	} {
		ev := p.within(code, 300*time.Millisecond)
		if ev.OK || ev.Cause != cell.CauseTimeout || ev.Error == nil || ev.Error.Type != "Interrupted" {
			p.Errorf("%s: %s", code, show(ev))
		}
		if v := p.value("n"); v.Repr != "3" && v.Repr != "4" {
			p.Errorf("after %s n is %s", code, v.Repr)
		}
	}
	p.cmd.Process.Signal(unix.SIGINT) // the answer may have been on its way
	p.value("n")
}

func javaIsAdopted(p *python) {
	for _, op := range []string{"check", "hold", "fork", "stand"} {
		p.refuses(op, "Java has threads of its own")
	}
	p.refuses("dance", "does not know")
	p.run(`var first = new Random(1).getClass(); var field = Math.class;`)
	got, err := p.Adopt(p.ctx, Adoption{Env: map[string]string{"PANDO_CELL": "web", "HOME": ""}, UID: -1, GID: -1})
	if err != nil {
		p.Fatal(err)
	}
	for _, h := range got.Hazards {
		switch h.Name {
		case "kernel randomness", "secure randomness", "randomness", "randomness of threads":
			if !strings.HasPrefix(h.Value, "fresh, sha256 ") {
				p.Errorf("%s: %q", h.Name, h.Value)
			}
		}
	}
	if len(got.Hazards) != 7 {
		p.Errorf("hazards: %+v", got.Hazards)
	}
	if v := p.value(`System.getenv("PANDO_CELL") + System.getenv("HOME") + new ProcessBuilder().environment().get("PANDO_CELL") + System.getenv().containsKey("HOME")`); v.Repr != `"webnullwebfalse"` {
		p.Errorf("its environment: %s", v.Repr)
	}
	if _, err := p.Adopt(p.ctx, Adoption{Workdir: "/elsewhere", UID: -1, GID: -1}); err == nil || !strings.Contains(err.Error(), "can't go to another folder") {
		p.Errorf("another folder: %v", err)
	}
}

// TestJavaWithoutJShell holds that a Java that can't evaluate says so.
func TestJavaWithoutJShell(t *testing.T) {
	f, err := File(javaArchive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := exec.Command(testenv.Program(t, "java"), "--limit-modules", "java.base", "-jar", "/proc/self/fd/0")
	cmd.Stdin = f
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.HasPrefix(string(out), "this Java has no module jdk.jshell") || strings.Count(string(out), "\n") != 1 {
		t.Errorf("it says %q: %v", out, err)
	}
}
