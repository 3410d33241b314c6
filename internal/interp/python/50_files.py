# Descriptors: what a fork can't share with what it was forked from, and how each
# is put back.

import fcntl
import gc
import stat
import struct

O_PATH = getattr(os, "O_PATH", 0o10000000)
ONCE = os.O_TRUNC | os.O_CREAT | os.O_EXCL | os.O_NOCTTY  # of flags: not again
OWN = EVAL_FD + 1  # descriptors below are this end's


class Open:
    """One descriptor, as it was."""

    def __init__(self, fd):
        st = os.fstat(fd)
        self.fd, self.inode = fd, st.st_ino
        self.link = os.readlink("/proc/self/fd/%d" % fd)
        self.keep = os.get_inheritable(fd)
        self.flags = self.offset = 0
        self.path, self.info, self.deleted = "", None, False
        for line in read("/proc/self/fdinfo/%d" % fd).splitlines():
            if line.startswith("flags:"):
                self.flags = int(line.split()[1], 8) & ~os.O_CLOEXEC
            elif line.startswith("tfd:"):
                words = line.replace(":", " ").split()
                w = dict(zip(words[0::2], words[1::2]))
                self.info = (self.info or []) + [(int(w["tfd"]), int(w["events"], 16), int(w["data"], 16))]
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
                self.pair = pid == os.getpid()
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
        fd = os.open(self.path, self.flags & ~ONCE)
        if self.offset and not self.flags & os.O_APPEND:
            os.lseek(fd, self.offset, os.SEEK_SET)
        self.place(fd)


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


def hold(req, _):
    """Let go of files that are open for writing: nothing is written through this
    process any more until "resume"."""
    for o in descriptors():
        if o.written and o.fd not in Held.files:
            null = os.open("/dev/null", os.O_RDONLY)
            o.place(null)
            Held.files[o.fd] = o
    if Held.plan is None:
        if not cannot_fork():
            prepare(bool(req.get("collect")))
        gc.freeze()  # what is there now is never looked at again, and so never copied
    Held.plan = plan()
    return {"held": [{"fd": o.fd, "path": o.path, "flags": o.flags, "offset": o.offset} for o in Held.files.values()]}


def resume(_, __):
    """The fork was given up."""
    lost = []
    for o in list(Held.files.values()):
        try:
            o.reopen()
        except OSError as e:
            lost.append("%s: %s" % (o.path, e.strerror))
    if Held.plan is not None:
        go_on()
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


def plan():
    return [Held.files.get(o.fd, o) for o in descriptors()]


OPS.update(hold=hold, resume=resume, release=release)


def restore(was, dropped):
    """Put back what a fork can have of descriptors: files are its own, what
    leads to others is dead. All are closed now."""
    for o in was:
        if o.kind == "file":
            try:
                if o.deleted:
                    raise OSError(0, "it was deleted")
                o.reopen()
            except OSError as e:
                dropped.append("file %s: %s" % (o.path, e.strerror))
                dead(o)
    floor = max([o.fd for o in was], default=0) + 1
    pipes(was, dropped, floor)
    sockets([o for o in was if o.kind == "socket"], dropped, floor)
    polls = []
    for o in was:
        if o.kind in ("file", "pipe", "socket"):
            continue
        if o.kind == "anon_inode:[eventfd]" and LIBC is not None:
            o.place(LIBC.eventfd(0, ctypes.c_int(o.flags & os.O_NONBLOCK | os.O_CLOEXEC)))
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
