package fuseproxy

import (
	"strings"

	"golang.org/x/sys/unix"
)

const maxXattr = 64 << 10

// shared reports whether a guest may use an extended attribute: user attributes and file
// capabilities. Others are for the host's kernel: marks of overlays, labels, and access lists,
// which the guest's kernel would not enforce.
func shared(name string) bool {
	return strings.HasPrefix(name, "user.") || name == "security.capability"
}

func (s *Server) xattr(r *request, a *answer) unix.Errno {
	var size, flags uint32
	var name string
	var value []byte
	switch r.op {
	case opSetxattr:
		size, flags = r.u32(), r.u32()
		name = r.text()
		value = r.take(int(size))
	case opGetxattr:
		size, _ = r.u32(), r.u32()
		name = r.text()
	case opListxattr:
		size, _ = r.u32(), r.u32()
	case opRemovexattr:
		name = r.text()
	}
	switch {
	case r.bad:
		return unix.EINVAL
	case len(name) > maxName:
		return unix.ERANGE
	case r.op == opSetxattr && size > maxXattr:
		return unix.E2BIG
	case r.op != opListxattr && !shared(name):
		return unix.EOPNOTSUPP
	}
	_, fd, e := s.place(r.node)
	if e != 0 {
		return e
	}
	defer unix.Close(fd)
	path := opened(fd)
	switch r.op {
	case opSetxattr:
		return errnoOf(unix.Setxattr(path, name, value, int(flags)))
	case opRemovexattr:
		return errnoOf(unix.Removexattr(path, name))
	case opListxattr:
		return s.listxattr(path, size, a)
	}
	if size == 0 {
		n, err := unix.Getxattr(path, name, nil)
		if err != nil {
			return errnoOf(err)
		}
		a.u32(uint32(n))
		a.u32(0)
		return 0
	}
	room := int(min(size, maxXattr))
	b := a.room(room)
	n, err := unix.Getxattr(path, name, b)
	if err != nil {
		return errnoOf(err)
	}
	a.cut(room, n)
	return 0
}

func (s *Server) listxattr(path string, size uint32, a *answer) unix.Errno {
	buf := make([]byte, maxXattr)
	n, err := unix.Listxattr(path, buf)
	if err != nil {
		return errnoOf(err)
	}
	var all string
	for name := range strings.SplitSeq(string(buf[:n]), "\x00") {
		if name != "" && shared(name) {
			all += name + "\x00"
		}
	}
	switch {
	case size == 0:
		a.u32(uint32(len(all)))
		a.u32(0)
	case len(all) > int(size):
		return unix.ERANGE
	default:
		a.text(all)
	}
	return 0
}
