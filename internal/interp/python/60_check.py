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
    return {"threads": threads, "processes": processes, "shared": shared, "deleted": deleted, "sockets": pipes}


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
