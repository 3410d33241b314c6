// Package libcrypto has the OpenSSL of a copied process seed itself anew.
//
// The generators of OpenSSL 1.1.1 and 3 (DRBGs, one set for each thread) keep the number
// of the process in which they were seeded. Each draw compares it with getpid, and seeds
// from the kernel first when it differs. That covers fork(2). In a copy of a whole sandbox
// the number is the same, and copies draw the same.
//
// Renew changes what getpid returns to this one library. The library calls it through an
// entry of its global offset table, which the dynamic linker has filled. Renew writes a
// function of 48 bytes behind the library's code, where the last page of the code is
// filled up with zeros, and has the entry point to it:
//
//	libcrypto ──▶ table entry ──▶ function in the padding ──▶ getpid of the C library
//	                                 └─ result XOR the key of this copy
//
// The key is in the bits above those of process numbers: what the library sees now is none
// of the numbers that it has seen before, of no process. A copy of a copy gets the next
// key. Other libraries and the program itself see the true number.
//
// Everything is read from the memory of the process and compared with what is expected,
// before the first byte is written. Where something differs the process stays as it is:
// Renew returns an error. Files are not opened. The caller keeps all threads of the
// process from running, for as long as Renew takes.
//
// The bytes that are read are a cell's: sizes are bounded, and what is written goes into
// the memory of the same process.
package libcrypto
