// Command pando runs AI agents, and the code they write, in cells. It is the command line alone:
// pandod is the daemon and the keepers of cells, pando-bench the measurements.
package main

// version is set by the linker.
var version = "0.1.0-dev"
