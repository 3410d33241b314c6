// Package mcp is pando for agents: a server of the Model Context Protocol whose
// tools make cells, work in them, copy them and look at what they left.
//
// It owns how an agent sees pando: names and arguments of tools, resources, and
// that no answer is longer than Limit. It reaches the system only through package
// client, so that it runs in any process that reaches the daemon. What it does
// not offer at all is what a person decides: writing to a source (accept),
// policies, approvals, lending credentials, and cells without isolation.
//
// Both generations of the protocol are served on one connection: the one that
// begins with a handshake, and the one of 2026-07-28, whose requests each say what
// they need. No tool remembers which cell was meant before: every one takes ids.
//
//	agent ── JSON-RPC, stdio or streamable HTTP ── tool ── client ══ HTTP ══ daemon
//
// Long work tells how far it is (notifications/progress) to who sent a token, at
// least every Beat, and ends when the agent cancels it. Output beyond Limit is
// kept as a resource, whose address stands in the answer, up to kept bytes in all:
// the oldest goes first.
//
// Lock order: none; the only lock is that of the outputs.
package mcp
