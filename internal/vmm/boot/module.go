package boot

import (
	"bytes"
	"compress/gzip"
	"debug/elf"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"github.com/pando-dev/pando/internal/cell"
)

// largest is the size limit of a module, in bytes. Graphics drivers have ten million.
const largest = 64 << 20

// A Module is a kernel module, ready to load.
type Module struct {
	Name string // with underscores
	Data []byte // decompressed
}

// Load returns modules in load order, each once and after its dependencies. It leaves out
// built-in modules. It fails with cell.NotFound if the kernel has one neither as a file nor
// built in.
func (k *Kernel) Load(names ...string) ([]Module, error) {
	builtin, err := os.ReadFile(filepath.Join(k.Modules, "modules.builtin"))
	if err != nil {
		return nil, fmt.Errorf("cannot read which modules a kernel has built in: %w", err)
	}
	l := loader{kernel: k, files: map[string]string{}, done: map[string]bool{}}
	for line := range strings.FieldsSeq(string(builtin)) {
		if name, ok := moduleName(line); ok {
			l.done[name] = true
		}
	}
	err = filepath.WalkDir(k.Modules+"/" /* also if that is a link */, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		if name, ok := moduleName(path); ok {
			l.files[name] = path // modules in "updates" come after those in "kernel", and replace them
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("cannot look for a kernel's modules: %w", err)
	}
	for _, name := range names {
		if err := l.load(strings.ReplaceAll(name, "-", "_")); err != nil {
			return nil, err
		}
	}
	return l.modules, nil
}

// moduleName returns the kernel's name of a module file.
func moduleName(path string) (string, bool) {
	name, end, ok := strings.Cut(filepath.Base(path), ".ko")
	switch end {
	case "", ".gz", ".xz", ".zst":
		return strings.ReplaceAll(name, "-", "_"), ok
	}
	return "", false
}

// loader visits the dependencies of modules, depth first.
type loader struct {
	kernel  *Kernel
	files   map[string]string // paths by name
	done    map[string]bool   // built in, loaded, or being visited
	modules []Module
}

func (l *loader) load(name string) error {
	if l.done[name] {
		return nil
	}
	l.done[name] = true
	path, ok := l.files[name]
	if !ok {
		return cell.Errorf(cell.NotFound, "boot.Load", "choose a distribution's kernel for virtual machines with --kernel", "cannot use kernel %s: it has no module %s", l.kernel.Version, name)
	}
	data, err := readModule(path)
	if err != nil {
		return fmt.Errorf("cannot read the module %s: %w", path, err)
	}
	needs, err := depends(data)
	if err != nil {
		return fmt.Errorf("cannot read what the module %s depends on: %w", path, err)
	}
	for _, n := range needs {
		if err := l.load(strings.ReplaceAll(n, "-", "_")); err != nil {
			return err
		}
	}
	l.modules = append(l.modules, Module{name, data})
	return nil
}

func readModule(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var r io.Reader = f
	switch filepath.Ext(path) {
	case ".gz":
		r, err = gzip.NewReader(f)
	case ".xz":
		r, err = xz.NewReader(f)
	case ".zst":
		var z *zstd.Decoder
		if z, err = zstd.NewReader(f, zstd.WithDecoderConcurrency(1)); err == nil {
			defer z.Close()
			r = z
		}
	}
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(r, largest+1))
	if err == nil && len(data) > largest {
		err = fmt.Errorf("it has more than %d MiB", largest>>20)
	}
	return data, err
}

// depends reads a module's .modinfo: zero-terminated strings, one of them "depends=a,b".
func depends(module []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(module))
	if err != nil {
		return nil, err
	}
	s := f.Section(".modinfo")
	if s == nil {
		return nil, fmt.Errorf("it is no kernel module")
	}
	info, err := s.Data()
	if err != nil {
		return nil, err
	}
	for _, word := range strings.Split(string(info), "\x00") {
		if list, ok := strings.CutPrefix(word, "depends="); ok && list != "" {
			return strings.Split(list, ","), nil
		}
	}
	return nil, nil
}
