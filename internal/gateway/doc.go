// Package gateway is the user-mode network of one cell: a TCP/IP stack whose
// only neighbour is the cell, and the one way from there to anywhere.
//
//	a process in the cell
//	  │ DNS query ──────▶ dns.go     the policy is asked; an allowed name gets addresses
//	  │ ◀ address                    of its own (names.go), a denied one a refusal address
//	  │ SYN ────────────▶ tcp.go     the policy is asked; denied: RST, or why (refuse.go)
//	  │ first bytes ────▶ serve.go   TLS (hello.go), HTTP, or neither
//	  │                   open.go    TLS, opened where the policy must look inside
//	  │                   http.go    requests: the policy is asked for each
//	  ▼                   dial.go    the name is resolved now, each address judged
//	the outside
//
// It owns the stack, the protocols and what is told of them. It knows nothing
// of policies: it asks a Decider. Everything that comes from the cell is
// hostile, and what it can make the gateway keep is bounded.
//
// It promises that nothing leaves the cell on which the policy in force was not
// asked, that a new policy holds for connections that are open, and that Close
// returns when everything has ended.
//
// Lock order: asks.mu, conns.mu, conn.mu, events.mu, denials.mu. None is held while the
// policy is asked or something is told, but for events.mu
// and denials.mu.
package gateway
