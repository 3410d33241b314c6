// Package ocsf says what happened in a run in the words of the Open
// Cybersecurity Schema Framework, for programs that gather such events.
//
// It owns the mapping: one event of ours becomes one event of a class, and a
// Detection Finding besides where it looks like an attack. It is pure: what it
// says follows from the event and the facts of its run. What the schema has no
// place for is kept under "unmapped".
//
// Only what is set is written, and only attributes of the version that Version
// names; testdata has the part of that schema that the mapping uses, and a
// test validates every kind of event against it.
package ocsf

// Version is the version of the schema.
const Version = "1.9.0"
