package api

// GitHead is what a work tree of git has checked out.
type GitHead struct {
	Branch string `json:"branch,omitempty"` // without refs/heads/; none when a commit is checked out (a detached HEAD)
	Commit string `json:"commit,omitempty"` // its object id in hex; none on a branch without commits
}

// HeadMoved says that the source has something else checked out than at the import, or, if
// something was applied to it since, than at that time. A branch that only has new commits
// did not move.
type HeadMoved struct {
	Was GitHead `json:"was"` // what the changes are known to go with
	Now GitHead `json:"now"` // what is checked out
	// OtherFiles: it is another branch with another commit, so that files which the changes
	// go with may be others. To apply them there, accept wants other_branch.
	OtherFiles bool `json:"other_files"`
}

// CellCommits are commits that were made in a cell. Accept brings their files into the
// source, and not the commits.
type CellCommits struct {
	Commits  int      `json:"commits"`         // how many
	More     bool     `json:"more,omitempty"`  // there are others that are not counted: in packs that git made in the cell, or more than 10000
	Branches []string `json:"branches"`        // that have them; "HEAD" for a detached one
	Since    string   `json:"since,omitempty"` // the commit that the cell had checked out before; none when there was none
	// Submodules are those in which commits were made, which are in no bundle of the
	// repository's branches. Commits does not count those.
	Submodules []SubmoduleCommits `json:"submodules,omitempty"`
}

// SubmoduleCommits are commits that were made in a submodule of a cell's repository, as
// CellCommits.
type SubmoduleCommits struct {
	Path     string   `json:"path"`            // of its folder, relative to the repository
	Commits  int      `json:"commits"`         // how many
	More     bool     `json:"more,omitempty"`  // as of CellCommits
	Branches []string `json:"branches"`        // that have them; "HEAD" for a detached one
	Since    string   `json:"since,omitempty"` // the commit that the submodule had checked out before; none when there was none
}
