//go:build linux

// Command pandod is the daemon of pando and the keeper of its cells. One executable, several
// roles, chosen by argv[0] before anything else; pando starts it.
package main

// version is set by the linker.
var version = "0.1.0-dev"
