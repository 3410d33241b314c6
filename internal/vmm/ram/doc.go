// Package ram takes the memory of a running machine into a file, with a pause that
// holds only what was written while it was being taken.
//
// The machine's process has a file, the base, mapped privately: what it writes are
// pages of its own over a base that doesn't change. A machine that has just booted is
// one whose base is an empty memfd; a base that is mapped shared isn't taken (it has
// what the machine writes in itself). What is taken is a whole image: the base's data,
// and over that the process's own pages. Or (Options.Own) it is these alone: then a copy
// maps the same base, and is given them (Fill). That costs what the machine has written,
// of itself and of each copy; a whole image is mapped by all.
//
//	Begin    the machine runs     base ──> file; own pages ──> file; what was written meanwhile ──> file; …
//	         the caller stops it
//	Finish   it stands still      what was written since ──> file
//	         the caller lets it go on
//	Close    it runs              nothing of this is left in the process
//
// # What was written
//
// The kernel records it (userfaultfd with asynchronous write protection, PAGEMAP_SCAN;
// both since Linux 6.7): a scan returns the pages of its own that the process has
// written, and protects them in the same step, before any is read. So a page counts as
// taken after its bytes are saved: a write while it is being read, or later, is found by
// the next scan. The machine's first write to a protected page costs one fault that the
// kernel settles by itself; no write ever waits for us.
//
// Where that isn't possible (see linux.UserfaultOf), all of the process's own pages are
// copied in the pause: the same image, a longer pause. Stats.Why says why.
//
// # What it leaves to the caller
//
// To stop the machine before Finish, and to keep it so until it returns; to have nobody
// write to the base; to begin one Taking of a process at a time; and not to have the
// machine give pages back to the host (a balloon) in between. Nothing is synced.
package ram
