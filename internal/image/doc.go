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
//   - What lies outside the source is shown only because of the system, of what
//     the caller's environment names, or of --mount. Nothing in the source (a
//     symlink, a manifest, a ".git" file, an object store to borrow from, a
//     virtual environment, a first line of a script) is a reason to mount. What
//     it leads to is named in Outside, with the --mount that lets it in if one
//     does.
//
// What a person decided (PATH, the environment, --mount, programs in the home)
// is trusted with naming install roots, unless the path leads through a symlink
// of the source.
//
// It leaves to the caller: the cell's own home, /tmp and the workspace, which
// are put into the plan with Insert; to make the writable layers of caches;
// and to execute the plan.
//
// Looking at the host costs a few hundred lstat calls. What was read of a file
// or a directory is remembered in the process as long as its inode, size and
// times stay the same.
package image
