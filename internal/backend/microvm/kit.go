package microvm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/vmm"
	"github.com/pando-dev/pando/internal/vmm/boot"
)

// kit is what machines are started with, made of the host's packages.
type kit struct {
	program   *vmm.Program
	made      []byte // program, for the driver
	root      string // a directory with the program and all that it reads, at the paths that these have on the host
	kernel    *boot.Kernel
	initramfs string // path
}

// cellModules are the kernel's modules that a cell's machine has beside those of the
// devices that each has: by them it sees the cell's files, and its gateway.
var cellModules = []string{"fuse", "virtio_net"}

// tools makes the kit, once. What the host lacks is looked for again.
func (b *Backend) tools(ctx context.Context) (*kit, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.kit != nil {
		return b.kit, nil
	}
	k := &kit{}
	var err error
	if k.program, err = b.driver.Probe(ctx); err != nil {
		return nil, err
	}
	if k.made, err = json.Marshal(k.program); err != nil {
		return nil, err
	}
	if b.cfg.Kernel != "" {
		k.kernel, err = boot.Open(b.cfg.Kernel, b.cfg.Modules)
	} else {
		k.kernel, err = boot.Find(boot.Images, boot.Modules)
	}
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(b.cfg.Cache, 0o755); err != nil {
		return nil, err
	}
	if k.root, err = b.programRoot(k.program); err != nil {
		return nil, fmt.Errorf("cannot prepare QEMU for machines: %w", err)
	}
	if k.initramfs, err = b.buildInitramfs(k.kernel); err != nil {
		return nil, fmt.Errorf("cannot make an initramfs: %w", err)
	}
	b.kit = k
	return k, nil
}

// buildInitramfs makes the initramfs of a kernel, unless it is there.
func (b *Backend) buildInitramfs(k *boot.Kernel) (string, error) {
	modules, err := k.Load(append(b.driver.Modules(&vmm.Spec{}), cellModules...)...)
	if err != nil {
		return "", err
	}
	guest, err := os.ReadFile(b.cfg.Guest)
	if err != nil {
		return "", err
	}
	var archive bytes.Buffer
	if err := boot.Write(&archive, guest, modules); err != nil {
		return "", err
	}
	sum := sha256.Sum256(archive.Bytes())
	path := filepath.Join(b.cfg.Cache, "initramfs-"+hex.EncodeToString(sum[:8]))
	return path, publish(path, func(tmp string) error { return os.WriteFile(tmp, archive.Bytes(), 0o644) })
}

// programRoot copies what the program reads into a directory, unless it is there: a
// machine sees that and nothing else of the host.
func (b *Backend) programRoot(p *vmm.Program) (string, error) {
	h := sha256.New()
	for _, f := range p.Files {
		st, err := os.Stat(f)
		if err != nil {
			return "", err
		}
		fmt.Fprintln(h, f, st.Size(), st.ModTime().UnixNano())
	}
	dir := filepath.Join(b.cfg.Cache, fmt.Sprintf("%s-%s-%x", b.driver.Name(), p.Version, h.Sum(nil)[:8]))
	return dir, publish(dir, func(tmp string) error {
		for _, top := range programTops { // no distribution has files in all of them
			if err := os.MkdirAll(tmp+top, 0o755); err != nil {
				return err
			}
		}
		for _, f := range p.Files {
			err := filepath.WalkDir(f, func(path string, e fs.DirEntry, err error) error {
				if err != nil || e.IsDir() {
					return err
				}
				return copyFile(path, tmp)
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// copyFile copies a file below a root, to the path by which it is asked for and to
// that which it really has: /lib and /usr/lib are one on most hosts.
func copyFile(from, root string) error {
	dir, err := filepath.EvalSymlinks(filepath.Dir(from))
	if err != nil {
		return err
	}
	to, other := filepath.Join(root, from), filepath.Join(root, dir, filepath.Base(from))
	for _, p := range []string{to, other} {
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			return err
		}
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	if err == nil && other != to {
		if err = os.Link(to, other); errors.Is(err, fs.ErrExist) {
			err = nil
		}
	}
	return err
}

// publish has a path made under another name, and gives it its own when it is whole.
func publish(path string, make func(tmp string) error) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	tmp := path + ".new"
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	if err := make(tmp); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// lost is what is said where the machine ended before its guest answered.
func lost(why, console string) error {
	return cell.Errorf(cell.Unavailable, "microvm.boot", "`pando doctor` says what works on this machine", "cannot start a machine: %s: %s", why, console)
}
