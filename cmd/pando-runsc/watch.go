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

// watch writes into gVisor's log for users what programs execute and whom they can't
// reach, a line each:
//
//	exec "/usr/bin/env"   the file that a program began with, every link followed
//	away                  connect found no way there, or asked this machine for names
//
// What is denied and who has no network the reader knows.
type watch struct {
	seccheck.SinkDefaults
	fd int
}

// begin registers it, before there is a kernel.
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

func (w watch) tell(line string) { unix.Write(w.fd, []byte(line+"\n")) } // what finds no room is lost

// away reports whether a connect to a socket address of Linux that ended with errno
// was to somebody outside: there was no way, or it was to a resolver on loopback,
// where a program looks for one that was told of none.
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
