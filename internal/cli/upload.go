package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/internal/policy"
	"github.com/pando-dev/pando/internal/secret"
	"github.com/pando-dev/pando/internal/upload"
)

func (a *app) uploadCmd() *cobra.Command {
	var with []string
	var mask bool
	c := &cobra.Command{
		Use:   "upload [DIR]",
		Short: "Send a directory to the daemon, as the source of one run, cell or template",
		Long: `Send a directory to the daemon, and print the id of the upload: the field upload of
requests for runs, cells and templates, in REST and in SDKs. Files that look like secrets
stay here, each named. An upload is for one of them, within the hour.

pando run and pando template build do this by themselves when the daemon is elsewhere
(PANDO_HOST).`,
		Example: `  curl … -d '{"name": "web", "upload": "'$(pando upload .)'"}'`,
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := a.repository()
			if len(args) == 1 {
				dir = args[0]
			}
			up, err := a.send(cmd.Context(), dir, with, mask)
			if err != nil {
				return err
			}
			return a.print(up, func(w io.Writer) { fmt.Fprintln(w, up.ID) })
		},
	}
	c.Flags().StringArrayVar(&with, "with-secret", nil, "send this file although it looks secret")
	c.Flags().BoolVar(&mask, "mask", false, "also leave out secrets that git tracks")
	return c
}

// sendSource sends the source of a run for a new cell to a daemon elsewhere. An existing cell
// has its files; named says that the source is required nevertheless.
func (a *app) sendSource(ctx context.Context, req *api.RunRequest, named bool) error {
	if req.Cell != "" && !named {
		return nil
	}
	dir := req.From
	if dir == "" {
		dir = a.repository()
		if rel, err := filepath.Rel(dir, a.dir); err == nil && rel != "." && filepath.IsLocal(rel) && req.Workdir == "" {
			req.Workdir = filepath.ToSlash(rel) // the command starts in the same directory below it
		}
	}
	up, err := a.send(ctx, dir, req.WithSecret, masks(req.Policy))
	req.From, req.Upload = "", up.ID
	return err
}

// masks reports whether a policy keeps tracked secrets outside. It is true for an unreadable
// policy, which the daemon then rejects.
func masks(text string) bool {
	if text == "" {
		return false
	}
	f, err := policy.ParseFile("policy", []byte(text))
	return err != nil || f.Secrets.Word == policy.SecretsMask
}

// send packs a directory, without the files that import leaves out, and uploads it while
// packing.
func (a *app) send(ctx context.Context, dir string, withSecret []string, mask bool) (api.Upload, error) {
	with, err := secret.NewWith(withSecret)
	if err != nil {
		return api.Upload{}, apiError(err)
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return api.Upload{}, err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return api.Upload{}, &api.Error{Kind: "not-found", Message: "cannot send the source: " + err.Error(), Hint: "name a directory that exists with --from"}
	}
	home, _ := os.UserHomeDir()
	if err := checkSource(dir, home, a.home.State, a.home.Run, a.home.Cache); err != nil {
		return api.Upload{}, apiError(err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p := &progress{a: a}
	defer p.clear()
	r, w := io.Pipe()
	type result struct {
		upload.Packed
		err error
	}
	packed := make(chan result, 1)
	go func() {
		out, err := upload.Pack(ctx, upload.Request{Dir: dir, With: with, Mask: mask, Progress: func(files int, bytes int64) {
			p.show(api.Progress{Step: "sending", Done: int64(files), Unit: "files", Note: size(bytes)})
		}}, w)
		w.CloseWithError(err)
		packed <- result{out, err}
	}()
	up, err := a.client.Upload(ctx, r)
	r.CloseWithError(io.ErrClosedPipe) // the daemon may have refused it halfway
	done := <-packed
	p.clear()
	if done.err != nil && !errors.Is(done.err, io.ErrClosedPipe) {
		return up, apiError(done.err)
	}
	if err != nil {
		return up, err
	}
	for _, n := range done.Notes {
		a.say("pando: note: %s", printable(n))
	}
	var names []string
	for i, l := range done.LeftOut {
		if i == maxNamed {
			names = append(names, "…")
			break
		}
		names = append(names, printable(l.Path)+" ("+printable(l.Why)+")")
	}
	if len(names) > 0 {
		a.say("pando: not sent: %s (%s); send one with --with-secret PATH", strings.Join(names, ", "), plural(len(done.LeftOut), "path"))
	}
	a.say("pando: sent %s, %s", plural(up.Files, "file"), size(up.Bytes))
	return up, nil
}
