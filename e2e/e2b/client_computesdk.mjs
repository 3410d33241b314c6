// ComputeSDK's provider of E2B: all that it offers.
import assert from 'node:assert/strict'
import { call, load, until, onPort } from './client.mjs'

export const packages = ['@computesdk/e2b', 'computesdk']

export async function run() {
  const { compute } = await load('computesdk')
  const { e2b } = await load('@computesdk/e2b')
  const provider = e2b({ apiKey: process.env.E2B_API_KEY })
  compute.setConfig({ provider })
  let s
  await call('compute.sandbox.create', async () => {
    s = await compute.sandbox.create({ timeout: 120_000, envs: { FROM: 'compute' }, metadata: { who: 'compute' }, name: 'mine', namespace: 'ours' })
    assert.match(s.sandboxId, /^c-/)
  })
  await call('runCommand', async () => {
    const r = await s.runCommand('echo $FROM; echo no >&2')
    assert.deepEqual([r.stdout, r.stderr, r.exitCode], ['compute\n', 'no\n', 0])
  })
  await call('runCommand: cwd, env, exit code', async () => {
    await s.runCommand('mkdir -p /home/user/in')
    const r = await s.runCommand('echo "$A"; pwd; exit 4', { cwd: '/home/user/in', env: { A: 'b' } })
    assert.deepEqual([r.stdout.split('\n')[1], r.exitCode], ['/home/user/in', 4])
  })
  await call('runCommand: Python by heredoc', async () => {
    const r = await s.runCommand(`python3 - <<'PY'\nimport json\nprint(json.dumps({"sum": 1 + 2}))\nPY`)
    assert.deepEqual(JSON.parse(r.stdout), { sum: 3 })
  })
  await call('runCommand: background', async () => {
    assert.equal((await s.runCommand('sh -c "echo began > began"', { background: true })).exitCode, 0)
    await until(async () => (await s.runCommand('cat began')).stdout === 'began\n')
  })
  await call('runCommand: onStdout, through its daemon in the sandbox', async () => {
    const seen = []
    const r = await s.runCommand('echo one; echo two', { onStdout: (d) => seen.push(d) })
    assert.equal(r.exitCode, 0, JSON.stringify(r))
    assert.equal(seen.join(''), 'one\ntwo\n')
  })
  await call('filesystem.writeFile, readFile, mkdir, readdir, exists, remove', async () => {
    const f = s.filesystem
    await f.mkdir('/home/user/d')
    await f.writeFile('/home/user/d/a.txt', 'ä\n')
    assert.equal(await f.readFile('/home/user/d/a.txt'), 'ä\n')
    assert.deepEqual((await f.readdir('/home/user/d')).map((e) => [e.name, e.size]), [['a.txt', 3]])
    assert.equal(await f.exists('/home/user/d/a.txt'), true)
    await f.remove('/home/user/d/a.txt')
    assert.equal(await f.exists('/home/user/d/a.txt'), false)
  })
  await call('getInfo, getInstance', async () => {
    assert.equal((await s.getInfo()).id, s.sandboxId)
    assert.equal(await s.getInstance().isRunning(), true)
  })
  await call('getUrl', async () => {
    await s.filesystem.writeFile('/home/user/d/index.html', 'here')
    await s.runCommand('python3 -m http.server 8011 -d /home/user/d', { background: true })
    const url = new URL(await s.getUrl({ port: 8011, protocol: 'http' }))
    await until(async () => (await onPort(url.host)).body === 'here')
  })
  await call('sandbox.getById, list', async () => {
    const other = await provider.sandbox.getById(s.sandboxId)
    assert.equal((await other.runCommand('echo $FROM')).stdout, 'compute\n')
    assert.ok((await provider.sandbox.list()).some((o) => o.sandboxId === s.sandboxId))
    assert.equal(await provider.sandbox.getById('c-0000000000000000'), null)
  })
  await call('snapshot.create, and a sandbox of it', async () => {
    await s.runCommand('pkill -f http.server')
    await s.filesystem.writeFile('/home/user/kept', 'kept')
    const k = await provider.snapshot.create(s.sandboxId, { name: 'compute-kept' })
    const t = await compute.sandbox.create({ snapshotId: k.id })
    assert.equal(await t.filesystem.readFile('/home/user/kept'), 'kept')
    await t.destroy()
    await provider.snapshot.list()
    await provider.snapshot.delete(k.id)
  })
  await call('a template that is not there', async () => {
    await assert.rejects(compute.sandbox.create({ templateId: 'none-such' }), /none-such/)
  })
  await call('destroy', async () => {
    await s.destroy()
    assert.equal(await provider.sandbox.getById(s.sandboxId), null)
  })
}
