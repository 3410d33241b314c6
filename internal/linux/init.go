package linux

import (
	"encoding/binary"
	"os"
)

// InitProgram returns an executable file in memory that only waits: the first process of a
// cell's pid namespace. The caller must set SIGCHLD to be ignored before it executes the
// file; then the kernel reaps inherited orphans, and the program is no more than a loop
// around one system call.
//
// The file is an ELF executable of one segment: header, program header, code.
func InitProgram() (*os.File, error) {
	f, err := MemoryFile("pando-init", true)
	if err != nil {
		return nil, err
	}
	if _, err := f.Write(initELF()); err != nil {
		f.Close()
		return nil, err
	}
	// Executable and not readable: a process of such a file is not dumpable, so
	// that the cell's others see nothing of it in /proc.
	if err := f.Chmod(0o111); err != nil {
		f.Close()
		return nil, err
	}
	if err := Seal(f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// initELF lays the file out as in elf(5).
func initELF() []byte {
	const base, headers = 0x400000, 64 + 56
	le := binary.LittleEndian
	b := []byte{0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	b = le.AppendUint16(b, 2) // ET_EXEC
	b = le.AppendUint16(b, initMachine)
	b = le.AppendUint32(b, 1)
	b = le.AppendUint64(b, base+headers) // entry
	b = le.AppendUint64(b, 64)           // program headers
	b = le.AppendUint64(b, 0)            // no section headers
	b = le.AppendUint32(b, 0)
	b = le.AppendUint16(b, 64)
	b = le.AppendUint16(b, 56)
	b = le.AppendUint16(b, 1)
	b = le.AppendUint16(b, 0)
	b = le.AppendUint16(b, 0)
	b = le.AppendUint16(b, 0)
	size := uint64(headers + len(initCode))
	b = le.AppendUint32(b, 1) // PT_LOAD
	b = le.AppendUint32(b, 5) // readable, executable
	b = le.AppendUint64(b, 0)
	b = le.AppendUint64(b, base)
	b = le.AppendUint64(b, base)
	b = le.AppendUint64(b, size)
	b = le.AppendUint64(b, size)
	b = le.AppendUint64(b, 0x10000)
	return append(b, initCode...)
}
