package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
)

// watchDiff prints what changes in a cell, until that is interrupted.
func (a *app) watchDiff(ctx context.Context, args []string, o client.DiffOptions) error {
	sel := arg(args)
	switch {
	case len(args) > 1 || strings.Contains(sel, "@"):
		return usage("--watch follows the present state of a cell: name no checkpoints")
	case isRun(sel):
		return usage("--watch follows a cell: what a run changed does not change any more")
	}
	var last *api.DiffChange
	for change, err := range a.client.Changes(ctx, sel, o) {
		if ctx.Err() != nil { // which is how it ends
			return nil
		}
		if err != nil {
			return err
		}
		if a.json {
			if err := json.NewEncoder(a.stdout).Encode(change); err != nil {
				return err
			}
			continue
		}
		if head := changeHead(&change, last); head != "" {
			if a.colour {
				head = "\x1b[2m" + head + "\x1b[m"
			}
			if _, err := fmt.Fprintln(a.stdout, head); err != nil {
				return err
			}
			if _, err := io.WriteString(a.stdout, change.Text); err != nil {
				return err
			}
		}
		last = &change
	}
	return nil
}

// changeHead says in a line what differs from the source now; "" when only files that git ignores changed.
func changeHead(c, last *api.DiffChange) string {
	at := c.At.Local().Format("15:04:05")
	if last != nil && len(c.Changed) == 0 && c.Files == last.Files && c.Added == last.Added && c.Deleted == last.Deleted {
		return ""
	}
	files := "1 file differs"
	switch {
	case c.Files == 0 && last == nil:
		return at + "  nothing differs from the source yet"
	case c.Files == 0:
		return at + "  nothing differs from the source any more"
	case c.Files > 1:
		files = fmt.Sprintf("%d files differ", c.Files)
	}
	return fmt.Sprintf("%s  %s from the source, +%d -%d", at, files, c.Added, c.Deleted)
}
