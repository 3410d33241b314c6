// Package fault lets a test end this process at any step of its work, as
// kill -9 would. Work that changes something outside the process's memory
// calls Step before it. In a build without the tag "faults" that does nothing,
// and costs nothing.
//
// A build with the tag looks for a file beside its executable, named after it
// and the role: "pando.daemon" or "pando.keeper". It holds a number, which
// each step of any such process counts down; at zero the step's name takes its
// place, and the process kills itself. A file that holds no number above zero,
// or is not there, stops nobody.
package fault
