package api

// GitHead is the checked out branch and commit of a git work tree.
type GitHead struct {
	Branch string `json:"branch,omitempty"` // without refs/heads/; absent for a detached HEAD
	Commit string `json:"commit,omitempty"` // object id in hex; absent on a branch without commits
}

// HeadMoved says that the source has another branch or commit checked out than at the import or,
// after an apply, at the latest apply. New commits on the same branch do not count.
type HeadMoved struct {
	Source string  `json:"source"` // the directory with the repository
	Was    GitHead `json:"was"`    // the head that the changes belong to
	Now    GitHead `json:"now"`    // the checked out head
	// OtherFiles says that branch and commit both differ, so files that the changes rely on may
	// differ. Applying them there requires other_branch.
	OtherFiles bool `json:"other_files"`
}

// CellCommits are commits that were made in a cell. Accept brings their files into the source,
// but not the commits.
type CellCommits struct {
	// Source is, of a cell with several repositories, the directory of the one that they are in. There may be others in the other ones;
	// a fetch brings all.
	Source   string   `json:"source,omitempty"`
	Commits  int      `json:"commits"`         // number of commits
	More     bool     `json:"more,omitempty"`  // there are more that are not counted: in packs that git made in the cell, or above 10000
	Branches []string `json:"branches"`        // branches with the commits; "HEAD" for a detached one
	Since    string   `json:"since,omitempty"` // the commit that the cell had checked out before; absent without one
	// CheckedOut says that the cell has one of Branches checked out: accept with commits takes that one's.
	CheckedOut bool `json:"checked_out,omitempty"`
	// Submodules are those in which commits were made. Commits does not count these, and no
	// bundle of the repository's branches has them.
	Submodules []SubmoduleCommits `json:"submodules,omitempty"`
}

// SubmoduleCommits are commits that were made in a submodule of a cell's repository; see
// CellCommits.
type SubmoduleCommits struct {
	Path     string   `json:"path"`            // of its folder, relative to the repository
	Commits  int      `json:"commits"`         // number of commits
	More     bool     `json:"more,omitempty"`  // as in CellCommits
	Branches []string `json:"branches"`        // branches with the commits; "HEAD" for a detached one
	Since    string   `json:"since,omitempty"` // the commit that the submodule had checked out before; absent without one
}
