// Package image makes root file systems for cells. Its first kind is the
// `host` image: the host's own system directories, read-only, with a filtered
// /etc and with secrets hidden, plus the toolchains and caches that the
// project at hand needs, each at its own path.
//
// It promises:
//
//   - The outcome is plain data (mounts in order, environment, notes, named
//     downgrades), computed before anything starts and without executing
//     anything: no tool, no hook, nothing of the project.
//   - No mount's source is the home directory, one of its ancestors, a place
//     of secrets, a socket or a device, whatever path leads there: symlinks
//     are resolved first, names of secrets are compared without case, and
//     aliases (bind mounts) are recognised by device and inode.
//   - The target of every mount is free of symlinks. Symlinks of the host that
//     lead there (/bin, ~/.nvm on another disk, sdkman's "current") are made
//     again in the cell, so both paths work.
//   - What the project wants and can't have is named in a note, with the
//     --mount that would permit it if one would. What is not named is either
//     there or was never asked for.
//
// What a person decided (PATH, the environment, --mount, programs in the home)
// is trusted with naming install roots. What the project's files say (links,
// virtual environments, manifests) is not: it can only lead to directories
// that are what it claims (a Go module, a package, an interpreter, a git
// directory that points back) and never to hidden or personal directories.
//
// It leaves to the caller: the cell's own home, /tmp and the workspace, which
// are put into the plan with Insert; to make the writable layers of caches;
// and to execute the plan.
//
// Looking at the host costs a few hundred lstat calls. What was read of a file
// or a directory is remembered in the process as long as its inode, size and
// times stay the same.
package image
