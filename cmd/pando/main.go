// Command pando runs AI agents, and the code they write, in cells.
//
// One executable, several roles, chosen by argv[0] before anything else: the
// keeper of cells, the daemon, or (by default) the command line.
package main

// version is set by the linker.
var version = "0.1.0-dev"
