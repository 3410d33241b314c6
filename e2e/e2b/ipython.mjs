// What E2B's code interpreter gives where the sandbox's Python has IPython, pandas and
// matplotlib. PACKAGES is the directory that the packages are installed in.
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'
import assert from 'node:assert/strict'

const require = createRequire(process.env.PACKAGES + '/')
const { Sandbox } = await import(pathToFileURL(require.resolve('@e2b/code-interpreter')).href)
const s = await Sandbox.create()
const run = async (code, opts) => {
  const r = await s.runCode(code, opts)
  assert.equal(r.error, undefined, JSON.stringify(r.error))
  return r
}

// Words.
let r = await run('!echo out; echo err >&2')
assert.deepEqual(r.logs, { stdout: ['out\n'], stderr: ['err\n'] })
await run('x = !echo a; echo b')
assert.equal((await run('list(x)')).text, "['a', 'b']")
assert.equal((await run('_')).text, "['a', 'b']")
assert.equal((await run('get_ipython().__class__.__mro__[1].__name__')).text, "'InteractiveShell'")
assert.match((await run('%pip --version')).logs.stdout.join(''), /^pip /)
assert.equal((await run('%cd /tmp\nimport os; os.getcwd()')).text, "'/tmp'")
assert.match((await run('%env')).text, /MPLBACKEND/)
r = await s.runCode('%nosuch')
assert.match(r.error.value, /nosuch/)
r = await s.runCode('1 / 0')
assert.equal(r.error.name, 'ZeroDivisionError')
assert.doesNotMatch(r.error.traceback, /IPython/)

// Contexts have words and histories of their own.
const k = await s.createCodeContext({ cwd: '/tmp' })
await run("!true\n'in k'", { context: k })
assert.equal((await run('_, len(Out)', { context: k })).text, "('in k', 1)")
assert.equal((await s.runCode('x', { context: k })).error.name, 'NameError')
assert.equal((await run('x')).text, "['a', 'b']")
assert.equal((await run('_')).text, "['a', 'b']")
await s.restartCodeContext(k)
assert.equal((await run('len(Out)', { context: k })).text, '0')
await s.removeCodeContext(k)

// Results.
r = await run('import pandas as pd\npd.DataFrame({"a": [1, 2], "t": pd.to_datetime(["2020-01-01", None])})')
assert.deepEqual(r.results[0].data, { a: [1, 2], t: ['2020-01-01T00:00:00', null] })
assert.ok(r.results[0].isMainResult && r.results[0].formats().includes('data'))
assert.match(r.results[0].html, /<table/)
r = await run('import matplotlib.pyplot as plt\nplt.plot([1, 2], [3, 4], label="l")\nplt.title("T")\nplt.xlabel("time (s)")\nplt.show()')
assert.equal(r.results.length, 1)
assert.equal(Buffer.from(r.results[0].png, 'base64').subarray(1, 4).toString(), 'PNG')
const { chart } = r.results[0]
assert.equal(chart.type, 'line')
assert.equal(chart.x_unit, 's')
assert.deepEqual(chart.elements, [{ label: 'l', points: [[1, 3], [2, 4]] }])
r = await run('from IPython.display import display, Markdown, Latex, JSON, SVG, Javascript, HTML\ndisplay(Markdown("**m**"), Latex("$l$"), JSON({"j": [1]}), SVG("<svg/>"), Javascript("1"), HTML("<b>h</b>"))')
assert.deepEqual(r.results.map((x) => x.formats()), [['markdown'], ['latex'], ['json'], ['svg'], ['javascript'], ['html']])
assert.deepEqual(r.results[2].json, { j: [1] })

// What is too long is marked.
r = await run("'x' * 5_000_000")
assert.match(r.text, /x… \(3951426 more characters are left out: have the code write them to a file\)$/)
assert.match(r.logs.stderr.join(''), /the value's json is left out/)
r = await run('pd.DataFrame({"a": range(300_000)})')
assert.match(r.logs.stderr.join(''), /e2b\/data is left out of the result: it has 300,000 values/)

// A fork has the shell that its sandbox had.
const [f] = await s.fork({ count: 1 })
assert.equal((await f.runCode('!echo forked\nx')).text, "['a', 'b']")
await f.kill()
await s.kill()
