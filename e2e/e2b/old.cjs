// Leads what @e2b/code-interpreter before 2.7 sends to https://PORT-ID.DOMAIN to the
// address of E2B_SANDBOX_URL, with the headers that say for which sandbox it is.
const before = globalThis.fetch
globalThis.fetch = (url, options = {}) => {
  const to = /^https?:\/\/(\d+)-(c-[0-9a-f]{16})\.[^/]+(\/.*)?$/.exec(String(url))
  if (!to || !process.env.E2B_SANDBOX_URL) return before(url, options)
  const headers = new Headers(options.headers)
  headers.set('E2b-Sandbox-Port', to[1])
  headers.set('E2b-Sandbox-Id', to[2])
  return before(process.env.E2B_SANDBOX_URL + (to[3] ?? '/'), { ...options, headers })
}
