package merge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/gitdir"
)

// looked is how far git looks for a NUL in a file to tell whether it is text: buffer_is_binary
// in its xdiff-interface.c.
const looked = 8000

// binary reports whether git takes a file for no text.
func binary(b []byte) bool { return bytes.IndexByte(b[:min(len(b), looked)], 0) >= 0 }

// most is the time that git has for one file.
const most = time.Minute

// manyConflicts is what `git merge-file` returns for any larger number of conflicts, too.
const manyConflicts = 127

// text merges ours, base and theirs by `git merge-file`, outside of any repository and with no
// configuration of anything's.
func text(ctx context.Context, path, dir string, texts [3][]byte, labels [2]string) (out []byte, conflicts int, err error) {
	git, err := gitdir.Program(path)
	if err != nil {
		return nil, 0, cell.Errorf(cell.Unsupported, "merge.text", "install git, or apply the changes by hand: pando diff --patch", "cannot merge: %w", err)
	}
	names := [3]string{"ours", "base", "theirs"}
	for i, b := range texts {
		if err := os.WriteFile(filepath.Join(dir, names[i]), b, 0o600); err != nil {
			return nil, 0, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	cmd := exec.CommandContext(ctx, git, "merge-file", "-p", "-L", labels[0], "-L", "base", "-L", labels[1], names[0], names[1], names[2])
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + filepath.Dir(git), "LC_ALL=C", "HOME=" + dir, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=" + os.DevNull, "GIT_CEILING_DIRECTORIES=" + filepath.Dir(dir)}
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err = cmd.Output()
	failed, ok := errors.AsType[*exec.ExitError](err)
	switch {
	case err == nil:
		return out, 0, nil
	case ok && failed.Exited() && failed.ExitCode() <= manyConflicts && said.Len() == 0: // the number of conflicts; errors are above
		conflicts = failed.ExitCode()
		if conflicts == manyConflicts {
			conflicts = max(conflicts, bytes.Count(out, []byte("\n>>>>>>> "+labels[1])))
		}
		return out, conflicts, nil
	case ctx.Err() != nil:
		return nil, 0, cell.Errorf(cell.Interrupted, "merge.text", "", "cannot merge: %w", context.Cause(ctx))
	}
	return nil, 0, cell.Errorf(cell.Internal, "merge.text", "apply the changes by hand: pando diff --patch", "cannot merge: %w", fmt.Errorf("git merge-file: %w: %s", err, strings.TrimSpace(said.String())))
}
