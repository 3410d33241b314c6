# What stands in the way of a fork.

import _thread


def others(own):
    """The threads beside this one, by name, and whether Python knows them all."""
    threading = sys.modules.get("threading")
    names = {str(t.native_id): t.name for t in threading.enumerate()} if threading else {}
    tids = [tid for tid in os.listdir("/proc/self/task") if tid != own]
    return [names.get(tid) or read("/proc/self/task/%s/comm" % tid).strip() or tid for tid in tids], all(tid in names for tid in tids)


def check(_, __):
    own = str(_thread.get_native_id())
    threads, known = others(own)
    for i in range(20):
        if known:
            break
        doze(0.01)  # one that was joined is gone for Python before it is for the kernel
        threads, known = others(own)
    processes = []
    for pid in read("/proc/self/task/%s/children" % own).split() or children():
        fields = read("/proc/%s/stat" % pid)
        if fields and fields.rpartition(")")[2].split()[0] not in "ZX":
            processes.append(pid + " " + fields.partition("(")[2].rpartition(")")[0])
    shared = []
    for line in read("/proc/self/maps").splitlines():
        words = line.split(None, 5)
        if words[1].endswith("s") and "w" in words[1]:
            shared.append(words[5] if len(words) > 5 else "anonymous memory")
    deleted, pipes = [], []
    for o in descriptors():
        if o.deleted:
            deleted.append(o.path[:-len(" (deleted)")] if o.path.endswith(" (deleted)") else o.path)
        elif o.kind == "socket" and not o.pair:
            pipes.append(o.name)
    if ctypes is not None:
        loaded_ssl()  # now, while nobody waits: see prepare
    return {"threads": threads, "processes": processes, "shared": shared, "deleted": deleted, "sockets": pipes, "unkept": unkept()}


PR_GET_PDEATHSIG, PR_GET_DUMPABLE = 2, 3
O_ASYNC = getattr(os, "O_ASYNC", 0o20000)


def unkept():
    """What neither a fork nor a source that goes on would have, and the kernel shows to
    nobody else. The rest of it is looked for from outside."""
    found = []
    number = ctypes.c_int(0) if ctypes is not None else None
    if number is not None:
        if LIBC.prctl(ctypes.c_int(PR_GET_PDEATHSIG), ctypes.byref(number), 0, 0, 0) == 0 and number.value:
            found.append("a signal at the end of its parent (PR_SET_PDEATHSIG %d)" % number.value)
        if prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) != 1:
            found.append("it is not dumpable, so that nothing can join its namespaces (PR_SET_DUMPABLE, or a change of its user)")
    for kind, what in (("sem", "semaphores"), ("msg", "message queue"), ("shm", "shared memory")):
        for line in read("/proc/sysvipc/" + kind).splitlines()[1:]:
            found.append("System V %s %s" % (what, line.split()[1]))
    for o in descriptors():
        if o.kind == "file" and o.written and not o.deleted and not o.reopens():
            found.append("%s, which it could not open again for writing" % o.path)
        try:
            if not o.flags & O_PATH and (o.flags & O_ASYNC or fcntl.fcntl(o.fd, fcntl.F_GETOWN)):
                found.append("signals of descriptor %d (F_SETOWN, F_NOTIFY)" % o.fd)
        except OSError:
            pass
    return found


def children():
    """This process's children, where the kernel has no list of them."""
    own, found = str(os.getpid()), []
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            fields = read("/proc/%s/stat" % pid).rpartition(")")[2].split()
            if len(fields) > 1 and fields[1] == own:
                found.append(pid)
    return found


OPS.update(check=check)
