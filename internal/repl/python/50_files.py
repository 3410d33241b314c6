# Descriptors: what a fork can't share with what it was forked from, and how each
# is put back.

import fcntl
import gc
import stat
import struct

set_flag, lock_record, lock_file, control_device = fcntl.fcntl, fcntl.lockf, fcntl.flock, fcntl.ioctl
get_timer, set_timer = _signal.getitimer, _signal.setitimer
TIMERS = (_signal.ITIMER_REAL, _signal.ITIMER_VIRTUAL, _signal.ITIMER_PROF)
F_OFD_SETLK = 37
FLOCK = struct.Struct("hh4xqqi4x")  # struct flock, where off_t has 64 bits

O_PATH = getattr(os, "O_PATH", 0o10000000)
ONCE = os.O_TRUNC | os.O_CREAT | os.O_EXCL | os.O_NOCTTY  # of flags: not again
OWN = EVAL_FD + 1  # descriptors below are this end's


class Open:
    """One descriptor, as it was."""

    def __init__(self, fd):
        st = os.fstat(fd)
        self.fd, self.inode, self.device, self.mode, self.semaphore = fd, st.st_ino, st.st_dev, st.st_mode, False
        self.link = os.readlink("/proc/self/fd/%d" % fd)
        self.keep = os.get_inheritable(fd)
        self.flags = self.offset = self.count = self.unread = 0
        self.path, self.info, self.deleted, self.locks, self.first = "", None, False, [], None
        for line in read("/proc/self/fdinfo/%d" % fd).splitlines():
            if line.startswith("flags:"):
                self.flags = int(line.split()[1], 8) & ~os.O_CLOEXEC
            elif line.startswith("tfd:"):
                words = line.replace(":", " ").split()
                w = dict(zip(words[0::2], words[1::2]))
                self.info = (self.info or []) + [(int(w["tfd"]), int(w["events"], 16), int(w["data"], 16))]
            elif line.startswith("lock:"):
                self.locks.append(lock_of(line.split()))
            elif line.startswith("eventfd-count:"):
                self.count = int(line.split()[1], 16)
            elif line.startswith("eventfd-semaphore:"):
                self.semaphore = line.split()[1] != "0"
        mode = st.st_mode
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISCHR(mode) or stat.S_ISBLK(mode) or self.flags & O_PATH:
            self.kind, self.path = "file", self.link
            self.deleted = stat.S_ISREG(mode) and st.st_nlink == 0
            self.written = stat.S_ISREG(mode) and self.flags & os.O_ACCMODE != os.O_RDONLY and not self.flags & O_PATH
            if stat.S_ISREG(mode) and not self.flags & O_PATH:
                self.offset = os.lseek(fd, 0, os.SEEK_CUR)
        else:
            self.written = False
            self.kind = "pipe" if stat.S_ISFIFO(mode) else "socket" if stat.S_ISSOCK(mode) else self.link
            if self.kind in ("pipe", "socket") and self.flags & os.O_ACCMODE != os.O_WRONLY:
                self.unread = unread(fd)
            if self.kind == "socket":
                self.socket(fd)

    def socket(self, fd):
        """What a socket is called, and whether its other end may be ours, too."""
        s = _socket.socket(fileno=os.dup(fd))
        try:
            self.name, own = "socket", ""
            for ask in (s.getsockname, s.getpeername):
                try:
                    own = address(ask())
                except OSError:
                    own = ""
                if own:
                    self.name = "socket " + own
            self.pair = False
            if s.family == _socket.AF_UNIX and self.name == "socket":
                pid = struct.unpack("3i", s.getsockopt(_socket.SOL_SOCKET, 17, 12))[0]  # SO_PEERCRED
                self.pair = pid in (0, os.getpid())  # 0: what this process was before it was branched
            self.type = s.type
        finally:
            s.close()

    def place(self, fd):
        """Make the open fd this descriptor."""
        if fd != self.fd:
            os.dup2(fd, self.fd, inheritable=self.keep)
            os.close(fd)
        elif self.keep:
            os.set_inheritable(fd, True)

    def reopen(self):
        if self.first is not None:
            self.place(os.dup(self.first))
            return
        fd = os.open(self.path, self.flags & ~ONCE)
        if self.offset:
            os.lseek(fd, self.offset, os.SEEK_SET)
        self.place(fd)

    def reopens(self):
        """Whether this process may open the file again."""
        access = self.flags & os.O_ACCMODE
        need = (os.R_OK if access != os.O_WRONLY else 0) | (os.W_OK if access != os.O_RDONLY else 0)
        return bool(self.flags & O_PATH) or os.access(self.path, need, effective_ids=os.access in os.supports_effective_ids)

    def lock(self):
        """Take the locks again that this descriptor showed. The locks of records belong
        to the process: any descriptor of the file with the right access takes them."""
        access = self.flags & os.O_ACCMODE
        for kind, write, start, length in self.locks:
            if kind == "POSIX":
                if access != (os.O_RDONLY if write else os.O_WRONLY):
                    lock_record(self.fd, (fcntl.LOCK_EX if write else fcntl.LOCK_SH) | fcntl.LOCK_NB, length, start)
            elif kind == "OFDLCK":
                if self.first is None:
                    set_flag(self.fd, F_OFD_SETLK, FLOCK.pack(fcntl.F_WRLCK if write else fcntl.F_RDLCK, os.SEEK_SET, start, length, 0))
            elif kind == "FLOCK":
                if self.first is None:
                    lock_file(self.fd, (fcntl.LOCK_EX if write else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            else:
                raise OSError(0, "a lock of the kind %s cannot be taken again" % kind)


def lock_of(words):
    """One line of fdinfo: lock: 1: POSIX ADVISORY WRITE 17 fe:00:4711 0 EOF."""
    start, end = int(words[-2]), words[-1]
    return words[2], words[4] == "WRITE", start, 0 if end == "EOF" else int(end) - start + 1


def lock_again(opened, failed):
    """Take the locks of descriptors again, after all of them are in their places: a
    process that closes any descriptor of a file loses its record locks on it."""
    for o in opened:
        if o.locks:
            try:
                o.lock()
            except OSError as e:
                failed.append("lock on %s: %s" % (o.path, e.strerror))


def shared_offsets(opened):
    """Find out which descriptors of a file are copies of another (dup): these share one
    offset and one lock, and do so again when they are opened again."""
    seen = {}
    for o in opened:
        if o.kind == "file" and not o.flags & O_PATH and stat.S_ISREG(o.mode):
            seen.setdefault((o.device, o.inode, o.flags, o.offset), []).append(o)
    for alike in seen.values():
        while len(alike) > 1:
            first, rest = alike[0], alike[1:]
            os.lseek(first.fd, first.offset + 1, os.SEEK_SET)
            alike = []
            for o in rest:
                if os.lseek(o.fd, 0, os.SEEK_CUR) == first.offset + 1:
                    o.first = first.fd
                else:
                    alike.append(o)
            os.lseek(first.fd, first.offset, os.SEEK_SET)


FIONREAD = 0x541B


def unread(fd):
    """Bytes that wait to be read; 0 where nothing can, as in a socket that listens."""
    try:
        return struct.unpack("i", control_device(fd, FIONREAD, bytes(4)))[0]
    except OSError:
        return 0


def address(a):
    if isinstance(a, bytes):
        return "@" + a[1:].decode("utf-8", "replace")
    if isinstance(a, tuple) and len(a) >= 2:
        return ("[%s]:%s" if ":" in str(a[0]) else "%s:%s") % (a[0], a[1]) if a[1] else ""
    return str(a) if a else ""


def read(path):
    try:
        with open(path, errors="replace") as f:
            return f.read()
    except OSError:
        return ""


def descriptors():
    """Every descriptor that is not this end's own, as it is now."""
    found = []
    for n in os.listdir("/proc/self/fd"):
        if int(n) >= OWN:
            try:
                found.append(Open(int(n)))
            except OSError:
                pass  # the listing's own
    return sorted(found, key=lambda o: o.fd)


@one
class Held:
    files = {}  # by number: let go of
    plan = None  # descriptors of a trunk, which don't change any more
    timers = []  # interval timers that ran: which, what was left, interval
    at = 0.0  # when they were stopped
    settings = {}  # of prctl: what a fork does not inherit


def hold(req, _):
    """Let go of files that are open for writing: nothing is written through this
    process any more until "resume"."""
    now = descriptors()
    if Held.plan is None:
        shared_offsets(now)
        refuse_unreopenable(now)
        stop_timers()
    known_files = {o.fd: o for o in now}
    for o in now:
        if o.written and o.fd not in Held.files:
            null = os.open("/dev/null", os.O_RDONLY)
            o.place(null)
            Held.files[o.fd] = o
    if Held.plan is None:
        try:
            if not cannot_fork():
                prepare(bool(req.get("collect")))
        except BaseException:
            Held.plan = plan(known_files)
            resume(req, ())
            raise
        gc.freeze()  # what is there now is never looked at again, and so never copied
    Held.plan = plan(known_files)
    return {"held": [{"fd": o.fd, "path": o.path, "flags": o.flags, "offset": o.offset} for o in Held.files.values()]}


def refuse_unreopenable(opened):
    for o in opened:
        if o.kind == "file" and o.written and not o.reopens():
            raise Refused("it could not open %s again, which it has open for writing" % o.path)


def stop_timers():
    """Interval timers belong to the process that goes on, and would signal this one."""
    Held.at, Held.timers = clock(), []
    for which in TIMERS:
        # The kernel starts an interval again when its signal is taken: one that is due in this
        # moment says that nothing is left, as one that is switched off does.
        runs = get_timer(which)[0] or _signal.SIGALRM in _signal.sigpending() or get_timer(which)[0]
        left, interval = set_timer(which, 0)
        if left or interval:
            Held.timers.append((which, max(left, 1e-6) if runs else left, interval))
    Held.settings = {}
    if ctypes is None:
        return
    subreaper = ctypes.c_int(0)
    if LIBC.prctl(ctypes.c_int(PR_GET_CHILD_SUBREAPER), ctypes.byref(subreaper), 0, 0, 0) == 0 and subreaper.value:
        Held.settings[PR_SET_CHILD_SUBREAPER] = subreaper.value


def start_timers(passed):
    """Set the timers again. Of real time passes as much as went by, if it is to count."""
    timers, Held.timers = Held.timers, []
    for which, left, interval in timers:
        if which == _signal.ITIMER_REAL and passed:
            left = max(left - (clock() - Held.at), 1e-6)
        set_timer(which, left, interval)
    for option, value in Held.settings.items():
        prctl(option, value, 0, 0, 0)
    Held.settings = {}


PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37


def resume(_, __):
    """The fork was given up."""
    lost = []
    held = sorted(Held.files.values(), key=lambda o: o.fd)
    for o in held:
        try:
            o.reopen()
        except OSError as e:
            lost.append("%s: %s" % (o.path, e.strerror))
    lock_again(Held.plan if Held.plan is not None else held, lost)
    if Held.plan is not None:
        go_on()
        start_timers(True)
    return {"lost": lost}


def go_on():
    """This process is no trunk any more, or is not the one that was."""
    Held.files, Held.plan = {}, None
    if Trunk.children is not None:
        _signal.signal(_signal.SIGCHLD, Trunk.children)
        Trunk.children = None
    call_all(AtFork.parent)
    gc.unfreeze()
    Trunk.frozen = {}  # they are seen again


def release(_, __):
    """The source goes on elsewhere: this process only stands between its forks."""
    for o in descriptors():
        close(o.fd)
    Held.files, Held.plan = {}, []
    return {}


def plan(known_files):
    """The descriptors as they were when the first was let go of."""
    found = []
    for o in descriptors():
        was = known_files.get(o.fd)
        o = Held.files.get(o.fd) or (was if was is not None and (was.link, was.inode) == (o.link, o.inode) else o)
        found.append(o)
    return found


OPS.update(hold=hold, resume=resume, release=release)


def restore(was, dropped):
    """Put back what a fork can have of descriptors: files are its own, what
    leads to others is dead. All are closed now."""
    lost = set()
    for o in was:
        if o.kind == "file":
            try:
                if o.deleted:
                    raise OSError(0, "it was deleted")
                if terminal(o):
                    raise OSError(0, "it is a terminal")
                o.reopen()
            except OSError as e:
                dropped.append("file %s: %s" % (o.path, e.strerror))
                lost.add(o.path)
                dead(o)
    lock_again([o for o in was if o.kind == "file" and o.path not in lost], dropped)
    floor = max([o.fd for o in was], default=0) + 1
    pipes(was, dropped, floor)
    sockets([o for o in was if o.kind == "socket"], dropped, floor)
    polls = []
    for o in was:
        if o.kind in ("file", "pipe", "socket"):
            continue
        if o.kind == "anon_inode:[eventfd]" and LIBC is not None:
            o.place(LIBC.eventfd(ctypes.c_uint(min(o.count, 0xffffffff)), ctypes.c_int(o.flags & os.O_NONBLOCK | os.O_CLOEXEC | o.semaphore)))
        elif o.kind == "anon_inode:[eventpoll]" and LIBC is not None:
            o.place(LIBC.epoll_create1(ctypes.c_int(os.O_CLOEXEC)))
            polls.append(o)
        else:
            dropped.append(o.kind.replace("anon_inode:", "").strip("[]"))
            dead(o)
    for o in polls:
        for fd, events, data in o.info or ():
            event = ctypes.create_string_buffer(EPOLL_EVENT.pack(events, data))
            LIBC.epoll_ctl(ctypes.c_int(o.fd), ctypes.c_int(1), ctypes.c_int(fd), event)


EPOLL_EVENT = struct.Struct("<IQ" if os.uname().machine == "x86_64" else "<IxxxxQ")


def terminal(o):
    """Whether a descriptor is one end of a pseudo-terminal: its path leads to another."""
    return stat.S_ISCHR(o.mode) and (o.path == "/dev/ptmx" or o.path.startswith("/dev/pts/"))


def dead(o):
    """A descriptor at whose other end nobody is."""
    r, w = os.pipe()
    if o.flags & os.O_ACCMODE == os.O_WRONLY:
        r, w = w, r
    os.close(w)
    o.place(r)


def lift(fds, floor):
    """The same at numbers where nothing is put back: an end must not be
    overwritten while its other end is placed."""
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, floor) for fd in fds]
    for fd in fds:
        os.close(fd)
    return high


def pipes(was, dropped, floor):
    """Pipes within the process are joined again, without what was in them."""
    standard = Trunk.standard
    ends = {}
    for o in was:
        if o.kind == "pipe":
            ends.setdefault(o.inode, []).append(o)
    for inode, all_ends in ends.items():
        if inode in standard:
            for o in all_ends:
                o.place(os.dup(standard[inode]))
            continue
        writes = [o for o in all_ends if o.flags & os.O_ACCMODE != os.O_RDONLY]
        reads = [o for o in all_ends if o.flags & os.O_ACCMODE != os.O_WRONLY]
        if not writes or not reads:
            dropped.append("pipe %d" % all_ends[0].fd)
            for o in all_ends:
                dead(o)
            continue
        if reads[0].unread:
            dropped.append("%d unread bytes in pipe %d" % (reads[0].unread, reads[0].fd))
        r, w = lift(os.pipe(), floor)
        for o in all_ends:
            if o.flags & os.O_NONBLOCK:
                os.set_blocking(w if o in writes else r, False)
            o.place(os.dup(w if o in writes else r))
        os.close(r)
        os.close(w)


def sockets(was, dropped, floor):
    """Pairs within the process are joined again; of others the other end is gone."""
    was = sorted(was, key=lambda o: o.inode)
    while was:
        o = was.pop(0)
        a, b = _socket.socketpair(_socket.AF_UNIX, o.type & 0xff)
        ends = lift([a.detach(), b.detach()], floor)
        if o.pair and was and was[0].pair and was[0].type == o.type and was[0].inode == o.inode + 1:
            other = was.pop(0)
            for x, fd in ((o, ends[0]), (other, ends[1])):
                if x.unread:
                    dropped.append("%d unread bytes in socket %d" % (x.unread, x.fd))
                os.set_blocking(fd, not x.flags & os.O_NONBLOCK)
                x.place(fd)
            continue
        os.write(ends[0], b"\0")
        os.close(ends[1])  # with something unread: reading says ECONNRESET
        os.set_blocking(ends[0], not o.flags & os.O_NONBLOCK)
        o.place(ends[0])
        dropped.append(o.name)


def standard_inodes():
    inodes = {}
    for fd in (2, 1, 0):
        try:
            inodes[os.fstat(fd).st_ino] = fd
        except OSError:
            pass
    return inodes
