// Time-outs, pause, connect, fork and kill at once, ROUNDS times: each answers or
// refuses as it is said, nothing hangs, nothing that was written is lost, and in the
// end a sandbox is running, paused or gone, and can be used or ended. PACKAGES is the
// directory that e2b is installed in; SEED makes the same order again.
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'
import assert from 'node:assert/strict'

const require = createRequire(process.env.PACKAGES + '/')
const { Sandbox } = await import(pathToFileURL(require.resolve('e2b')).href)
const rounds = +process.env.ROUNDS
let seed = +(process.env.SEED ?? Date.now() % 1e9)
console.error('seed', seed)
function random(n) { // mulberry32
  seed = (seed + 0x6d2b79f5) | 0
  let t = Math.imul(seed ^ (seed >>> 15), 1 | seed)
  t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
  return ((t ^ (t >>> 14)) >>> 0) % n
}
const sleep = (ms) => new Promise((r) => setTimeout(r, ms))

// A command stands still in a sandbox that is paused, until its time is over.
// What each act may be refused with: that the sandbox is paused, gone, or changing.
const refusals = /paused|not found|NotFound|was removed|is being|under way|cannot fork|cannot branch|has ended|ended|terminated|timeout|no longer|stands still|conflict/i

async function act(kind, s, forks) {
  switch (kind) {
    case 'pause': return s.pause()
    case 'connect': return Sandbox.connect(s.sandboxId, { timeoutMs: 60_000 })
    case 'over': return s.setTimeout(0)
    case 'longer': return s.setTimeout(60_000)
    case 'write': return s.files.write('more', 'x'.repeat(1000))
    case 'run': return s.commands.run('echo one; sleep 0.01; echo two', { timeoutMs: 2_000 })
    case 'fork': for (const f of await s.fork({ count: 1 })) if (!(f instanceof Error)) forks.push(f); return
    case 'list': return Sandbox.list({ query: { state: ['running', 'paused'] } }).nextItems()
    case 'kill': return s.kill()
  }
}

const acts = ['pause', 'connect', 'over', 'longer', 'write', 'run', 'fork', 'list', 'pause', 'connect']
const odd = []
for (let i = 0; i < rounds; i++) {
  const forks = []
  const s = await Sandbox.create({ timeoutMs: 60_000 })
  const t = s.sandboxId
  await s.files.write('work', 'round ' + i)
  const runs = random(2) === 0
  if (runs) await s.commands.run('i=0; while true; do i=$((i+1)); echo $i > count; sleep 0.02; done', { background: true, timeoutMs: 0 })
  const kills = random(4) === 0
  const chosen = Array.from({ length: 6 }, () => acts[random(acts.length)])
  if (kills) chosen.push('kill')
  const began = Date.now()
  const told = await Promise.all(chosen.map(async (kind) => {
    await sleep(random(60))
    const limit = sleep(30_000).then(() => { throw new Error('it hangs') })
    limit.catch(() => {})
    return Promise.race([act(kind, s, forks), limit]).then(() => kind, (e) => {
      const killed = kills && (kind === 'run' || kind === 'fork') && /signal: killed|is removed/.test(e.message)
      if (!killed && !refusals.test(e.name + ' ' + e.message)) odd.push(`round ${i}, ${kind} of ${chosen}: ${e.name}: ${e.message}`)
      return kind + ' refused'
    })
  }))
  if (process.env.VERBOSE) console.error(i, Date.now() - began, 'ms', t, told.join(', '))
  const now = await Sandbox.getInfo(t).then((x) => x.state, (e) => e.name)
  if (kills) {
    assert.match(now, /NotFound/, 'killed, and is ' + now)
    assert.equal(await Sandbox.kill(t), false)
  } else {
    assert.ok(now === 'running' || now === 'paused', now)
    const back = await Sandbox.connect(t, { timeoutMs: 60_000 })
    assert.equal((await Sandbox.getInfo(t)).state, 'running')
    assert.equal(await back.files.read('work'), 'round ' + i)
    const was = +(await back.files.read('count').catch(() => '0'))
    for (const end = Date.now() + 10_000; runs && +(await back.files.read('count').catch(() => '0')) <= was; await sleep(20)) assert.ok(Date.now() < end, 'what ran stands still')
    assert.equal(await back.kill(), true)
  }
  await Promise.all(forks.map((f) => f.kill()))
}
const left = await Sandbox.list().nextItems()
assert.deepEqual(left.map((x) => x.sandboxId), [])
assert.deepEqual(odd, [])
console.log('done')
process.exit(0)
