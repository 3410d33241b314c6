// E2B's own command line.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { mkdtempSync, writeFileSync, mkdirSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { call, until } from './client.mjs'

export const packages = ['@e2b/cli']

const bin = join(process.env.PACKAGES, 'node_modules/@e2b/cli/dist/index.js')
const folder = mkdtempSync(join(tmpdir(), 'e2b-cli-'))

// start runs e2b with arguments; terminal says that it has one.
function start(args, { terminal, cwd = folder } = {}) {
  const command = [process.execPath, bin, ...args]
  const c = terminal
    ? spawn('python3', ['-c', 'import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)', ...command], { cwd, env: { ...process.env, TERM: 'xterm' } })
    : spawn(command[0], command.slice(1), { cwd })
  const r = { out: '', err: '', stdin: c.stdin, kill: () => c.kill() }
  c.stdout.on('data', (d) => (r.out += d))
  c.stderr.on('data', (d) => (r.err += d))
  r.ended = new Promise((done) => c.on('close', (code) => done((r.code = code))))
  return r
}

async function e2b(args, input, more) {
  const r = start(args, more)
  r.stdin.end(input ?? '')
  await r.ended
  return r
}

async function works(args, input, more) {
  const r = await e2b(args, input, more)
  assert.equal(r.code, 0, `e2b ${args.join(' ')}: ${r.code}\n${r.out}\n${r.err}`)
  return r.out
}

export async function run() {
  let id
  await call('sandbox create --detach', async () => {
    id = /c-[0-9a-f]{16}/.exec(await works(['sandbox', 'create', '-d', '--timeout', '200', 'base']))?.[0]
    assert.ok(id)
  })
  await call('sandbox list, info', async () => {
    const s = JSON.parse(await works(['sandbox', 'list', '-f', 'json', '--template', 'base'])).find((s) => s.sandboxId === id)
    assert.deepEqual([s.sandboxId, s.state], [id, 'running'])
    assert.match(await works(['sandbox', 'list']), new RegExp(id))
    assert.match(await works(['sandbox', 'info', id]), /State: running/)
  })
  await call('sandbox exec', async () => {
    assert.equal(await works(['sandbox', 'exec', '-c', '/tmp', '-e', 'A=b', id, 'echo $A; pwd']), 'b\n/tmp\n')
    assert.equal((await e2b(['sandbox', 'exec', id, 'exit', '3'])).code, 3)
  })
  await call('sandbox exec: standard input', async () => {
    assert.equal(await works(['sandbox', 'exec', id, 'cat'], 'input\n'), 'input\n')
  })
  await call('sandbox exec --background', async () => {
    await works(['sandbox', 'exec', '-b', id, 'echo began > began; sleep 100'])
    await until(async () => (await e2b(['sandbox', 'exec', id, 'cat', 'began'])).out === 'began\n')
  })
  await call('sandbox connect, in a terminal', async () => {
    const r = start(['sandbox', 'connect', id], { terminal: true })
    await until(() => r.out.includes('connecting to sandbox'))
    r.stdin.write('echo in-the-$((40+2))\n')
    await until(() => r.out.includes('in-the-42'))
    r.stdin.write('exit\n')
    await r.ended
  })
  await call('sandbox logs, metrics', async () => {
    assert.match(await works(['sandbox', 'logs', id]), /sandbox created/)
    assert.match(await works(['sandbox', 'metrics', id]), /CPU/)
  })
  await call('sandbox pause, resume', async () => {
    await works(['sandbox', 'pause', id])
    assert.match(await works(['sandbox', 'list', '-s', 'paused']), new RegExp(id))
    await works(['sandbox', 'resume', id])
    assert.equal(await works(['sandbox', 'exec', id, 'cat', 'began']), 'began\n')
  })
  await call('sandbox snapshot create, list, delete', async () => {
    await works(['sandbox', 'snapshot', 'create', '--name', 'cli-kept', id])
    const [k] = JSON.parse(await works(['sandbox', 'snapshot', 'list', '-f', 'json', id]))
    const of = k.snapshotId
    const t = /c-[0-9a-f]{16}/.exec(await works(['sandbox', 'create', '-d', of]))[0]
    assert.equal(await works(['sandbox', 'exec', t, 'cat', 'began']), 'began\n')
    await works(['sandbox', 'kill', t])
    await works(['sandbox', 'snapshot', 'delete', of])
    assert.doesNotMatch(await works(['sandbox', 'snapshot', 'list', id]), new RegExp(of))
  })
  await call('template create, of a Dockerfile', async () => {
    mkdirSync(join(folder, 'src'))
    writeFileSync(join(folder, 'e2b.Dockerfile'), 'FROM e2bdev/base\nENV A=1\nWORKDIR /home/user\nRUN echo hi > made\n')
    const out = await works(['template', 'create', 'cli-made', '--memory-mb', '512'])
    assert.match(out, /finished/)
    assert.match(await works(['template', 'list']), /cli-made/)
    const t = /c-[0-9a-f]{16}/.exec(await works(['sandbox', 'create', '-d', 'cli-made']))[0]
    assert.equal(await works(['sandbox', 'exec', t, 'cat made; echo $A']), 'hi\n1\n')
    await works(['sandbox', 'kill', t])
  })
  await call('template create: a start command', async () => {
    writeFileSync(join(folder, 'e2b.Dockerfile'), 'FROM e2bdev/base\n')
    await works(['template', 'create', 'cli-starts', '-c', 'echo up > up; exec sleep 1000', '--ready-cmd', 'test -f up'])
    const t = /c-[0-9a-f]{16}/.exec(await works(['sandbox', 'create', '-d', 'cli-starts']))[0]
    assert.equal(await works(['sandbox', 'exec', t, 'cat', 'up']), 'up\n')
    await works(['sandbox', 'kill', t])
    await works(['template', 'delete', '-y', 'cli-starts'])
  })
  await call('template create: a command that fails', async () => {
    writeFileSync(join(folder, 'e2b.Dockerfile'), 'FROM e2bdev/base\nRUN echo why; exit 7\n')
    const r = await e2b(['template', 'create', 'cli-failed'])
    assert.notEqual(r.code, 0)
    assert.match(r.out + r.err, /exit status 7/)
  })
  await call('template publish', async () => {
    const r = await e2b(['template', 'publish', '-y', 'cli-made'])
    assert.notEqual(r.code, 0)
    return 'refused: templates are those of this daemon'
  })
  await call('template delete', async () => {
    await works(['template', 'delete', '-y', 'cli-made'])
    assert.doesNotMatch(await works(['template', 'list']), /cli-made/)
  })
  await call('sandbox kill, kill --all', async () => {
    await works(['sandbox', 'kill', id])
    await works(['sandbox', 'create', '-d'])
    await works(['sandbox', 'kill', '--all'])
    assert.match(await works(['sandbox', 'list']), /No sandboxes/)
  })
}
