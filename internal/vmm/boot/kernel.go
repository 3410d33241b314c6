package boot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/pando-dev/pando/internal/cell"
)

// A Kernel is an image and its modules.
type Kernel struct {
	Version string // "6.1.0-56-cloud-amd64"
	Image   string // a bzImage
	Modules string // the directory of this version's modules
}

// Where packages put kernels, and modules by version.
const (
	Images  = "/boot"
	Modules = "/lib/modules"
)

// installHint is shown when there is no kernel.
const installHint = "install a kernel's package (Debian: linux-image-cloud-amd64; Ubuntu: linux-image-virtual; Fedora: kernel-core; Arch: linux; it need not be booted), or name one with --kernel"

// readableHint is shown if kernels exist but only root may read them.
const readableHint = "make it readable (sudo chmod a+r %s; again after each update), or name a copy of it with --kernel"

// namedHint and modulesHint are shown for a named kernel that is no kernel, or lacks modules in
// the expected directory.
const (
	namedHint   = "name the kernel's image as packages have it: /boot/vmlinuz-VERSION"
	modulesHint = "install the package with its modules, or name their directory, too: --kernel IMAGE:MODULES"
)

// Find returns the best kernel of the host's packages that has all the needed modules: one made
// for virtual machines if there is one, otherwise the newest. Packages put images into one
// directory (vmlinuz-VERSION, vmlinuz-FLAVOUR), or beside their modules (VERSION/vmlinuz). Find
// fails with cell.NotFound if there is none, and with cell.Denied if none may be read.
func Find(images, modules string, need ...string) (*Kernel, error) {
	found, err := candidates(images, modules)
	if err != nil {
		return nil, fmt.Errorf("cannot look for a kernel: %w", err)
	}
	var last error // why the best is rejected
	for _, c := range found {
		k, err := Open(c.image, filepath.Join(modules, c.version), need...)
		if err == nil {
			return k, nil
		}
		if last == nil {
			last = err
		}
	}
	if last == nil {
		last = cell.Errorf(cell.NotFound, "boot.Find", installHint, "cannot find a kernel: %s has none", images)
	}
	return nil, last
}

// candidate is a kernel image of a package.
type candidate struct{ image, version string }

// candidates returns all images, the best first.
func candidates(images, modules string) (list []candidate, err error) {
	for _, pattern := range []string{filepath.Join(images, "vmlinuz-*"), filepath.Join(modules, "*", "vmlinuz")} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		for _, image := range found {
			list = append(list, candidate{image, said(image)})
		}
	}
	slices.SortStableFunc(list, func(a, b candidate) int { return compare(b.version, a.version) })
	return list, nil
}

// said returns the version in an image or, if it may not be read, in its name.
func said(image string) string {
	if f, err := os.Open(image); err == nil {
		defer f.Close()
		if v, err := versionOf(f); err == nil {
			return v
		}
	}
	if _, version, ok := strings.Cut(filepath.Base(image), "-"); ok {
		return version
	}
	return filepath.Base(filepath.Dir(image))
}

// compare orders two versions by their suitability for a machine.
func compare(a, b string) int {
	cloud := func(v string) int {
		if strings.HasSuffix(v, "-cloud-"+runtime.GOARCH) || strings.HasSuffix(v, "-kvm") || strings.HasSuffix(v, "-virt") {
			return 1
		}
		return 0
	}
	if d := cloud(a) - cloud(b); d != 0 {
		return d
	}
	as, bs := numbers(a), numbers(b)
	if d := slices.Compare(as, bs); d != 0 {
		return d
	}
	return strings.Compare(a, b)
}

// numbers returns the numbers in a version, in order: 6.1.0-56-cloud has 6, 1, 0, 56.
func numbers(v string) (n []int) {
	for _, s := range strings.FieldsFunc(v, func(r rune) bool { return r < '0' || r > '9' }) {
		if i, err := strconv.Atoi(s); err == nil {
			n = append(n, i)
		}
	}
	return n
}

// Open returns the kernel of an image. modules is the directory of its modules, or "" for the
// one where packages put those of its version. Open fails with cell.Denied if the image may not
// be read, with cell.Invalid if it is no kernel for virtual machines, and with cell.NotFound if
// there are no modules.
func Open(image, modules string, need ...string) (*Kernel, error) {
	f, err := os.Open(image)
	if errors.Is(err, fs.ErrPermission) {
		return nil, cell.Errorf(cell.Denied, "boot.Open", fmt.Sprintf(readableHint, image), "cannot read a kernel: %w", err)
	}
	if err != nil {
		return nil, cell.Errorf(cell.NotFound, "boot.Open", namedHint, "cannot open a kernel: %w", err)
	}
	defer f.Close()
	version, err := versionOf(f)
	if err != nil {
		return nil, cell.Errorf(cell.Invalid, "boot.Open", namedHint, "cannot use %s: %w", image, err)
	}
	if modules == "" {
		modules = filepath.Join(Modules, version)
	}
	if _, err := os.Stat(filepath.Join(modules, "modules.builtin")); err != nil {
		return nil, cell.Errorf(cell.NotFound, "boot.Open", modulesHint, "cannot use kernel %s without its modules: %w", version, err)
	}
	k := &Kernel{Version: version, Image: image, Modules: modules}
	if _, err := k.Load(need...); len(need) > 0 && err != nil {
		return nil, err
	}
	return k, nil
}

// versionOf reads the version of an x86 image, by Linux's boot protocol
// (Documentation/arch/x86/boot.rst): "HdrS" is at 0x202, and the offset of the version, from
// 0x200, at 0x20e.
func versionOf(f io.ReaderAt) (string, error) {
	var head [0x210]byte
	if _, err := f.ReadAt(head[:], 0); err != nil || string(head[0x202:0x206]) != "HdrS" {
		return "", errors.New("it is no kernel for x86-64")
	}
	var text [256]byte
	n, err := f.ReadAt(text[:], 0x200+int64(binary.LittleEndian.Uint16(head[0x20e:])))
	version, _, ok := strings.Cut(string(text[:n]), " ")
	if !ok || err != nil && err != io.EOF || version == "" || strings.Contains(version, "/") {
		return "", errors.New("it does not say its version")
	}
	return version, nil
}
