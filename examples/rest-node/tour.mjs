// pando's REST API from Node, with fetch alone. PANDO_HOST says where pando serve answers, and PANDO_TOKEN
// has a token of scope admin; all but the last part needs scope run only.
import { execFileSync } from "node:child_process";
import { randomBytes, randomUUID } from "node:crypto";
import http from "node:http";

const host = process.env.PANDO_HOST, token = process.env.PANDO_TOKEN;
const say = console.log;

class Refused extends Error { constructor(status, e, headers) { super(e.message); Object.assign(this, { status, ...e, headers }); } }

async function raw(method, path, { body, headers = {}, as = token, signal } = {}) {
  const plain = body === undefined || typeof body === "string" || body instanceof Uint8Array;
  const r = await fetch(host + path, {
    method, signal, body: plain ? body : JSON.stringify(body),
    headers: { Authorization: `Bearer ${as}`, ...(plain ? {} : { "Content-Type": "application/json" }), ...headers },
  });
  if (!r.ok) throw new Refused(r.status, await r.json(), r.headers);
  return r;
}
const api = async (method, path, body, more) => (await raw(method, path, { body, ...more })).json();
const refused = (p) => p.then((x) => { throw new Error("not refused: " + JSON.stringify(x)); }, (e) => e);

async function* lines(r) {
  let rest = "";
  for await (const chunk of r.body.pipeThrough(new TextDecoderStream())) {
    const parts = (rest + chunk).split("\n");
    rest = parts.pop();
    yield* parts;
  }
}
async function* jsonl(r) { for await (const l of lines(r)) if (l) yield JSON.parse(l); }
async function* sse(r) {
  let e = {};
  for await (const l of lines(r)) {
    if (!l) { if (e.data !== undefined) yield { ...e, data: JSON.parse(e.data) }; e = {}; continue; }
    const i = l.indexOf(":");
    if (i > 0) e[l.slice(0, i)] = l.slice(i + 1).trimStart();
  }
}

async function cells() {
  const c = await api("POST", "/v1/cells", { name: "node-a", labels: { tour: "node" }, lease: { for: "1h" }, limits: { memory: "512M" } });
  say("cell", c.name, c.state, c.lease.then);
  say("label", (await api("GET", "/v1/cells?label=tour=node")).map((x) => x.name));
  await api("PUT", "/v1/cells/node-a/file?path=d/notes.txt", "hello\n", { headers: { "If-None-Match": "*" } });
  const again = await refused(api("PUT", "/v1/cells/node-a/file?path=d/notes.txt", "x", { headers: { "If-None-Match": "*" } }));
  say("if-none-match", again.status, again.kind, "|", again.hint);
  const f = await raw("GET", "/v1/cells/node-a/file?path=d/notes.txt");
  const tag = f.headers.get("etag");
  say("file", (await f.text()).trim(), tag.slice(0, 12));
  await raw("PUT", "/v1/cells/node-a/file?path=d/notes.txt", { body: "second\n", headers: { "If-Match": tag } });
  const stale = await refused(raw("PUT", "/v1/cells/node-a/file?path=d/notes.txt", { body: "third", headers: { "If-Match": tag } }));
  say("if-match", stale.status, stale.kind, "|", stale.hint);
  say("stat", (await api("GET", "/v1/cells/node-a/stat?path=d/notes.txt&digest=true")).digest.slice(0, 12));
  say("mkdir", (await api("POST", "/v1/cells/node-a/mkdir", { path: "e" })).type);
  say("rename", (await api("POST", "/v1/cells/node-a/rename", { path: "e", to: "f" })).path);
  say("list", (await api("GET", "/v1/cells/node-a/list?path=.&depth=2")).map((x) => x.path));
  const stop = new AbortController();
  const watching = await raw("GET", "/v1/cells/node-a/watch?path=.&below=1", { signal: stop.signal });
  for await (const e of sse(watching)) {
    if (!e.data.what) { await api("DELETE", "/v1/cells/node-a/file?path=f"); continue; }
    say("watch", e.data.what, e.data.path);
    break;
  }
  stop.abort();
  const tar = new Uint8Array(await (await raw("GET", "/v1/cells/node-a/files?path=d")).arrayBuffer());
  say("tar", execFileSync("tar", ["-t"], { input: tar }).toString().trim().split("\n"));
  await raw("PUT", "/v1/cells/node-a/files?path=copy", { body: tar, headers: { "Content-Type": "application/x-tar" } });
  const one = await api("POST", "/v1/cells/node-a/lease", { for: "2h", then: "remove", env: ["TOUR=1"], labels: { tour: "node", more: "1" } });
  say("lease", one.labels, one.lease.then);
}

async function commands() {
  const e = await api("POST", "/v1/cells/node-a/execs", { command: ["sh", "-c", "echo $TOUR; echo err >&2; exit 3"], wait: true, timeout: "10s" });
  say("exec", e.exit_code, atob(e.stdout).trim(), atob(e.stderr).trim());
  const missing = await refused(api("POST", "/v1/cells/node-a/execs", { command: ["nope"], wait: true }));
  say("missing", missing.status, missing.kind);
  const s = await api("POST", "/v1/cells/node-a/execs", { command: ["sh", "-c", "read x; echo got $x; read y; exit 5"] });
  say("started", s.running, s.exec.slice(0, 2));
  await attach(`/v1/execs/${s.exec}/attach?input=1`, (type, payload, send) => {
    if (type === "open") send("i", "a line\n");
    if (type === "o") { say("frame o", payload.readBigUInt64BE(0), payload.subarray(8).toString().trim()); send("i", "b\n"); send("e", ""); }
    if (type === "r") say("frame r", JSON.parse(payload).exit_code);
    if (type === "!") say("frame !", payload.toString());
  });
  const srv = await api("POST", "/v1/cells/node-a/execs", { command: ["python3", "-m", "http.server", "8000"] });
  say("execs", (await api("GET", "/v1/cells/node-a/execs")).map((x) => x.command.join(" ")));
  while (!(await api("GET", "/v1/cells/node-a/ports")).length);
  say("port", (await (await raw("GET", "/v1/cells/node-a/ports/8000/http/d/notes.txt")).text()).trim());
  say("ps", (await api("GET", "/v1/cells/node-a/processes")).map((x) => x.command));
  say("stats", (await api("GET", "/v1/cells/node-a/stats")).processes > 0);
  for (const verb of ["pause", "resume"]) say(verb, (await api("POST", `/v1/cells/node-a/${verb}`)).state);
  await api("POST", `/v1/execs/${srv.exec}/signal`, { signal: "SIGTERM" });
  let ended;
  do ended = await api("GET", `/v1/execs/${srv.exec}`); while (ended.running);
  say("ended", ended.signal);
  say("stop", (await api("POST", "/v1/cells/node-a/stop")).state);
}

// A WebSocket by hand, since it needs a header that the one of browsers can't send.
function attach(path, on) {
  return new Promise((done, fail) => {
    const req = http.request(host + path, { headers: { Authorization: `Bearer ${token}`, Connection: "Upgrade", Upgrade: "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": randomBytes(16).toString("base64") } });
    req.on("error", fail);
    req.on("response", (r) => { r.setEncoding("utf8"); r.on("data", (d) => fail(new Error(r.statusCode + d))); });
    req.on("upgrade", (_, sock, head) => {
      const send = (type, data) => {
        const p = Buffer.concat([Buffer.from(type), Buffer.from(data)]), mask = randomBytes(4);
        sock.write(Buffer.concat([Buffer.from([0x82, 0x80 | p.length]), mask, p.map((b, i) => b ^ mask[i % 4])]));
      };
      let buf = head;
      const read = () => {
        for (;;) {
          if (buf.length < 2) return;
          let n = buf[1] & 127, at = 2;
          if (n === 126) { n = buf.readUInt16BE(2); at = 4; } else if (n === 127) { n = Number(buf.readBigUInt64BE(2)); at = 10; }
          if (buf.length < at + n) return;
          const op = buf[0] & 15, p = buf.subarray(at, at + n);
          buf = buf.subarray(at + n);
          if (op === 8) { sock.end(); return done(); }
          if (op === 2) { on(String.fromCharCode(p[0]), p.subarray(1), send); }
        }
      };
      sock.on("data", (d) => { buf = Buffer.concat([buf, d]); read(); });
      sock.on("end", done);
      on("open", null, send);
      read();
    });
    req.end();
  });
}

async function states() {
  const cp = await api("POST", "/v1/cells/node-a/checkpoints", { message: "here" });
  say("checkpoint", cp.number, cp.kind);
  await api("DELETE", "/v1/cells/node-a/file?path=d");
  say("diff", (await api("GET", "/v1/cells/node-a/diff")).files.map((f) => f.status + " " + f.path));
  const tag = (await raw("GET", "/v1/cells/node-a")).headers.get("etag");
  say("restore", (await api("POST", "/v1/cells/node-a/restore", { number: cp.number }, { headers: tag ? { "If-Match": tag } : {} })).number);
  say("history", (await api("GET", "/v1/cells/node-a/history?limit=1")).length);
  const key = randomUUID();
  const fork = () => raw("POST", "/v1/cells/node-a/fork", { body: { count: 2, name: "node-f" }, headers: { "Idempotency-Key": key } });
  const a = await fork(), b = await fork();
  say("once", (await a.json()).cells.map((c) => c.name), (await b.json()).cells.map((c) => c.name), b.headers.get("Idempotent-Replayed"));
  const other = await refused(api("POST", "/v1/cells/node-a/fork", { count: 3 }, { headers: { "Idempotency-Key": key } }));
  say("other", other.status, other.kind, "|", other.hint);
  let n = 0, cursor = "";
  do {
    const r = await raw("GET", "/v1/cells?limit=1" + (cursor && "&cursor=" + cursor));
    n += (await r.json()).length;
    cursor = r.headers.get("x-next-cursor");
  } while (cursor);
  say("pages", n >= 3);
  say("tree", (await api("GET", "/v1/cells/node-a/tree"))[0].children.length);
  for (const c of ["node-f-1", "node-f-2"]) await api("DELETE", "/v1/cells/" + c);
}

async function warm() {
  const r = await raw("POST", "/v1/templates", { body: { name: "node-t", setup: "x = 41; print('warm')" }, headers: { Prefer: "respond-async" } });
  const op = await r.json();
  say("operation", r.status, r.headers.get("location") === `/v1/operations/${op.operation}`, op.kind, op.object);
  for await (const e of sse(await raw("GET", `/v1/operations/${op.operation}/events`))) say("event", e.id, e.event === "end" ? e.data.state : e.data.progress?.step ?? atob(e.data.stdout).trim());
  say("done", (await api("GET", `/v1/operations/${op.operation}?wait=1`)).result.state);
  const seen = [];
  for await (const l of jsonl(await raw("POST", "/v1/templates/node-t/fork", { body: { count: 3, eval: "x + 1" }, headers: { Accept: "application/jsonl" } }))) seen.push(Object.keys(l)[0] + (l.fork ? " " + l.fork.result.value.json : ""));
  say("lines", seen);
  const ev = await api("POST", "/v1/cells/node-t-1/eval", { code: "print('p'); 2**100" });
  say("eval", ev.result.value.json);
  const out = [];
  for await (const l of jsonl(await raw("POST", "/v1/cells/node-t-1/eval", { body: { code: "print('p'); 1/0" }, headers: { Accept: "application/jsonl" } }))) out.push(l.stdout ? atob(l.stdout).trim() : l.result ? l.result.result.error.type : l);
  say("eval lines", out);
  say("branch", (await api("POST", "/v1/cells/node-t-1/branch", { count: 2 })).cells.map((c) => c.name));
  const slow = await api("POST", "/v1/templates/node-t/fork", { command: ["sleep", "100"], name: "node-slow" }, { headers: { Prefer: "respond-async" } });
  say("abort", (await api("POST", `/v1/operations/${slow.operation}/abort`)).state);
  say("operations", (await api("GET", "/v1/operations?limit=2")).map((o) => o.kind + " " + o.state));
  say("template", (await refused(api("DELETE", "/v1/templates/node-t"))).kind);
  say("template", (await api("DELETE", "/v1/templates/node-t?cascade=true")).name);
}

async function runs() {
  const files = execFileSync("tar", ["-c", "tour.mjs"]);
  const up = await api("POST", "/v1/uploads", files, { headers: { "Content-Type": "application/x-tar" } });
  say("upload", up.files, up.id.slice(0, 2));
  say("plan", (await api("POST", "/v1/plans", { command: ["true"], upload: up.id })).files);
  let run = await api("POST", "/v1/runs", { command: ["sh", "-c", "echo 1 >one; ls; cat nothing"], upload: up.id, on_failure: "pending" });
  say("run", run.phase !== "ended");
  run = await api("GET", `/v1/runs/${run.run}?wait=1`);
  say("ended", run.phase, run.exit_code, run.verdict, run.changes.files, run.changes.added);
  say("stdout", (await (await raw("GET", `/v1/runs/${run.run}/files/stdout`)).text()).trim());
  const kinds = [];
  for await (const e of sse(await raw("GET", `/v1/runs/${run.run}/events?kind=process`, { headers: { Accept: "text/event-stream" } }))) kinds.push(e.id + " " + (e.event ?? "") + (e.data?.kind ?? ""));
  say("events", kinds);
  for await (const e of jsonl(await raw("GET", `/v1/runs/${run.run}/events?kind=process.exit`))) say("event", e.kind, e.fields.code);
  say("patch", (await api("GET", `/v1/runs/${run.run}/diff?form=patch`)).text.trim().split("\n").pop());
  say("receipt", (await api("GET", `/v1/receipts/${run.run}`)).summary);
  say("verify", (await api("POST", `/v1/receipts/${run.run}/verify`)).ok);
  const tag = (await raw("GET", `/v1/runs/${run.run}`)).headers.get("etag");
  say("discard", (await api("POST", `/v1/runs/${run.run}/discard`, {}, { headers: { "If-Match": tag } })).runs[0].verdict);
  await api("DELETE", "/v1/cells/" + run.cell);
  const slow = await api("POST", "/v1/runs", { command: ["sleep", "1000"], cell: "node-a", on_failure: "pending" });
  say("interrupt", (await api("POST", `/v1/runs/${slow.run}/interrupt`)).run === slow.run, (await api("GET", `/v1/runs/${slow.run}?wait=1`)).phase);
  const why = await api("POST", "/v1/policies/why", { run: { allow: ["example.com"] }, request: "GET https://example.com/" });
  say("why", why.effect, why.steps.map((s) => s.effect));
  say("check", (await api("POST", "/v1/policies/check", { name: "p.yaml", text: "version: 1\nnetwork: {allow: [example.com]}\n" })).rules);
}

async function govern() {
  await api("POST", "/v1/cells", { name: "node-ask", policy: "version: 1\nnetwork: {ask: [192.0.2.1]}\n" });
  await api("POST", "/v1/cells/node-ask/execs", { command: ["python3", "-c", "import urllib.request as u; u.urlopen('http://192.0.2.1/')"] });
  let q;
  do q = await api("GET", "/v1/approvals"); while (!q.length);
  say("approval", q[0].want, q[0].state, (await api("POST", `/v1/approvals/${q[0].approval}/deny`)).state);
  await api("DELETE", "/v1/cells/node-ask");
  const t = await api("POST", "/v1/tokens", { name: "node-slow", rate: 1, labels: { team: "x" } });
  let limited;
  while (!limited) limited = await api("GET", "/v1/cells", undefined, { as: t.secret }).then(() => undefined, (x) => x);
  say("limited", limited.status, limited.kind, limited.headers.get("retry-after"));
  await api("DELETE", `/v1/tokens/${t.token}`);
  say("gone", (await refused(api("GET", "/v1/cells", undefined, { as: t.secret }))).status);
  say("daemon", (await api("GET", "/v1/daemon")).listen.length, (await (await fetch(host + "/healthz")).text()).trim());
  for (const p of ["doctor", "disk", "stats", "images", "credentials", "templates", "tree", "receipts?limit=1"]) await api("GET", "/v1/" + p);
  say("key", (await (await raw("GET", "/v1/key")).text()).split("\n")[0]);
  say("metrics", (await (await raw("GET", "/metrics")).text()).includes("pando_operation_seconds"));
}

for (const part of [cells, commands, states, warm, runs, govern]) {
  say("##", part.name);
  await part();
}
await api("DELETE", "/v1/cells/node-a");
