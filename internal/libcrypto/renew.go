package libcrypto

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// measured are the releases of OpenSSL with generators that were seen to differ in copies
// after Renew: TestX09RandomnessInCopies of e2e, and the test of this package.
var measured = []string{"3.0."}

// The function, of 48 bytes at the end of a page of code.
//
//	endbr64
//	sub  $8, %rsp
//	call *32(function)
//	xor  40(function), %eax
//	add  $8, %rsp
//	ret
//
// At 32 is the address of the getpid that the dynamic linker has found, at 40 the key.
var function = []byte{
	0xf3, 0x0f, 0x1e, 0xfa,
	0x48, 0x83, 0xec, 0x08,
	0xff, 0x15, 0x12, 0, 0, 0,
	0x33, 0x05, 0x14, 0, 0, 0,
	0x48, 0x83, 0xc4, 0x08,
	0xc3,
	0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc,
}

const (
	functionSize = 48
	targetAt     = 32
	keyAt        = 40
	markAt       = 44
	mark         = 0x6f646e70 // "pndo"

	// keyShift is the number of bits of a process number: the kernel gives none of 4194304 and above.
	keyShift = 22
	keys     = 511 // in the bits below that of the sign
)

// memory is that of a process.
type memory interface {
	io.ReaderAt
	io.WriterAt
}

// Renew has the OpenSSL that a process has mapped from file, as its maps name it, seed its
// generators from the kernel before the next draw of each. proc is a proc file system that
// shows the process as pid. No thread of the process may run meanwhile. After an error the
// process is as it was.
func Renew(proc string, pid int, file string) error {
	if runtime.GOARCH != "amd64" {
		return errors.New("not measured on " + runtime.GOARCH)
	}
	dir := filepath.Join(proc, strconv.Itoa(pid))
	mem, err := os.OpenFile(filepath.Join(dir, "mem"), os.O_RDWR, 0) // first: it stays that of this program
	if err != nil {
		return err
	}
	defer mem.Close()
	f, err := os.Open(filepath.Join(dir, "maps"))
	if err != nil {
		return err
	}
	maps, err := parseMaps(f)
	f.Close()
	if err != nil {
		return err
	}
	if exe, err := os.Readlink(filepath.Join(dir, "exe")); err != nil || exe == file {
		return errors.New("it is the program itself")
	}
	return renew(mem, maps, file)
}

// renew changes all images of a file that a process has mapped, or none.
func renew(mem memory, maps []mapping, file string) error {
	var plans []plan
	for _, m := range maps {
		if m.file != file || m.offset != 0 || slices.ContainsFunc(plans, func(p plan) bool { return m.start >= p.low && m.start < p.end }) {
			continue
		}
		if len(plans) == maxImages {
			return fmt.Errorf("it is mapped more than %d times", maxImages)
		}
		p, err := prepare(mem, maps, file, m.start)
		if err != nil {
			return err
		}
		plans = append(plans, p)
	}
	for _, m := range maps {
		inside := func(p plan) bool { return m.start >= p.low && m.end <= p.end }
		if m.file == file && !slices.ContainsFunc(plans, inside) {
			return errors.New("a mapping of the file is of no image")
		}
		// Providers draw from generators of their own. The legacy one has none.
		if strings.Contains(m.file, "/ossl-modules/") && !strings.HasSuffix(m.file, "/legacy.so") {
			return fmt.Errorf("the provider %s may have generators", filepath.Base(m.file))
		}
	}
	if len(plans) == 0 {
		return errors.New("it is not mapped")
	}
	for _, p := range plans {
		if err := claim(mem, maps, p.slot); err != nil {
			return err
		}
	}
	for i, p := range plans {
		if err := p.carryOut(mem); err != nil {
			for _, done := range plans[:i] {
				done.takeBack(mem)
			}
			return err
		}
	}
	return nil
}

// maxClaimed is how many pages behind the entry are written to at most.
const maxClaimed = 1024

// claim writes to each page of the writable mappings that follow the entry's mapping, and
// leaves the content as it is. gVisor (160fafc42237, pkg/sentry/mm/pma.go) keeps pages that
// are shared since a fork in one record, across mappings with different permissions. A
// write to one page gives all of the record the permissions of that page's mapping. The
// entry is in a read-only mapping: after a write to it first, the library's variables would
// be read-only too, and the process would fault without end. So claim writes the variables
// first.
func claim(mem memory, maps []mapping, slot uint64) error {
	at := slices.IndexFunc(maps, func(m mapping) bool { return m.has(slot) })
	if at < 0 {
		return errors.New("the entry for getpid is not mapped")
	}
	pages := 0
	for i := at + 1; i < len(maps) && maps[i].start == maps[i-1].end && maps[i].perms == "rw-p"; i++ {
		for page := maps[i].start; page < maps[i].end; page += pageSize {
			if pages++; pages > maxClaimed {
				return errors.New("too many variables follow its entries")
			}
			b, err := read(mem, page, 1)
			if err == nil {
				err = write(mem, page, b)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// plan is what is to be written for one image, in this order.
type plan struct {
	image
	changes []change
}

type change struct {
	at      uint64
	was, is []byte
}

// prepare looks at an image and says what to write. It writes nothing.
func prepare(mem io.ReaderAt, maps []mapping, file string, base uint64) (p plan, err error) {
	if p.image, err = readImage(mem, maps, file, base); err != nil {
		return p, err
	}
	v, err := p.version(mem)
	if err != nil {
		return p, err
	}
	if !slices.ContainsFunc(measured, func(prefix string) bool { return strings.HasPrefix(v, prefix) }) {
		return p, fmt.Errorf("OpenSSL %s was not measured", v)
	}
	end := p.text.pageEnd()
	if p.text.end > end-functionSize {
		return p, errors.New("there is no room behind its code")
	}
	at := end - functionSize
	padding, err := read(mem, p.text.end, int(end-p.text.end))
	if err != nil {
		return p, err
	}
	rest, was := padding[:len(padding)-functionSize], padding[len(padding)-functionSize:]
	if !zero(rest) {
		return p, errors.New("what is behind its code is used")
	}
	entry, err := read(mem, p.slot, 8)
	if err != nil {
		return p, err
	}
	target := le.Uint64(entry)
	if target == at { // it was renewed before: the key alone is another one
		key := le.Uint32(was[keyAt:])
		if !bytes.Equal(was[:targetAt], function) || le.Uint32(was[markAt:]) != mark || key&(1<<keyShift-1) != 0 || key == 0 || key>>keyShift > keys {
			return p, errors.New("the entry for getpid leads to other code")
		}
		next := le.AppendUint32(nil, (key>>keyShift%keys+1)<<keyShift)
		p.changes = []change{{at + keyAt, was[keyAt:markAt], next}}
		return p, elsewhere(maps, file, le.Uint64(was[targetAt:]))
	}
	if !zero(was) {
		return p, errors.New("what is behind its code is used")
	}
	is := append(slices.Clone(function), make([]byte, functionSize-len(function))...)
	le.PutUint64(is[targetAt:], target)
	le.PutUint32(is[keyAt:], 1<<keyShift)
	le.PutUint32(is[markAt:], mark)
	p.changes = []change{{at, was, is}, {p.slot, entry, le.AppendUint64(nil, at)}}
	return p, elsewhere(maps, file, target)
}

// elsewhere reports an error unless target is in the code of another file: of the C
// library, or of what the dynamic linker found before it. An entry that leads into the
// library itself was not linked yet.
func elsewhere(maps []mapping, file string, target uint64) error {
	if slices.ContainsFunc(maps, func(m mapping) bool {
		return m.has(target) && m.perms == "r-xp" && strings.HasPrefix(m.file, "/") && m.file != file
	}) {
		return nil
	}
	return errors.New("the entry for getpid leads to no code of another library")
}

// carryOut writes the function, and then the entry that leads to it.
func (p plan) carryOut(mem memory) error {
	for i, c := range p.changes {
		if err := write(mem, c.at, c.is); err != nil {
			plan{changes: p.changes[:i+1]}.takeBack(mem)
			return err
		}
	}
	return nil
}

// takeBack undoes carryOut, the last change first: the function stays while the entry leads
// to it.
func (p plan) takeBack(mem memory) {
	for _, c := range slices.Backward(p.changes) {
		if write(mem, c.at, c.was) != nil {
			return
		}
	}
}

// write writes bytes, and looks whether they are there.
func write(mem memory, at uint64, b []byte) error {
	if _, err := mem.WriteAt(b, int64(at)); err != nil {
		return fmt.Errorf("cannot write %d bytes at %#x: %w", len(b), at, err)
	}
	now, err := read(mem, at, len(b))
	if err == nil && !bytes.Equal(now, b) {
		err = fmt.Errorf("what was written at %#x is not there", at)
	}
	return err
}

func zero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }
