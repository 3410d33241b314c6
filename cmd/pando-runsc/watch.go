package main

import (
	"encoding/binary"
	"net/netip"
	"strconv"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/sentry/seccheck"
	pb "gvisor.dev/gvisor/pkg/sentry/seccheck/points/points_go_proto"
)

// watch writes executed programs and failed connections into gVisor's log for users, a line
// each:
//
//	exec "/usr/bin/env"   the program's file, with every link resolved
//	away                  connect found no route, or a program asked this machine for names
//
// The reader knows the denied programs and the cells without a network.
type watch struct {
	seccheck.SinkDefaults
	fd int
}

// begin registers the sink, before there is a kernel.
func (w watch) begin() {
	connect := seccheck.GetPointForSyscall(seccheck.SyscallExit, unix.SYS_CONNECT)
	seccheck.Global.AppendSink(w, []seccheck.PointReq{{Pt: seccheck.PointExecve}, {Pt: connect}})
}

// Name implements seccheck.Sink.
func (watch) Name() string { return "pando" }

// Execve implements seccheck.Sink.
func (w watch) Execve(_ context.Context, _ seccheck.FieldSet, info *pb.ExecveInfo) error {
	w.tell("exec " + strconv.Quote(info.GetBinaryPath()))
	return nil
}

// Syscall implements seccheck.Sink.
func (w watch) Syscall(_ context.Context, _ seccheck.FieldSet, _ *pb.ContextData, _ pb.MessageType, msg proto.Message) error {
	if c, ok := msg.(*pb.Connect); ok && away(c.GetAddress(), unix.Errno(c.GetExit().GetErrorno())) {
		w.tell("away")
	}
	return nil
}

func (w watch) tell(line string) { unix.Write(w.fd, []byte(line+"\n")) } // lines without room are lost

// away reports whether a connect to a Linux socket address that ended with errno was to the
// outside: there was no route, or it was to a resolver on loopback, the default of a program
// without a configured one.
func away(address []byte, errno unix.Errno) bool {
	if len(address) < 8 {
		return false
	}
	var to netip.Addr
	switch binary.NativeEndian.Uint16(address) {
	case unix.AF_INET:
		to = netip.AddrFrom4([4]byte(address[4:]))
	case unix.AF_INET6:
		if len(address) < 24 {
			return false
		}
		to = netip.AddrFrom16([16]byte(address[8:])).Unmap()
	default:
		return false
	}
	if errno == unix.ENETUNREACH || errno == unix.EHOSTUNREACH {
		return true
	}
	return to.IsLoopback() && binary.BigEndian.Uint16(address[2:]) == 53
}
