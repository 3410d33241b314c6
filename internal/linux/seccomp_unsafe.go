package linux

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A SeccompProgram is a filter in memory of its own, outside Go's heap: it has
// one address for as long as it is open, also in forked children, and is read
// only. The layout is a struct sock_fprog followed by the instructions.
type SeccompProgram struct {
	mem []byte
	len int
}

// NewSeccompProgram copies filter to where the kernel can be pointed at.
func NewSeccompProgram(filter []unix.SockFilter) (*SeccompProgram, error) {
	if len(filter) == 0 || len(filter) > unix.BPF_MAXINSNS {
		return nil, fmt.Errorf("cannot load a filter of %d instructions", len(filter))
	}
	const head, each = unsafe.Sizeof(unix.SockFprog{}), unsafe.Sizeof(unix.SockFilter{})
	mem, err := unix.Mmap(-1, 0, int(head+each*uintptr(len(filter))), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("cannot get memory for a filter: %w", err)
	}
	code := (*unix.SockFilter)(unsafe.Pointer(&mem[head]))
	copy(unsafe.Slice(code, len(filter)), filter)
	*(*unix.SockFprog)(unsafe.Pointer(&mem[0])) = unix.SockFprog{Len: uint16(len(filter)), Filter: code}
	if err := unix.Mprotect(mem, unix.PROT_READ); err != nil {
		unix.Munmap(mem)
		return nil, fmt.Errorf("cannot seal a filter: %w", err)
	}
	return &SeccompProgram{mem, len(filter)}, nil
}

// Prog returns the address of the struct sock_fprog, for
// seccomp(SECCOMP_SET_MODE_FILTER, 0, address) in a forked child, and what
// must be kept alive (and open) until that call was made.
func (p *SeccompProgram) Prog() (address uintptr, keepAlive any) {
	return uintptr(unsafe.Pointer(&p.mem[0])), p
}

// Len returns the number of instructions.
func (p *SeccompProgram) Len() int { return p.len }

// Install puts the filter on the calling thread alone and on what it forks
// and executes from now on. The caller has locked the goroutine to its thread
// and set no_new_privs.
func (p *SeccompProgram) Install() error {
	address, _ := p.Prog()
	if _, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, address); e != 0 {
		return fmt.Errorf("cannot install a filter: %w", e)
	}
	return nil
}

// Close gives the memory back. The address is dead from then on.
func (p *SeccompProgram) Close() error {
	mem := p.mem
	p.mem = nil
	if mem == nil {
		return nil
	}
	return unix.Munmap(mem)
}
