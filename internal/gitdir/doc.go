// Package gitdir reads what git's files say, without running git: which paths
// are tracked, what is ignored, where hooks come from, and which names git
// takes for its own.
//
// It promises to agree with git (the tests ask git itself), to execute nothing,
// to open only regular files of bounded size, to allocate in proportion to what
// it reads whatever that expands to, and to answer Unsupported where the truth
// can't be told from the files it reads (split and sparse indexes, object
// formats it does not know).
//
// It leaves to the caller which folders to ask about (a nested repository has
// an index of its own), and what to do with the answers.
//
//	repo.go             where a repository is; tracked paths; hooks
//	linked.go           the repositories of linked worktrees and submodules
//	config.go           git's config
//	settings.go         what of a user's config a cell gets
//	orders.go, named.go what git's configuration names; what other files name
//	head.go             what is checked out; refs; the parents of commits
//	index.go            git's index
//	skip.go             a copy of it, in which files need not be there
//	set.go              the paths in it, in little memory
//	outside.go          a large index, parsed by another process
//	ignore.go, rule.go  ignore rules
//	name.go             names that some file system takes for ".git"
//
// On systems other than Linux there are names, sets and indexes alone: what is read
// from disk there is read by the caller.
package gitdir
