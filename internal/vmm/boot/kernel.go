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

// Where packages put kernels, and their modules by version.
const (
	Images  = "/boot"
	Modules = "/lib/modules"
)

// install is the hint where no kernel is there.
const install = "install a kernel's package (Debian: linux-image-cloud-amd64; Ubuntu: linux-image-kvm; it need not be booted), or name one with --kernel"

// readable is the hint where kernels are there, and only for root.
const readable = "let it be read (sudo chmod a+r %s), or name a copy of it with --kernel"

// Find returns the best kernel of a directory of images: one made for virtual
// machines if there is one, else the newest. It fails with cell.NotFound if there
// is none, and with cell.Denied if none may be read.
func Find(images, modules string) (*Kernel, error) {
	found, err := filepath.Glob(filepath.Join(images, "vmlinuz-*"))
	if err != nil {
		return nil, fmt.Errorf("cannot look for a kernel: %w", err)
	}
	slices.SortFunc(found, func(a, b string) int { return compare(versionIn(b), versionIn(a)) })
	var last error // why the best isn't taken
	for _, image := range found {
		k, err := Open(image, filepath.Join(modules, versionIn(image)))
		if err == nil {
			return k, nil
		}
		if last == nil {
			last = err
		}
	}
	if last == nil {
		last = cell.Errorf(cell.NotFound, "boot.Find", install, "cannot find a kernel: %s has none", images)
	}
	return nil, last
}

func versionIn(image string) string {
	return strings.TrimPrefix(filepath.Base(image), "vmlinuz-")
}

// compare says which of two versions is the better one for a machine.
func compare(a, b string) int {
	cloud := func(v string) int {
		if strings.HasSuffix(v, "-cloud-"+runtime.GOARCH) || strings.HasSuffix(v, "-kvm") {
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

// numbers are those of a version, in order: 6.1.0-56-cloud has 6, 1, 0, 56.
func numbers(v string) (n []int) {
	for _, s := range strings.FieldsFunc(v, func(r rune) bool { return r < '0' || r > '9' }) {
		if i, err := strconv.Atoi(s); err == nil {
			n = append(n, i)
		}
	}
	return n
}

// Open returns the kernel of an image. modules is the directory of its modules, or
// "": where packages put those of its version.
func Open(image, modules string) (*Kernel, error) {
	f, err := os.Open(image)
	if errors.Is(err, fs.ErrPermission) {
		return nil, cell.Errorf(cell.Denied, "boot.Open", fmt.Sprintf(readable, image), "cannot read a kernel: %w", err)
	}
	if err != nil {
		return nil, cell.Errorf(cell.NotFound, "boot.Open", install, "cannot open a kernel: %w", err)
	}
	defer f.Close()
	version, err := versionOf(f)
	if err != nil {
		return nil, cell.Errorf(cell.Invalid, "boot.Open", "name the kernel's image as packages have it: /boot/vmlinuz-VERSION", "cannot use %s: %w", image, err)
	}
	if modules == "" {
		modules = filepath.Join(Modules, version)
	}
	if _, err := os.Stat(filepath.Join(modules, "modules.builtin")); err != nil {
		return nil, cell.Errorf(cell.NotFound, "boot.Open", install, "cannot use kernel %s without its modules: %w", version, err)
	}
	return &Kernel{Version: version, Image: image, Modules: modules}, nil
}

// versionOf reads a version out of an image for x86, by Linux's boot protocol
// (Documentation/arch/x86/boot.rst): "HdrS" at 0x202, and at 0x20e where the version
// stands, counted from 0x200.
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
