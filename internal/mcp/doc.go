// Package mcp is pando for agents: a server of the Model Context Protocol with tools that
// make cells, work in them, copy them and inspect the results.
//
// It owns the agents' view of pando: names and arguments of tools, resources, and the
// limit on the length of answers. It reaches the system only through package client, so
// that it runs in any process that reaches the daemon. Decisions of people are not
// offered at all: writing to a source (accept), policies, approvals, lending credentials,
// and cells without isolation.
//
// Both generations of the protocol are served on one connection: the one with a
// handshake, and the stateless one of 2026-07-28. Tools keep no current cell: each call
// takes ids.
//
//	agent ── JSON-RPC, stdio or streamable HTTP ── tool ── client ══ HTTP ══ daemon
//
// Long work reports progress (notifications/progress) for a progress token, at least every
// Beat, and ends when the agent cancels it. Output beyond Limit is kept as a resource, and
// the answer has its address. Resources have up to kept bytes in all; the oldest are
// dropped first.
//
// Lock order: none; the only lock is that of the outputs.
package mcp
