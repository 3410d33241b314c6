// Package cell holds the domain's words: identifiers, names, states and the
// table of their moves, verdicts, digests, specifications and errors. It
// decides nothing about how a cell is run and imports nothing of ours.
package cell
