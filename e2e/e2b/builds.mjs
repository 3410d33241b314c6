// Builds templates with E2B's official package against a pando daemon. PACKAGES is
// where it is installed, HTTP_PORT the port of a.test, ALLOWED whether builds may go
// there.
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'
import assert from 'node:assert/strict'

const require = createRequire(process.env.PACKAGES + '/')
const { Sandbox, Template } = await import(pathToFileURL(require.resolve('e2b')).href)
const fetchIt = `curl -sS --max-time 5 -f http://a.test:${process.env.HTTP_PORT}/built -o got`
const list = async () => (await (await fetch(process.env.E2B_API_URL + '/templates', { headers: { 'X-API-KEY': process.env.E2B_API_KEY } })).json()).map((t) => [t.templateID, ...t.names])
const failed = async (t, name) => {
  const logs = []
  const e = await Template.build(t, name, { onBuildLogs: (l) => logs.push(l.message) }).then(() => null, (e) => e)
  assert.ok(e, 'the build should have failed')
  assert.equal(e.name, 'BuildError')
  return { message: e.message, logs: logs.join('\n') }
}

if (!process.env.ALLOWED) {
  const e = await failed(Template().fromBaseImage().runCmd('echo begins').runCmd('echo said before; ' + fetchIt), 'net')
  assert.match(e.message, /pando serve --build-allow HOST/)
  assert.match(e.message, /said before\ncurl: /)
  assert.match(e.logs, /begins/)
  assert.equal(await Template.exists('net'), false)
  assert.equal((await list()).flat().includes('net'), false)
  process.exit(0)
}

// What the operator allows is reached by the steps, and by no sandbox.
await Template.build(Template().fromBaseImage().setWorkdir('app').setWorkdir('inner').runCmd(fetchIt).setEnvs({ V: '1' }), 'net:v1', { })
let s = await Sandbox.create('net')
assert.equal((await s.commands.run('pwd; cat got')).stdout.replace(/:\d+/, '').trim(), '/home/user/app/inner\nGET a.test /built')
assert.equal((await s.commands.run('pwd', { cwd: '/home/user' })).stdout, '/home/user\n')
await assert.rejects(s.commands.run(fetchIt))
await s.kill()

// What it does not allow is named.
const e = await failed(Template().fromBaseImage().runCmd('curl -sS -f --max-time 5 http://b.test/x'), 'net:v2')
assert.match(e.message, /GET http:\/\/b\.test\/x: denied by .*--allow b\.test/)
assert.match(e.message, /--build-allow/)

// A build that failed is not there, and what was there before is as it was.
assert.deepEqual((await Template.getTags('net')).map((t) => t.tag), ['v1'])
assert.equal((await list()).filter((n) => n.includes('net')).length, 1)
s = await Sandbox.create('net')
assert.equal((await s.commands.run('echo $V')).stdout, '1\n')
await s.kill()

// Tags name builds; the name alone is the newest.
await Template.build(Template().fromBaseImage().setEnvs({ V: '2' }), 'net', { tags: ['v2', 'stable'] })
const v = async (name) => { const s = await Sandbox.create(name); const out = (await s.commands.run('echo $V')).stdout.trim(); await s.kill(); return out }
assert.deepEqual([await v('net'), await v('net:v1'), await v('net:v2'), await v('net:stable')], ['2', '1', '2', '2'])
const given = await Template.assignTags('net:v1', ['stable'])
assert.deepEqual(given.tags, ['stable'])
assert.equal(await v('net:stable'), '1')
await Template.removeTags('net', 'v1')
await assert.rejects(Sandbox.create('net:v1'))
assert.deepEqual((await Template.getTags('net')).map((t) => t.tag).sort(), ['stable', 'v2'])
