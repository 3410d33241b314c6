// Mastra's sandbox on E2B: its lifecycle, processes, workspace and code mode.
import assert from 'node:assert/strict'
import { call, load, until, onPort } from './client.mjs'

export const packages = ['@mastra/e2b', '@mastra/core']

export async function run() {
  const { E2BSandbox, E2BCodeModeTransport, e2bSandboxProvider } = await load('@mastra/e2b')
  const { Workspace } = await load('@mastra/core/workspace')
  const { createCodeMode, createTool } = await load('@mastra/core/tools')
  const { z } = await load('zod')
  let s
  await call('E2BSandbox, start', async () => {
    s = new E2BSandbox({ id: 'mastra-matrix', template: 'base', timeout: 120_000, env: { FROM: 'mastra' }, metadata: { who: 'mastra' } })
    await s._start()
    assert.match(s.e2b.sandboxId, /^c-/)
  })
  await call('executeCommand', async () => {
    const r = await s.executeCommand('sh', ['-c', 'echo $FROM; echo no >&2'])
    assert.deepEqual([r.success, r.exitCode, r.stdout, r.stderr], [true, 0, 'mastra\n', 'no\n'])
  })
  await call('executeCommand: exit code, cwd, env, onStdout', async () => {
    const seen = []
    const r = await s.executeCommand('sh -c "pwd; echo $A; exit 3"', [], { cwd: '/tmp', env: { A: 'b' }, onStdout: (d) => seen.push(d) })
    // Of a command that failed Mastra tells the output twice.
    assert.deepEqual([r.success, r.exitCode], [false, 3])
    assert.ok(r.stdout.startsWith('/tmp\nb\n') && seen.join('').startsWith('/tmp\nb\n'), r.stdout)
  })
  await call('executeCommand: timeout', async () => {
    const r = await s.executeCommand('sleep', ['60'], { timeout: 500 })
    assert.equal(r.success, false)
  })
  await call('processes.spawn, list, get, sendStdin, wait', async () => {
    const p = await s.processes.spawn('head -n 2')
    assert.ok((await s.processes.list()).some((o) => o.pid === p.pid))
    assert.equal(await s.processes.get(p.pid), p)
    await p.sendStdin('one\n')
    await p.sendStdin('two\n')
    const r = await p.wait()
    assert.deepEqual([r.exitCode, r.stdout], [0, 'one\ntwo\n'])
  })
  await call('processes.kill', async () => {
    const p = await s.processes.spawn('sleep 100')
    assert.equal(await s.processes.kill(p.pid), true)
    assert.equal((await p.wait()).success, false)
  })
  await call('processes.get: of a process that another began', async () => {
    const p = await s.processes.spawn('read line; echo got $line')
    const other = new E2BSandbox({ id: 'mastra-matrix', template: 'base' })
    await other._start()
    assert.equal(other.e2b.sandboxId, s.e2b.sandboxId)
    const q = await other.processes.get(p.pid)
    await q.sendStdin('it\n')
    assert.equal((await q.wait()).stdout, 'got it\n')
  })
  await call('writeFiles', async () => {
    await s.writeFiles([{ path: '/home/user/a.txt', content: 'ä' }, { path: '/home/user/d/b.bin', content: Buffer.from([0, 255]) }])
    assert.equal((await s.executeCommand('od', ['-An', '-tx1', 'a.txt', 'd/b.bin'])).stdout.trim(), 'c3 a4 00 ff')
  })
  await call('networking.getPortUrl', async () => {
    await s.processes.spawn('python3 -m http.server 8012 -d /home/user')
    const url = new URL(await s.networking.getPortUrl(8012))
    await until(async () => (await onPort(url.host, '/a.txt')).status === 200)
    const detached = new E2BSandbox({ id: 'mastra-matrix', template: 'base' })
    assert.match(await detached.networking.getPortUrl(8012), new RegExp('8012-' + s.e2b.sandboxId))
  })
  await call('Workspace with the sandbox', async () => {
    const w = new Workspace({ sandbox: s })
    await w.init()
    assert.equal((await w.sandbox.executeCommand('cat', ['a.txt'])).stdout, 'ä')
    assert.ok(w.getInstructions === undefined || typeof w.getInstructions() === 'string')
  })
  await call('createCodeMode with E2BCodeModeTransport', async () => {
    const add = createTool({ id: 'add', description: 'adds', inputSchema: z.object({ a: z.number(), b: z.number() }), outputSchema: z.object({ sum: z.number() }), execute: async ({ a, b }) => ({ sum: a + b }) })
    const { tool } = createCodeMode({ tools: { add }, sandbox: s }, new E2BCodeModeTransport())
    const r = await tool.execute({ code: 'const r: { sum: number } = await external_add({ a: 2, b: 3 }); console.log("in it"); return r.sum * 2' }, { observe: { span: (_, f) => f(), log() {} } })
    assert.equal(r.success, true, JSON.stringify(r))
    assert.equal(r.result, 10)
    assert.match(JSON.stringify(r.logs), /in it/)
  })
  await call('stop, start: processes go on', async () => {
    const p = await s.processes.spawn('i=0; while :; do i=$((i+1)); echo $i > ticks; sleep 0.05; done')
    await until(async () => (await s.executeCommand('cat', ['ticks'])).exitCode === 0)
    const id = s.e2b.sandboxId
    await s._stop()
    assert.equal(s.status, 'stopped')
    await s._start()
    assert.equal(s.e2b.sandboxId, id)
    const was = Number((await s.executeCommand('cat', ['ticks'])).stdout)
    await until(async () => Number((await s.executeCommand('cat', ['ticks'])).stdout) > was)
    await s.processes.kill(p.pid)
  })
  await call('clone', async () => {
    const t = s.clone({ id: 'mastra-clone', env: { FROM: 'clone' } })
    await t._start()
    assert.notEqual(t.e2b.sandboxId, s.e2b.sandboxId)
    assert.equal((await t.executeCommand('echo $FROM')).stdout, 'clone\n')
    await t._destroy()
  })
  await call('e2bSandboxProvider.createSandbox, getInfo', async () => {
    const t = e2bSandboxProvider.createSandbox({ template: 'base', apiUrl: process.env.E2B_API_URL, apiKey: process.env.E2B_API_KEY })
    await t._start()
    assert.equal((await t.getInfo()).status, 'running')
    await t._destroy()
  })
  await call('template: a function of the default one, built', async () => {
    // Its own default has packages of Debian's, which only root can install.
    const { Template } = await load('e2b')
    const t = new E2BSandbox({ id: 'mastra-built', template: Template().fromBaseImage().runCmd('echo built > made').setEnvs({ V: '1' }) })
    await t._start()
    assert.equal((await t.executeCommand('sh -c "cat made; echo $V"')).stdout, 'built\n1\n')
    await t._destroy()
  })
  await call('mount: a bucket, where the sandbox has no FUSE', async () => {
    const fs = { id: 'bucket', name: 'bucket', provider: 's3', status: 'ready', getMountConfig: () => ({ type: 's3', bucket: 'abc', region: 'us-east-1', accessKeyId: 'x', secretAccessKey: 'y', endpoint: 'http://127.0.0.1:9' }) }
    const r = await s.mount(fs, '/home/user/bucket')
    assert.equal(r.success, false)
    return 'fails with a reason: cells have neither sudo nor FUSE'
  })
  await call('a sandbox that was killed is made anew', async () => {
    const was = s.e2b.sandboxId
    await s.e2b.kill()
    assert.equal((await s.executeCommand('echo again')).stdout, 'again\n')
    assert.notEqual(s.e2b.sandboxId, was)
  })
  await call('destroy', async () => {
    const id = s.e2b.sandboxId
    await s._destroy()
    const { Sandbox } = await load('e2b')
    await assert.rejects(Sandbox.connect(id))
  })
}
