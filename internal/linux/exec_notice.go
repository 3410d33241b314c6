package linux

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// ExecNotices returns why processes can't be observed here when they execute programs, nil if they can. It
// needs seccomp notifications that only a fatal signal interrupts, Linux 5.19: otherwise each
// signal to the process would make the call twice.
func ExecNotices() error {
	// The kernel looks at the flags before it looks at the filter, which is not there.
	if err := setFilter(noticeFlags, 0); err != unix.EFAULT {
		return errors.New("the kernel has no seccomp notifications that wait for a listener (Linux 5.19)")
	}
	return nil
}

const noticeFlags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV

// ExecNoticeFilter returns a filter that has execve(2) and execveat(2) wait for a listener, and allows
// everything. The kernel takes the most restrictive of all filters: one that refuses a call goes before it.
func ExecNoticeFilter() []unix.SockFilter {
	nums := SeccompNumbers(NativeArch)
	jump := func(k uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jt: yes, Jf: no}
	}
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	ret := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	return []unix.SockFilter{
		load(dataArch), jump(uint32(NativeArch), 0, 3),
		load(dataNR), jump(uint32(nums["execve"]), 2, 0), jump(uint32(nums["execveat"]), 1, 0),
		ret(unix.SECCOMP_RET_ALLOW), ret(unix.SECCOMP_RET_USER_NOTIF),
	}
}

// ListenOp is the call of a script that hands a listener over.
const ListenOp = "hand over the listener of seccomp"

// listenFD is the child's number of the listener while it hands it over.
const listenFD = 97

// Listen installs a filter of ExecNoticeFilter, and sends its listener through socket, which it closes. Where
// the kernel refuses the filter nothing is sent. The socket must be among the files that the child kept.
func (s *Script) Listen(filter *SeccompProgram, socket *os.File) {
	address, _ := filter.Prog()
	listener := s.Try("listen to execve", unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, noticeFlags, address)
	first := len(s.ops)
	s.Call(ListenOp, unix.SYS_DUP3, listener, listenFD, unix.O_CLOEXEC)
	s.Call(ListenOp, unix.SYS_SENDMSG, int(socket.Fd()), messageWithFile(s, listenFD), unix.MSG_NOSIGNAL)
	s.Call(ListenOp, unix.SYS_CLOSE, listener)
	s.Call(ListenOp, unix.SYS_CLOSE, listenFD)
	for i := first; i < len(s.ops); i++ {
		s.ops[i].needs = listener + 1
	}
	s.Call("close", unix.SYS_CLOSE, int(socket.Fd()))
}

// ReceiveFile waits for a file that is sent through a socket, and returns nil when there comes none.
func ReceiveFile(socket *os.File) *os.File {
	var b [1]byte
	oob := make([]byte, unix.CmsgSpace(4))
	for {
		_, n, _, _, err := unix.Recvmsg(int(socket.Fd()), b[:], oob, unix.MSG_CMSG_CLOEXEC)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil
		}
		messages, err := unix.ParseSocketControlMessage(oob[:n])
		if err != nil || len(messages) == 0 {
			return nil
		}
		if fds, err := unix.ParseUnixRights(&messages[0]); err == nil && len(fds) == 1 {
			return os.NewFile(uintptr(fds[0]), "listener")
		}
		return nil
	}
}

// Bounds of what is read of a process that executes something: it waits meanwhile.
const (
	noticeWords = 256
	noticeWord  = 8 << 10  // bytes of a word
	noticeBytes = 32 << 10 // of all words
	noticePages = 32
)

// An ExecNotice is a process that waits for its execve.
type ExecNotice struct {
	id   uint64
	TID  int // of the thread that calls, in the receiver's PID namespace
	Call ExecCall
	path uint64 // address
}

// ExecCall tells calls apart: of one that fails and the next try of the same search it is the same. Another
// program has its code, words and variables at other addresses, unless it means to deceive.
type ExecCall struct{ At, Words, Vars uint64 }

// Path and Words read what the process asks to execute, as it is in its memory now. more says that not all
// of it was read. A process that has no such memory has none.
func (n *ExecNotice) Read() (path string, words []string, more bool, err error) {
	m := memory{pid: n.TID}
	raw, _, err := m.text(n.path, unix.PathMax)
	if err == unix.EPERM || err == unix.ESRCH {
		return "", nil, true, err
	}
	path = raw
	all := 0
	for i := range uint64(noticeWords + 1) {
		var p [8]byte
		if m.read(n.Call.Words+8*i, p[:]) != nil {
			return path, words, true, nil
		}
		address := native.Uint64(p[:])
		if address == 0 {
			return path, words, more, nil
		}
		if i == noticeWords || all >= noticeBytes {
			break
		}
		w, cut, err := m.text(address, min(noticeWord, noticeBytes-all))
		if err != nil {
			return path, words, true, nil
		}
		more = more || cut
		words, all = append(words, w), all+len(w)
	}
	return path, words, true, nil
}

// memory reads that of a process, a page at a time, and keeps the pages.
type memory struct {
	pid   int
	pages map[uint64][]byte
}

var pageSize = uint64(os.Getpagesize())

func (m *memory) page(address uint64) ([]byte, error) {
	if b := m.pages[address]; b != nil {
		return b, nil
	}
	if len(m.pages) >= noticePages {
		return nil, unix.E2BIG
	}
	b := make([]byte, pageSize)
	local := unix.Iovec{Base: &b[0]}
	local.SetLen(len(b))
	n, err := unix.ProcessVMReadv(m.pid, []unix.Iovec{local}, []unix.RemoteIovec{{Base: uintptr(address), Len: len(b)}}, 0)
	if err != nil {
		return nil, err
	}
	if n != len(b) {
		return nil, unix.EFAULT
	}
	if m.pages == nil {
		m.pages = map[uint64][]byte{}
	}
	m.pages[address] = b
	return b, nil
}

// from returns the bytes of the page of an address from there on.
func (m *memory) from(address uint64) ([]byte, error) {
	b, err := m.page(address &^ (pageSize - 1))
	if err != nil {
		return nil, err
	}
	return b[address&(pageSize-1):], nil
}

func (m *memory) read(address uint64, to []byte) error {
	for len(to) > 0 {
		b, err := m.from(address)
		if err != nil {
			return err
		}
		n := copy(to, b)
		to, address = to[n:], address+uint64(n)
	}
	return nil
}

// text reads up to a NUL, and not more than limit bytes: then it is cut.
func (m *memory) text(address uint64, limit int) (s string, cut bool, err error) {
	var text []byte
	for {
		b, err := m.from(address)
		if err != nil {
			if len(text) > 0 {
				return string(text), true, nil
			}
			return "", false, err
		}
		if end := bytes.IndexByte(b, 0); end >= 0 {
			b = b[:end]
			text = append(text, b...)
			return string(text[:min(len(text), limit)]), len(text) > limit, nil
		}
		text, address = append(text, b...), address+uint64(len(b))
		if len(text) >= limit {
			return string(text[:limit]), true, nil
		}
	}
}

// A ProcessHandle is a process, and no later one of its number.
type ProcessHandle struct {
	FD     int // of the process; below 0 if it could not be opened
	PID    int // 0: it is gone
	Parent int // 0: not known
}

// Process opens the process of a notice. Valid says afterwards that it was that one. FD is below 0 when
// there are no descriptors; PID is known all the same.
func (n *ExecNotice) Process() (h ProcessHandle) {
	h.PID = n.TID
	fd, err := unix.PidfdOpen(n.TID, 0)
	if err == unix.EINVAL || err == unix.ENOENT { // a thread that is not the first
		_, f, err := readStatus(n.TID)
		if err != nil {
			return ProcessHandle{FD: -1}
		}
		h.PID = f
		fd, err = unix.PidfdOpen(h.PID, 0)
		if err != nil {
			fd = -1
		}
	} else if err != nil {
		fd = -1
	}
	h.FD = fd
	if fd >= 0 {
		if info, err := pidfdAbout(fd); err == nil {
			h.Parent = int(info.ppid)
			return h
		}
	}
	h.Parent, _, _ = readStatus(h.PID)
	return h
}

// Still reports whether h is the process of a notice that had the same number before. It brings its
// parent up to date.
func (h *ProcessHandle) Still() bool {
	info, err := pidfdAbout(h.FD)
	if err == unix.ENOTTY { // an older kernel
		if unix.PidfdSendSignal(h.FD, 0, nil, 0) != nil {
			return false
		}
		h.Parent, _, _ = readStatus(h.PID)
		return true
	}
	if err == nil {
		h.Parent = int(info.ppid)
	}
	return err == nil
}

// TellsExits reports whether this kernel tells any process how another one ended: see ExitStatus.
var TellsExits = sync.OnceValue(func() bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	var major, minor int
	fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor)
	return major > 6 || major == 6 && minor >= 15
})

// readStatus reads the parent and the thread group of a thread.
func readStatus(tid int) (parent, group int, err error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(tid) + "/status")
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(b)) {
		switch k, v, _ := strings.Cut(line, ":"); k {
		case "PPid":
			parent, err = strconv.Atoi(strings.TrimSpace(v))
		case "Tgid":
			group, err = strconv.Atoi(strings.TrimSpace(v))
		}
	}
	return parent, group, err
}
