package fuseproxy

import (
	"bytes"
	"encoding/binary"
	"strings"

	"golang.org/x/sys/unix"
)

// Operations of FUSE (include/uapi/linux/fuse.h).
const (
	opLookup        = 1
	opForget        = 2 // without answer
	opGetattr       = 3
	opSetattr       = 4
	opReadlink      = 5
	opSymlink       = 6
	opMknod         = 8
	opMkdir         = 9
	opUnlink        = 10
	opRmdir         = 11
	opRename        = 12
	opLink          = 13
	opOpen          = 14
	opRead          = 15
	opWrite         = 16
	opStatfs        = 17
	opRelease       = 18
	opFsync         = 20
	opSetxattr      = 21
	opGetxattr      = 22
	opListxattr     = 23
	opRemovexattr   = 24
	opInit          = 26
	opOpendir       = 27
	opReaddir       = 28
	opReleasedir    = 29
	opFsyncdir      = 30
	opCreate        = 35
	opInterrupt     = 36 // without answer
	opDestroy       = 38
	opNotifyReply   = 41 // without answer
	opBatchForget   = 42 // without answer
	opFallocate     = 43
	opReaddirplus   = 44
	opRename2       = 45
	opLseek         = 46
	opCopyFileRange = 47
	opSyncfs        = 50

	opBarrier = 0x646e6170 // private: answered when all earlier requests are processed
	opNoticed = 0x646e6171 // private: the kernel has the notices up to a number; without answer
)

// Notices, in the place of an answer's error.
const (
	noticeInode = 2
	noticeEntry = 3
	noticeMark  = 0x6e70 // private: answered with opNoticed
)

// Flags of INIT that the server requests if the kernel has them.
const wanted = 1<<0 | // asynchronous reads
	1<<3 | // OPEN truncates
	1<<5 | // writes larger than a page
	1<<13 | 1<<14 | // READDIRPLUS when useful
	1<<15 | // parallel direct I/O
	1<<16 | // cached writes
	1<<18 | // parallel directory operations
	1<<21 | // ECONNABORTED
	1<<22 | // more pages per request
	1<<23 | // cached symbolic links
	1<<25 | // cached data until invalidated
	1<<28 // the server clears set-user-ID bits on request

const (
	headSize   = 40      // size of a request's header
	outSize    = 16      // size of an answer's header
	maxData    = 1 << 20 // maximum bytes of a read or write
	maxMessage = maxData + 4096 + headSize + 64
	maxName    = 255
	maxLink    = 4095

	openKeepCache = 1 << 1 // FOPEN_KEEP_CACHE
	openCacheDir  = 1 << 3 // FOPEN_CACHE_DIR
)

// answered reports whether an operation has an answer.
func answered(op uint32) bool {
	switch op {
	case opForget, opBatchForget, opInterrupt, opNotifyReply, opNoticed:
		return false
	}
	return true
}

// request is one message of the kernel.
type request struct {
	op       uint32
	unique   uint64
	node     uint64
	uid, gid uint32
	fields
}

// parse parses a message's header; the caller has checked the length.
func parse(b []byte) *request {
	f := fields{b: b}
	f.u32()
	r := &request{op: f.u32(), unique: f.u64(), node: f.u64(), uid: f.u32(), gid: f.u32()}
	f.u64() // pid, extensions
	r.fields = f
	return r
}

// fields parses a body. Missing data reads as zero and is recorded.
type fields struct {
	b   []byte
	bad bool
}

func (f *fields) take(n int) []byte {
	if n < 0 || n > len(f.b) {
		f.bad, f.b = true, nil
		return nil
	}
	b := f.b[:n]
	f.b = f.b[n:]
	return b
}

func (f *fields) u32() uint32 {
	if b := f.take(4); b != nil {
		return binary.NativeEndian.Uint32(b)
	}
	return 0
}

func (f *fields) u64() uint64 {
	if b := f.take(8); b != nil {
		return binary.NativeEndian.Uint64(b)
	}
	return 0
}

// text reads a zero-terminated string.
func (f *fields) text() string {
	i := bytes.IndexByte(f.b, 0)
	if i < 0 {
		f.bad, f.b = true, nil
		return ""
	}
	s := string(f.b[:i])
	f.b = f.b[i+1:]
	return s
}

// name reads a file name.
func (f *fields) name() (string, unix.Errno) {
	s := f.text()
	if f.bad {
		return "", unix.EINVAL
	}
	return s, checkName(s)
}

func checkName(s string) unix.Errno {
	switch {
	case len(s) > maxName:
		return unix.ENAMETOOLONG
	case s == "" || s == "." || s == ".." || strings.ContainsAny(s, "/\x00"):
		return unix.EINVAL
	}
	return 0
}

// answer is an answer: space for the header, then a body.
type answer struct{ b []byte }

func (a *answer) reset() { a.b = append(a.b[:0], make([]byte, outSize)...) }

func (a *answer) u16(v uint16)  { a.b = binary.NativeEndian.AppendUint16(a.b, v) }
func (a *answer) u32(v uint32)  { a.b = binary.NativeEndian.AppendUint32(a.b, v) }
func (a *answer) u64(v uint64)  { a.b = binary.NativeEndian.AppendUint64(a.b, v) }
func (a *answer) text(s string) { a.b = append(a.b, s...) }
func (a *answer) zero(n int)    { a.b = append(a.b, make([]byte, n)...) }

// room appends n bytes and returns them.
func (a *answer) room(n int) []byte {
	have := len(a.b)
	if cap(a.b)-have < n {
		b := make([]byte, have, have+n)
		copy(b, a.b)
		a.b = b
	}
	a.b = a.b[:have+n]
	return a.b[have:]
}

// cut truncates the last room to n bytes.
func (a *answer) cut(room, n int) { a.b = a.b[:len(a.b)-room+n] }

// finish writes the header. With an error there is no body.
func (a *answer) finish(unique uint64, e unix.Errno) []byte {
	if e != 0 {
		a.b = a.b[:outSize]
	}
	return a.head(unique, -int32(e))
}

func (a *answer) head(unique uint64, code int32) []byte {
	binary.NativeEndian.PutUint32(a.b, uint32(len(a.b)))
	binary.NativeEndian.PutUint32(a.b[4:], uint32(code))
	binary.NativeEndian.PutUint64(a.b[8:], unique)
	return a.b
}

// keepFor is how long the kernel may cache attributes, in seconds. Changes on the host are
// visible after that at the latest.
const keepFor = 1

// attr appends a struct fuse_attr.
func (a *answer) attr(ino uint64, x *unix.Statx_t) {
	a.u64(ino)
	a.u64(x.Size)
	a.u64(x.Blocks)
	a.u64(uint64(x.Atime.Sec))
	a.u64(uint64(x.Mtime.Sec))
	a.u64(uint64(x.Ctime.Sec))
	a.u32(x.Atime.Nsec)
	a.u32(x.Mtime.Nsec)
	a.u32(x.Ctime.Nsec)
	a.u32(uint32(x.Mode))
	a.u32(x.Nlink)
	a.u32(x.Uid)
	a.u32(x.Gid)
	a.u32(x.Rdev_minor&0xff | x.Rdev_major<<8 | x.Rdev_minor&^0xff<<12)
	a.u32(x.Blksize)
	a.u32(0)
}

// entry appends a struct fuse_entry_out; a nil node caches that the name is absent.
func (a *answer) entry(n *node, x *unix.Statx_t) {
	if n == nil {
		a.u64(0)
		a.u64(0)
		a.u64(keepFor)
		a.zero(128 - 24)
		return
	}
	a.u64(n.id)
	a.u64(0)
	a.u64(keepFor)
	a.u64(keepFor)
	a.u64(0)
	a.attr(n.ino, x)
}
