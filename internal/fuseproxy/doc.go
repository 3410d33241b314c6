// Package fuseproxy serves a tree of files to a Linux in a virtual machine: FUSE
// requests over a stream of bytes.
//
//	guest's kernel ══ /dev/fuse ══ Courier ══ serial port ══ socket ══ Server ── files below root
//	               request ──▶        as it is ──▶               length, header, body
//	               ◀── answer      ◀── as it is                  length, header, body
//	               ◀── notice      ◀── as it is                  what changed on the host
//	                           Hold: barrier ──▶ ◀── answer      nothing is under way
//
// A message begins with its length, so that nothing is put around it. Answers
// come in any order. Of the two kinds of message that the kernel doesn't know, a
// courier sends one to hear that all before it has been done, and one to say
// that notices have reached the kernel.
//
// The server keeps no open files for what the kernel knows, but names: a node
// has a number, the directory nodes and names it is found under, and how often
// the kernel was told of it; a handle has a number, its node and how it was
// opened. Save writes that down, and Load goes on with it over another tree with
// the same paths. So a copy of a machine's memory can go on with a copy of its
// files.
//
// A file that is open and deleted has no name. Save gives it a hidden one beside
// the place where it was, in the root's file systems, so that it is in what is
// copied then; Load opens it and takes the name away, and the first request after
// Save takes it away at the source. We don't rename on deletion, as NFS does: a
// program that deletes what is open would copy whole files up in an overlay, hidden
// files would be in every diff, and directories would not be empty.
//
// The guest's kernel is hostile. Every name is resolved from root, beneath it,
// without following links; only regular files and directories are opened; what
// is asked for is checked; nodes, handles and listings are counted. Mounts below
// root are crossed: a policy that covers a path or makes it read-only does so
// for the guest.
//
// Locks, in order: Server.tree (shared for operations on names, exclusive for the
// removal of names), handle.mu, Server.mu (nodes and handles). line.rmu and line.wmu
// are held for one message.
package fuseproxy
