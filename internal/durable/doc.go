// Package durable writes pando's own state to disk: files that are replaced as a whole and
// journals that only grow. It promises that acknowledged data survives power loss, that a
// file or a batch of records is there completely or not at all, and that damage is reported
// and never skipped. The caller must ensure that only one process at a time writes a file
// (the daemon's lock does) and knows what the records mean.
//
// A file is replaced by
//
//	create NAME.xxxxxxxx.partial → write → sync → rename to NAME → sync directory
//
// and a journal grows by
//
//	write (any number of records) → sync data
//
// Everything goes through an FS, so that the order of calls can be tested:
// package durabletest has a disk in memory that can lose its power after any
// of them.
//
// Locks of a Log, in the order they are taken:
//
//  1. Log.writer: held while a goroutine writes, syncs or rewrites
//  2. Log.mu: held for moments, guards the group that is being gathered
//  3. Log.view: guards what is needed to read single records
package durable
