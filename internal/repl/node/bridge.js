// The Node end of pando's interpreters: Node 18 and later, nothing but what is
// built in. It runs in a function of its own; code that is evaluated lives in the
// global scope and sees nothing of this.
//
// Code is evaluated by V8's own REPL mode, which its inspector has: what is
// declared lasts and may be declared again, and await works at the top. SIGINT is
// taken by a thread beside the one that evaluates, which has V8 end what runs:
// also an endless loop behind an await, where no handler of the same thread would
// ever be called.
"use strict";
const fs = require("fs"), net = require("net"), path = require("path"), util = require("util"), vm = require("vm");
const crypto = require("crypto"), url = require("url"), builtin = require("module"), threads = require("worker_threads");
const { isProxy, isDate, isTypedArray, isAnyArrayBuffer, isDataView, isNativeError, isMap, isSet } = util.types;

const MAX_JSON = 1 << 20; // bytes
const MAX_LINE = 10 << 20; // of an answer: the other end reads no more than 12 MiB
const MAX_DEPTH = 200; // which is how cycles end, too
const MAX_FORM = 4 << 20; // characters of one rich form
const MAX_SHOWN = 8 << 20; // of all that one evaluation shows
const MAX_TEXT = 256 << 10; // of a traceback
const MAX_OPAQUE = 1000; // characters of what is in something else and has no form
const NO_FORK = "Node has threads of its own, which a fork would not have";

// Values as cell.Value says: JSON where it is exact, one-key objects for what
// JSON has no word for; nothing where there is no exact form, but its text in what
// holds it.

class Inexact extends Error {} // a value has no form in JSON
class TooMuch extends Inexact {} // what holds it would be too long or too deep

function spend(left, n) {
  if ((left.n -= n) < 0) throw new TooMuch();
}

// What answers are made with is taken once: code may put something else in its place.
const { stringify: quote, parse } = JSON, clock = performance.now.bind(performance);
const word = (name, text) => `{"$${name}":${text}}`;

// wtf8 is the UTF-8 of a string that has half surrogates, which are kept.
function wtf8(s) {
  const out = [];
  for (const c of s) {
    const n = c.codePointAt(0);
    if (n >= 0xd800 && n <= 0xdfff) out.push(Buffer.from([0xe0 | (n >> 12), 0x80 | ((n >> 6) & 63), 0x80 | (n & 63)]));
    else out.push(Buffer.from(c));
  }
  return Buffer.concat(out);
}

const halves = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/;

function plainString(s, left) {
  spend(left, s.length + 2);
  return halves.test(s) ? word("str", quote(wtf8(s).toString("base64"))) : quote(s);
}

function plainNumber(n, left) {
  spend(left, 3);
  if (Number.isFinite(n)) return Object.is(n, -0) ? "-0.0" : String(n);
  return word("float", quote(String(n)));
}

function plainList(list, left, depth) {
  spend(left, 2 + list.length);
  return "[" + list.map((x) => part(x, left, depth + 1)).join(",") + "]";
}

// part is plain of what is in something else, whose form it is not to cost it.
function part(v, left, depth) {
  try {
    return plain(v, left, depth);
  } catch (e) {
    if (!(e instanceof Inexact) || e instanceof TooMuch) throw e;
    const text = quote({ type: typeName(v), repr: cut(reprOf(v), MAX_OPAQUE) });
    spend(left, text.length);
    return word("opaque", text);
  }
}

function plainBytes(v, left) {
  const b = isAnyArrayBuffer(v) ? Buffer.from(v) : Buffer.from(v.buffer, v.byteOffset, v.byteLength);
  spend(left, (b.length * 4) / 3);
  return word("bytes", quote(b.toString("base64")));
}

// members are the names and values of a plain object, none of which is computed.
function members(v) {
  const all = Object.getOwnPropertyDescriptors(v);
  if (Object.getOwnPropertySymbols(v).length) throw new Inexact();
  return Object.keys(all).map((k) => {
    if (!("value" in all[k]) || !all[k].enumerable) throw new Inexact();
    return [k, all[k].value];
  });
}

function plainObject(v, left, depth) {
  const list = members(v);
  spend(left, 2 + list.length);
  if (list.every(([k]) => !k.startsWith("$") && !halves.test(k)))
    return "{" + list.map(([k, x]) => plainString(k, left) + ":" + part(x, left, depth + 1)).join(",") + "}";
  return plainPairs(list, left, depth);
}

function plainPairs(list, left, depth) {
  spend(left, 2 + list.length);
  return word("dict", "[" + list.map(([k, x]) => "[" + part(k, left, depth + 1) + "," + part(x, left, depth + 1) + "]").join(",") + "]");
}

// plain is v in words of JSON, or throws Inexact. left is the budget of bytes.
function plain(v, left, depth) {
  switch (typeof v) {
    case "string": return plainString(v, left);
    case "number": return plainNumber(v, left);
    case "boolean": spend(left, 4); return String(v);
    case "bigint": {
      const digits = String(v);
      spend(left, digits.length);
      return word("int", quote(digits));
    }
    case "object": break;
    default: throw new Inexact();
  }
  if (v === null) return "null";
  if (depth > MAX_DEPTH) throw new TooMuch();
  if (isProxy(v)) throw new Inexact();
  const proto = Object.getPrototypeOf(v);
  if (Array.isArray(v)) {
    if (proto !== Array.prototype || Object.keys(v).length !== v.length) throw new Inexact(); // holes, or more than a list
    return plainList(v, left, depth);
  }
  if (proto === Uint8Array.prototype || proto === Buffer.prototype || proto === Uint8ClampedArray.prototype || isAnyArrayBuffer(v) || isDataView(v))
    return plainBytes(v, left);
  if (isTypedArray(v)) {
    spend(left, v.length * 2);
    return plainList(Array.from(v), left, depth);
  }
  if (isMap(v) && proto === Map.prototype) return plainPairs([...v], left, depth);
  if (isSet(v) && proto === Set.prototype) return word("set", plainList([...v], left, depth));
  if (proto === Object.prototype || proto === null) return plainObject(v, left, depth);
  throw new Inexact();
}

// jsonMember is a value's JSON as a member of an answer, with a comma before it, or that
// it would be too long or too deep.
function jsonMember(v) {
  try {
    const text = plain(v, { n: MAX_JSON }, 0);
    return Buffer.byteLength(text) <= MAX_JSON ? ',"json":' + text : ',"json_cut":true';
  } catch (e) {
    return e instanceof TooMuch || e instanceof RangeError ? ',"json_cut":true' : "";
  }
}

function typeName(v) {
  if (v === null) return "null";
  if (typeof v !== "object") return typeof v;
  try {
    if (isProxy(v)) return "Proxy";
    const c = v.constructor;
    return typeof c === "function" && typeof c.name === "string" && c.name ? c.name.slice(0, 1000) : "Object";
  } catch {
    return "Object";
  }
}

const inspection = { depth: 8, maxArrayLength: 100000, maxStringLength: null, breakLength: 80 };

function reprOf(v) {
  try {
    clean(v);
    const text = util.inspect(v, inspection);
    return text.includes("(<pando>:") ? tidy(text) : text;
  } catch (e) {
    return `<${typeName(v)}: it can't be shown: ${describe(e)}>`;
  }
}

function describe(e) {
  try {
    return isNativeError(e) ? `${e.name}: ${e.message}` : String(e);
  } catch {
    return typeName(e);
  }
}

function cut(text, n) {
  if (text.length <= n) return text;
  if (n > 0 && text.charCodeAt(n - 1) >= 0xd800 && text.charCodeAt(n - 1) <= 0xdbff) n--;
  return text.slice(0, n);
}

function valueOf(v, limit) {
  const text = reprOf(v), out = { type: typeName(v), repr: cut(text, limit) };
  if (text.length > out.repr.length) out.repr_cut = text.length - out.repr.length;
  const mime = bundleOf(v);
  if (Object.keys(mime).length) out.mime = mime;
  return quote(out).slice(0, -1) + jsonMember(v) + "}";
}

// Richer forms: Jupyter's convention of Deno, and that of IJavascript.

const FORMS = [["text/html", "_toHtml"], ["image/svg+xml", "_toSvg"], ["image/png", "_toPng"], ["image/jpeg", "_toJpeg"]];

function formText(kind, data) {
  if (data instanceof Uint8Array) data = Buffer.from(data).toString("base64");
  else if (data !== undefined && data !== null && typeof data !== "string") data = kind.endsWith("json") ? quote(data) : undefined;
  if (typeof data !== "string") return undefined;
  if (data.length <= MAX_FORM) return data;
  try {
    fs.writeSync(2, `pando: ${kind} is left out of the result: it has ${data.length} bytes, and at most ${MAX_FORM} are taken; have the code write it to a file\n`);
  } catch {} // nobody reads it
  return undefined;
}

function bundleOf(v) {
  const out = {};
  if (v === null || typeof v !== "object" || isProxy(v)) return out;
  const put = (kind, data) => {
    const text = formText(kind, data);
    if (text !== undefined && kind !== "text/plain") out[kind] = text;
  };
  try {
    for (const name of [Symbol.for("Jupyter.display"), "_toMime"])
      if (typeof v[name] === "function") for (const [kind, data] of Object.entries(v[name]() || {})) put(kind, data);
    for (const [kind, name] of FORMS) if (!(kind in out) && typeof v[name] === "function") put(kind, v[name]());
  } catch (e) {
    process.stderr.write(thrown(e) + "\n");
  }
  return out;
}

const shown = { list: [], size: 0, missing: 0, limit: 1 << 20 };

function display(...list) {
  for (const v of list) {
    const b = { "text/plain": cut(reprOf(v), shown.limit), ...bundleOf(v) };
    const size = Object.entries(b).reduce((n, [k, x]) => n + k.length + x.length, 0);
    if (shown.size + size > MAX_SHOWN) shown.missing++;
    else shown.size += size, shown.list.push(b);
  }
}

function takeShown() {
  const out = shown.list;
  if (shown.missing) out.push({ "text/plain": `<${shown.missing} more were shown: together too much to keep>` });
  Object.assign(shown, { list: [], size: 0, missing: 0 });
  return out;
}

// What code threw.

const frame = /^\s+at /, own = /(<pando>|node:inspector):/;

// tidy takes the frames out of a text that are this program's, and what called it.
function tidy(text) {
  let within = false;
  return text.split("\n").filter((line) => {
    if (!frame.test(line)) return !(within = false);
    return !(within = within || own.test(line));
  }).join("\n");
}

// clean takes them out of an error, and of those that it comes from.
function clean(e, depth = 0) {
  if (depth > 8 || !isNativeError(e)) return;
  if (typeof e.stack === "string" && own.test(e.stack)) e.stack = tidy(e.stack);
  clean(e.cause, depth + 1);
  if (Array.isArray(e.errors)) for (const x of e.errors.slice(0, 100)) clean(x, depth + 1);
}

function thrown(e) {
  let text;
  try {
    clean(e);
    text = util.inspect(e, { depth: 4 });
  } catch (worse) {
    text = describe(e);
  }
  if (text.length > MAX_TEXT) text = text.slice(0, MAX_TEXT / 2) + `\n  … ${text.length - MAX_TEXT} characters …\n` + text.slice(-MAX_TEXT / 2);
  return "Uncaught " + tidy(text);
}

function errorOf(e, details, name, code) {
  const error = { type: typeName(e), message: "", traceback: thrown(e) };
  try {
    if (isNativeError(e)) {
      error.type = String(e.name || error.type);
      error.message = String(e.message);
      const at = String(e.stack).split(name + ":")[1];
      if (at && parseInt(at, 10) > 0) error.line = parseInt(at, 10);
    } else error.message = typeof e === "string" ? e : reprOf(e);
  } catch {}
  if (details && isNativeError(e) && error.type === "SyntaxError" && !error.line) {
    error.line = details.lineNumber + 1;
    const line = code.split("\n")[details.lineNumber] || "";
    const hint = /import statement outside a module/.test(error.message) ? "\n(import declarations are of modules: use await import(…))" : "";
    error.traceback = `${name}:${error.line}\n${line}\n${" ".repeat(details.columnNumber)}^\n\nUncaught SyntaxError: ${error.message}${hint}`;
  }
  error.message = cut(error.message, 1 << 16);
  return error;
}

// Evaluation.

let inspector;
try {
  inspector = require("inspector");
} catch {
  fs.writeSync(2, "this Node was built without its inspector, which evaluates code here\n");
  process.exit(1);
}
const session = new inspector.Session();
session.connect();

// What both threads see: how many interruptions there were, how many of them this
// one has seen to, a number that never changes; and when an evaluation began, 0 when
// there is none. An interruption that is noticed just after was sent before, for the
// one that was; if not, it is sent again.
const shared = new Int32Array(new SharedArrayBuffer(24)), since = new BigInt64Array(shared.buffer, 16);
const ASKED = 0, SEEN = 1;

// watcher is the other thread. SIGINT ends its script and nothing else. It then
// asks this thread to see to it, which one that waits does; one that is busy is
// ended by V8.
const watcher = `
const { workerData: shared, parentPort } = require("worker_threads"), vm = require("vm"), inspector = require("inspector");
const since = new BigInt64Array(shared.buffer, 16), early = (began) => began && process.hrtime.bigint() - began < 70000000n;
const wait = vm.runInThisContext("(a, i, v, t) => Atomics.wait(a, i, v, t)");
globalThis.__wait = () => { for (;;) wait(shared, 2, 0); };
for (;;) {
  try { vm.runInThisContext("__wait()", { breakOnSigint: true }); } catch { }
  const began = Atomics.load(since, 0);
  const n = Atomics.add(shared, 0, 1) + 1;
  parentPort.postMessage(process.hrtime.bigint());
  if (wait(shared, 1, n - 1, 50) !== "timed-out" || Atomics.load(since, 0) !== began || early(began)) continue;
  const s = new inspector.Session();
  s.connectToMainThread();
  s.post("Runtime.terminateExecution");
  wait(shared, 1, n - 1, 200);
  s.disconnect();
}`;

process.on("SIGINT", () => interrupted(process.hrtime.bigint())); // until the watcher has begun
let interrupt = null; // ends the wait for what is evaluated
let writing = null; // gives up an answer that is being written, and calls into the code's own objects

// soon calls f when nothing else is on the stack, in a callback that can be ended:
// setImmediate is not one.
const { port1, port2 } = new MessageChannel(), waiting = [];
port2.on("message", () => waiting.shift()());
function soon(f) {
  waiting.push(f);
  port1.postMessage(0);
}

function seen() {
  Atomics.store(shared, SEEN, Atomics.load(shared, ASKED));
  Atomics.notify(shared, SEEN);
}

function interrupted(at) {
  seen();
  const began = Atomics.load(since, 0);
  if (began && at - began < 20000000n) return;
  if (interrupt) interrupt();
  else if (writing) writing(); // it was ended: this is called when nothing else runs
}

function watch() {
  const w = new threads.Worker(watcher, { eval: true, workerData: shared, env: {}, execArgv: [] });
  w.on("message", interrupted);
  w.on("error", () => {});
  w.unref();
}

// asExpression puts brackets around what looks like a block and is an object.
function asExpression(code) {
  if (!/^\s*\{/.test(code) || /;\s*$/.test(code)) return code;
  try {
    new vm.Script(`(async () => (${code}\n))`);
    return `(${code}\n)`;
  } catch {
    return code;
  }
}

// withImports has import(…) call ours: V8's REPL mode knows no loader. What is in
// strings, comments and regular expressions stays. The name is as long as the
// word, so that columns stay, too.
const IMPORT = "impor\u0167";
const tokens = /\/\/[^\n]*|\/\*[^]*?\*\/|'(?:\\[^]|[^'\\\n])*'|"(?:\\[^]|[^"\\\n])*"|[`{}]|[\p{ID_Start}$_][\p{ID_Continue}$\u200c\u200d]*|[0-9][\w.]*|\/(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^\/\\\[\n])+\/[a-z]*|\s+|[^]/gu;
const operand = /^(?:[)\]}'"`]|[\p{ID_Continue}$])/u;
const prefixWords = new Set(["return", "typeof", "case", "in", "of", "do", "else", "void", "delete", "throw", "new", "await", "yield", "instanceof"]);

function withImports(code) {
  if (!/\bimport\s*\(/.test(code)) return code;
  let out = "", before = "", at = 0;
  const open = []; // braces, true for those of a template's expression
  const template = () => {
    while (at < code.length) {
      const c = code[at];
      if (c === "\\") out += code.slice(at, (at += 2));
      else if (c === "$" && code[at + 1] === "{") return (out += "${"), (at += 2), open.push(true), (before = "{");
      else if (((out += c), at++, c === "`")) return (before = "`");
    }
  };
  while (at < code.length) {
    tokens.lastIndex = at;
    let t = tokens.exec(code)[0];
    if (t[0] === "/" && t.length > 1 && t[1] !== "/" && t[1] !== "*" && operand.test(before) && !prefixWords.has(before)) t = "/"; // a division
    at += t.length;
    if (t === "import" && before !== "." && /^\s*\(/.test(code.slice(at))) t = IMPORT;
    out += t;
    if (t === "`") template();
    else if (t === "{") open.push(false), (before = t);
    else if (t === "}") {
      if (open.pop()) template();
      else before = t;
    } else if (!/^\s|^\/[\/*]/.test(t)) before = t[0] === "'" || t[0] === '"' ? "'" : t[0] === "/" && t.length > 1 ? ")" : t;
  }
  return out;
}

const load = (what, options) => {
  let name = String(what);
  if (/^\.{0,2}\//.test(name)) name = url.pathToFileURL(path.resolve(name)).href;
  return options === undefined ? outside(name) : outside(name, options);
};

let count = 0;

// evaluate calls done with the answer. Nothing here waits for a promise: when V8
// ends what runs in one, it forgets all that others wait for.
function evaluate(q, done) {
  let name = q.name;
  if (!name) name = `<eval-${++count}>`;
  name = name.replace(/\s/g, "-");
  const limit = (shown.limit = Math.max(0, Math.min(q.limit ?? MAX_FORM, MAX_FORM)));
  const code = String(q.code), began = clock();
  let over = false;
  const end = (failed, got) => {
    if (over) return;
    over = true;
    interrupt = null;
    if (Atomics.load(shared, ASKED) !== Atomics.load(shared, SEEN)) failed = null; // V8 has ended it, whatever it calls that
    Atomics.store(since, 0, 0n);
    const took = clock() - began;
    soon(() => { // behind what is left of its stack
      writing = () => {
        writing = null;
        done(answerOf(q, name, code, limit, null, null, took));
      };
      const text = answerOf(q, name, code, limit, failed, got, took);
      writing = null;
      done(text);
    });
  };
  interrupt = () => end(null, null);
  Atomics.store(since, 0, process.hrtime.bigint());
  session.post("Runtime.evaluate", {
    expression: `${withImports(asExpression(code))}\n//# sourceURL=${name}`, replMode: true, objectGroup: "pando",
  }, end);
}

function answerOf(q, name, code, limit, failed, got, took) {
  const out = { took_ms: took, n: count, ok: true };
  let value = "";
  if (!got || !got.result) {
    const [type, message] = failed ? ["Error", failed.message] : ["Interrupted", "the evaluation was interrupted"];
    out.ok = false;
    out.error = { type, message, traceback: `Uncaught ${type}: ${message}` };
  } else if (got.exceptionDetails) {
    out.ok = false;
    out.error = errorOf(real(got.exceptionDetails.exception || got.result), got.exceptionDetails, name, code);
  } else {
    const v = real(got.result);
    if (v !== undefined) value = ',"value":' + valueOf(v, limit);
  }
  session.post("Runtime.releaseObjectGroup", { objectGroup: "pando" });
  const list = takeShown();
  let said = quote(out).slice(0, -1);
  if (list.length) {
    const more = ',"display":' + quote(list);
    if (said.length + more.length + value.length < MAX_LINE) said += more;
    else said += ',"display":[{"text/plain":"<what was shown is left out: together with the value too much for one answer>"}]';
  }
  if (said.length + value.length > MAX_LINE) value = ',"value":{"type":"?","repr":"<too much to show>"}';
  return `{"id":${q.id},"evaluated":${said}${value}}}`;
}

// real is the value that V8 describes.
function real(r) {
  if (r.objectId === undefined) {
    if (r.unserializableValue === undefined) return r.type === "undefined" ? undefined : r.value;
    if (r.type === "bigint") return BigInt(r.unserializableValue.slice(0, -1));
    return Number(r.unserializableValue);
  }
  let v;
  globalThis[HAND] = (x) => (v = x);
  session.post("Runtime.callFunctionOn", { objectId: r.objectId, silent: true, functionDeclaration: `function () { "use strict"; globalThis[${quote(HAND)}](this); }` });
  delete globalThis[HAND];
  return v;
}

const HAND = "\u2060pando";

// Becoming another, when the whole machine was copied.

const bytes = (n) => {
  const b = Buffer.alloc(n), fd = fs.openSync("/dev/urandom", "r");
  for (let at = 0; at < n; ) at += fs.readSync(fd, b, at, n - at);
  fs.closeSync(fd);
  return b;
};

const digest = (b) => "fresh, sha256 " + crypto.createHash("sha256").update("pando").update(b).digest("hex").slice(0, 16);

// freshRandom is a generator (sfc32) in the place of V8's, whose state can't be set.
function freshRandom() {
  const seed = bytes(16);
  let [a, b, c, d] = [0, 4, 8, 12].map((i) => seed.readInt32LE(i));
  const next = () => {
    const t = (((a + b) | 0) + d) | 0;
    d = (d + 1) | 0;
    a = b ^ (b >>> 9);
    b = (c + (c << 3)) | 0;
    c = (c << 21) | (c >>> 11);
    c = (c + t) | 0;
    return t >>> 0;
  };
  for (let i = 0; i < 15; i++) next();
  Math.random = { random: () => ((next() >>> 5) * 67108864 + (next() >>> 6)) / 9007199254740992 }.random;
  return digest(seed);
}

// freshCrypto puts the kernel's randomness in the place of OpenSSL's where it can
// be reached: OpenSSL looks at the process's number, which is the same in copies.
function freshCrypto() {
  const fill = (view, at = 0, n) => {
    const b = ArrayBuffer.isView(view) ? Buffer.from(view.buffer, view.byteOffset, view.byteLength) : Buffer.from(view);
    const size = view.BYTES_PER_ELEMENT || 1, to = n === undefined ? b.length : (at + n) * size;
    if (at * size > b.length || to > b.length || at < 0 || to < at * size) throw new RangeError("out of range");
    bytes(to - at * size).copy(b, at * size);
    return view;
  };
  const later = (f, done) => (typeof done === "function" ? process.nextTick(() => done(null, f())) : f());
  const old = { randomBytes: crypto.randomBytes, randomInt: crypto.randomInt };
  const size = (n) => old.randomBytes(n).length; // with its checks
  crypto.randomBytes = function randomBytes(n, done) { return size(n), later(() => bytes(n), done); };
  for (const name of ["pseudoRandomBytes", "prng", "rng"]) Object.defineProperty(crypto, name, { value: crypto.randomBytes, configurable: true, writable: true });
  crypto.randomFillSync = function randomFillSync(view, at, n) { return fill(view, at, n); };
  crypto.randomFill = function randomFill(view, at, n, done) {
    if (typeof at === "function") [done, at, n] = [at, 0, undefined];
    else if (typeof n === "function") [done, n] = [n, undefined];
    later(() => fill(view, at, n), done);
  };
  crypto.randomInt = function randomInt(min, max, done) {
    if (max === undefined || typeof max === "function") [done, max, min] = [max, min, 0];
    old.randomInt(min, max); // with its checks
    const range = BigInt(max - min), most = (1n << 64n) - ((1n << 64n) % range);
    const draw = () => {
      let x;
      do x = bytes(8).readBigUInt64LE(); while (x >= most);
      return min + Number(x % range);
    };
    return later(draw, done);
  };
  crypto.randomUUID = function randomUUID() {
    const b = bytes(16);
    b[6] = (b[6] & 15) | 64;
    b[8] = (b[8] & 63) | 128;
    return b.toString("hex").replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
  };
  const web = crypto.webcrypto, proto = web && Object.getPrototypeOf(web);
  if (proto) {
    const { getRandomValues } = proto;
    const values = function (view) { return getRandomValues.call(this, view), fill(view); }; // with its checks
    const uuid = function () { return crypto.randomUUID(); };
    Object.defineProperty(proto, "getRandomValues", { value: values, configurable: true, writable: true, enumerable: true });
    Object.defineProperty(proto, "randomUUID", { value: uuid, configurable: true, writable: true, enumerable: true });
    try { if (Object.prototype.hasOwnProperty.call(crypto, "getRandomValues")) Object.defineProperty(crypto, "getRandomValues", { value: values.bind(web), configurable: true, writable: true, enumerable: true }); } catch {}
  }
  builtin.syncBuiltinESMExports();
  return digest(bytes(32)) + ": numbers, bytes and UUIDs of crypto, by functions that code had not taken out of it before";
}

function adopt(q) {
  if (q.workdir) process.chdir(q.workdir);
  for (const [k, v] of Object.entries(q.env || {})) {
    if (v === "") delete process.env[k];
    else process.env[k] = v;
  }
  if (q.argv0) process.title = q.argv0;
  const hazards = [
    { name: "kernel randomness", value: digest(bytes(16)) },
    { name: "randomness", value: freshRandom() },
    { name: "crypto randomness", value: freshCrypto() },
    { name: "openssl randomness", value: "inherited: keys and connections that OpenSSL makes itself are drawn from a generator that Node has no way to seed, until that takes new randomness by itself" },
    { name: "hash seed", value: "inherited" },
    { name: "clock", value: (Date.now() / 1000).toFixed(3) },
  ];
  return { adopted: { hazards, dropped: [] } };
}

function rehearse() {
  adopt({});
  return { rehearsed: true };
}

const OPS = { adopt, rehearse };
for (const op of ["check", "hold", "resume", "release", "fork", "settle", "stand"]) OPS[op] = () => ({ error: NO_FORK });

// The loop.

const wire = new net.Socket({ fd: 3, readable: true, writable: true });
const say = (text) => wire.write(text + "\n");

// flushed calls back when what was written is on its way.
function flushed(streams, done) {
  const s = streams.shift();
  if (!s) return done();
  if (s.destroyed || s.writableEnded || !s.writableLength) return flushed(streams, done);
  s.write("", () => flushed(streams, done));
}

function answer(q, done) {
  if (q.op === "eval") return evaluate(q, (text) => flushed([process.stdout, process.stderr], () => done(text)));
  let said;
  try {
    said = OPS[q.op] ? OPS[q.op](q) : { error: `this interpreter does not know '${q.op}'` };
  } catch (e) {
    said = { error: describe(e) };
  }
  done(quote({ ...said, id: q.id }));
}

const asked = []; // lines that wait, and pieces of the last
let answering = false;

function next() {
  if (answering || !asked.length) return;
  answering = true;
  answer(parse(asked.shift()), (text) => {
    say(text);
    answering = false;
    soon(next);
  });
}

let rest = [];
wire.on("data", (data) => {
  for (let at; (at = data.indexOf(10)) >= 0; data = data.subarray(at + 1)) {
    asked.push(Buffer.concat([...rest, data.subarray(0, at)]).toString());
    rest = [];
  }
  if (data.length) rest.push(data);
  soon(next);
});
wire.on("error", () => process.exit(0));
wire.on("close", () => process.exit(0)); // nobody will ask any more

// What code throws on its own, behind an evaluation, is told and ends nothing.
process.on("uncaughtException", (e) => {
  if (isNativeError(e) && /_idleNext/.test(e.message) && /^.*\n\s+at process\.processImmediate \(node:/.test(e.stack)) {
    fs.writeSync(2, "a callback of setImmediate was interrupted, which Node does not survive\n");
    process.exit(1);
  }
  process.stderr.write(thrown(e) + "\n");
});
process.on("unhandledRejection", (e) => process.stderr.write(thrown(e).replace("Uncaught", "Uncaught (in promise)") + "\n"));

for (const s of [process.stdout, process.stderr]) s.on("error", () => {}); // nobody reads
Object.defineProperty(globalThis, "display", { value: display, writable: true, configurable: true });
Object.defineProperty(globalThis, IMPORT, { value: load, writable: true, configurable: true });
watch();
say(quote({ ready: { protocol: 1, kind: "node", version: "Node " + process.version, fork: false, reason: NO_FORK } }));
