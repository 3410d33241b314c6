package cli

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pando-dev/pando/api"
)

func (a *app) cpCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "cp SRC DST",
		Short: "Copy files into or out of a cell; one side is CELL:PATH",
		Long: `Copy files into or out of a cell; one side is CELL:PATH. As the other side - is a tar
archive on standard output, or on standard input, which is unpacked in the folder
PATH. What is copied keeps its modes and modification times; folders that are there
keep theirs. A symlink at the place of a file that is copied in is followed to where it
leads in the cell: never to the host's files, nor to what is read-only there. Symlinks
that are copied out have the time of the copy. Sockets, named pipes and devices are left
out.`,
		Example: `  pando cp web:dist ./dist-of-web
  pando cp fixtures web:/tmp/`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			src, srcPath, srcIn := splitCellPath(args[0])
			dst, dstPath, dstIn := splitCellPath(args[1])
			switch {
			case srcIn && dstIn:
				return &api.Error{Kind: "invalid", Message: "cannot copy from cell to cell", Hint: "copy to this host first, then into the other cell"}
			case srcIn && args[1] == "-":
				return a.archiveOut(cmd.Context(), src, srcPath)
			case dstIn && args[0] == "-":
				return a.client.WriteFiles(cmd.Context(), dst, orDot(dstPath), a.stdin)
			case srcIn:
				return a.copyOut(cmd.Context(), src, srcPath, args[1])
			case dstIn:
				return a.copyIn(cmd.Context(), args[0], dst, dstPath)
			}
			return &api.Error{Kind: "invalid", Message: "cannot copy: neither side is in a cell", Hint: "write one side as CELL:PATH"}
		},
	}
}

// splitCellPath splits CELL:PATH. A path with a slash before the colon is a path of the host.
func splitCellPath(s string) (cell, p string, in bool) {
	c, p, ok := strings.Cut(s, ":")
	if !ok || strings.Contains(c, "/") || c == "." || c == ".." {
		return "", s, false
	}
	return c, p, true
}

func orDot(p string) string {
	if p == "" {
		return "."
	}
	return p
}

// archiveOut writes the cell's tar archive to standard output, unchanged.
func (a *app) archiveOut(ctx context.Context, sel, from string) error {
	if a.terminalOut {
		return usage("with - as the other side a tar archive is written, and standard output is a terminal: pando cp %s:%s - | tar t", sel, from)
	}
	body, err := a.client.ReadFiles(ctx, sel, orDot(from))
	if err != nil {
		return err
	}
	defer body.Close()
	_, err = io.Copy(a.stdout, body)
	return err
}

// copyOut extracts the cell's archive, which is untrusted: no name in it may lead out of the
// destination, and no symlink is followed.
func (a *app) copyOut(ctx context.Context, sel, from, to string) error {
	body, err := a.client.ReadFiles(ctx, sel, orDot(from))
	if err != nil {
		return err
	}
	defer body.Close()
	// As cp does: into an existing directory under the old name, else as the
	// new name.
	dir, rename := filepath.Dir(filepath.Clean(to)), filepath.Base(filepath.Clean(to))
	if st, err := os.Stat(to); err == nil && st.IsDir() {
		dir, rename = to, ""
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return &api.Error{Kind: "not-found", Message: "cannot copy to " + to + ": " + err.Error()}
	}
	defer root.Close()
	n, err := extract(root, rename, tar.NewReader(body))
	if err != nil {
		return err
	}
	return a.print(map[string]any{"copied": n, "to": to}, func(io.Writer) {})
}

func extract(root *os.Root, rename string, t *tar.Reader) (files int, err error) {
	type folder struct {
		name string
		mode fs.FileMode
		at   time.Time
	}
	var made []folder // parents come first; writing needs other modes and changes times, which are set last
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			for _, d := range slices.Backward(made) {
				if err := errors.Join(root.Chtimes(d.name, time.Time{}, d.at), root.Chmod(d.name, d.mode)); err != nil {
					return files, fmt.Errorf("cannot write %s: %w", printable(d.name), err)
				}
			}
			return files, nil
		}
		if err != nil {
			return files, fmt.Errorf("cannot read the cell's archive: %w", err)
		}
		name := path.Clean("/" + h.Name)[1:]
		if rename != "" {
			_, rest, _ := strings.Cut(name, "/")
			name = path.Join(rename, rest)
		}
		if name == "" || !filepath.IsLocal(name) {
			continue
		}
		mode := fs.FileMode(h.Mode & 0o777)
		switch h.Typeflag {
		case tar.TypeDir:
			err = root.Mkdir(name, mode|0o700)
			if errors.Is(err, fs.ErrExist) {
				err = nil
			} else if err == nil {
				made = append(made, folder{name, mode, h.ModTime})
			}
		case tar.TypeReg:
			if err = extractFile(root, name, mode, t); err == nil {
				err = root.Chtimes(name, time.Time{}, h.ModTime)
			}
			files++
		case tar.TypeSymlink:
			root.Remove(name)
			err = root.Symlink(h.Linkname, name)
			files++
		}
		if err != nil {
			return files, fmt.Errorf("cannot write %s: %w", printable(name), err)
		}
	}
}

func extractFile(root *os.Root, name string, mode fs.FileMode, r io.Reader) error {
	if st, err := root.Lstat(name); err == nil && !st.Mode().IsRegular() {
		if err := root.Remove(name); err != nil { // never write through a symlink
			return err
		}
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	if err == nil {
		err = f.Chmod(mode) // whatever the umask is, and the mode of a file that was there
	}
	return errors.Join(err, f.Close())
}

// copyIn sends a file or directory.
func (a *app) copyIn(ctx context.Context, from, sel, to string) error {
	st, err := os.Lstat(from)
	if err != nil {
		return &api.Error{Kind: "not-found", Message: "cannot copy " + from + ": " + err.Error()}
	}
	dir, name := to, filepath.Base(filepath.Clean(from))
	if to == "" {
		dir = "."
	} else if !strings.HasSuffix(to, "/") && to != "." {
		// As cp does: under a new name, unless that is a directory already.
		if is, err := a.isDirIn(ctx, sel, to); err != nil {
			return err
		} else if !is {
			dir, name = path.Dir(to), path.Base(to)
		}
	}
	if !copyable(st) {
		return &api.Error{Kind: "invalid", Message: "cannot copy " + from + ": only files, folders and symlinks can be copied"}
	}
	r, w := io.Pipe()
	p := packer{t: tar.NewWriter(w)}
	go func() {
		err := p.pack(from, name, st)
		w.CloseWithError(errors.Join(err, p.t.Close()))
	}()
	if err := a.client.WriteFiles(ctx, sel, dir, r); err != nil {
		return err
	}
	for _, left := range p.left {
		a.say("pando: left out: %s: only files, folders and symlinks can be copied", printable(left))
	}
	return a.print(map[string]any{"copied": p.n, "to": sel + ":" + to}, func(io.Writer) {})
}

func (a *app) isDirIn(ctx context.Context, sel, p string) (bool, error) {
	body, err := a.client.ReadFiles(ctx, sel, p)
	if e, ok := err.(*api.Error); ok && e.Kind == "not-found" {
		if _, gone := a.client.Cell(ctx, sel); gone != nil { // it is the cell that there is not
			return false, err
		}
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer body.Close()
	h, err := tar.NewReader(body).Next()
	return err == nil && h.Typeflag == tar.TypeDir, nil
}

// copyable reports whether a file can be in an archive.
func copyable(st fs.FileInfo) bool {
	return st.Mode().IsRegular() || st.IsDir() || st.Mode()&fs.ModeSymlink != 0
}

// A packer writes files of this host to an archive.
type packer struct {
	t    *tar.Writer
	n    int      // files, folders and symlinks
	left []string // what is none of these
}

// pack adds a file or directory under a name. What goes away meanwhile in a directory is not added.
func (p *packer) pack(from, name string, st fs.FileInfo) error {
	if !copyable(st) {
		p.left = append(p.left, from)
		return nil
	}
	link := ""
	if st.Mode()&fs.ModeSymlink != 0 {
		var err error
		if link, err = os.Readlink(from); err != nil {
			return err
		}
	}
	var f *os.File
	if st.Mode().IsRegular() {
		var err error
		if f, err = os.Open(from); err != nil {
			return err
		}
		defer f.Close()
	}
	h, err := tar.FileInfoHeader(st, link)
	if err != nil {
		return err
	}
	h.Name, h.Uname, h.Gname, h.Format = name, "", "", tar.FormatPAX
	if st.IsDir() {
		h.Name += "/"
	}
	if err := p.t.WriteHeader(h); err != nil {
		return err
	}
	p.n++
	switch {
	case st.IsDir():
		return p.folder(from, name)
	case f == nil:
		return nil
	}
	if _, err = io.CopyN(p.t, f, h.Size); errors.Is(err, io.EOF) {
		return fmt.Errorf("cannot copy %s: it became shorter while it was read", from)
	}
	return err
}

func (p *packer) folder(from, name string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err == nil {
			err = p.pack(filepath.Join(from, e.Name()), path.Join(name, e.Name()), info)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
