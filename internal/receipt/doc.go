// Package receipt keeps the evidence of pando's work: signed statements, the ledger that
// chains them, the event streams that they bind, and the verification of all of it. It
// promises that a returned receipt survives power loss, that there is one receipt per
// idempotency key, and that verification with the public key finds and names every change.
// The caller decides what a statement says. The verifier must remember the newest head it
// has seen: nothing else shows that the end of a ledger was cut off together with its
// heads.
//
// A receipt is an in-toto Statement v1 in a DSSE envelope, signed with the
// installation's Ed25519 key. Its predicate is the caller's, and four members
// that this package puts in front:
//
//	key         idempotency key of the statement ("r-1f…/run")
//	ledger      its index, and size and root of the ledger before it
//	incomplete  it was written before everything was known
//	completes   the receipt that it completes
//
// The ledger is a Merkle tree as in RFC 6962; a leaf is an envelope, byte for
// byte. Its directory has
//
//	entries        the envelopes, a durable.Log
//	heads          signed heads, the newest last: the high-water mark
//	tile/L/NNN     complete tiles of 256 hashes (C2SP tlog-tiles), written once
//
// A head is a C2SP checkpoint: a signed note of origin, size and root.
//
//	Append → sign → entries: write, sync → heads: write, sync → return
//
// Locks of a Ledger, in the order they are taken:
//
//  1. Ledger.writer: held during an append
//  2. Ledger.mu: held for moments, guards the batch that is being gathered
//  3. Ledger.state: guards the tree and the indexes for readers
package receipt
