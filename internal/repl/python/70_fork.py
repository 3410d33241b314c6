# Forking: this process, with its memory, into namespaces of its own. os.fork has
# no flags, so that clone is called directly, and what the C library and Python do
# around a fork is done here, as far as it is needed where there is one thread.

import platform

MACHINES = {
    # clone, close_range, set_tid_address, gettid
    "x86_64": (56, 436, 218, 186),
    "aarch64": (220, 436, 96, 178),
}
PR_GET_TID_ADDRESS = 40


@one
class Forking:
    numbers = None
    tid = 0  # where the C library keeps the number of this thread
    clear = 0  # where the kernel clears it at the end
    reason = None  # why it can't be done; "" if it can


@one
class Trunk:
    """What is worked out before the first fork, so that none has to."""

    cwd = "/"  # None: it was removed
    standard = {}  # inodes of the standard streams
    children = None  # what code wanted of SIGCHLD
    clone = {}  # arguments of the system call, by flags
    close = None
    terminal = False  # it has a controlling one
    caps = []  # the bounding set's
    seeded = ""  # generators that code made: a hazard's text
    frozen = {}  # how many of them are in what garbage collection doesn't see any more, by type
    words = []  # generators: name, and where 2,496 bytes of their state lie, which a fork fills
    state = None  # of the C library's
    ssl = []  # of each OpenSSL that is loaded: its name, and its functions RAND_add and RAND_bytes


@one
class Fork:
    """A fork, until it is adopted."""

    mode = ""  # of the fork; then "settled"
    was = []  # the descriptors of what it was forked from
    dropped = []  # of these, what it can't have
    filled = False  # its generators have new states, its capabilities are dropped
    renewed = ""  # what was renewed when it was settled: the texts of hazards


def syscall(number, *args):
    """A system call; its result, or -errno."""
    ctypes.set_errno(0)
    r = LIBC.syscall(ctypes.c_long(number), *[a if not isinstance(a, int) else ctypes.c_ulong(a & (1 << 64) - 1) for a in args])
    return -ctypes.get_errno() if r == -1 else r


def cannot_fork():
    """Why this process can't be forked, as a sentence; "" if it can."""
    if Forking.reason is None:
        Forking.reason = look_at_fork()
    return Forking.reason


def look_at_fork():
    if ctypes is None:
        return NO_CTYPES
    if sys.implementation.name != "cpython":
        return "only CPython can be forked, and this is " + sys.implementation.name
    machine = MACHINES.get(platform.machine())
    if machine is None or struct.calcsize("P") != 8:
        return "forks are not known for this processor (%s)" % platform.machine()
    Forking.numbers = dict(zip(("clone", "close_range", "set_tid_address", "gettid"), machine))
    LIBC.syscall.restype = ctypes.c_long
    if not AtFork.complete:
        for name in ("PyOS_BeforeFork", "PyOS_AfterFork_Parent", "PyOS_AfterFork_Child"):
            f = getattr(ctypes.pythonapi, name, None)
            if f is None:
                return "this Python has no " + name
            f.restype, f.argtypes = None, ()
    if not find_tid():
        return "this C library keeps the number of a thread in a place that is not known"
    return ""


def find_tid():
    """Find the word in which the C library remembers the number of this thread:
    the kernel clears it at the thread's end (glibc), or it is near the beginning
    of what pthread_self is the address of (musl)."""
    tid = syscall(Forking.numbers["gettid"])
    where = ctypes.c_void_p()
    if LIBC.prctl(ctypes.c_int(PR_GET_TID_ADDRESS), ctypes.byref(where), 0, 0, 0) == 0 and where.value:
        Forking.clear = where.value
        if ctypes.c_int.from_address(where.value).value == tid:
            Forking.tid = where.value
            return True
    LIBC.pthread_self.restype = ctypes.c_void_p
    start = LIBC.pthread_self()
    places = [at for at in range(0, 1024, 4) if ctypes.c_int.from_address(start + at).value == tid]
    known = [at for at in (48, 720, 208) if at in places]  # musl, glibc on x86-64, glibc on arm64
    if len(places) != 1 and len(known) != 1:
        return False
    Forking.tid = start + (known or places)[0]
    return True


def prepare(template):
    """Get ready to be forked, perhaps a hundred times. Of a template nothing
    goes on in this process: what it has may be thrown away."""
    flush()
    Trunk.cwd, Trunk.standard = working_directory(), standard_inodes()
    Trunk.close = (ctypes.c_long(Forking.numbers["close_range"]), ctypes.c_ulong(OWN), ctypes.c_ulong(0xffffffff), ctypes.c_ulong(0))
    Trunk.terminal = read("/proc/self/stat").rpartition(")")[2].split()[4] != "0"
    Trunk.caps = []
    while prctl(PR_CAPBSET_READ, len(Trunk.caps), 0, 0, 0) >= 0:
        Trunk.caps.append(len(Trunk.caps))
    children = _signal.getsignal(_signal.SIGCHLD)
    if Trunk.children is None:
        Trunk.children = children
        _signal.signal(_signal.SIGCHLD, _signal.SIG_IGN)  # nobody waits for forks here
    call_all(reversed(AtFork.before))
    Trunk.words, Trunk.ssl = [], loaded_ssl()
    if template:
        generators()
        if AtFork.complete:
            rehearse()
    Trunk.seeded = seeded(template)
    if template:
        gc.collect()
        if hasattr(LIBC, "malloc_trim"):
            LIBC.malloc_trim(0)
        huge_pages()


def working_directory():
    """None where it was removed: it has no path that a fork could go to."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def go_to(workdir, dropped):
    """Work where the process worked that this is a fork of, in this fork's own files. In
    place of a directory that was removed comes one that was removed, too."""
    if workdir:
        os.chdir(workdir)
        return
    try:
        if Trunk.cwd is None:
            gone = "/dev/shm/.pando-%d" % os.getpid()
            os.mkdir(gone, 0o700)
            os.chdir(gone)
            os.rmdir(gone)
        else:
            os.chdir(Trunk.cwd)
    except OSError as e:
        os.chdir("/")
        dropped.append("working directory %s: %s" % (Trunk.cwd or "(removed)", e.strerror))


LARGE = 64 << 20  # bytes of memory from where on its page tables are what a fork costs
HUGE = 2 << 20
MADV_COLLAPSE = 25  # Linux 6.1


def huge_pages():
    """Put huge pages behind a large heap: a fork copies page tables, and of these
    there are five hundred times fewer then."""
    areas = []
    for line in read("/proc/self/maps").splitlines():
        words = line.split()
        if words[1] == "rw-p" and (len(words) == 5 or words[5] == "[heap]"):
            start, end = [int(x, 16) for x in words[0].split("-")]
            start, end = (start + HUGE - 1) // HUGE * HUGE, end // HUGE * HUGE
            if start < end:
                areas.append((start, end))
    if sum(end - start for start, end in areas) < LARGE:
        return
    for start, end in areas:
        for at in range(start, end, 16 * HUGE):
            LIBC.madvise(ctypes.c_void_p(at), ctypes.c_size_t(min(16 * HUGE, end - at)), ctypes.c_int(MADV_COLLAPSE))  # or it stays as it is


def rehearse():
    """Do here what a fork will do: what happens only the first times (caches,
    code that adapts itself) is then in the memory that all share."""
    near, far = _socket.socketpair()
    wire = Wire(near.detach())
    real = State.count, Trunk.children, AtFork.child, Hooks.list, Held.files, Held.plan, Held.timers, Held.settings, Trunk.cwd
    Trunk.children, AtFork.child, Hooks.list, Stand.kept, Held.timers, Held.settings = None, [], [], 0, [], {}
    Trunk.cwd = Trunk.cwd or "/"
    try:
        for _ in range(24):
            Fork.mode, Fork.was, Fork.filled = "fork", [], True
            far.sendall(b'{"id": 1, "op": "settle", "workdir": "", "caps": 0}\n')
            answer(wire)
            far.sendall(b'{"id": 1, "op": "adopt", "workdir": "", "caps": 0, "env": {"PANDO_REHEARSAL": "x"}}\n')
            answer(wire)
            far.sendall(b'{"id": 2, "op": "eval", "code": "1+1", "name": "<rehearsal>", "limit": 1000}\n')
            answer(wire)
            far.recv(1 << 16)
    finally:
        State.count, Trunk.children, AtFork.child, Hooks.list, Held.files, Held.plan, Held.timers, Held.settings, Trunk.cwd = real
        os.environ.pop("PANDO_REHEARSAL", None)
        linecache.cache.pop("<rehearsal>", None)
        wire.sock.close()
        far.close()


def arguments(flags):
    """Those of clone, made once."""
    args = Trunk.clone.get(flags)
    if args is None:
        here, none = ctypes.c_void_p(Forking.tid), ctypes.c_ulong(0)
        first, second = (here, none) if platform.machine() == "x86_64" else (none, here)
        args = (ctypes.c_long(Forking.numbers["clone"]), ctypes.c_ulong(flags | _signal.SIGCHLD), none, none, first, second)
        Trunk.clone[flags] = args
    return args


def fork(req, files):
    """The parent's answer; a child has none, and goes on with its own socket."""
    if len(files) < 4:
        raise Refused("a fork needs a socket and three streams")
    if cannot_fork():
        raise Refused(Forking.reason)
    if Held.plan is None:
        raise Refused("it was not held before")
    args = arguments(req["flags"])
    if not AtFork.complete:
        AtFork.ours = True
        ctypes.pythonapi.PyOS_BeforeFork()
    pid = LIBC.syscall(*args)
    if pid != 0:
        if not AtFork.complete:
            ctypes.pythonapi.PyOS_AfterFork_Parent()
            AtFork.ours = False
        if pid < 0:
            raise Refused("clone: " + os.strerror(ctypes.get_errno()))
        return '{"id":%d,"pid":%d}' % (req["id"], pid)
    try:
        born(req, files)
    except BaseException:
        os._exit(1)  # nothing that it says may come from its parent's connection
    return None


def born(req, files):
    """The child. What code has asked to be called in a fork waits until this
    process is adopted."""
    if Forking.clear != Forking.tid and Forking.clear:
        syscall(Forking.numbers["set_tid_address"], ctypes.c_void_p(Forking.clear))
    leave()
    for fd in files[4:]:  # its cgroups: the keeper looks whether it is in them
        os.write(fd, b"0")
        os.close(fd)
    if min(files) < OWN:
        files[:4] = [low_to_high(fd) for fd in files[:4]]
    os.dup2(files[0], EVAL_FD, False)
    os.dup2(files[1], 0)
    os.dup2(files[2], 1)
    os.dup2(files[3], 2)
    Fork.mode, Fork.was = req["mode"], Held.plan
    if Fork.mode != "fork":
        for fd in files[:4]:
            os.close(fd)
    elif LIBC.syscall(*Trunk.close) != 0:
        os.closerange(OWN, os.sysconf("SC_OPEN_MAX"))
    files.clear()
    WIRES[0].sock.sendall(b'{"forked":{}}\n')


def leave():
    """Have nothing to do with the trunk's process group, to which signals go round
    namespaces, nor with its terminal. (A session of its own would be enough for
    both, and costs ten times as much.)"""
    if Trunk.terminal:
        os.setsid()
    else:
        os.setpgid(0, 0)


def low_to_high(fd):
    """A copy of fd above the numbers that are about to be replaced."""
    if fd >= OWN:
        return fd
    import fcntl
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, OWN)


OPS.update(fork=fork)
