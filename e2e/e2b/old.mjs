// Runs code with a version of @e2b/code-interpreter that knows sandboxes by names
// alone. PACKAGES is where it is installed.
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'
import assert from 'node:assert/strict'

const require = createRequire(process.env.PACKAGES + '/')
const { Sandbox } = await import(pathToFileURL(require.resolve('@e2b/code-interpreter')).href)
const s = await Sandbox.create()
try {
  await s.runCode('x = 20')
  const r = await s.runCode('print("p"); x + 1')
  assert.deepEqual([r.text, r.logs.stdout], ['21', ['p\n']])
  assert.equal((await s.runCode('1 / 0')).error.name, 'ZeroDivisionError')
  if (process.env.CONTEXTS) {
    const c = await s.createCodeContext()
    assert.equal((await s.runCode('x = 1; x', { context: c })).text, '1')
  }
  assert.equal((await s.runCode('x')).text, '20')
  assert.equal((await s.commands.run('echo hi')).stdout, 'hi\n')
} finally {
  await s.kill()
}
