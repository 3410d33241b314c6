// Runs what frameworks and tools do with E2B against a pando daemon, and prints a
// table of what came of each call. CLIENT is one of them, PACKAGES the directory that
// it is installed in. Ends with 1 if a call did not do what it should.
import { rows, version } from './client.mjs'

const { run, packages } = await import(`./client_${process.env.CLIENT}.mjs`)
await run()
console.log(`| ${packages.map((p) => p + ' ' + version(p)).join(', ')} | | |\n|---|---|---|`)
for (const r of rows) console.log(`| ${r.map((c) => String(c).replaceAll('|', '\\|')).join(' | ')} |`)
process.exit(rows.some((r) => r[1] === 'FAILS') ? 1 : 0)
