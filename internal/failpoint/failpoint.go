// Package failpoint lets a test end this process at any step of its work, as kill -9 would.
// Work that changes state outside the process's memory calls Step before it. In a build
// without the tag "faults", Step does nothing and costs nothing.
//
// A build with the tag looks for a file beside its executable, named after it and the role:
// "pando.daemon" or "pando.keeper". It holds a number, which each step of any such process
// counts down. At zero the step's name replaces the number, and the process kills itself.
// Without the file, or with no number above zero in it, no process ends.
package failpoint
