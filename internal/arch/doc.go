// Package arch holds the test that keeps the house in order: which package may
// import which, and a few habits that a compiler doesn't check.
package arch
