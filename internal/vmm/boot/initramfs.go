package boot

import (
	"bufio"
	"fmt"
	"io"
)

// File types in an archive, as in st_mode.
const (
	typeDir  = 0o040000
	typeFile = 0o100000
	typeChar = 0o020000
)

// ModuleDir is the directory of modules in an initramfs. The order of the names is the load
// order.
const ModuleDir = "/modules"

// Write writes an initramfs: init as /init, and modules in their order.
func Write(w io.Writer, init []byte, modules []Module) error {
	if len(modules) > 1000 {
		return fmt.Errorf("cannot make an initramfs of %d modules", len(modules)) // their names would be out of order
	}
	out := bufio.NewWriterSize(w, 64<<10)
	a := archive{w: out}
	a.add("dev", typeDir|0o755, nil, 0, 0)
	a.add("dev/console", typeChar|0o600, nil, 5, 1)
	a.add("init", typeFile|0o755, init, 0, 0)
	a.add(ModuleDir[1:], typeDir|0o755, nil, 0, 0)
	for i, m := range modules {
		a.add(fmt.Sprintf("%s/%03d-%s.ko", ModuleDir[1:], i, m.Name), typeFile|0o644, m.Data, 0, 0)
	}
	a.add("TRAILER!!!", 0, nil, 0, 0)
	if a.err == nil {
		a.err = out.Flush()
	}
	if a.err != nil {
		return fmt.Errorf("cannot write an initramfs: %w", a.err)
	}
	return nil
}

// archive writes a cpio archive in "newc" format, as Linux reads it
// (Documentation/driver-api/early-userspace/buffer-format.rst). Each file has a header of
// thirteen hexadecimal numbers, a name and a content; name and content are padded to four
// bytes. All files belong to root and have no time.
type archive struct {
	w   io.Writer
	ino int
	n   int // bytes written
	err error
}

func (a *archive) add(name string, mode uint32, data []byte, major, minor int) {
	if int64(len(data)) > 1<<32-1 {
		a.err = fmt.Errorf("%s has more than 4 GiB", name)
		return
	}
	a.ino++
	a.write(fmt.Appendf(nil, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		a.ino, mode, 0, 0, 1, 0, len(data), 0, 0, major, minor, len(name)+1, 0, name))
	a.write(make([]byte, -a.n&3))
	a.write(data)
	a.write(make([]byte, -a.n&3))
}

func (a *archive) write(b []byte) {
	if a.err == nil {
		var n int
		n, a.err = a.w.Write(b)
		a.n += n
	}
}
