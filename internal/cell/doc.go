// Package cell holds the types of the domain: identifiers, names, states and the table of
// their transitions, verdicts, digests, specifications and errors. It does not run cells
// and imports no other package of this module.
package cell
