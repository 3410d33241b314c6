package microvm

import (
	"bytes"
	"cmp"
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
	"strings"

	"github.com/pando-dev/pando/internal/cell"
	"github.com/pando-dev/pando/internal/linux"
	"github.com/pando-dev/pando/internal/linux/kvm"
	"github.com/pando-dev/pando/internal/vmm"
	"github.com/pando-dev/pando/internal/vmm/boot"
)

// kit is what machines are started with, made from the host's packages.
type kit struct {
	*runner
	kernel    *boot.Kernel
	image     string // path of the kernel image, or of a copy that cells can read
	initramfs string // path
}

// runner is the part that all kits share.
type runner struct {
	program *vmm.Program
	made    []byte // program and accelerator, for the driver
	root    string // directory with the program and all files that it reads, at their paths on the host
	accel   vmm.Accel
}

// cellModules are the kernel modules of a cell's machine beside those of the devices that every
// machine has: for the cell's files and the gateway.
var cellModules = []string{"fuse", "virtio_net"}

// modules lists the modules that every kernel must have, loadable or built in.
func (b *Backend) modules() []string {
	return append(b.driver.Modules(&vmm.Spec{}), cellModules...)
}

// Program returns the program that runs machines.
func (b *Backend) Program(ctx context.Context) (*vmm.Program, error) { return b.driver.Probe(ctx) }

// Kernel returns the kernel that a machine boots: the one asked for, as in cell.Spec. For "" it
// is the configured one, or the best of the host's packages.
func (b *Backend) Kernel(asked string) (*boot.Kernel, error) {
	if asked = cmp.Or(asked, b.cfg.Kernel); asked == "" {
		return boot.Find(boot.Images, boot.Modules, b.modules()...)
	}
	image, modules, _ := strings.Cut(asked, ":")
	for _, p := range []string{image, modules} {
		if p != "" && !filepath.IsAbs(p) {
			return nil, cell.Errorf(cell.Invalid, "microvm.Kernel", "give an absolute path", "cannot use the kernel %s: %s is no absolute path", asked, p)
		}
	}
	return boot.Open(image, modules, b.modules()...)
}

// CheckKernel implements backend.Booter.
func (b *Backend) CheckKernel(asked string) error {
	_, err := b.Kernel(asked)
	return err
}

// parts identifies what kits are made from: programs, the device, and kernels. When it changes,
// the kits are made again.
func (b *Backend) parts() string {
	return linux.Stamp(find(machineProgram, b.cfg.Path), kvm.Device, b.cfg.Guest, boot.Images, boot.Modules)
}

// tools returns the kit for a kernel, made once. It tries again after the host lacked
// something, or when the host has changed.
func (b *Backend) tools(ctx context.Context, asked string) (*kit, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if is := b.parts(); is != b.stamp {
		b.stamp, b.runner, b.kits = is, nil, nil
	}
	if k := b.kits[asked]; k != nil {
		return k, nil
	}
	r, err := b.base(ctx)
	if err != nil {
		return nil, err
	}
	k := &kit{runner: r}
	if k.kernel, err = b.Kernel(asked); err != nil {
		return nil, err
	}
	if k.image, err = b.readable(k.kernel.Image); err != nil {
		return nil, fmt.Errorf("cannot prepare a kernel for machines: %w", err)
	}
	if k.initramfs, err = b.buildInitramfs(k.kernel); err != nil {
		return nil, fmt.Errorf("cannot make an initramfs: %w", err)
	}
	if b.kits == nil {
		b.kits = map[string]*kit{}
	}
	b.kits[asked] = k
	return k, nil
}

// base returns the shared part of all kits, made once. The caller holds b.mu.
func (b *Backend) base(ctx context.Context) (*runner, error) {
	if b.runner != nil {
		return b.runner, nil
	}
	if err := os.MkdirAll(b.cfg.Cache, 0o755); err != nil {
		return nil, err
	}
	r := &runner{accel: vmm.Emulated}
	if b.cfg.KVM().State == kvm.Works {
		r.accel = vmm.KVM
	}
	var err error
	if r.program, err = b.Program(ctx); err != nil {
		return nil, err
	}
	if r.made, err = json.Marshal(given{r.program, r.accel, b.cfg.Unrecorded}); err != nil {
		return nil, err
	}
	if r.root, err = b.programRoot(r.program); err != nil {
		return nil, fmt.Errorf("cannot prepare QEMU for machines: %w", err)
	}
	b.runner = r
	return r, nil
}

// given is the data for a cell's driver beside its files.
type given struct {
	*vmm.Program
	Accel      vmm.Accel
	Unrecorded bool `json:",omitempty"`
}

// isolation describes the layers between a cell's commands and the host.
func (k *kit) isolation() string {
	how := "emulated"
	if k.accel == vmm.KVM {
		how = "with KVM"
	}
	return fmt.Sprintf("a Linux of its own (%s) in a virtual machine (QEMU %s, %s)", k.kernel.Version, k.program.Version, how)
}

// readable returns a kernel image that the program can reopen. If pando runs as root the
// program has no user ID on the host. So an image that is not world-readable is copied.
func (b *Backend) readable(image string) (string, error) {
	st, err := os.Stat(image)
	if err != nil || st.Mode()&0o004 != 0 {
		return image, err
	}
	sum := sha256.Sum256(fmt.Appendln(nil, image, st.Size(), st.ModTime().UnixNano()))
	path := filepath.Join(b.cfg.Cache, "kernel-"+hex.EncodeToString(sum[:8]))
	return path, publish(path, func(tmp string) error {
		content, err := os.ReadFile(image)
		if err != nil {
			return err
		}
		return os.WriteFile(tmp, content, 0o644)
	})
}

// buildInitramfs makes the initramfs of a kernel, unless it exists.
func (b *Backend) buildInitramfs(k *boot.Kernel) (string, error) {
	modules, err := k.Load(b.modules()...)
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

// programRoot copies the files that the program reads into a directory, unless it exists. A
// machine sees no other files of the host.
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

// copyFile copies a file below a root, to its given path and its resolved path: /lib and
// /usr/lib are the same on most hosts.
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

// publish calls make with a temporary path, and renames it to path when it is complete. The
// files are world-readable, independent of the umask.
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
	err := filepath.WalkDir(tmp, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := e.Info()
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if st.Mode()&0o100 != 0 {
			mode = 0o755
		}
		return os.Chmod(path, mode)
	})
	if err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// lost returns the error for a machine that ended before its guest answered.
func lost(why, console string) error {
	return cell.Errorf(cell.Unavailable, "microvm.boot", "`pando doctor` says what works on this machine", "cannot start a machine: %s: %s", why, console)
}
