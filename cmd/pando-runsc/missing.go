package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"gvisor.dev/gvisor/pkg/eventchannel"
	"gvisor.dev/gvisor/pkg/sentry/arch/registers_go_proto"
	"gvisor.dev/gvisor/pkg/sentry/unimpl/unimplemented_syscall_go_proto"
)

// missing writes a line into gVisor's log for users whenever a program makes a
// system call that the application kernel does not have: its number and its
// arguments, in decimal. gVisor itself writes only the first use of each call in the
// kernel's life, which is not enough to know the calls of one of many programs. There
// are at most a hundred lines a second, after the first thousand: gVisor reports no more.
type missing struct {
	fd int // non-blocking: a slow reader stops no program
}

// tellMissing begins that in the process that gets the log.
func tellMissing() error {
	for _, a := range os.Args {
		v, ok := strings.CutPrefix(a, "--user-log-fd=")
		if !ok {
			continue
		}
		fd, err := strconv.Atoi(v)
		if err == nil {
			err = unix.SetNonblock(fd, true)
		}
		if err != nil {
			return fmt.Errorf("cannot write to the log for users: %w", err)
		}
		eventchannel.AddEmitter(missing{fd})
		watch{fd: fd}.begin()
		(&processes{fd: fd}).begin()
	}
	return nil
}

// Emit implements eventchannel.Emitter.
func (m missing) Emit(msg proto.Message) (hangup bool, err error) {
	u, ok := msg.(*unimplemented_syscall_go_proto.UnimplementedSyscall)
	if !ok {
		return false, nil
	}
	var r []uint64
	switch a := u.GetRegisters().GetArch().(type) {
	case *registers_go_proto.Registers_Amd64:
		r = []uint64{a.Amd64.OrigRax, a.Amd64.Rdi, a.Amd64.Rsi, a.Amd64.Rdx}
	case *registers_go_proto.Registers_Arm64:
		r = []uint64{a.Arm64.R8, a.Arm64.R0, a.Arm64.R1, a.Arm64.R2}
	default:
		return false, nil
	}
	unix.Write(m.fd, fmt.Appendf(nil, "%d %d %d %d\n", r[0], r[1], r[2], r[3])) // lines without room are lost
	return false, nil
}

// Close implements eventchannel.Emitter.
func (missing) Close() error { return nil }
