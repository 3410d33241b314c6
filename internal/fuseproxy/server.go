package fuseproxy

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/pando-dev/pando/internal/cell"
)

// Options limit what a guest can make a server allocate. Zero means the default.
type Options struct {
	MaxNodes   int   // files known to the guest's kernel; 1,048,576
	MaxHandles int   // open files and directories; 65,536, and at most the process's limit
	MaxAbsent  int   // names that the guest's kernel may cache as absent; 262,144
	MaxListed  int   // names in listings in progress; 4,194,304
	MaxKept    int64 // bytes of deleted files that Save copies; 1 GiB
	Workers    int   // concurrent requests; 6
	Devices    bool  // whether the guest may create devices and whiteouts
}

func (o *Options) defaults() {
	for _, x := range []struct {
		p *int
		v int
	}{{&o.MaxNodes, 1 << 20}, {&o.MaxHandles, 1 << 16}, {&o.MaxAbsent, 1 << 18}, {&o.MaxListed, 1 << 22}, {&o.Workers, 6}} {
		if *x.p <= 0 {
			*x.p = x.v
		}
	}
	if o.MaxKept <= 0 {
		o.MaxKept = 1 << 30
	}
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err == nil && lim.Cur < 1<<30 {
		o.MaxHandles = min(o.MaxHandles, max(int(lim.Cur)-128, 16))
	}
}

// A Server serves the files below a directory to one kernel. Its methods are safe for
// concurrent use.
type Server struct {
	root     *os.File
	opts     Options
	uid, gid int

	tree sync.RWMutex
	mu   sync.Mutex

	nodes      map[uint64]*node
	keys       map[key]*node
	handles    map[uint64]*handle
	devices    map[[2]uint64]uint64
	nextNode   uint64
	nextHandle uint64
	nextDevice uint64
	absent     int

	listed  atomic.Int64
	kept    atomic.Bool // hidden names of a Save exist
	hidden  []place     // guarded by mu
	line    *line       // guarded by mu
	mark    uint64      // guarded by mu
	reached map[uint64]chan struct{}

	counted  map[string]*int64 // guarded by mu: executions by path
	executed map[key]*int64    // guarded by mu: the same counters by file
}

// New returns a server of the files below root, a directory that must stay open while the
// server is used. The process needs /proc, and should have the file capabilities of the owners.
func New(root *os.File, opts Options) (*Server, error) {
	if !proc() {
		return nil, cell.Errorf(cell.Unsupported, "fuseproxy.New", "", "cannot serve files: there is no /proc to reopen them")
	}
	opts.defaults()
	s := &Server{root: root, opts: opts, uid: os.Geteuid(), gid: os.Getegid(),
		nodes: map[uint64]*node{}, keys: map[key]*node{}, handles: map[uint64]*handle{}, devices: map[[2]uint64]uint64{},
		nextNode: rootNode, reached: map[uint64]chan struct{}{}, counted: map[string]*int64{}, executed: map[key]*int64{}}
	var x unix.Statx_t
	if e := stat(int(root.Fd()), "", &x); e != 0 {
		return nil, &os.PathError{Op: "statx", Path: root.Name(), Err: e}
	}
	if !isDir(x.Mode) {
		return nil, &os.PathError{Op: "serve", Path: root.Name(), Err: unix.ENOTDIR}
	}
	k := keyOf(&x)
	n := &node{id: rootNode, ino: s.told(k.dev, k.ino), kind: unix.S_IFDIR, lookups: 1, key: k}
	s.nodes[n.id], s.keys[k] = n, n
	return s, nil
}

// line is a connection.
type line struct {
	rmu sync.Mutex
	in  *bufio.Reader
	err error
	wmu sync.Mutex
	out io.Writer
}

// next reads a message into buf, and returns buf, perhaps enlarged.
func (l *line) next(buf []byte) ([]byte, error) {
	if l.err != nil {
		return buf, l.err
	}
	head, err := l.in.Peek(4)
	if err != nil {
		if len(head) > 0 && errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return buf, err
	}
	n := int(binary.NativeEndian.Uint32(head))
	if n < headSize || n > maxMessage {
		return buf, cell.Errorf(cell.Corrupt, "fuseproxy.Serve", "", "cannot serve files: a request says that it has %d bytes", n)
	}
	if cap(buf) < n {
		buf = make([]byte, n, max(n, 8<<10))
	}
	buf = buf[:n]
	if _, err = io.ReadFull(l.in, buf); errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return buf, err
}

func (l *line) send(b []byte) error {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	_, err := l.out.Write(b)
	return err
}

// Serve answers requests from conn until EOF between two messages, which is no error. A server
// serves one connection at a time. Files stay open when it returns, and another connection can
// continue.
func (s *Server) Serve(conn io.ReadWriter) error {
	l := &line{in: bufio.NewReaderSize(conn, 64<<10), out: conn}
	s.mu.Lock()
	if s.line != nil {
		s.mu.Unlock()
		return cell.Errorf(cell.Conflict, "fuseproxy.Serve", "", "cannot serve files: the server has a connection")
	}
	s.line = l
	s.mu.Unlock()
	var all sync.WaitGroup
	for range s.opts.Workers {
		all.Go(func() { s.work(l) })
	}
	all.Wait()
	s.mu.Lock()
	s.line = nil
	s.mu.Unlock()
	if errors.Is(l.err, io.EOF) {
		return nil
	}
	return l.err
}

// Close closes open files and removes the hidden names of Save. Serve must have returned.
func (s *Server) Close() error {
	s.takeAway()
	s.mu.Lock()
	all := s.handles
	s.handles = map[uint64]*handle{}
	s.mu.Unlock()
	for _, h := range all {
		s.shut(h)
	}
	return nil
}

// work reads and answers requests. After reading one it lets the next worker read.
func (s *Server) work(l *line) {
	var in []byte
	var out answer
	for {
		l.rmu.Lock()
		var err error
		if in, err = l.next(in); err != nil {
			l.err = err
			l.rmu.Unlock()
			return
		}
		// Requests without an answer are processed at once, in order: a barrier sent after one
		// implies that it was processed.
		if op := binary.NativeEndian.Uint32(in[4:]); !answered(op) {
			s.handle(in, &out)
			l.rmu.Unlock()
			continue
		}
		l.rmu.Unlock()
		if err := l.send(s.handle(in, &out)); err != nil {
			l.rmu.Lock()
			if l.err == nil {
				l.err = err
			}
			l.rmu.Unlock()
			return
		}
		if cap(in) > 128<<10 && cap(out.b) > 128<<10 {
			out.b = nil // a worker keeps one large buffer, not two
		}
	}
}

// handle processes a message. The result is empty if there is no answer.
func (s *Server) handle(msg []byte, a *answer) []byte {
	a.reset()
	if len(msg) < headSize {
		return nil
	}
	if s.kept.Load() {
		s.takeAway()
	}
	r := parse(msg)
	e := s.do(r, a)
	if !answered(r.op) {
		return nil
	}
	return a.finish(r.unique, e)
}

func (s *Server) do(r *request, a *answer) unix.Errno {
	switch r.op {
	case opLookup:
		return s.lookup(r, a)
	case opForget:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.forget(r.node, r.u64())
		return 0
	case opBatchForget:
		return s.batchForget(r)
	case opGetattr:
		return s.getattr(r, a)
	case opSetattr:
		return s.setattr(r, a)
	case opReadlink:
		return s.readlink(r, a)
	case opSymlink, opMknod, opMkdir, opLink:
		return s.create(r, a)
	case opCreate:
		return s.createFile(r, a)
	case opUnlink, opRmdir:
		return s.remove(r)
	case opRename, opRename2:
		return s.rename(r)
	case opOpen:
		return s.open(r, a)
	case opOpendir:
		return s.opendir(r, a)
	case opRead:
		return s.read(r, a)
	case opWrite:
		return s.write(r, a)
	case opRelease:
		return s.release(r.u64(), false)
	case opReleasedir:
		return s.release(r.u64(), true)
	case opReaddir, opReaddirplus:
		return s.readdir(r, a)
	case opStatfs:
		return s.statfs(r, a)
	case opFsync, opFsyncdir, opSyncfs:
		return s.sync(r)
	case opFallocate:
		return s.fallocate(r)
	case opLseek:
		return s.lseek(r, a)
	case opCopyFileRange:
		return s.copyRange(r, a)
	case opSetxattr, opGetxattr, opListxattr, opRemovexattr:
		return s.xattr(r, a)
	case opInit:
		return s.start(r, a)
	case opDestroy, opBarrier, opInterrupt, opNotifyReply:
		return 0
	case opNoticed:
		s.noticed(r.u64())
		return 0
	}
	return unix.ENOSYS // FLUSH, ACCESS, locks, TMPFILE: the kernel does not ask again
}

// start implements INIT.
func (s *Server) start(r *request, a *answer) unix.Errno {
	major, minor, ahead, flags := r.u32(), r.u32(), r.u32(), r.u32()
	if r.bad || major < 7 || major == 7 && minor < 33 {
		return unix.EPROTO
	}
	a.u32(7)
	a.u32(33)
	if major > 7 {
		a.zero(64 - 8) // the kernel repeats it with our version
		return 0
	}
	a.u32(min(ahead, maxData))
	a.u32(flags & wanted)
	a.u16(64) // maximum number of background requests
	a.u16(48) // number above which that is congested
	a.u32(maxData)
	a.u32(1) // time granularity in nanoseconds
	a.u16(maxData / 4096)
	a.zero(64 - 30)
	return 0
}

func (s *Server) batchForget(r *request) unix.Errno {
	count := r.u32()
	r.u32()
	s.mu.Lock()
	defer s.mu.Unlock()
	for range count {
		id, n := r.u64(), r.u64()
		if r.bad {
			return unix.EINVAL
		}
		s.forget(id, n)
	}
	return 0
}
