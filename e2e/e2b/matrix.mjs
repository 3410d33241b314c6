// Runs the calls of E2B's official packages against a pando daemon, and prints a
// table of what came of each. PACKAGES is the directory that they are installed in.
// Ends with 1 if a call did not do what it should.
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'
import assert from 'node:assert/strict'
import http from 'node:http'
import { readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'

const require = createRequire(process.env.PACKAGES + '/')
const load = async (name) => import(pathToFileURL(require.resolve(name)).href)
const { Sandbox, Template } = await load('e2b')
const version = require('e2b/package.json').version
const modern = !version.startsWith('2.20.')
const rows = []

// short are the calls that are made where not all of them are.
const short = ['Sandbox.create', 'commands.run', 'commands.run: background, list, kill', 'pty.create, sendInput, resize, kill', 'files.write, read', 'files.list, exists, getInfo', 'files.watchDir',
  'lifecycle.autoResume', 'fork: files', 'fork: with what runs', 'createSnapshot, create of it, listSnapshots, deleteSnapshot', 'getHost: HTTP on a port', 'network: nothing by default', 'protocol: Protocol Buffers',
  'code-interpreter: Sandbox.create', 'runCode: state, value, streams', 'fork: with the memory of the interpreter', 'kill']

async function call(name, f) {
  if (process.env.SHORT && !short.includes(name)) return
  const began = Date.now()
  try {
    const note = await f()
    rows.push([name, 'works', note ?? ''])
  } catch (e) {
    rows.push([name, 'FAILS', String(e?.stack ?? e).split('\n').slice(0, 4).join(' | ')])
  }
  if (process.env.VERBOSE) console.error(rows.at(-1).slice(0, 2).join(' '), Date.now() - began, 'ms')
}

// wsServer takes one upgrade after the other, and says what it hears.
const wsServer = `
import socket
s = socket.create_server(("127.0.0.1", 8001))
while True:
    c, _ = s.accept()
    b = b""
    while b"\\r\\n\\r\\n" not in b:
        more = c.recv(4096)
        if not more: break
        b += more
    c.sendall(b"HTTP/1.1 101 Switching Protocols\\r\\nConnection: Upgrade\\r\\nUpgrade: echo\\r\\n\\r\\n")
    c.sendall(c.recv(4096))
    c.close()
`

// until asks again and again, for ten seconds at most.
async function until(f) {
  for (const end = Date.now() + 10_000; ; ) {
    if (await f()) return
    if (Date.now() > end) throw new Error('it never was so: ' + f)
    await new Promise((r) => setTimeout(r, 50))
  }
}

const made = []
const keep = (s) => (made.push(s), s)
const text = (r) => r.stdout

let s
await call('Sandbox.create', async () => {
  s = keep(await Sandbox.create({ metadata: { who: 'matrix', 'odd key': 'a=b&c' }, envs: { FOO: 'bar' }, timeoutMs: 120_000 }))
  assert.match(s.sandboxId, /^c-[0-9a-f]{16}$/)
})
if (!s) {
  console.log(rows)
  process.exit(1)
}
await call('commands.run', async () => {
  const r = await s.commands.run('echo hi; echo $FOO; pwd; echo no >&2')
  assert.equal(r.stdout, 'hi\nbar\n/home/user\n')
  assert.equal(r.stderr, 'no\n')
  assert.equal(r.exitCode, 0)
})
await call('commands.run: exit code', async () => {
  await assert.rejects(s.commands.run('exit 3'), (e) => e.name === 'CommandExitError' && e.exitCode === 3)
})
await call('commands.run: envs, cwd, user', async () => {
  const r = await s.commands.run('echo $A $FOO; pwd', { envs: { A: 'ä' }, cwd: '/tmp', user: 'user' })
  assert.equal(r.stdout, 'ä bar\n/tmp\n')
})
await call('commands.run: another user', async () => {
  await assert.rejects(s.commands.run('id', { user: 'nobody-here' }))
  return 'refused: a cell has one user'
})
await call('commands.run: onStdout', async () => {
  let out = ''
  await s.commands.run('for i in 1 2 3; do echo $i; sleep 0.05; done', { onStdout: (d) => { out += d } })
  assert.equal(out, '1\n2\n3\n')
})
await call('commands.run: 20 MB of output', async () => {
  const r = await s.commands.run('head -c 20000000 /dev/zero | tr "\\0" x')
  assert.equal(r.stdout.length, 20000000)
})
await call('commands.run: timeoutMs', async () => {
  await assert.rejects(s.commands.run('sleep 30', { timeoutMs: 500 }), (e) => e.name === 'TimeoutError')
  await until(async () => !(await s.commands.list()).some((p) => p.args.some((a) => a.includes('sleep 30'))))
})
await call('commands.run: background, list, kill', async () => {
  const c = await s.commands.run('sleep 1000', { background: true })
  const list = await s.commands.list()
  assert.ok(list.some((p) => p.pid === c.pid && p.cmd === '/bin/bash'))
  assert.equal(await s.commands.kill(c.pid), true)
  await assert.rejects(c.wait(), (e) => e.exitCode === -1 && /signal: killed/.test(e.message))
  assert.equal(await s.commands.kill(c.pid), false)
})
await call('commands.connect', async () => {
  const c = await s.commands.run('read x; echo got $x', { background: true, stdin: true })
  const again = await s.commands.connect(c.pid)
  await s.commands.sendStdin(c.pid, 'abc\n')
  assert.equal(text(await again.wait()), 'got abc\n')
})
await call('commands: disconnect, and go on', async () => {
  const c = await s.commands.run('sleep 0.5; echo late > /home/user/late', { background: true })
  await c.disconnect()
  await until(() => s.files.exists('late'))
})
if (modern) {
  await call('commands.closeStdin', async () => {
    const c = await s.commands.run('cat', { background: true, stdin: true })
    await c.sendStdin('abc')
    await c.closeStdin()
    assert.equal(text(await c.wait()), 'abc')
  })
}
await call('pty.create, sendInput, resize, kill', async () => {
  let out = ''
  const p = await s.pty.create({ cols: 80, rows: 24, onData: (d) => { out += Buffer.from(d).toString() } })
  while (!/[#$] $/.test(out)) await new Promise((r) => setTimeout(r, 5)) // readline, when it begins, sets the size that it has read before
  await s.pty.resize(p.pid, { cols: 132, rows: 40 })
  await s.pty.sendInput(p.pid, new TextEncoder().encode('stty size; exit\n'))
  await p.wait()
  assert.match(out, /40 132/)
})
await call('files.write, read', async () => {
  const w = await s.files.write('a/b.txt', 'hällo')
  assert.equal(w.path, '/home/user/a/b.txt')
  assert.equal(await s.files.read('/home/user/a/b.txt'), 'hällo')
  assert.equal((await s.commands.run('cat a/b.txt')).stdout, 'hällo')
  await s.files.write('empty', '')
  assert.equal(await s.files.read('empty'), '')
})
await call('files.read: bytes, blob, stream', async () => {
  const b = new Uint8Array(300000).map((_, i) => i % 251)
  await s.files.write('bin', b.buffer)
  assert.deepEqual(new Uint8Array(await s.files.read('bin', { format: 'bytes' })), b)
  assert.equal((await s.files.read('bin', { format: 'blob' })).size, 300000)
  let n = 0
  for await (const c of await s.files.read('bin', { format: 'stream' })) n += c.length
  assert.equal(n, 300000)
})
await call('files.write: several', async () => {
  const w = await s.files.write([{ path: 'm/1', data: 'one' }, { path: '/tmp/m/2', data: 'two' }])
  assert.equal(w.length, 2)
  assert.equal(await s.files.read('/tmp/m/2'), 'two')
})
if (modern) {
  await call('files.write: octet-stream, gzip', async () => {
    await s.files.write('o', 'octets', { useOctetStream: true })
    assert.equal(await s.files.read('o'), 'octets')
    await s.files.write('z', 'x'.repeat(100000), { gzip: true })
    assert.equal((await s.files.read('z')).length, 100000)
  })
}
await call('files.read: what is not there', async () => {
  await assert.rejects(s.files.read('nothing'), (e) => /NotFound/.test(e.name))
})
await call('files.list, exists, getInfo', async () => {
  const list = await s.files.list('.', { depth: 2 })
  assert.ok(list.some((e) => e.path === '/home/user/a/b.txt' && e.type === 'file' && e.size === 6))
  assert.equal(await s.files.exists('a'), true)
  assert.equal(await s.files.exists('nope'), false)
  const i = await s.files.getInfo('a')
  assert.equal(i.type, 'dir')
  assert.equal(i.permissions, 'drwxr-xr-x')
})
await call('files.makeDir', async () => {
  assert.equal(await s.files.makeDir('d/e/f'), true)
  assert.equal(await s.files.makeDir('d/e/f'), false)
})
await call('files.rename', async () => {
  await s.files.rename('a/b.txt', 'd/c.txt')
  assert.equal(await s.files.read('d/c.txt'), 'hällo')
  await s.files.rename('d/c.txt', '/tmp/c.txt')
  assert.equal(await s.files.read('/tmp/c.txt'), 'hällo')
})
await call('files.remove', async () => {
  await s.files.remove('d')
  assert.equal(await s.files.exists('d'), false)
})
await call('files.watchDir', async () => {
  await s.files.makeDir('w')
  const seen = []
  const w = await s.files.watchDir('w', (e) => seen.push(e.type + ' ' + e.name), { recursive: true })
  await s.commands.run('echo x > w/f; mkdir w/sub; sleep 0.2; echo y > w/sub/g; mv w/f w/h; rm w/h')
  for (let i = 0; i < 50 && !seen.includes('remove h'); i++) await new Promise((r) => setTimeout(r, 50))
  await w.stop()
  for (const want of ['create f', 'write f', 'create sub', 'create sub/g', 'rename f', 'create h', 'remove h']) assert.ok(seen.includes(want), want + ' in ' + seen)
})
await call('downloadUrl, uploadUrl: signed', async () => {
  await s.files.write('signed', 'by url')
  const get = await fetch(await s.downloadUrl('signed', { useSignatureExpiration: 60 }))
  assert.equal(await get.text(), 'by url')
  const form = new FormData()
  form.append('file', new Blob(['up']), 'x')
  assert.equal((await fetch(await s.uploadUrl('up', { useSignatureExpiration: 60 }), { method: 'POST', body: form })).status, 200)
  assert.equal(await s.files.read('up'), 'up')
  const bad = (await s.downloadUrl('signed')).replace('path=signed', 'path=up')
  assert.equal((await fetch(bad)).status, 401)
})
await call('isRunning', async () => {
  assert.equal(await s.isRunning(), true)
})
await call('getInfo', async () => {
  const i = await s.getInfo()
  assert.equal(i.sandboxId, s.sandboxId)
  assert.equal(i.metadata['odd key'], 'a=b&c')
  assert.equal(i.state, 'running')
})
await call('Sandbox.list', async () => {
  const p = Sandbox.list({ query: { metadata: { 'odd key': 'a=b&c' }, state: ['running'] } })
  assert.deepEqual((await p.nextItems()).map((x) => x.sandboxId), [s.sandboxId])
  assert.equal(p.hasNext, false)
})
await call('Sandbox.list: pages', async () => {
  const other = keep(await Sandbox.create({ metadata: { who: 'matrix' } }))
  const p = Sandbox.list({ query: { metadata: { who: 'matrix' } }, limit: 1 })
  const ids = [...(await p.nextItems()), ...(await p.nextItems())].map((x) => x.sandboxId)
  assert.deepEqual(new Set(ids), new Set([s.sandboxId, other.sandboxId]))
  await other.kill()
})
await call('setTimeout: paused when it is over', async () => {
  const t = keep(await Sandbox.create())
  await t.files.write('work', 'not lost')
  await t.setTimeout(1000)
  await until(async () => !(await t.isRunning()))
  assert.equal((await Sandbox.getInfo(t.sandboxId)).state, 'paused')
  const u = await Sandbox.connect(t.sandboxId)
  assert.equal(await u.files.read('work'), 'not lost')
  await u.kill()
})
if (modern) {
  await call('lifecycle.onTimeout: kill', async () => {
    const t = keep(await Sandbox.create({ timeoutMs: 1000, lifecycle: { onTimeout: 'kill' } }))
    await until(() => Sandbox.getInfo(t.sandboxId).then(() => false, (e) => /NotFound/.test(e.name)))
  })
  await call('lifecycle.autoResume', async () => {
    const t = keep(await Sandbox.create({ lifecycle: { onTimeout: 'pause', autoResume: true } }))
    await t.pause()
    assert.equal((await t.commands.run('echo on')).stdout, 'on\n')
    await t.kill()
  })
}
await call('pause, connect: processes go on', async () => {
  const t = keep(await Sandbox.create())
  const c = await t.commands.run('for i in 1 2 3 4 5 6; do echo $i; sleep 0.2; done > n', { background: true })
  await new Promise((r) => setTimeout(r, 300))
  assert.equal(await (t.pause ?? t.betaPause).call(t), true)
  await assert.rejects(t.commands.run('true'))
  const u = await Sandbox.connect(t.sandboxId)
  await until(async () => (await u.files.read('n')) === '1\n2\n3\n4\n5\n6\n')
  await u.kill()
})
if (modern) {
  await call('fork: files', async () => {
    await s.files.write('base', 'of all')
    for (const p of await s.commands.list()) await s.commands.kill(p.pid)
    const forks = await s.fork({ count: 3 })
    assert.equal(forks.length, 3)
    forks.forEach((f) => assert.ok(!(f instanceof Error), String(f)))
    forks.forEach(keep)
    await forks[0].files.write('base', 'changed')
    assert.equal(await forks[1].files.read('base'), 'of all')
    assert.equal((await forks[2].commands.run('echo $FOO')).stdout, 'bar\n')
    await Promise.all(forks.map((f) => f.kill()))
  })
  if (process.env.GVISOR) {
    await call('fork: with what runs', async () => {
      const t = keep(await Sandbox.create({ metadata: { 'pando:backend': 'gvisor' } }))
      assert.equal((await t.getInfo()).metadata['pando:backend'], 'gvisor')
      await t.commands.run('i=0; while true; do i=$((i+1)); echo $i > count; sleep 0.02; done', { background: true, timeoutMs: 0 })
      await until(() => t.files.exists('count'))
      const forks = await t.fork({ count: 2 })
      forks.forEach((f) => assert.ok(!(f instanceof Error), String(f)))
      forks.forEach(keep)
      for (const f of forks) {
        const was = +(await f.files.read('count'))
        await until(async () => +(await f.files.read('count')) > was)
      }
      await Promise.all([t, ...forks].map((x) => x.kill()))
    })
  }
  await call('createSnapshot, create of it, listSnapshots, deleteSnapshot', async () => {
    await s.files.write('state', 'one')
    const name = 'snap-' + Date.now()
    const k = await s.createSnapshot({ name })
    await s.files.write('state', 'two')
    const a = keep(await Sandbox.create(k.snapshotId))
    assert.equal(await a.files.read('state'), 'one')
    const b = keep(await Sandbox.create(name))
    assert.equal(await b.files.read('state'), 'one')
    assert.ok((await s.listSnapshots().nextItems()).some((x) => x.snapshotId === k.snapshotId))
    assert.equal(await Sandbox.deleteSnapshot(k.snapshotId), true)
    assert.equal(await Sandbox.deleteSnapshot(k.snapshotId), false)
    await Promise.all([a.kill(), b.kill()])
  })
}
await call('getMetrics', async () => {
  const [m] = await s.getMetrics()
  assert.ok(m.cpuCount >= 1 && m.memTotal > 0 && m.diskTotal > 0)
  return 'one sample: now'
})
await call('getHost: HTTP on a port', async () => {
  await s.commands.run('python3 -m http.server 8000', { background: true })
  const host = s.getHost(8000)
  assert.match(host, new RegExp('^8000-' + s.sandboxId + '\\.localhost'))
  let body = ''
  for (let i = 0; i < 50; i++) {
    const res = await byHost(host, '/empty')
    if (res.status === 200) { body = 'ok'; break }
    await new Promise((r) => setTimeout(r, 100))
  }
  assert.equal(body, 'ok')
})
await call('getHost: a WebSocket on a port', async () => {
  await s.files.write('ws.py', wsServer)
  await s.commands.run('python3 ws.py', { background: true })
  let got
  for (let i = 0; i < 50 && !got; i++) {
    got = await upgrade(s.getHost(8001))
    if (!got) await new Promise((r) => setTimeout(r, 100))
  }
  assert.equal(got, 'echo')
})
await call('a port on which nothing listens', async () => {
  assert.equal((await byHost(s.getHost(9), '/')).status, 502)
})
await call('network: nothing by default', async () => {
  await assert.rejects(s.commands.run('exec 3<>/dev/tcp/192.0.2.1/80'))
})
if (modern) {
  await call('network.allowOut, getInfo, updateNetwork', async () => {
    const t = keep(await Sandbox.create({ network: { allowOut: ['pando.invalid'], denyOut: ['0.0.0.0/0'] } }))
    assert.deepEqual((await t.getInfo()).network.allowOut, ['pando.invalid'])
    await t.commands.run('true')
    await t.updateNetwork({ allowOut: ['other.invalid'], denyOut: ['0.0.0.0/0'] })
    assert.deepEqual((await t.getInfo()).network.allowOut, ['other.invalid'])
    await t.kill()
  })
  await call('network.rules', async () => {
    const rules = { 'a.example': [{ transform: { headers: { Authorization: 'Bearer 0123456789abcdef' } } }] }
    const t = keep(await Sandbox.create({ network: { allowOut: ['a.example'], denyOut: ['0.0.0.0/0'], rules } }))
    assert.deepEqual((await t.getInfo()).network.rules, { 'a.example': [{ transform: { headers: { Authorization: '***' } } }] })
    await t.updateNetwork({ allowOut: ['a.example'], denyOut: ['0.0.0.0/0'] })
    assert.equal((await t.getInfo()).network.rules, undefined)
    await t.kill()
    rules['a.example'][0].transform.headers.Other = 'Bearer fedcba9876543210'
    await assert.rejects(Sandbox.create({ network: { allowOut: ['a.example'], rules } }), /network\.rules: there are 2 headers/)
    return 'one header for each host; values are not told'
  })
  await call('Sandbox.create: mcp, volumeMounts', async () => {
    await assert.rejects(Sandbox.create({ mcp: { browserbase: { apiKey: 'x' } } }))
    await assert.rejects(Sandbox.create({ volumeMounts: { '/mnt/v': 'v' } }), /volumeMounts/)
    return 'refused'
  })
  const { Volume, Secret } = await load('e2b')
  await call('Volume, Secret', async () => {
    await assert.rejects(Volume.create('v'), /no volumes/)
    if (Secret) await assert.rejects(async () => { for await (const _ of [await Secret.list().nextItems()]); })
    return 'refused'
  })
  await call('Template.build, exists, create of it', async () => {
    const name = 'built-' + Date.now()
    const t = Template().fromBaseImage().runCmd('echo made > made').setEnvs({ KIND: 'built' })
    const logs = []
    await Template.build(t, name, { onBuildLogs: (l) => logs.push(l.message) })
    assert.equal(await Template.exists(name), true)
    assert.equal(await Template.exists(name + '-not'), false)
    const b = keep(await Sandbox.create(name))
    assert.equal((await b.commands.run('cat made; echo $KIND')).stdout, 'made\nbuilt\n')
    await b.kill()
  })
}
// What other clients than these packages call, by the protocol.
if (modern) {
  await call('protocol: Filesystem.CreateWatcher, GetWatcherEvents, RemoveWatcher', async () => {
    await s.files.makeDir('polled')
    const { watcherId } = await rpc('filesystem.Filesystem/CreateWatcher', { path: 'polled', includeEntry: true })
    await s.files.write('polled/a', 'x')
    let seen = []
    for (let i = 0; i < 50 && !seen.some((e) => e.type === 'EVENT_TYPE_WRITE'); i++) {
      seen.push(...((await rpc('filesystem.Filesystem/GetWatcherEvents', { watcherId })).events ?? []))
      await new Promise((r) => setTimeout(r, 20))
    }
    assert.equal(seen.find((e) => e.type === 'EVENT_TYPE_CREATE').name, 'a')
    assert.equal(seen.find((e) => e.type === 'EVENT_TYPE_WRITE').entry.path, '/home/user/polled/a')
    await rpc('filesystem.Filesystem/RemoveWatcher', { watcherId })
    await assert.rejects(rpc('filesystem.Filesystem/GetWatcherEvents', { watcherId }), /not_found/)
  })
  await call('protocol: POST /files/compose', async () => {
    await s.files.write([{ path: 'part1', data: 'one ' }, { path: 'part2', data: 'two' }])
    const res = await fetch(process.env.E2B_SANDBOX_URL + '/files/compose', { method: 'POST', headers: { ...own(), 'Content-Type': 'application/json' },
      body: JSON.stringify({ source_paths: ['part1', 'part2'], destination: 'whole', hat: 1 }) })
    assert.equal(res.status, 200)
    assert.equal(res.headers.get('x-pando-ignored'), 'hat')
    assert.equal((await res.json()).path, '/home/user/whole')
    assert.equal(await s.files.read('whole'), 'one two')
    assert.equal(await s.files.exists('part1'), false)
    const other = await fetch(process.env.E2B_SANDBOX_URL + '/files/compose', { method: 'POST', headers: { ...own(), 'Content-Type': 'application/json' },
      body: JSON.stringify({ source_paths: ['whole'], destination: 'again', username: 'nobody-here' }) })
    assert.equal(other.status, 401)
  })
  await call('protocol: Process.StreamInput', async () => {
    const c = await s.commands.run('head -n 2', { background: true, stdin: true })
    const body = Buffer.concat([{ start: { process: { pid: c.pid } } }, { keepalive: {} }, ...['a\n', 'b\n'].map((x) => ({ data: { input: { stdin: Buffer.from(x).toString('base64') } } }))].map(envelope))
    const res = await fetch(process.env.E2B_SANDBOX_URL + '/process.Process/StreamInput', { method: 'POST', headers: { ...own(), 'Content-Type': 'application/connect+json' }, body })
    assert.match(await res.text(), /\{\}$/)
    assert.equal(text(await c.wait()), 'a\nb\n')
  })
  await call('protocol: Protocol Buffers', async () => {
    // A client made of the descriptors and the library that the package itself has.
    const esm = async (name) => import(pathToFileURL(require.resolve(name).replace('/cjs/', '/esm/')).href)
    const pb = await esm('@bufbuild/protobuf')
    const { FileDescriptorSetSchema, FileDescriptorProtoSchema, file_google_protobuf_timestamp } = await esm('@bufbuild/protobuf/wkt')
    const { createClient } = await esm('@connectrpc/connect')
    const { createConnectTransport } = await esm('@connectrpc/connect-web')
    const source = readFileSync(join(dirname(require.resolve('e2b')), 'index.mjs'), 'utf8')
    const files = [...source.matchAll(/fileDesc\(\s*"([^"]+)"/g)].map((m) => pb.fromBinary(FileDescriptorProtoSchema, Buffer.from(m[1], 'base64')))
    for (const f of files) f.dependency = f.messageType.some((m) => m.name === 'EntryInfo') ? ['google/protobuf/timestamp.proto'] : []
    const registry = pb.createFileRegistry(pb.create(FileDescriptorSetSchema, { file: [file_google_protobuf_timestamp.proto, ...files] }))
    const transport = createConnectTransport({ baseUrl: process.env.E2B_SANDBOX_URL, useBinaryFormat: true,
      interceptors: [(next) => (req) => { for (const [k, v] of Object.entries(own())) req.header.set(k, v); return next(req) }] })
    const proc = createClient(registry.getService('process.Process'), transport)
    const seen = { out: '', err: '' }
    for await (const m of proc.start({ process: { cmd: '/bin/bash', args: ['-c', 'echo $A; echo no >&2; exit 3'], envs: { A: 'ä' }, cwd: '/tmp' }, stdin: false })) {
      const e = m.event.event
      if (e.case === 'start') assert.ok(e.value.pid > 0)
      if (e.case === 'data') seen[e.value.output.case === 'stdout' ? 'out' : 'err'] += Buffer.from(e.value.output.value).toString()
      if (e.case === 'end') seen.end = e.value
    }
    assert.deepEqual([seen.out, seen.err, seen.end.exitCode, seen.end.exited, seen.end.status], ['ä\n', 'no\n', 3, true, 'exit status 3'])
    const fs = createClient(registry.getService('filesystem.Filesystem'), transport)
    await s.files.write('pb/deep/f', 'five5')
    const list = (await fs.listDir({ path: 'pb', depth: 2 })).entries
    const f = list.find((e) => e.path === '/home/user/pb/deep/f')
    assert.deepEqual([f.name, f.type, f.size, f.mode & 0o400], ['f', 1, 5n, 0o400])
    assert.ok(Math.abs(Number(f.modifiedTime.seconds) - Date.now() / 1000) < 60)
    await assert.rejects(fs.stat({ path: 'pb/nothing' }), (e) => e.code === 5)
    const c = await s.commands.run('cat', { background: true, stdin: true })
    await proc.sendInput({ process: { selector: { case: 'pid', value: c.pid } }, input: { input: { case: 'stdin', value: Buffer.from('x') } } })
    assert.ok((await proc.list({})).processes.some((p) => p.pid === c.pid && p.config.cmd === '/bin/bash'))
    await proc.sendSignal({ process: { selector: { case: 'pid', value: c.pid } }, signal: 9 })
    await assert.rejects(c.wait(), (e) => e.exitCode === -1)
  })
  await call('protocol: logs of sandboxes', async () => {
    const v1 = await control('/sandboxes/' + s.sandboxId + '/logs')
    assert.ok(v1.logs.map((l) => JSON.parse(l.line)).some((l) => l.level === 'info' && l.message.startsWith('sandbox created')) && v1.logEntries.length === v1.logs.length)
    const v2 = await control('/v2/sandboxes/' + s.sandboxId + '/logs?direction=backward&limit=3&search=process')
    assert.equal(v2.logs.length, 3)
    assert.ok(v2.logs[0].timestamp >= v2.logs[2].timestamp && v2.logs.every((l) => l.message.includes('process')))
    assert.deepEqual((await control('/v2/sandboxes/' + s.sandboxId + '/logs?level=error')).logs, [])
    await assert.rejects(control('/v2/sandboxes/' + s.sandboxId + '/logs?level=loud'), /level/)
  })
}
await call('a wrong access token', async () => {
  const res = await fetch(process.env.E2B_SANDBOX_URL + '/files?path=a', { headers: { 'E2b-Sandbox-Id': s.sandboxId, 'X-Access-Token': 'wrong' } })
  assert.equal(res.status, 401)
  const other = keep(await Sandbox.create())
  const token = other.envdAccessToken
  for (const [port, path] of [[49983, '/files?path=a'], [49983, '/envs'], [49999, '/contexts']]) {
    const theirs = await fetch(process.env.E2B_SANDBOX_URL + path, { headers: { 'E2b-Sandbox-Id': s.sandboxId, 'E2b-Sandbox-Port': port, 'X-Access-Token': token } })
    assert.equal(theirs.status, 401, path)
  }
  await other.files.write('mine', 'of the other')
  const url = new URL(await other.downloadUrl('mine'))
  assert.equal((await fetch(url)).status, 200)
  assert.equal((await fetch(url, { headers: { 'E2b-Sandbox-Id': s.sandboxId } })).status, 401)
  assert.equal((await byHost(s.getHost(49983), url.pathname + url.search)).status, 401)
  assert.equal((await byHost(other.getHost(49983), url.pathname + url.search)).status, 200)
  await other.kill()
  assert.notEqual((await fetch(url)).status, 200)
})
await call('an unknown member of a request', async () => {
  const res = await fetch(process.env.E2B_API_URL + '/v2/sandboxes', { method: 'POST', headers: { 'X-API-KEY': process.env.E2B_API_KEY, 'Content-Type': 'application/json' },
    body: JSON.stringify({ templateID: 'base', hat: 'red', network: { shoes: 2 } }) })
  assert.equal(res.headers.get('x-pando-ignored'), 'hat, network.shoes')
  await Sandbox.kill((await res.json()).sandboxID)
})
await call('a template that is not there', async () => {
  await assert.rejects(Sandbox.create('no-such-template'), /not found/)
})

if (process.env.INTERPRETER) {
  const { Sandbox: Code } = await load('@e2b/code-interpreter')
  let c
  await call('code-interpreter: Sandbox.create', async () => { c = keep(await Code.create()) })
  await call('runCode: state, value, streams', async () => {
    await c.runCode('x = 41')
    const r = await c.runCode('import sys; print("out"); print("err", file=sys.stderr); x + 1')
    assert.equal(r.text, '42')
    assert.deepEqual(r.logs, { stdout: ['out\n'], stderr: ['err\n'] })
  })
  await call('runCode: an exception', async () => {
    const r = await c.runCode('1 / 0')
    assert.equal(r.error.name, 'ZeroDivisionError')
    assert.match(r.error.traceback, /division by zero/)
  })
  await call('runCode: rich results', async () => {
    const r = await c.runCode('class H:\n    def _repr_html_(self): return "<b>h</b>"\nH()')
    assert.equal(r.results[0].html, '<b>h</b>')
    const v = await c.runCode('import datetime; {"n": [1, 2j], "d": datetime.date(2020, 1, 2)}')
    assert.deepEqual(v.results[0].json, { n: [1, '2j'], d: 'datetime.date(2020, 1, 2)' })
  })
  await call('runCode: !cmd, %pip, _, display', async () => {
    const r = await c.runCode('!echo out; echo err >&2')
    assert.deepEqual(r.logs, { stdout: ['out\n'], stderr: ['err\n'] })
    assert.deepEqual((await c.runCode('z = !echo a; echo b\nz')).results[0].json, ['a', 'b'])
    assert.equal((await c.runCode('_')).text, "['a', 'b']")
    assert.match((await c.runCode('%pip --version')).logs.stdout.join(''), /^pip /)
    assert.deepEqual((await c.runCode('display(1)\n2')).results.map((x) => [x.text, x.isMainResult]), [['1', false], ['2', true]])
    assert.match((await c.runCode('%no_such_word')).error.value, /no_such_word/)
  })
  await call('runCode: what is too long is marked', async () => {
    const r = await c.runCode("'x' * 5_000_000")
    assert.match(r.text, /x… \(3951426 more characters are left out: have the code write them to a file\)$/)
    assert.match(r.logs.stderr.join(''), /the value's json is left out/)
  })
  await call('runCode: envs', async () => {
    const r = await c.runCode('import os; os.environ["K"]', { envs: { K: 'v' } })
    assert.equal(r.text, "'v'")
    assert.equal((await c.runCode('os.environ.get("K")')).text, undefined)
  })
  await call('createCodeContext, listCodeContexts, restart, remove', async () => {
    const k = await c.createCodeContext({ cwd: '/tmp' })
    await c.runCode('y = 1; import os', { context: k })
    assert.equal((await c.runCode('os.getcwd()', { context: k })).text, "'/tmp'")
    assert.equal((await c.runCode('y')).error.name, 'NameError')
    assert.equal((await c.runCode('x')).text, '41')
    assert.equal((await c.listCodeContexts()).length, 2)
    await c.restartCodeContext(k)
    assert.equal((await c.runCode('y', { context: k })).error.name, 'NameError')
    await c.removeCodeContext(k)
    assert.equal((await c.listCodeContexts()).length, 1)
  })
  await call('runCode: silent for longer than requestTimeoutMs', async () => {
    const r = await c.runCode('import time; time.sleep(3); x + 1', { requestTimeoutMs: 2000 })
    assert.equal(r.text, '42')
  })
  await call('runCode: timeoutMs counts from its turn', async () => {
    const first = c.runCode('import time; time.sleep(4)')
    await new Promise((r) => setTimeout(r, 500))
    assert.equal((await c.runCode('x + 1', { timeoutMs: 2000 })).text, '42')
    await first
    await assert.rejects(c.runCode('time.sleep(60)', { timeoutMs: 1000 }), /Execution timed out/)
    assert.equal((await c.runCode('x')).text, '41') // what was given up is not in the way
  })
  await call('restartCodeContext while code runs', async () => {
    const r = c.runCode('while True: pass')
    await new Promise((r) => setTimeout(r, 500))
    await c.restartCodeContext('default')
    assert.equal((await r).error.name, 'Interrupted')
    assert.equal((await c.runCode('x')).error.name, 'NameError')
  })
  await call('runCode: after the interpreter has ended', async () => {
    const k = await c.createCodeContext({ cwd: '/tmp' })
    await c.runCode('y = 1', { context: k })
    assert.match((await c.runCode('import os; os._exit(3)', { context: k })).error.value, /ended|exit/)
    const r = await c.runCode('import os; os.getcwd()', { context: k })
    assert.equal(r.text, "'/tmp'")
    assert.match(r.logs.stderr.join(''), /this is a new interpreter/)
    assert.equal((await c.runCode('y', { context: k })).error.name, 'NameError')
    await c.removeCodeContext(k)
    await c.runCode('x = 41')
  })
  await call('runCode: another language', async () => {
    await assert.rejects(c.runCode('1 + 1', { language: 'js' }), /an interpreter already, of kind python/)
    await assert.rejects(c.runCode('1 + 1', { language: 'cobol' }), /there are python, javascript and java/)
  })
  await call('fork: with the memory of the interpreter', async () => {
    const forks = await c.fork({ count: 2 })
    forks.forEach((f) => assert.ok(!(f instanceof Error), String(f)))
    forks.forEach(keep)
    await forks[0].runCode('x = 7')
    assert.equal((await forks[1].runCode('x')).text, '41')
    await Promise.all(forks.map((f) => f.kill()))
  })
}
await call('kill', async () => {
  await s.kill()
  assert.equal(await Sandbox.kill(s.sandboxId), false)
  await assert.rejects(s.files.read('a'))
})
await Promise.all(made.map((x) => x.kill().catch(() => {})))

console.log(`| e2b ${version} | | |\n|---|---|---|`)
for (const r of rows) console.log(`| ${r.map((x) => x.replaceAll('|', '\\|')).join(' | ')} |`)
process.exit(rows.some((r) => r[1] === 'FAILS') ? 1 : 0)

// own are the headers of what is sent to the sandbox itself.
function own() {
  return { 'E2b-Sandbox-Id': s.sandboxId, 'E2b-Sandbox-Port': '49983', 'X-Access-Token': s.envdAccessToken }
}

// envelope is one message of a stream.
function envelope(v) {
  const b = Buffer.from(JSON.stringify(v))
  const head = Buffer.alloc(5)
  head.writeUInt32BE(b.length, 1)
  return Buffer.concat([head, b])
}

// rpc makes a call with one message each way.
async function rpc(name, message) {
  const res = await fetch(process.env.E2B_SANDBOX_URL + '/' + name, { method: 'POST', headers: { ...own(), 'Content-Type': 'application/json' }, body: JSON.stringify(message) })
  if (res.status !== 200) throw new Error(await res.text())
  return res.json()
}

// control asks the control plane.
async function control(path) {
  const res = await fetch(process.env.E2B_API_URL + path, { headers: { 'X-API-KEY': process.env.E2B_API_KEY } })
  if (res.status !== 200) throw new Error(await res.text())
  return res.json()
}

// byHost asks the daemon for what a host name stands for, without looking it up.
function byHost(host, path) {
  const url = new URL(process.env.E2B_API_URL)
  return new Promise((ok, no) => {
    http.get({ host: url.hostname, port: url.port, path, headers: { Host: host } }, (res) => { res.resume(); res.on('end', () => ok({ status: res.statusCode })) }).on('error', no)
  })
}

// upgrade asks for another protocol, says a word in it and returns the answer.
function upgrade(host) {
  const url = new URL(process.env.E2B_API_URL)
  return new Promise((ok) => {
    const req = http.get({ host: url.hostname, port: url.port, path: '/', headers: { Host: host, Connection: 'Upgrade', Upgrade: 'echo' } }, (res) => { res.resume(); ok(undefined) })
    req.on('upgrade', (_, socket) => { socket.on('data', (d) => { ok(d.toString()); socket.destroy() }); socket.write('echo') })
    req.on('error', () => ok(undefined))
  })
}
