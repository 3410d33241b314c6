// Package gateway is the user-mode network of one cell: a TCP/IP stack with the cell as its
// only neighbour, and the only way from there to the outside.
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
// It owns the stack, the protocols and their events. Policies are decided by a Decider.
// Everything from the cell is untrusted, and the memory that the cell can make the gateway
// use is bounded.
//
// It promises that the policy in force has decided on everything that leaves the cell, that
// a new policy also applies to open connections, and that Close returns when all goroutines
// have ended.
//
// Lock order: asks.mu, conns.mu, conn.mu, events.mu, denials.mu. Only events.mu and
// denials.mu are held while the policy decides or an event is emitted.
package gateway
