// Package sshagent lends keys of the caller's SSH agent to a cell. It stands
// between the two and lets through two things: the list of the keys that are
// lent, and signatures with them for the hosts that they are lent for, or for
// commits and tags of git.
//
//	ssh in the cell                    filter                         caller's agent
//	  │ session-bind (host key, id) ──▶ the host's signature is right?
//	  │ list ─────────────────────────▶ ───────────────────────────▶
//	  │ ◀────────────── lent keys only ◀────────────────────────────
//	  │ sign (authentication) ────────▶ key lent, session bound, its host known
//	  │                                 and lent, policy allows ─────▶
//	  │ ◀──────────────────── signature ◀───────────────────────────
//
// An agent signs whatever it is given; that would let a cell log in everywhere
// the key is accepted. So a signature is given only for data that is an SSH
// authentication, of a session that was bound to a host before: with OpenSSH's
// session-bind@openssh.com (since 8.9) the client shows the host key and the
// host's signature over the session's id, which is a hash of the key exchange
// and part of what is signed. Which host a host key belongs to the caller's
// known_hosts says. A key that is lent for git signs what has git's namespace
// (PROTOCOL.sshsig), which no host takes for a log-in; of what is signed the
// agent sees a digest alone. Forwarded agents, other signatures and every change
// to the agent are refused. Each answer to a request for a signature is an
// event.
//
// The package is given its connections and opens none.
package sshagent
