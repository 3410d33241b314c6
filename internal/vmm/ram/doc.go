// Package ram takes the memory of a running machine into a file. The pause covers only the
// pages written during the capture.
//
// The machine's process has a file, the base, mapped privately: its writes make own pages over
// a base that does not change. A machine that was booted has an empty memfd as its base. A base
// that is mapped shared is not supported, because it contains the machine's writes itself. The
// result is a complete image: the base's data, and over that the process's own pages. With
// Options.Own it is the own pages alone: then a copy maps the same base, and gets them by Fill.
// That takes memory for the own pages in each copy; a complete image is mapped by all copies.
//
//	Begin    the machine runs     base ──> file; own pages ──> file; pages written meanwhile ──> file; …
//	         the caller stops it
//	Finish   it is stopped        pages written since ──> file
//	         the caller continues it
//	Close    it runs              the process is as before
//
// # Recording
//
// The kernel records writes (userfaultfd with asynchronous write protection, PAGEMAP_SCAN; both
// since Linux 6.7). A scan returns the own pages that the process has written, and protects
// them in the same step, before any is read. A write during the read of a page, or later, is
// found by the next scan. The first write to a protected page costs one fault, which the kernel
// resolves by itself; no write ever waits for this process.
//
// Without this ability (see linux.UserfaultOf) all own pages are copied in the pause: the same
// image, a longer pause. Stats.Why has the reason.
//
// # What it leaves to the caller
//
// The caller must stop the machine before Finish, and keep it stopped until Finish returns. The
// base must not change. One process has one Taking at a time. The machine must not return pages
// to the host (a balloon) meanwhile. Nothing is synced.
package ram
