package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/pando-dev/pando/api"
)

// readSecretFile reads a secret value from a file, up to limit bytes. The file must be regular,
// no symbolic link, owned by the user or root, without rights for group and others, and outside
// of every repository and every cell's source, where a cell could replace it. what completes
// "cannot".
func (a *app) readSecretFile(ctx context.Context, what, path string, limit int64) ([]byte, error) {
	f, err := OpenSecretFile(what, path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	refuse := func(rule, hint string) error { return refuseSecretFile(what, path, rule, hint) }
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err == nil {
		dir, err = filepath.Abs(dir)
	}
	if err != nil {
		return nil, err
	}
	if root := repositoryAbove(dir); root != "" {
		return nil, refuse("lies in the repository "+root, "move it out of there: what is in a repository can come into a cell")
	}
	cells, err := a.client.Cells(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range cells {
		for _, source := range append([]string{c.Source}, c.Repositories...) {
			if source != "" && (dir == source || strings.HasPrefix(dir, source+"/")) {
				return nil, refuse("lies in the source of cell "+c.Name, "move it out of there: what is in a source can come into a cell")
			}
		}
	}
	return io.ReadAll(io.LimitReader(f, limit))
}

// OpenSecretFile opens a file with a secret value: a regular file, no symbolic link, owned by
// the user or root, without rights for group and others. what completes "cannot".
func OpenSecretFile(what, path string) (*os.File, error) {
	f, err := openSecretFile(path)
	if err != nil {
		if info, lerr := os.Lstat(path); lerr == nil && info.Mode()&os.ModeSymlink != 0 {
			return nil, refuseSecretFile(what, path, "is a symbolic link, and a secret is read from the file itself", "give the path that the link leads to")
		}
		return nil, &api.Error{Kind: "not-found", Message: fmt.Sprintf("cannot %s: %v", what, err)}
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = refuseSecretFile(what, path, "is not a regular file", "give a regular file")
	default:
		if rule := secretFileRights(info); rule != "" {
			err = refuseSecretFile(what, path, rule, "chmod 600 "+path+", as its owner")
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func refuseSecretFile(what, path, rule, hint string) error {
	return &api.Error{Kind: "denied", Message: fmt.Sprintf("cannot %s: %s %s", what, path, rule), Hint: hint}
}

// repositoryAbove returns the nearest directory at or above dir that has a .git; "" if there is
// none.
func repositoryAbove(dir string) string {
	for {
		if _, err := os.Lstat(filepath.Join(dir, ".git")); err == nil {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			return ""
		}
		dir = up
	}
}
