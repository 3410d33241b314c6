// Builds templates of an image, and of one another, with E2B's official package
// against a pando daemon. PACKAGES is where it is installed; REGISTRY has team/app:1,
// which the daemon allows, and other/app:1, which it does not.
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'
import assert from 'node:assert/strict'
import { mkdtempSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

const require = createRequire(process.env.PACKAGES + '/')
const { Sandbox, Template } = await import(pathToFileURL(require.resolve('e2b')).href)
const image = process.env.REGISTRY + '/team/app:1'
const context = mkdtempSync(join(tmpdir(), 'e2b-image-'))
writeFileSync(join(context, 'a.txt'), 'copied\n')
const of = async (name, command) => {
  const s = await Sandbox.create(name)
  try {
    return (await s.commands.run(command)).stdout
  } finally {
    await s.kill()
  }
}

// What steps write to the image, and to the workspace, is in each sandbox.
const first = await Template.build(Template({ fileContextPath: context }).fromImage(image)
  .runCmd('cat /etc/release; echo installed > /usr/tool; rm /etc/release; echo mine > mine')
  .copy('a.txt', '/etc/copied').setWorkdir('app').setEnvs({ V: '1' }), 'of-image')
const all = 'cat /usr/tool /etc/copied ~/mine; echo $V $OF_IMAGE; pwd; ls /etc/release 2>&1 || true'
const seen = 'installed\ncopied\nmine\n1 yes\n/home/user/app\nls: /etc/release: No such file or directory\n'
assert.equal(await of('of-image', all), seen)
assert.equal(await of(first.templateId, all), seen)
assert.equal(await Template.exists('of-image'), true)

// A sandbox has a layer of its own over that.
await of('of-image', 'echo other > /usr/tool')
assert.equal(await of('of-image', 'cat /usr/tool'), 'installed\n')

// One template begins with another, and its directory and variables.
await Template.build(Template().fromTemplate('of-image').runCmd('cat /usr/tool; pwd; echo more > /usr/more'), 'of-template')
assert.equal(await of('of-template', 'cat /usr/tool /usr/more; echo $V; pwd'), 'installed\nmore\n1\n/home/user/app\n')
await Template.build(Template().fromTemplate('base').runCmd('echo a > a'), 'of-base')
await Template.build(Template().fromTemplate('of-base').runCmd('echo b >> a'), 'of-base-2')
assert.equal(await of('of-base-2', 'cat a'), 'a\nb\n')
assert.equal(await of('of-base', 'cat a'), 'a\n')

// A sandbox goes on when its template is removed, and when it is built anew.
const s = await Sandbox.create('of-image')
await Template.build(Template().fromImage(image).runCmd('echo newer > /usr/tool'), 'of-image')
assert.equal(await of('of-image', 'cat /usr/tool'), 'newer\n')
assert.equal((await s.commands.run('cat /usr/tool')).stdout, 'installed\n')
assert.equal(await of('of-template', 'cat /usr/tool /usr/more'), 'installed\nmore\n')
const twin = (await s.fork())[0]
assert.equal((await (twin.sandbox ?? twin).commands.run('cat /usr/tool')).stdout, 'installed\n')
await s.kill()

// What the operator does not allow, what is no image of a registry, what is not there.
const refused = (t, why) => assert.rejects(Template.build(t, 'refused'), why)
await refused(Template().fromImage(process.env.REGISTRY + '/other/app:1'), /pando serve --build-image .*\/other\/app/)
await refused(Template().fromImage('python:3'), /--build-image docker\.io\/library\/python/)
await refused(Template().fromImage('/etc/x.tar'), /it is a path|belongs to the daemon's host/)
await refused(Template().fromImage(process.env.REGISTRY + '/team/none:1'), /no such image/)
await refused(Template().fromTemplate('none-such'), /not found/)
await refused(Template().fromImage(image).runCmd('exit 3'), /exit status 3/)
const list = await (await fetch(process.env.E2B_API_URL + '/templates', { headers: { 'X-API-KEY': process.env.E2B_API_KEY } })).json()
assert.deepEqual(list.filter((t) => t.buildStatus !== 'waiting').map((t) => t.names[0]).sort(), ['base', 'of-base', 'of-base-2', 'of-image', 'of-template'])
