// Vercel's AI SDK with tools that work in a sandbox of E2B's, as E2B's documentation
// has them. The model is one that is written down.
import assert from 'node:assert/strict'
import { call, load } from './client.mjs'

export const packages = ['ai', '@e2b/code-interpreter']

export async function run() {
  const { generateText, streamText, tool, stepCountIs } = await load('ai')
  const mocks = await load('ai/test')
  const Model = mocks.MockLanguageModelV4 ?? mocks.MockLanguageModelV3
  const { z } = await load('zod')
  const { Sandbox } = await load('@e2b/code-interpreter')
  const usage = { inputTokens: { total: 1 }, outputTokens: { total: 1 } }
  // says makes a model that calls tools, one after the other, and ends with a text.
  const says = (...calls) => {
    let at = 0
    const next = () => {
      const c = calls[at++]
      if (!c) return { content: [{ type: 'text', text: 'done' }], finishReason: { unified: 'stop', raw: 'stop' }, usage, warnings: [] }
      return { content: [{ type: 'tool-call', toolCallId: 'call-' + at, toolName: c[0], input: JSON.stringify(c[1]) }], finishReason: { unified: 'tool-calls', raw: 'tool_calls' }, usage, warnings: [] }
    }
    return new Model({
      doGenerate: async () => next(),
      doStream: async () => {
        const { content: [c], finishReason } = next()
        const parts = c.type === 'text' ? [{ type: 'text-start', id: '1' }, { type: 'text-delta', id: '1', delta: c.text }, { type: 'text-end', id: '1' }] : [c]
        return { stream: new ReadableStream({ start(s) {
          for (const p of [{ type: 'stream-start', warnings: [] }, ...parts, { type: 'finish', finishReason, usage }]) s.enqueue(p)
          s.close()
        } }) }
      },
    })
  }
  let s
  const tools = {
    execute_python: tool({
      description: 'Execute Python', inputSchema: z.object({ code: z.string() }),
      execute: async ({ code }) => {
        const { results, logs, error, text } = await s.runCode(code)
        return { text, results: results.map((r) => r.formats()), logs, error: error?.name }
      },
    }),
    shell: tool({
      description: 'Run a command', inputSchema: z.object({ command: z.string() }),
      execute: async ({ command }) => {
        try {
          const r = await s.commands.run(command)
          return { stdout: r.stdout, exitCode: r.exitCode }
        } catch (e) {
          return { stdout: e.stdout, exitCode: e.exitCode }
        }
      },
    }),
    write_file: tool({
      description: 'Write a file', inputSchema: z.object({ path: z.string(), content: z.string() }),
      execute: async ({ path, content }) => (await s.files.write(path, content)).path,
    }),
    read_file: tool({
      description: 'Read a file', inputSchema: z.object({ path: z.string() }),
      execute: async ({ path }) => s.files.read(path),
    }),
    tick: tool({
      description: 'Output while a command runs', inputSchema: z.object({}),
      async *execute() {
        let seen = ''
        const chunks = []
        let wake
        const over = s.commands.run('for i in 1 2 3; do echo $i; done', { onStdout: (d) => { chunks.push(d); wake?.() } }).then(() => 'over')
        for (let end; end !== 'over' || chunks.length; ) {
          if (!chunks.length) end = await Promise.race([over, new Promise((r) => (wake = r))])
          while (chunks.length) yield { seen: (seen += chunks.shift()) }
        }
      },
    }),
  }
  const outputs = (r) => r.steps.flatMap((t) => t.toolResults.map((o) => o.output))
  await call('Sandbox.create', async () => {
    s = await Sandbox.create({ timeoutMs: 120_000 })
  })
  await call('generateText: runCode as a tool, with state', async () => {
    const r = await generateText({ model: says(['execute_python', { code: 'x = 20' }], ['execute_python', { code: 'print("p"); x + 1' }], ['execute_python', { code: '1 / 0' }]), tools, stopWhen: stepCountIs(5), prompt: 'go' })
    const got = outputs(r)
    assert.equal(r.text, 'done')
    assert.deepEqual([got[1].text, got[1].logs.stdout, got[2].error], ['21', ['p\n'], 'ZeroDivisionError'])
  })
  await call('generateText: commands and files as tools', async () => {
    const r = await generateText({ model: says(['write_file', { path: '/home/user/a.py', content: 'print(6 * 7)' }], ['shell', { command: 'python3 a.py; exit 2' }], ['read_file', { path: 'a.py' }]), tools, stopWhen: stepCountIs(5), prompt: 'go' })
    assert.deepEqual(outputs(r), ['/home/user/a.py', { stdout: '42\n', exitCode: 2 }, 'print(6 * 7)'])
  })
  await call('streamText: a tool that streams its output', async () => {
    const r = streamText({ model: says(['tick', {}]), tools, stopWhen: stepCountIs(3), prompt: 'go' })
    let last
    for await (const p of r.fullStream) if (p.type === 'tool-result') last = p.output
    assert.equal(last.seen, '1\n2\n3\n')
    assert.equal(await r.text, 'done')
  })
  await call('tools that are called side by side', async () => {
    const model = new Model({ doGenerate: (() => {
      let at = 0
      return async () => at++ ? { content: [{ type: 'text', text: 'done' }], finishReason: { unified: 'stop', raw: 'stop' }, usage, warnings: [] }
        : { content: [1, 2, 3, 4].map((n) => ({ type: 'tool-call', toolCallId: 'c' + n, toolName: 'shell', input: JSON.stringify({ command: `echo ${n}` }) })), finishReason: { unified: 'tool-calls', raw: 'tool_calls' }, usage, warnings: [] }
    })() })
    const r = await generateText({ model, tools, stopWhen: stepCountIs(3), prompt: 'go' })
    assert.deepEqual(outputs(r).map((o) => o.stdout), ['1\n', '2\n', '3\n', '4\n'])
  })
  await call('kill', async () => assert.equal(await s.kill(), true))
}
