package repl

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/testenv"
)

func startNode(t *testing.T) *python {
	t.Helper()
	return startKind(t, cell.WarmNode, testenv.Program(t, "node"), nil)
}

// within evaluates code that is interrupted after a while.
func (p *python) within(code string, timeout time.Duration) cell.Evaluated {
	p.Helper()
	ev, err := p.Conn.Eval(p.ctx, Evaluation{Code: code, Limit: 1 << 20, Timeout: timeout, Interrupt: p.interrupt})
	if err != nil {
		p.Fatalf("%s: %v", code, err)
	}
	return ev
}

// ask asks what the protocol has no method of Conn for.
func (p *python) refuses(op, why string) {
	p.Helper()
	err := p.ask(p.ctx, map[string]any{"op": op}, nil)
	if cell.KindOf(err) != cell.Unsupported || !strings.Contains(err.Error(), why) {
		p.Errorf("%s: %v, want a refusal with %q", op, err, why)
	}
}

func TestNodeKeepsItsState(t *testing.T) {
	p := startNode(t)
	if !strings.HasPrefix(p.ready.Version, "Node v") || p.ready.Kind != "node" || p.ready.Fork || !strings.Contains(p.ready.Reason, "threads") {
		t.Errorf("ready: %+v", p.ready)
	}
	p.run("const x = 1; let y = 2; var z = 3; class A { v() { return x + y } } function f() { return new A() }")
	for _, again := range []string{"const x = 40;", "let y = 2", "class B extends A {}"} {
		p.run(again) // as it is typed again and again
	}
	want := cell.Value{Type: "number", JSON: json.RawMessage("42"), Repr: "42"}
	if diff := cmp.Diff(want, p.value("new B().v()")); diff != "" {
		t.Error(diff)
	}
	for _, x := range [][2]string{
		{"f() instanceof A && [] instanceof Array", "true"},
		{"await new Promise(r => setTimeout(r, 5, 7))", "7"},
		{"const w = await Promise.resolve(8); w", "8"},
		{"w + x", "48"},
		{"for (const i of [1]) await i; 'done'", "'done'"},
		{"require('path').join('a', 'b')", "'a/b'"},
		{"path.basename('/a/b')", "'b'"},
		{"(await import('node:os')).EOL", `'\n'`},
		{"`${1}import(` + 'import(' + /import\\(/.source + 4 / 2 / 1", `'1import(import(import\\(2'`},
		{"const m = async () => (await import(`${'node:'}url`)); typeof (await m()).URL", "'function'"},
		{"typeof process.stdin.read()", "'object'"},
	} {
		if v := p.value(x[0]); v.Repr != x[1] {
			t.Errorf("%s is %s, want %s", x[0], v.Repr, x[1])
		}
	}
	for _, code := range []string{"undefined", "if (0) 1", "let q", ""} {
		if ev := p.eval(code); !ev.OK || ev.Value != nil {
			t.Errorf("%q is %s", code, show(ev))
		}
	}
	if v := p.value("Object.keys(globalThis).filter(k => /pando|impor|HAND|session|shared/.test(k))"); v.Repr != "[]" {
		t.Errorf("code sees %s", v.Repr)
	}
}

func TestF48ValuesOfNode(t *testing.T) {
	p := startNode(t)
	for _, x := range []struct{ code, typ, json, repr string }{
		{"NaN", "number", `{"$float":"NaN"}`, "NaN"},
		{"[Infinity, -Infinity, -0, 0.1, 1e300]", "Array", `[{"$float":"Infinity"},{"$float":"-Infinity"},-0.0,0.1,1e+300]`, "[ Infinity, -Infinity, -0, 0.1, 1e+300 ]"},
		{"[1n, -(2n ** 70n)]", "Array", `[{"$int":"1"},{"$int":"-1180591620717411303424"}]`, "[ 1n, -1180591620717411303424n ]"},
		{"5n", "bigint", `{"$int":"5"}`, "5n"},
		{"Buffer.from([255, 0])", "Buffer", `{"$bytes":"/wA="}`, "<Buffer ff 00>"},
		{"new Uint8Array([255, 0])", "Uint8Array", `{"$bytes":"/wA="}`, "Uint8Array(2) [ 255, 0 ]"},
		{"new Float64Array([1, NaN])", "Float64Array", `[1,{"$float":"NaN"}]`, "Float64Array(2) [ 1, NaN ]"},
		{`"a\ud800"`, "string", `{"$str":"Ye2ggA=="}`, `'a\ud800'`},
		{`"ä\0\n\u2028😀"`, "string", "\"ä\\u0000\\n\u2028😀\"", "'ä\\x00\\n\u2028😀'"},
		{"new Set([2, 1])", "Set", `{"$set":[2,1]}`, "Set(2) { 2, 1 }"},
		{"new Map([[1, 2], ['a', null]])", "Map", `{"$dict":[[1,2],["a",null]]}`, "Map(2) { 1 => 2, 'a' => null }"},
		{"({ '$int': 'x' })", "Object", `{"$dict":[["$int","x"]]}`, "{ '$int': 'x' }"},
		{"{ a: [true, {}] }", "Object", `{"a":[true,{}]}`, "{ a: [ true, {} ] }"},
		{"null", "null", "null", "null"},
		{"[undefined]", "Array", `[{"$opaque":{"type":"undefined","repr":"undefined"}}]`, "[ undefined ]"},
		{"[new Date(0), 1]", "Array", `[{"$opaque":{"type":"Date","repr":"1970-01-01T00:00:00.000Z"}},1]`, "[ 1970-01-01T00:00:00.000Z, 1 ]"},
		{"[, 1]", "Array", ``, "[ <1 empty item>, 1 ]"},
		{"({ a: undefined })", "Object", `{"a":{"$opaque":{"type":"undefined","repr":"undefined"}}}`, "{ a: undefined }"},
		{"({ get a() { throw 1 } })", "Object", ``, "{ a: [Getter] }"},
		{"const o = {}; o.o = o; o", "Object", ``, "<ref *1> { o: [Circular *1] }"},
		{"new Date(0)", "Date", ``, "1970-01-01T00:00:00.000Z"},
		{"Symbol('s')", "symbol", ``, "Symbol(s)"},
		{"(function f() {})", "function", ``, "[Function: f]"},
		{"new (class Odd extends Array {})(1, 2)", "Odd", ``, "Odd(2) [ 1, 2 ]"},
		{"new Proxy({}, { get() { throw 1 }, ownKeys() { throw 2 } })", "Proxy", ``, "{}"},
		{"({ [Symbol.for('nodejs.util.inspect.custom')]() { throw new TypeError('no') } })", "Object", ``, "<Object: it can't be shown: TypeError: no>"},
		{"new Error('as a value', { cause: new Error('c') }).stack.split('\\n').length", "number", `2`, "2"},
	} {
		v := p.value(x.code)
		if x.typ == "number" && x.repr == "2" {
			continue // how many frames there are is V8's own; below is what is shown
		}
		if diff := cmp.Diff(cell.Value{Type: x.typ, JSON: raw(x.json), JSONCut: strings.Contains(x.repr, "Circular"), Repr: x.repr}, v); diff != "" {
			t.Errorf("%s:\n%s", x.code, diff)
		}
	}
	v := p.value("'x'.repeat(3000000)")
	if v.JSON != nil || len(v.Repr) != 1<<20 || v.Cut != 3000002-1<<20 {
		t.Errorf("of a long string: %d bytes of JSON, %d of repr, %d cut", len(v.JSON), len(v.Repr), v.Cut)
	}
	if v := p.value("new Error('as a value')"); v.Type != "Error" || strings.Contains(v.Repr, "pando") || !strings.Contains(v.Repr, "at <eval-") {
		t.Errorf("an error as a value: %s", show(v))
	}
}

func TestRichResultsOfNode(t *testing.T) {
	p := startNode(t)
	ev := p.eval(`display({ a: 1 });
({ [Symbol.for("Jupyter.display")]() { return { "text/html": "<b>", "application/json": { a: 1 } } }, _toPng() { return new Uint8Array([1]) } })`)
	want := []cell.Bundle{{"text/plain": "{ a: 1 }"}}
	if diff := cmp.Diff(want, ev.Display); diff != "" || ev.Value == nil {
		t.Fatal(diff, show(ev))
	}
	if diff := cmp.Diff(cell.Bundle{"text/html": "<b>", "application/json": `{"a":1}`, "image/png": "AQ=="}, ev.Value.MIME); diff != "" {
		t.Error(diff)
	}
}

func TestErrorsOfNode(t *testing.T) {
	p := startNode(t)
	p.run("function f(x) {\n  return x.y.z;\n}")
	ev := p.eval("1;\nf({})")
	want := &cell.EvalError{Type: "TypeError", Message: "Cannot read properties of undefined (reading 'z')", Line: 2,
		Traceback: "Uncaught TypeError: Cannot read properties of undefined (reading 'z')\n    at f (<eval-1>:2:14)\n    at <eval-2>:2:1"}
	if diff := cmp.Diff(want, ev.Error); diff != "" || ev.OK {
		t.Errorf("%s%s", diff, show(ev))
	}
	ev = p.eval("async function g() {\n  await 0;\n  throw new RangeError('late');\n}\nawait g()")
	if ev.Error == nil || ev.Error.Type != "RangeError" || ev.Error.Line != 3 || !strings.Contains(ev.Error.Traceback, "at async <eval-3>:5:1") {
		t.Errorf("behind an await: %s", show(ev))
	}
	ev = p.eval("const a = 1;\nif (a\n  b")
	if ev.Error == nil || ev.Error.Type != "SyntaxError" || ev.Error.Line != 3 || !strings.HasPrefix(ev.Error.Traceback, "<eval-4>:3\n  b\n  ^\n\nUncaught SyntaxError: ") {
		t.Errorf("a syntax error: %s", show(ev))
	}
	if ev := p.eval("import fs from 'fs'"); ev.Error == nil || !strings.Contains(ev.Error.Traceback, "await import(") {
		t.Errorf("an import declaration: %s", show(ev))
	}
	ev = p.eval("throw new Error('outer', { cause: new TypeError('inner') })")
	if ev.Error == nil || !strings.Contains(ev.Error.Traceback, "[cause]: TypeError: inner") || strings.Contains(ev.Error.Traceback, "pando") {
		t.Errorf("a cause: %s", show(ev))
	}
	for code, want := range map[string]string{"throw null": "null", "throw 'text'": "string", "throw { a: 1 }": "Object", "(function r() { r() })()": "RangeError", "JSON.parse('{')": "SyntaxError",
		"class E extends Error { constructor(m) { super(m); this.name = 'E' } }; throw new E('own')": "E", "class F extends Error { constructor(m) { super(m); this.name = 'F' } }; await Promise.reject(new F('again'))": "F"} {
		if ev := p.eval(code); ev.OK || ev.Error == nil || ev.Error.Type != want {
			t.Errorf("%s: %s", code, show(ev))
		}
	}
	// What is thrown behind an evaluation is told, and ends nothing.
	p.err.take()
	p.run("void setTimeout(() => { throw new Error('on its own') }, 1); void Promise.reject(new Error('nobody waits'))")
	p.value("await new Promise(r => setTimeout(r, 20, 1))")
	if said := p.err.until(t, "on its own"); !strings.Contains(said, "Uncaught (in promise) Error: nobody waits") || strings.Contains(said, "pando") {
		t.Errorf("it said %q", said)
	}
	if v := p.value("typeof a"); v.Repr != "'undefined'" {
		t.Error("what could not be understood was evaluated in part")
	}
}

func TestOutputOfNode(t *testing.T) {
	p := startNode(t)
	p.run("console.log('out'); console.error('err'); void process.stdout.write('x'.repeat(300000) + 'no end')")
	if out, errs := p.out.until(t, "no end"), p.err.until(t, "err"); !strings.HasPrefix(out, "out\nxxx") || len(out) != 300010 || errs != "err\n" {
		t.Errorf("stdout %.20q of %d, stderr %q", out, len(out), errs)
	}
	if ev := p.eval("process.exit(3)"); ev.Cause != cell.CauseEnded {
		t.Errorf("exit: %s", show(ev))
	}
}

// TestNodeIsInterrupted has it interrupted where code of the same thread can be
// reached, and where it can't.
func TestNodeIsInterrupted(t *testing.T) {
	p := startNode(t)
	p.run("let x = 3")
	for _, code := range []string{
		"for (;;);",
		"await 0; for (;;);",
		"await new Promise(r => setTimeout(r, 10)); for (;;);",
		"await new Promise(() => {})",
		"await new Promise(() => setTimeout(() => { for (;;); }, 5))",
		"Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)",
		"try { for (;;); } catch {} finally { for (;;); }",
		"({ [Symbol.for('nodejs.util.inspect.custom')]() { for (;;); } })",
		"process.on('SIGINT', () => console.log('mine')); for (;;);",
	} {
		ev := p.within(code, 150*time.Millisecond)
		if ev.OK || ev.Cause != cell.CauseTimeout || ev.Error == nil || ev.Error.Type != "Interrupted" {
			t.Errorf("%s: %s", code, show(ev))
		}
		if v := p.value("x"); v.Repr != "3" {
			t.Errorf("after %s x is %s", code, v.Repr)
		}
		if v := p.value("await new Promise(r => setTimeout(() => process.nextTick(r, 4), 5))"); v.Repr != "4" {
			t.Errorf("after %s nothing can be waited for: %s", code, v.Repr)
		}
	}
	p.cmd.Process.Signal(unix.SIGINT) // the answer may have been on its way
	p.value("await new Promise(r => setTimeout(r, 100, 1))")
	p.run("void setTimeout(() => { for (;;); }, 1); void Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 5)")
	if ev := p.within("x", 300*time.Millisecond); ev.Cause != cell.CauseTimeout {
		t.Errorf("behind an endless loop: %s", show(ev))
	}
	if v := p.value("x"); v.Repr != "3" {
		t.Errorf("x is %s", v.Repr)
	}
	// What can't go on says so, and ends.
	if ev := p.within("await new Promise(() => { setImmediate(() => { }); setImmediate(() => { for (;;); }) })", 150*time.Millisecond); ev.OK || ev.Cause == "" {
		t.Errorf("in the second of two immediates: %s", show(ev))
	}
	p.err.until(t, "Node does not survive")
}

func TestNodeIsAdopted(t *testing.T) {
	p := startNode(t)
	for _, op := range []string{"check", "hold", "fork", "stand"} {
		p.refuses(op, "Node has threads of its own")
	}
	p.refuses("dance", "does not know")
	p.run("const early = await import('crypto'), cr = require('crypto'), old = [Math.random, cr.randomBytes]; let bytes = (n) => cr.randomBytes(n).toString('hex')")
	dir := t.TempDir()
	got, err := p.Adopt(p.ctx, Adoption{Workdir: dir, Env: map[string]string{"PANDO_CELL": "web", "HOME": ""}, UID: -1, GID: -1})
	if err != nil {
		t.Fatal(err)
	}
	hazards := map[string]string{}
	for _, h := range got.Hazards {
		hazards[h.Name] = h.Value
	}
	for _, name := range []string{"kernel randomness", "randomness", "crypto randomness"} {
		if !strings.HasPrefix(hazards[name], "fresh, sha256 ") {
			t.Errorf("%s: %q", name, hazards[name])
		}
	}
	for _, name := range []string{"openssl randomness", "hash seed"} {
		if !strings.HasPrefix(hazards[name], "inherited") {
			t.Errorf("%s: %q", name, hazards[name])
		}
	}
	if v := p.value("[process.cwd(), process.env.PANDO_CELL, process.env.HOME === undefined, old[0] !== Math.random, old[1] !== cr.randomBytes].join()"); v.Repr != "'"+dir+",web,true,true,true'" {
		t.Errorf("it is %s", v.Repr)
	}
	p.run(`const assert = require("assert");
for (let i = 0; i < 1000; i++) { const r = Math.random(); assert(r >= 0 && r < 1); const n = cr.randomInt(3, 6); assert(n >= 3 && n < 6 && n % 1 === 0); }
assert.match(cr.randomUUID(), /^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
assert.notStrictEqual(bytes(16), bytes(16));
assert.throws(() => cr.randomBytes(-1), /ERR_OUT_OF_RANGE|out of range/);
const b = Buffer.alloc(8); cr.randomFillSync(b, 2, 2); assert(b.subarray(4).every((x) => x === 0));
assert.strictEqual(cr.webcrypto.getRandomValues(new Uint16Array(4)).length, 4);
assert.throws(() => cr.webcrypto.getRandomValues(new Float64Array(1)));
assert.strictEqual((await new Promise((r) => cr.randomBytes(4, (e, x) => r(x)))).length, 4);
assert.strictEqual((await new Promise((r) => cr.randomInt(1, (e, x) => r(x)))), 0);
assert.strictEqual(early.randomBytes, cr.randomBytes);`)
}
