package engine

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cache"
	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/failpoint"
	"github.com/pando-dev/pando/internal/image"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/oci"
	"github.com/pando-dev/pando/internal/state"
	"github.com/pando-dev/pando/internal/workspace"
)

// rootFS is what a cell's root file system is made from; the zero rootFS is
// the host's.
type rootFS struct {
	dir      string // on the real disk
	kept     bool   // by pando: it was unpacked here
	settings image.Settings
}

// planImageName checks which image a request means: the cell's, when there is
// one already.
func (e *Engine) planImageName(p *runPlan) (err error) {
	const opName = "engine.StartRun"
	if p.cell != nil {
		if p.image, err = image.ParseName(p.cell.Image, ""); err != nil || p.req.Image == "" {
			return err
		}
	}
	asked, err := image.ParseName(p.req.Image, p.req.CallerDir)
	if err != nil {
		return err
	}
	if asked.Kind == image.KindOCI {
		r, err := oci.Parse(asked.Ref, p.req.CallerDir)
		if err != nil {
			return err
		}
		asked.Ref = r.String()
	}
	if p.cell != nil && asked != p.image {
		return cell.Errorf(cell.Conflict, opName, "leave out --image, or choose another --cell", "cell %s has image %s", p.cell.Title(), p.image)
	}
	p.image = asked
	if p.cell == nil && asked.Kind == image.KindDockerfile { // before anything is recorded
		_, _, err = e.readDockerfile(asked.Path)
	}
	return err
}

// mayHaveImage refuses images on backends that can't mount them.
func (e *Engine) mayHaveImage(p *runPlan) error {
	if p.image.Kind == image.KindHost {
		return nil
	}
	caps, err := e.caps(e.life, p.backend)
	if err == nil && caps.Mounts != "" {
		err = cell.Errorf(cell.Unsupported, "engine.StartRun", "leave out --image, or "+cell.Isolated, "cannot use image %s: %s", p.image, caps.Mounts)
	}
	return err
}

// rootFolder holds, in a cell's own folder, what it writes over its image.
const rootFolder = "root"

// layImage points a cell's mounts of its image at the layers of its own, and
// makes those that it lacks. A layer stays as long as the cell, but not longer
// than the host runs: nothing in it was made to survive power loss.
func (e *Engine) layImage(c *state.Cell, mounts []cell.Mount) error {
	base := filepath.Join(e.private(c.ID), numbered(rootFolder, c.Roots))
	fresh := false
	for i := range mounts {
		m := &mounts[i]
		if m.Role != cell.RoleImage || m.Kind != cell.Overlay {
			continue
		}
		// What a copy stands on may be gone with the host's last start.
		m.Lower = slices.DeleteFunc(slices.Clone(m.Lower), func(l string) bool {
			_, err := os.Lstat(l)
			return l != m.Lower[len(m.Lower)-1] && errors.Is(err, fs.ErrNotExist)
		})
		m.Upper, m.Work = e.rootLayer(c, m.Target)
		if !fresh {
			var err error
			if fresh, err = e.beginRoot(base); err != nil {
				return err
			}
		}
		if err := layer(m); errors.Is(err, fs.ErrNotExist) {
			return cell.Errorf(cell.NotFound, "engine.image", c.ImageAgain(), "cannot start cell %s: its image %s is gone: %w", c.Title(), c.Image, err)
		} else if err != nil {
			return full(err)
		}
	}
	if !fresh || c.Builds { // what pando puts there is no part of an image
		return nil
	}
	for _, s := range c.Setup.Seeds {
		for _, m := range mounts {
			if m.Role != cell.RoleImage || m.Kind != cell.Overlay || len(m.Lower) > 1 || !strings.HasPrefix(s.Path, m.Target+"/") {
				continue
			}
			if err := plant(filepath.Join(m.Upper, strings.TrimPrefix(s.Path, m.Target)), s); err != nil {
				return full(err)
			}
		}
	}
	return nil
}

// plant writes a seed. A file that is there stays, unless it is the seed's predecessor.
func plant(at string, s image.Seed) error {
	if s.Instead != "" {
		if err := removeSeed(at, s.Instead); err != nil || s.Text == "" {
			return err
		}
	}
	f, err := os.OpenFile(at, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(s.Text)
	if err = errors.Join(err, f.Close()); err != nil {
		// A part of it would stay for good: the next start takes it for the cell's own.
		err = errors.Join(err, os.Remove(at))
	}
	return err
}

// removeSeed removes a file with this text alone. The cell may have put anything there.
func removeSeed(at, text string) error {
	f, err := os.OpenFile(at, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil // nothing of pando's
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() || st.Size() != int64(len(text)) {
		return err
	}
	b, err := io.ReadAll(io.LimitReader(f, st.Size()))
	if err != nil || string(b) != text {
		return err
	}
	return os.Remove(at)
}

// rootLayer is where a cell's layer over a part of its image is.
func (e *Engine) rootLayer(c *state.Cell, target string) (upper, work string) {
	top := filepath.Join(e.private(c.ID), numbered(rootFolder, c.Roots), strings.TrimPrefix(target, "/"))
	return filepath.Join(top, "fs"), filepath.Join(top, "work")
}

// numbered is the name of a folder of which there may be several.
func numbered(name string, n int) string {
	if n == 0 {
		return name
	}
	return name + "-" + strconv.Itoa(n)
}

// beginRoot makes the folder of a cell's layers, after a restart of the host
// anew. It reports true when it is there.
func (e *Engine) beginRoot(base string) (bool, error) {
	boot := linux.BootID()
	if old, err := readState(base + ".boot"); err == nil && string(old) == boot {
		return true, nil
	}
	failpoint.Step("make the folder of an image's layers")
	if err := workspace.RemoveTree(base); err != nil {
		return false, err
	}
	if err := os.MkdirAll(base, 0o700); err != nil {
		return false, err
	}
	return true, os.WriteFile(base+".boot", []byte(boot), 0o600)
}

// layer makes the writable layer of a mount; its top looks like the image's.
// What an earlier mount left to work with goes: it was volatile, and the kernel
// takes it for damaged.
func layer(m *cell.Mount) error {
	var st unix.Stat_t
	if err := unix.Lstat(m.Lower[0], &st); err != nil {
		return &os.PathError{Op: "look at", Path: m.Lower[0], Err: err}
	}
	if err := workspace.RemoveTree(m.Work); err != nil {
		return err
	}
	if err := os.MkdirAll(m.Work, 0o700); err != nil {
		return err
	}
	if err := os.Mkdir(m.Upper, 0o700); errors.Is(err, fs.ErrExist) {
		return nil
	} else if err != nil {
		return err
	}
	if os.Getuid() == 0 {
		if err := os.Lchown(m.Upper, int(st.Uid), int(st.Gid)); err != nil {
			return err
		}
	}
	if err := unix.Chmod(m.Upper, st.Mode&0o7777); err != nil {
		return err
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, m.Upper, []unix.Timespec{st.Atim, st.Mtim}, 0)
}

// etcDir holds filtered copies of the host's /etc.
func (e *Engine) etcDir() string { return filepath.Join(e.cfg.Home.Images(), "etc") }

// stacked gives a copy of a cell what the original has written over its image,
// read-only below a layer of its own.
func stacked(mounts []cell.Mount) []cell.Mount {
	out := append([]cell.Mount(nil), mounts...)
	for i, m := range out {
		if m.Role == cell.RoleImage && m.Kind == cell.Overlay && m.Upper != "" {
			out[i].Lower = append([]string{m.Upper}, m.Lower...)
		}
	}
	return out
}

// stackedOf is stacked for a cell that may live: what a fork has over its image
// is not in its record.
func (e *Engine) stackedOf(c *state.Cell) []cell.Mount {
	mounts := slices.Clone(c.Setup.Mounts)
	for i := range mounts {
		if m := &mounts[i]; m.Role == cell.RoleImage && m.Kind == cell.Overlay {
			m.Upper, _ = e.rootLayer(c, m.Target)
			if _, err := os.Lstat(m.Upper); err != nil {
				m.Upper = ""
			}
		}
	}
	mounts = stacked(mounts)
	for i := range mounts {
		if m := &mounts[i]; m.Role == cell.RoleImage && m.Kind == cell.Overlay {
			m.Upper, m.Work = "", ""
		}
	}
	return mounts
}

// branchMounts is stackedOf for a cell that goes on beside its copies: what it wrote over caches is below theirs, and below
// a new layer of its own.
func (e *Engine) branchMounts(c *state.Cell) []cell.Mount {
	mounts := e.stackedOf(c)
	for i := range mounts {
		m := &mounts[i]
		if m.Kind != cell.Cache {
			continue
		}
		upper := filepath.Join(cache.Upper(e.private(c.ID), c.Roots, m.Target), "fs")
		if _, err := os.Lstat(upper); err == nil {
			m.Lower = append([]string{upper}, m.Lower...)
		}
	}
	return mounts
}

// keepRoot makes what a cell has written over its image survive a loss of power.
func (e *Engine) keepRoot(id cell.ID) error {
	f, err := os.Open(e.private(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Syncfs(int(f.Fd()))
}
