package linux

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// smallProgram writes a 64-bit executable that consists of code.
func smallProgram(t *testing.T, code []byte) string {
	t.Helper()
	const base, head = 0x400000, 64 + 56
	var b bytes.Buffer
	b.Write([]byte{0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	put := func(vs ...any) {
		for _, v := range vs {
			binary.Write(&b, binary.LittleEndian, v)
		}
	}
	put(uint16(2), uint16(62), uint32(1), uint64(base+head), uint64(64), uint64(0), uint32(0), uint16(64), uint16(56), uint16(1), uint16(0), uint16(0), uint16(0))
	put(uint32(1), uint32(5), uint64(0), uint64(base), uint64(base), uint64(head+len(code)), uint64(head+len(code)), uint64(4096))
	b.Write(code)
	name := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(name, b.Bytes(), 0o755); err != nil {
		t.Fatal(err)
	}
	return name
}

// A call through the 32-bit entry ends the process with SIGSYS; an x32 call
// fails with ENOSYS.
func TestSeccompForeignEntries(t *testing.T) {
	exit := []byte{0x89, 0xc7, 0xf7, 0xdf, 0xb8, 60, 0, 0, 0, 0x0f, 0x05} // exit(-eax)
	int80 := smallProgram(t, append([]byte{0xb8, 20, 0, 0, 0, 0xcd, 0x80, 0x31, 0xc0}, exit...))
	x32 := smallProgram(t, append([]byte{0xb8, 39, 0, 0, 0x40, 0x0f, 0x05}, exit...))

	signalOf := func(err error) syscall.Signal {
		if e, ok := errors.AsType[*exec.ExitError](err); ok {
			return e.Sys().(syscall.WaitStatus).Signal()
		}
		return -1
	}
	t.Run("int80", func(t *testing.T) {
		if err := exec.Command(int80).Run(); err != nil {
			t.Skipf("needs a kernel with 32-bit calls: %v", err)
		}
		if err := seccompChild(t, seccompJob{Exec: []string{int80}}).Run(); signalOf(err) != syscall.SIGSYS {
			t.Errorf("int 0x80: %v, want SIGSYS", err)
		}
	})
	err := seccompChild(t, seccompJob{Exec: []string{x32}}).Run()
	if e, ok := errors.AsType[*exec.ExitError](err); !ok || e.ExitCode() != int(syscall.ENOSYS) {
		t.Errorf("x32: %v, want ENOSYS", err)
	}
}
