// An agent: the official TypeScript client of the Model Context Protocol, with
// pando on the other side. It says what does not hold, and exits with 1 then.
//
//	node agent.mjs stdio PANDO DIR      starts `PANDO mcp` in DIR
//	node agent.mjs http URL TOKEN DIR   talks streamable HTTP
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { existsSync, writeFileSync } from "node:fs";
import { dirname } from "node:path";
import assert from "node:assert/strict";

// Packages lie where NODE_PATH says; import alone does not look there.
const require = createRequire(import.meta.url);
const load = (name) => import(pathToFileURL(require.resolve(name)));
const { Client } = await load("@modelcontextprotocol/sdk/client/index.js");
const { ResourceListChangedNotificationSchema } = await load("@modelcontextprotocol/sdk/types.js");
const { StdioClientTransport } = await load("@modelcontextprotocol/sdk/client/stdio.js");
const { StreamableHTTPClientTransport } = await load("@modelcontextprotocol/sdk/client/streamableHttp.js");

const [how, at, ...rest] = process.argv.slice(2);
const dir = rest.at(-1);
const transport =
  how === "stdio"
    ? new StdioClientTransport({ command: at, args: ["mcp"], cwd: dir, env: process.env, stderr: "inherit" })
    : new StreamableHTTPClientTransport(new URL(at), { requestInit: { headers: { Authorization: "Bearer " + rest[0] } } });
const changes = [];
const client = new Client({ name: "e2e", version: "1" });
client.setNotificationHandler(ResourceListChangedNotificationSchema, (n) => void changes.push(n));
await client.connect(transport);

const text = (r) => r.content.filter((c) => c.type === "text").map((c) => c.text).join("\n");
async function call(name, args, options) {
  const r = await client.callTool({ name, arguments: args }, undefined, options);
  assert.ok(!r.isError, `${name} ${JSON.stringify(args)}: ${text(r)}`);
  return { ...r.structuredContent, said: text(r), result: r };
}
async function refused(kind, name, args) {
  const r = await client.callTool({ name, arguments: args });
  assert.ok(r.isError, `${name} ${JSON.stringify(args)} is no error: ${text(r)}`);
  if (kind) assert.equal(r.structuredContent?.error?.kind, kind, text(r));
  return text(r);
}

const tests = {
  async "the list of tools"() {
    const { tools } = await client.listTools();
    const names = tools.map((t) => t.name).sort();
    assert.deepEqual(names, ["branch", "checkpoint", "create", "diff", "eval", "exec", "fork", "kill", "list", "list_files", "policy_why", "read",
      "read_file", "receipt", "restore", "run", "show", "write_file"]);
    for (const t of tools) {
      assert.ok(t.description && t.annotations.title, t.name);
      for (const [n, p] of Object.entries(t.inputSchema.properties)) assert.ok(p.description || n === "executable", `${t.name} ${n} is not explained`);
    }
    assert.equal(tools.find((t) => t.name === "diff").annotations.readOnlyHint, true);
    assert.equal(tools.find((t) => t.name === "kill").annotations.destructiveHint, true);
    assert.match(client.getInstructions(), /cells/);
  },
  async "create, exec, kill"() {
    const made = await call("create", { name: "first", from: dir });
    assert.equal(made.cell, "first");
    const r = await call("exec", { cell: "first", shell: "cat greeting; pwd; echo oops >&2; exit 3" });
    assert.equal(r.exit_code, 3);
    assert.equal(r.stdout.text, `hello\n${dir}\n`);
    assert.equal(r.stderr.text, "oops\n");
    assert.match(r.said, /exit code 3/);
    assert.equal((await call("exec", { cell: "first", command: ["sh", "-c", "cat; echo $A"], stdin: "in\n", env: ["A=b c"] })).stdout.text, "in\nb c\n");
    assert.equal((await call("exec", { cell: "first", shell: "sleep 60", timeout: "300ms" })).cause, "timeout");
    await refused("exists", "create", { name: "first", from: dir });
    await refused("no-such-binary", "exec", { cell: "first", command: ["no-such-program"] });
    await call("kill", { cell: "first", keep: true });
    const empty = await call("create", { empty: true, env: ["A=1"] });
    assert.equal((await call("exec", { cell: empty.cell, shell: "pwd; ls -A; echo $A" })).stdout.text, "/workspace\n1\n");
    await call("kill", { cell: empty.cell });
    await call("kill", { cell: "first" });
    assert.match(await refused("not-found", "show", { id: "first" }), /^cannot .*\nhint: /s);
  },
  async "arguments that are wrong"() {
    await refused("", "exec", { cell: "first", shell: "true", sehll: "x" });
    await refused("", "exec", { shell: "true" });
    await refused("invalid", "exec", { cell: "", shell: "true" });
    await refused("invalid", "exec", { cell: "x", shell: "true", command: ["true"] });
    await refused("invalid", "create", { from: dir, backend: "none" });
    await refused("invalid", "create", { from: dir, empty: true });
    await refused("invalid", "run", { from: dir, shell: "true", image: "dir:/" });
    await refused("invalid", "list", { what: "secrets" });
    for (const id of ["../v1/daemon", "a/b", "a?b", "..", "a\nb"]) await refused("", "show", { id });
    await assert.rejects(client.callTool({ name: "accept", arguments: {} }).then((r) => r.isError && Promise.reject(r)));
  },
  async "evaluations"() {
    await call("create", { name: "py", from: dir });
    await call("eval", { cell: "py", code: "x = 40; print('out')" });
    const r = await call("eval", { cell: "py", code: "print('more'); x + 2" });
    assert.deepEqual([r.value, r.type, r.repr.text, r.stdout.text], [42, "int", "42", "more\n"]);
    assert.deepEqual((await call("eval", { cell: "py", code: "float('nan'), 2**70, b'\\xff'" })).value, { $tuple: [{ $float: "NaN" }, { $int: "1180591620717411303424" }, { $bytes: "/w==" }] });
    const bad = await call("eval", { cell: "py", code: "{}['nothing']" });
    assert.deepEqual([bad.ok, bad.error.type], [false, "KeyError"]);
    assert.match(bad.said, /Traceback/);
    assert.equal((await call("eval", { cell: "py", code: "while True: pass", timeout: "300ms" })).cause, "timeout");
    const b = await call("branch", { cell: "py", count: 2, name: "py-b" });
    assert.deepEqual(b.cells.map((c) => c.cell), ["py-b-1", "py-b-2"]);
    await call("eval", { cell: "py-b-1", code: "x = 1" });
    assert.equal((await call("eval", { cell: "py-b-2", code: "x" })).value, 40);
    for (const cell of ["py-b-1", "py-b-2", "py"]) await call("kill", { cell });
  },
  async "templates"() {
    assert.match((await call("list", { what: "templates" })).said, /pyagent: warm/);
    const one = await call("create", { template: "pyagent", name: "warm" });
    assert.match(one.interpreter, /Python/);
    assert.equal((await call("eval", { cell: "warm", code: "6*7" })).value, 42);
    await call("kill", { cell: "warm" });
    const f = await call("fork", { of: "pyagent", count: 5, eval: "6*7", remove: true });
    assert.deepEqual(f.cells.map((c) => c.answer.value), [42, 42, 42, 42, 42]);
    await refused("invalid", "create", { template: "pyagent", from: dir });
    await refused("not-found", "create", { template: "nothing" });
  },
  async "files"() {
    await call("create", { name: "files", from: dir });
    await call("write_file", { cell: "files", path: "deep/er/é.txt", text: "ünï\n", executable: true });
    assert.equal((await call("read_file", { cell: "files", path: "deep/er/é.txt" })).text, "ünï\n");
    await call("write_file", { cell: "files", path: "/tmp/bytes", base64: "AP8=" });
    assert.equal((await call("read_file", { cell: "files", path: "/tmp/bytes" })).base64, "AP8=");
    await call("exec", { cell: "files", shell: "ln -s greeting link; test -x deep/er/é.txt; seq 100000 > long" });
    const list = await call("list_files", { cell: "files", depth: 2 });
    assert.deepEqual(list.files.filter((f) => f.path !== "long"), [
      { path: "deep", type: "directory" }, { path: "deep/er", type: "directory" }, { path: "greeting", type: "file", bytes: 6 }, { path: "link", type: "symlink", to: "greeting" }]);
    const part = await call("read_file", { cell: "files", path: "long", limit: 100 });
    assert.ok(part.text.length === 100 && part.next === 100 && part.bytes === 588895, JSON.stringify(part));
    assert.match(part.said, /offset 100/);
    assert.equal((await call("read_file", { cell: "files", path: "long", offset: 588888 })).text, "100000\n");
    const r = await client.readResource({ uri: "pando://cells/files/files/deep/er/%C3%A9.txt" });
    assert.equal(r.contents[0].text, "ünï\n");
    await refused("not-found", "read_file", { cell: "files", path: "nothing" });
    await refused("invalid", "read_file", { cell: "files", path: "deep" });
    await refused("not-found", "read_file", { cell: "files", path: "../../../../../../no/such" });
    await call("kill", { cell: "files" });
  },
  async "checkpoint, restore, fork, diff"() {
    await call("create", { name: "states", from: dir });
    const p = await call("checkpoint", { cell: "states", message: "before" });
    await call("write_file", { cell: "states", path: "greeting", text: "bye\n" });
    const d = await call("diff", { cell: "states", from: p.number });
    assert.match(d.said, /^-hello\n\+bye/m);
    const res = await client.readResource({ uri: `pando://cells/states/diff?from=${p.number}` });
    assert.match(res.contents[0].text, /^\+bye/m);
    assert.equal((await call("restore", { cell: "states", checkpoint: p.number })).checkpoint, p.number);
    assert.equal((await call("read_file", { cell: "states", path: "greeting" })).text, "hello\n");
    const f = await call("fork", { of: "states", checkpoint: p.number, count: 2, name: "copy" });
    assert.deepEqual(f.cells.map((c) => c.cell), ["copy-1", "copy-2"]);
    assert.match((await call("show", { id: "states" })).said, /before/);
    for (const cell of ["copy-1", "copy-2", "states"]) await call("kill", { cell });
  },
  async "runs, receipts, policies"() {
    const r = await call("run", { from: dir, shell: "echo bye > greeting; seq 20000; echo err >&2" });
    assert.deepEqual([r.exit_code, r.verdict, r.files_changed, r.stderr.text], [0, "pending", 1, "err\n"]);
    assert.ok(r.stdout.bytes === 108894 && r.stdout.text.length < 30000 && r.stdout.text.endsWith("20000\n"));
    assert.equal(r.stdout.rest, `pando://runs/${r.run}/stdout`);
    let all = "", at = 0;
    for (let n; (n = await call("read", { uri: r.stdout.rest, offset: at, limit: 50000 })); at = n.next) {
      all += n.text;
      if (!n.next) break;
    }
    assert.equal(all.length, 108894);
    assert.ok((await client.readResource({ uri: r.stdout.rest })).contents[0].text.startsWith("1\n2\n"));
    assert.match((await client.readResource({ uri: `pando://runs/${r.run}/receipt` })).contents[0].text, new RegExp(r.run));
    assert.match((await client.readResource({ uri: `pando://runs/${r.run}/events` })).contents[0].text, /process/);
    assert.match((await call("receipt", { id: r.run })).said, new RegExp(r.run));
    assert.match((await call("diff", { run: r.run })).said, /^\+bye/m);
    assert.deepEqual(r.result.content.filter((c) => c.type === "resource_link").map((c) => c.uri.split("/").pop()), ["diff", "receipt", "events"]);
    const bad = await call("run", { from: dir, shell: "rm greeting; exit 7" });
    assert.deepEqual([bad.exit_code, bad.verdict], [7, "restored"]);
    assert.equal((await call("policy_why", { request: "connect example.com:443", from: dir })).effect, "deny");
    assert.equal((await call("policy_why", { request: "connect example.com:443", from: dir, allow: ["example.com"] })).effect, "allow");
    assert.match((await call("list", { what: "runs" })).said, new RegExp(r.run));
    assert.ok((await client.listResources()).resources.some((x) => x.uri === `pando://runs/${r.run}/receipt`));
    assert.ok(changes.length > 0, "nobody said that there are more resources");
    assert.ok((await client.listResourceTemplates()).resourceTemplates.length >= 10);
    await assert.rejects(client.readResource({ uri: "pando://runs/r-0000000000000000/stdout" }));
    await assert.rejects(client.readResource({ uri: "pando://cells/../files/x" }));
    await assert.rejects(client.readResource({ uri: "file:///etc/passwd" }));
  },
  async "long outputs"() {
    await call("create", { name: "long", from: dir });
    const r = await call("exec", { cell: "long", shell: "head -c 50000000 /dev/zero | tr '\\0' x; echo; echo end" });
    assert.ok(r.stdout.bytes === 50000005 && r.stdout.text.endsWith("xx\nend\n") && r.stdout.text.length < 30000);
    assert.match(r.stdout.note, /pando:\/\/outputs\//);
    const more = await call("read", { uri: r.stdout.rest, offset: 8 << 20 });
    assert.equal(more.text, undefined); // only the beginning is kept
    assert.equal((await call("read", { uri: r.stdout.rest, offset: (8 << 20) - 5 })).text, "xxxxx");
    const utf8 = await call("exec", { cell: "long", shell: "yes äöü | head -c 100001", limit: 1001 });
    assert.ok(!utf8.stdout.text.replace("… ", "").replace(" …", "").includes("\uFFFD"));
    await call("kill", { cell: "long" });
  },
  async "many at once"() {
    // Over HTTP a token has only so many requests a second: what is refused says so.
    const many = how === "stdio" ? 1000 : 300;
    await call("create", { template: "pyagent", name: "many" });
    const asked = (args) => client.callTool(args, undefined, { timeout: 120000 }).catch((e) => ({ isError: true, content: [{ type: "text", text: String(e) }] }));
    const values = await Promise.all([...Array(many).keys()].map((n) => asked({ name: "eval", arguments: { cell: "many", code: `${n} + 1` } })));
    values.forEach((r, n) => (r.isError && how !== "stdio" ? assert.match(text(r), /requests in a second|requests with this token|429/i) : assert.equal(r.structuredContent.value, n + 1, text(r))));
    assert.ok(values.filter((r) => !r.isError).length > 100);
    const loud = await Promise.all([...Array(10).keys()].map(() => asked({ name: "exec", arguments: { cell: "many", shell: "head -c 9000000 /dev/zero | tr '\\0' y; echo z" } })));
    for (const r of loud.filter((r) => !r.isError || how === "stdio")) assert.ok(r.structuredContent.stdout.bytes === 9000002 && r.structuredContent.stdout.text.endsWith("yz\n"));
    await new Promise((r) => setTimeout(r, how === "stdio" ? 0 : 1000));
    await call("kill", { cell: "many" });
  },
  async "ways out of a cell's files"() {
    const parent = dirname(dir);
    writeFileSync(parent + "/outside", "of the host");
    await call("create", { name: "walls", from: dir });
    await call("exec", { cell: "walls", shell: "ln -s / up; ln -s ../outside out; mkdir -p d; ln -s ../../../../../../../../.. d/far" });
    for (const p of ["../outside", "..%2foutside", "%2e%2e/outside", "out", `/${parent}/outside`, `up${parent}/outside`, `d/far${parent}/outside`, `proc/1/root${parent}/outside`, `/proc/self/root${parent}/outside`]) {
      const uri = "pando://cells/walls/files/" + p;
      const got = await client.readResource({ uri }).then((r) => r.contents[0].text, () => "");
      assert.doesNotMatch(got, /of the host/, uri);
      const said = text(await client.callTool({ name: "read_file", arguments: { cell: "walls", path: decodeURIComponent(p) } }));
      assert.doesNotMatch(said, /of the host/, p);
    }
    for (const p of ["../planted", `up${parent}/planted`, `${parent}/planted`, `d/far${parent}/planted`]) {
      await client.callTool({ name: "write_file", arguments: { cell: "walls", path: p, text: "x" } });
      assert.ok(!existsSync(parent + "/planted"), p);
    }
    await call("kill", { cell: "walls" });
  },
  async "progress, and an end to it"() {
    await call("create", { name: "slow", from: dir });
    const said = [];
    await call("exec", { cell: "slow", shell: "for i in 1 2 3 4; do echo step $i; sleep 0.4; done" }, { onprogress: (p) => said.push(p) });
    assert.ok(said.some((p) => /step [234]/.test(p.message)), JSON.stringify(said));
    for (let i = 1; i < said.length; i++) assert.ok(said[i].progress > said[i - 1].progress);
    const quiet = [];
    await call("exec", { cell: "slow", shell: "sleep 6" }, { onprogress: (p) => quiet.push(p), timeout: 5800, resetTimeoutOnProgress: true });
    assert.ok(quiet.length >= 2);
    const stop = new AbortController();
    setTimeout(() => stop.abort(), 500);
    await assert.rejects(client.callTool({ name: "exec", arguments: { cell: "slow", shell: "exec sleep 1000" } }, undefined, { signal: stop.signal }));
    // By its name: the cell may have come to rest, and then begins with the same numbers of processes again.
    await call("exec", { cell: "slow", shell: "for i in $(seq 2000); do grep -qxs sleep /proc/[0-9]*/comm || exit 0; sleep 0.05; done; exit 1" }).then((r) => assert.equal(r.exit_code, 0));
    await call("kill", { cell: "slow" });
  },
};

// The generation without a handshake, for which the client above is too old: each
// request says what it needs, over the wire as it is.
const version = "2026-07-28";
const meta = {
  "io.modelcontextprotocol/protocolVersion": version,
  "io.modelcontextprotocol/clientInfo": { name: "e2e", version: "1" },
  "io.modelcontextprotocol/clientCapabilities": {},
};
async function ask(method, params = {}) {
  const request = { jsonrpc: "2.0", id: 1, method, params: { ...params, _meta: { ...meta, ...params._meta } } };
  if (how === "http") {
    const headers = { Authorization: "Bearer " + rest[0], "Content-Type": "application/json", Accept: "application/json, text/event-stream",
      "MCP-Protocol-Version": version, "Mcp-Method": method, ...(params.name || params.uri ? { "Mcp-Name": params.name ?? params.uri } : {}) };
    const r = await fetch(at, { method: "POST", headers, body: JSON.stringify(request) });
    assert.equal(r.headers.get("mcp-session-id"), null);
    const said = await r.text();
    const lines = r.headers.get("content-type").includes("event-stream") ? said.split("\n").filter((l) => l.startsWith("data: ")).map((l) => l.slice(6)) : [said];
    return lines.map((l) => JSON.parse(l));
  }
  const p = spawn(at, ["mcp"], { cwd: dir, stdio: ["pipe", "pipe", "inherit"] });
  const lines = [];
  p.stdin.write(JSON.stringify(request) + "\n");
  for await (const l of createInterface({ input: p.stdout })) {
    lines.push(JSON.parse(l));
    if (lines.at(-1).id === 1) p.stdin.end();
  }
  return lines;
}
tests["without a handshake"] = async () => {
  const found = (await ask("server/discover")).at(-1).result;
  assert.ok(found.supportedVersions.includes(version) && found.supportedVersions.includes("2025-11-25"), JSON.stringify(found));
  assert.equal((await ask("tools/list")).at(-1).result.tools.length, 18);
  await call("create", { name: "direct", from: dir });
  const lines = await ask("tools/call", { name: "exec", arguments: { cell: "direct", shell: "echo one; sleep 0.5; echo two" }, _meta: { progressToken: "t" } });
  const r = lines.at(-1).result;
  assert.deepEqual([r.resultType, r.structuredContent.stdout.text], ["complete", "one\ntwo\n"]);
  assert.ok(lines.some((l) => l.method === "notifications/progress" && l.params.progressToken === "t"), JSON.stringify(lines));
  const bad = (await ask("tools/call", { name: "exec", arguments: { cell: "direct", command: ["no-such-program"] } })).at(-1).result;
  assert.equal(bad.structuredContent.error.kind, "no-such-binary");
  await call("kill", { cell: "direct" });
};

let failed = 0;
for (const [name, test] of Object.entries(tests)) {
  const began = Date.now();
  try {
    await test();
    console.log("ok  ", name, `(${Date.now() - began} ms)`);
  } catch (e) {
    failed++;
    console.log("FAIL", name, "\n", e.message, e.stack);
  }
}
await client.close();
process.exit(failed ? 1 : 0);
