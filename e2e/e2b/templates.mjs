// Builds templates of copied files with E2B's official package against a pando
// daemon. PACKAGES is where it is installed.
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'
import assert from 'node:assert/strict'
import { mkdtempSync, mkdirSync, writeFileSync, symlinkSync, linkSync, chmodSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

const require = createRequire(process.env.PACKAGES + '/')
const { Sandbox, Template } = await import(pathToFileURL(require.resolve('e2b')).href)

// What is copied: files, directories, patterns, links, modes, other names.
const context = mkdtempSync(join(tmpdir(), 'e2b-copy-'))
const put = (name, text) => writeFileSync(join(context, name), text)
mkdirSync(join(context, 'src/deep'), { recursive: true })
put('a.txt', 'a'), put('b.txt', 'b'), put('skip.log', 'log'), put('big', Buffer.alloc(3 << 20, 'x'))
put('src/one.js', '1'), put('src/deep/two.js', '2'), put('.dockerignore', '*.log\n'), put('src/run.sh', '#!/bin/sh\necho ran\n')
chmodSync(join(context, 'src/run.sh'), 0o755)
symlinkSync('one.js', join(context, 'src/link'))
linkSync(join(context, 'src/one.js'), join(context, 'src/same'))

const made = (t) => t.fromBaseImage()
  .copy('a.txt', 'renamed')
  .copy('a.txt', 'in/some/')
  .copy('src', 'app')
  .copy('src/deep', '/home/user/deep')
  .copy('*.txt', 'texts/')
  .copy('src/*.js', 'scripts/', { mode: 0o700 })
  .copyItems([{ src: 'big', dest: '/home/user/', user: 'root' }, { src: ['a.txt', 'b.txt'], dest: 'two/' }])
  .setWorkdir('below')
  .copy('.', 'all')
  .copy('b.txt', '.', { gzip: false })
  .runCmd('cat b.txt; ../app/run.sh')
const logs = []
await Template.build(made(Template({ fileContextPath: context })), 'copied', { onBuildLogs: (l) => logs.push(l.message) })
assert.ok(logs.includes('bran'), logs.join('\n'))
let s = await Sandbox.create('copied')
const sh = async (c) => (await s.commands.run(c)).stdout.trim().split('\n')
assert.deepEqual(await sh('cd ~; cat renamed in/some/a.txt app/one.js app/deep/two.js deep/two.js texts/b.txt scripts/one.js two/a.txt two/b.txt; echo; ls -a'),
  ['aa122b1ab', '.', '..', 'app', 'below', 'big', 'deep', 'in', 'renamed', 'scripts', 'texts', 'two'])
assert.deepEqual(await sh('cd ~; ls texts scripts; stat -c %a scripts/one.js app/run.sh; wc -c < big; readlink app/link; cat app/link app/same; echo; ls -A below below/all'),
  ['scripts:', 'one.js', '', 'texts:', 'a.txt', 'b.txt', '700', '755', String(3 << 20), 'one.js', '11', 'below:', 'all', 'b.txt', '', 'below/all:', '.dockerignore', 'a.txt', 'b.txt', 'big', 'src'])
assert.deepEqual(await sh('ls -A /tmp | grep copy || true'), [''])
await s.kill()

// The users of E2B's templates are the cell's one; another is refused by name.
await Template.build(Template().fromBaseImage().setUser('root').runCmd('echo a > a', { user: 'root' }).setUser('user').runCmd('echo b >> a'), 'users')
s = await Sandbox.create('users')
assert.deepEqual(await sh('cat a'), ['a', 'b'])
await s.kill()
for (const t of [Template().fromBaseImage().setUser('postgres'), Template().fromBaseImage().runCmd('true', { user: 'postgres' }), Template({ fileContextPath: context }).fromBaseImage().copy('a.txt', 'a', { user: 'postgres' })]) {
  await assert.rejects(Template.build(t, 'users'), /cannot do a step as user "postgres"/)
}

// What a step writes is in the log while it runs: this one ends when its output was seen.
const live = Template().fromBaseImage().runCmd('echo begun; printf half; echo; until test -e /tmp/seen; do sleep 0.05; done; echo over >&2')
const build = await Template.buildInBackground(live, 'live')
let status
for (const end = Date.now() + 60_000; ; ) {
  status = await Template.getBuildStatus(build)
  if (status.logEntries.some((l) => l.message === 'begun')) break
  assert.ok(Date.now() < end && status.status === 'building', JSON.stringify(status))
  await new Promise((r) => setTimeout(r, 50))
}
const inside = await Sandbox.connect(build.templateId)
await inside.commands.run('touch /tmp/seen')
do status = await Template.getBuildStatus(build)
while (status.status === 'building')
assert.equal(status.status, 'ready', JSON.stringify(status))
assert.deepEqual((await Template.getBuildStatus(build)).logEntries.map((l) => l.message).slice(-4), ['begun', 'half', 'over', 'the template is ready'])

// Files that were not sent, an address that is not one of a waiting build, another's.
const url = process.env.E2B_API_URL, headers = { 'X-API-KEY': process.env.E2B_API_KEY, 'Content-Type': 'application/json' }
const post = (p, body) => fetch(url + p, { method: 'POST', headers, body: JSON.stringify(body) })
const begun = await (await post('/v3/templates', { name: 'raw' })).json()
const link = await (await fetch(`${url}/templates/${begun.templateID}/files/abc0`, { headers })).json()
assert.equal(link.present, false)
assert.equal((await fetch(link.url.replace(/ticket=.*/, 'ticket=wrong'), { method: 'PUT', body: 'x' })).status, 403)
assert.equal((await fetch(link.url.replace('abc0', 'abc1'), { method: 'PUT', body: 'x' })).status, 403)
assert.equal((await fetch(link.url.replace(/\?.*/, ''), { method: 'PUT', body: 'x' })).status, 401)
assert.equal((await fetch(`${url}/templates/${begun.templateID}/files/..%2fx`, { headers })).ok, false)
assert.equal((await fetch(link.url, { method: 'PUT', body: 'no archive' })).status, 200)
assert.equal((await (await fetch(`${url}/templates/${begun.templateID}/files/abc0`, { headers })).json()).present, true)
await post(`/v2/templates/${begun.templateID}/builds/${begun.buildID}`, { steps: [{ type: 'COPY', args: ['a', 'b', '', ''], filesHash: 'abc0' }] })
let raw
do raw = await (await fetch(`${url}/templates/${begun.templateID}/builds/${begun.buildID}/status`, { headers })).json()
while (raw.status === 'building')
assert.equal(raw.status, 'error')
assert.match(raw.reason.message, /cannot read the files that were sent/)
assert.equal((await fetch(link.url, { method: 'PUT', body: 'x' })).status, 403)
