// What the programs of clients.mjs share.
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'
import { join } from 'node:path'

const require = createRequire(process.env.PACKAGES + '/')
export const rows = []

// call makes a call. What it returns is said in the table.
export async function call(name, f) {
  const began = Date.now()
  try {
    rows.push([name, 'works', (await f()) ?? ''])
  } catch (e) {
    rows.push([name, 'FAILS', String(e?.stack ?? e).split('\n').slice(0, 6).join(' | ')])
  }
  if (process.env.VERBOSE) console.error(rows.at(-1).join('  '), Date.now() - began, 'ms')
}

// load imports a package, or a part of it, as its users do.
export async function load(name) {
  try {
    return await import(pathToFileURL(require.resolve(name)).href)
  } catch (e) {
    if (e.code !== 'ERR_PACKAGE_PATH_NOT_EXPORTED') throw e
    // The package is for import only: what it exports is asked of its package.json.
    const parts = name.split('/'), n = name[0] === '@' ? 2 : 1
    const dir = join(process.env.PACKAGES, 'node_modules', ...parts.slice(0, n))
    const exported = require(join(dir, 'package.json')).exports[['.', ...parts.slice(n)].join('/')]
    return import(pathToFileURL(join(dir, exported.import.default ?? exported.import)).href)
  }
}

export const version = (name) => require(join(process.env.PACKAGES, 'node_modules', name, 'package.json')).version

// until asks again and again, for half a minute at most.
export async function until(f) {
  for (const end = Date.now() + 30_000; ; ) {
    const got = await f()
    if (got) return got
    if (Date.now() > end) throw new Error('it never was so: ' + f)
    await new Promise((r) => setTimeout(r, 50))
  }
}

// onPort asks a port of a sandbox, whose name need not be known to a resolver.
export function onPort(host, path = '/') {
  const url = new URL(process.env.E2B_SANDBOX_URL)
  return import('node:http').then((http) => new Promise((done, failed) => {
    http.get({ host: url.hostname, port: url.port, path, headers: { Host: host } }, (r) => {
      let body = ''
      r.on('data', (d) => (body += d)).on('end', () => done({ status: r.statusCode, body }))
    }).on('error', failed)
  }))
}
