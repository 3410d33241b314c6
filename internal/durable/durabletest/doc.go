// Package durabletest has a disk in memory for tests of code that must
// survive power loss. It keeps apart what a program sees and what is surely
// on the disk, for contents and for names, can be cloned as power loss at
// this moment might leave it, can fail on demand, and writes down the order
// of calls, which tests compare with a golden file. It also holds the
// contract that every durable.FS keeps.
//
// What it takes for granted is what the file systems we run on promise: a
// rename is atomic, a sector of 512 bytes is written completely or not at
// all, and what is read is what was written. It does not promise any order
// between things that were not synced.
package durabletest
