// An agent: the official TypeScript client of the Model Context Protocol, with
// pando on the other side. It says what does not hold, and exits with 1 then.
//
//	node agent.mjs stdio PANDO DIR      starts `PANDO mcp` in DIR
//	node agent.mjs http URL TOKEN DIR   talks streamable HTTP
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import assert from "node:assert/strict";

// Packages lie where NODE_PATH says; import alone does not look there.
const require = createRequire(import.meta.url);
const load = (name) => import(pathToFileURL(require.resolve(name)));
const { Client } = await load("@modelcontextprotocol/sdk/client/index.js");
const { StdioClientTransport } = await load("@modelcontextprotocol/sdk/client/stdio.js");
const { StreamableHTTPClientTransport } = await load("@modelcontextprotocol/sdk/client/streamableHttp.js");

const [how, at, ...rest] = process.argv.slice(2);
const dir = rest.at(-1);
const transport =
  how === "stdio"
    ? new StdioClientTransport({ command: at, args: ["mcp"], cwd: dir, env: process.env, stderr: "inherit" })
    : new StreamableHTTPClientTransport(new URL(at), { requestInit: { headers: { Authorization: "Bearer " + rest[0] } } });
const client = new Client({ name: "e2e", version: "1" });
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
  async "create, exec, kill"() {
    const made = await call("create", { name: "first", from: dir });
    assert.equal(made.cell, "first");
    const r = await call("exec", { cell: "first", shell: "cat greeting; pwd; echo oops >&2; exit 3" });
    assert.equal(r.exit_code, 3);
    assert.equal(r.stdout.text, `hello\n${dir}\n`);
    assert.equal(r.stderr.text, "oops\n");
    assert.match(r.said, /exit code 3/);
    await call("kill", { cell: "first" });
    assert.match(await refused("not-found", "show", { id: "first" }), /^cannot .*\nhint: /s);
  },
};

let failed = 0;
for (const [name, test] of Object.entries(tests)) {
  try {
    await test();
    console.log("ok  ", name);
  } catch (e) {
    failed++;
    console.log("FAIL", name, "\n", e.message, e.stack);
  }
}
await client.close();
process.exit(failed ? 1 : 0);
