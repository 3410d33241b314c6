// What a sandbox has outlives its daemon: processes with their streams and input,
// and contexts with their variables. PACKAGES is the directory that e2b and its
// code interpreter are installed in. Says "now" when the daemon is to be killed, and
// goes on when a line comes, which says that there is a new one.
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'
import { createInterface } from 'node:readline'
import assert from 'node:assert/strict'

const require = createRequire(process.env.PACKAGES + '/')
const load = async (name) => import(pathToFileURL(require.resolve(name)).href)
const { Sandbox } = await load('@e2b/code-interpreter')
const trace = (s) => { if (process.env.VERBOSE) console.error(s) }
const answers = createInterface({ input: process.stdin })[Symbol.asyncIterator]()

const s = await Sandbox.create({ timeoutMs: 120_000 })
const numbers = 'i=0; while [ ! -e stop ]; do echo $i; i=$((i+1)); sleep 0.05; done; echo last; exit 5'
let before = ''
const first = await s.commands.run(numbers, { background: true, timeoutMs: 0, onStdout: (d) => { before += d } })
const reader = await s.commands.run('read x; echo got $x', { background: true, stdin: true, timeoutMs: 0, envs: { SECRET: 'of nobody' } })
const pty = await s.pty.create({ cols: 80, rows: 24, timeoutMs: 0, onData: () => {} })
const short = await s.commands.run('sleep 0.3', { background: true, timeoutMs: 0 })
const k = await s.createCodeContext({ cwd: '/tmp' })
await s.runCode('x = 1')
await s.runCode('x = 2', { context: k })
const brief = await Sandbox.create({ timeoutMs: 2_000 })
await brief.files.write('work', 'of the brief one')
const still = await Sandbox.create({ timeoutMs: 120_000 })
await still.commands.run('i=0; while true; do i=$((i+1)); echo $i > count; sleep 0.02; done', { background: true, timeoutMs: 0 })
await still.files.write('work', 'of the paused one')
await still.pause()
const ended = await Sandbox.create({ timeoutMs: 120_000 })
await ended.kill()
while (!before.includes('2\n')) await new Promise((r) => setTimeout(r, 20))

console.log('now')
const broken = assert.rejects(first.wait())
assert.equal((await answers.next()).value, 'go on')
trace('go on')
await broken // whoever follows a process is told that it is not followed any more

trace('broken')
await new Promise((r) => setTimeout(r, 300)) // meanwhile one has ended
const again = await Sandbox.connect(s.sandboxId)
const list = await again.commands.list()
assert.deepEqual(new Set(list.map((p) => p.pid)), new Set([first.pid, reader.pid, pty.pid]))
const config = list.find((p) => p.pid === reader.pid)
assert.deepEqual([config.cmd, config.args.at(-1), config.envs], ['/bin/bash', 'read x; echo got $x', {}])
trace('listed')
let after = ''
const numbersAgain = await again.commands.connect(first.pid, { onStdout: (d) => { after += d } })
const readerAgain = await again.commands.connect(reader.pid)
while (!after.includes('\n')) await new Promise((r) => setTimeout(r, 20))
assert.ok(parseInt(after) > parseInt(before.trim().split('\n').at(-1)), 'what came before is told again: ' + after)
trace('followed')
await again.files.write('stop', '')
await assert.rejects(numbersAgain.wait(), (e) => e.exitCode === 5)
assert.match(after, /last\n$/)
await again.commands.sendStdin(reader.pid, 'it\n')
assert.equal((await readerAgain.wait()).stdout, 'got it\n')
trace('input')
let typed = ''
const ptyAgain = await again.pty.connect(pty.pid, { onData: (d) => { typed += Buffer.from(d).toString() } })
await again.pty.resize(pty.pid, { cols: 132, rows: 40 })
await again.pty.sendInput(pty.pid, new TextEncoder().encode('stty size; exit\n'))
await ptyAgain.wait()
assert.match(typed, /40 132/)
trace('terminal')
assert.deepEqual(await again.commands.list(), [])
assert.equal(await again.commands.kill(short.pid), false)

assert.deepEqual(new Set((await again.listCodeContexts()).map((c) => c.id)), new Set(['default', k.id]))
assert.equal((await again.runCode('x')).text, '1')
assert.equal((await again.runCode('x', { context: k })).text, '2')
await again.kill()

// Time goes on without a daemon; who is paused stays so; who was killed stays away.
for (const end = Date.now() + 10_000; (await Sandbox.getInfo(brief.sandboxId)).state !== 'paused'; await new Promise((r) => setTimeout(r, 50))) assert.ok(Date.now() < end, 'its time is over')
assert.equal(await (await Sandbox.connect(brief.sandboxId)).files.read('work'), 'of the brief one')
assert.equal((await Sandbox.getInfo(still.sandboxId)).state, 'paused')
const on = await Sandbox.connect(still.sandboxId)
assert.equal(await on.files.read('work'), 'of the paused one')
const was = +(await on.files.read('count'))
for (const end = Date.now() + 10_000; +(await on.files.read('count')) <= was; await new Promise((r) => setTimeout(r, 20))) assert.ok(Date.now() < end, 'what ran goes on')
await assert.rejects(Sandbox.getInfo(ended.sandboxId), (e) => /NotFound/.test(e.name))
await Promise.all([brief, still].map((x) => x.kill()))
console.log('done')
process.exit(0)
