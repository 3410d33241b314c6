package cli

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
	"github.com/pando-dev/pando/client"
	"github.com/pando-dev/pando/internal/cell"
)

func (a *app) imageCmd() *cobra.Command {
	c := &cobra.Command{
		Use: "image", Short: "List, pull and remove images that cells are made from", Args: cobra.NoArgs,
		Long: `An image is where a cell's root file system comes from:

  host         the host's own system directories, read-only (the default)
  dir:PATH     a directory that holds a root file system
  oci:REF      an OCI image: of a registry, a layout directory, or an archive
  dockerfile:PATH[#STAGE]
               what a Dockerfile makes, or the one in a directory; without Docker

  pando run --image oci:docker.io/library/python:3.12-slim -- python3 -V
  pando run --image oci:./layout:v1 -- ./test.sh
  pando run --image oci:saved.tar -- ./test.sh       (docker save app > saved.tar)
  pando run --image dockerfile:. --allow @debian -- ./test.sh

OCI images are pulled when they are first used, verified, and kept. A name is
looked up in its registry once; pando image pull looks again. Cells keep the image
that its name meant when they were made.

The first run that names a Dockerfile makes its image. Each RUN is a run of its own, in a
cell, which may reach what --allow and the policy of that run allow; COPY takes what import
takes of the Dockerfile's directory. A step is kept by what it was made from, and made
again when that has changed.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(a.imageLsCmd(), a.imagePullCmd(), a.imageRmCmd())
	return c
}

func (a *app) imageLsCmd() *cobra.Command {
	all := false
	c := &cobra.Command{
		Use: "ls", Short: "List images", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := a.client.Images(cmd.Context())
			if err != nil {
				return err
			}
			return a.print(list, func(w io.Writer) {
				if len(list) == 0 {
					a.say("no images yet: pando image pull REF fetches one")
					return
				}
				t := a.newTable(w)
				t.row("IMAGE", "DIGEST", "SIZE", "CELLS", "USED", "PULLED")
				steps := 0
				for _, i := range list {
					refs, digest := i.Refs, i.Digest
					if i.Made != nil {
						digest = i.ID
					}
					if len(refs) == 0 {
						refs = []string{"–"}
						if i.Made != nil {
							refs[0] = i.Made.Step
						}
						if i.Made != nil && !all && len(i.Cells) == 0 {
							steps++
							continue
						}
					}
					for _, r := range refs {
						t.row(printable(cell.Clip(r)), short(digest), size(i.Bytes), fmt.Sprint(len(i.Cells)), ago(i.Used), ago(i.Pulled))
					}
				}
				t.flush()
				if steps > 0 {
					a.say("and %s of Dockerfiles, which --all lists", plural(steps, "step"))
				}
			})
		},
	}
	c.Flags().BoolVar(&all, "all", false, "list the steps of Dockerfiles, too")
	return c
}

func (a *app) imagePullCmd() *cobra.Command {
	var req api.ImagePullRequest
	var docker, fromStdin bool
	c := &cobra.Command{
		Use: "pull REF", Short: "Fetch and unpack an image, or check whether its name has a newer one", Args: cobra.ExactArgs(1),
		Example: `  pando image pull docker.io/library/python:3.12-slim
  pando image pull ghcr.io/me/private:1 --docker-login
  pando image pull registry.example.com/app:1 --user me --password-stdin < token`,
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Image = args[0]
			if !a.remote { // paths of this host mean nothing to a daemon elsewhere
				req.CallerDir = a.dir
			}
			if docker {
				var err error
				if req.User, req.Password, err = dockerLogin(cmd.Context(), req.Image); err != nil {
					return err
				}
			}
			if fromStdin {
				line, err := bufio.NewReader(io.LimitReader(a.stdin, 64<<10)).ReadString('\n')
				if err != nil && err != io.EOF {
					return err
				}
				req.Password = strings.TrimRight(line, "\r\n")
			}
			if (req.User == "") != (req.Password == "") {
				return &api.Error{Kind: "invalid", Message: "cannot log in: user and password come together", Hint: "give --user NAME --password-stdin"}
			}
			p := &progress{a: a}
			img, err := a.client.PullImage(cmd.Context(), req, client.Listener{Progress: p.show})
			p.clear()
			if err != nil {
				return err
			}
			return a.print(img, func(w io.Writer) {
				for _, n := range img.Notes {
					a.say("pando: note: %s", n)
				}
				fmt.Fprintln(w, img.Digest)
				a.say("%s: %s in %s; use it with --image oci:%s", printable(args[0]), size(img.Bytes), plural(img.Files, "file"), printable(strings.TrimPrefix(args[0], "oci:")))
			})
		},
	}
	f := c.Flags()
	f.BoolVar(&docker, "docker-login", false, "use what docker login has stored for this registry, in ~/.docker/config.json or with the credential helper that it names")
	f.StringVar(&req.User, "user", "", "log in to the registry as this user")
	f.BoolVar(&fromStdin, "password-stdin", false, "with the password, or token, that is on standard input")
	c.MarkFlagsMutuallyExclusive("docker-login", "user")
	c.MarkFlagsMutuallyExclusive("docker-login", "password-stdin")
	return c
}

func (a *app) imageRmCmd() *cobra.Command {
	var dry bool
	c := &cobra.Command{
		Use: "rm IMAGE…", Short: "Remove images that no cell is made from", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			type removed struct {
				sel string
				img api.Image
			}
			var gone []api.Image
			err := inTurn(args, func(sel string) (removed, error) {
				img, err := a.client.RemoveImage(cmd.Context(), sel, dry)
				return removed{sel, img}, err
			}, func(r removed) {
				gone = append(gone, r.img)
				switch {
				case a.json:
				case len(r.img.Refs) > 0:
					a.say("forgot %s; the image is still known as %s", printable(r.sel), printable(r.img.Refs[0]))
				case r.img.Made != nil && dry:
					a.say("would remove %s, and not what its steps and other images share with it", printable(r.sel))
				case r.img.Made != nil:
					a.say("removed %s; its steps stay until nothing has used them for 30 days", printable(r.sel))
				case dry:
					a.say("would remove %s and free %s", printable(r.sel), size(r.img.Bytes))
				default:
					a.say("removed %s, freed %s", printable(r.sel), size(r.img.Bytes))
				}
			})
			return a.printWith(err, gone, func(io.Writer) {})
		},
	}
	c.Flags().BoolVar(&dry, "dry-run", false, "only print what would be removed")
	return c
}

// imageWords names an image for people.
func imageWords(name, digest string) string {
	if name == "" {
		name = "host"
	}
	if digest != "" {
		return "image " + printable(name) + " " + short(digest)
	}
	return "image " + printable(name)
}
