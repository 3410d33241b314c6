# What a fork does when it becomes a cell of its own: nothing that it has in
# common with those that were forked from the same memory may stay so.

LANDLOCK_RESTRICT_SELF = 446
PR_CAPBSET_READ, PR_CAPBSET_DROP, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 23, 24, 47, 4
PR_SET_DUMPABLE, PR_SET_NAME = 4, 15
MT_WORDS = 624  # of the Mersenne twister's state

try:
    from _sha256 import sha256
except ImportError:
    try:
        from _sha2 import sha256
    except ImportError:
        from hashlib import sha256


def prctl(*args):
    return LIBC.prctl(*[ctypes.c_long(x) for x in args])


@one
class Hooks:
    list = []  # of pando.at_fork


def settle(req, files):
    """What need not wait until it is known who this fork is to be."""
    confine(req, files)
    dropped = Fork.dropped = []
    go_to(req.get("workdir"), dropped)
    if Trunk.children is not None:
        _signal.signal(_signal.SIGCHLD, Trunk.children)
        Trunk.children = None
    if Fork.was:
        restore(Fork.was, dropped)
    if not AtFork.complete:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    Held.files, Held.plan = {}, None
    Fork.mode, Fork.renewed = "settled", renew()
    if sys.stdout is STDOUT:
        touch(Fork.renewed)
    return {"settled": True}


def touch(renewed):
    """Use what an adoption and a first evaluation will use: the pages that they
    write to are copied now, and nobody waits for that then."""
    req, _ = decode_json(REHEARSAL, 0)
    become(req)
    adopted(req, [], renewed + at_time() + hooks_ran())
    os.environ.pop("PANDO_REHEARSAL", None)
    Shell.aside = True
    guard(work, "[1+1, ['a', 0.5], {'b': None}]", "<rehearsal>", 1000)
    flush()
    linecache.cache.pop("<rehearsal>", None)
    State.sources -= State.names.pop()[1]


def rehearse_copy(req, files):
    """The same in a copy of a whole machine that waits. What an emulated processor has
    run once is translated, so this runs more of the interpreter than it will need."""
    if sys.stdout is STDOUT:
        exercise()
        touch(renew())
    return {"rehearsed": True}


def exercise():
    """Do a little of what code often does first, to nothing of anybody's."""
    try:
        exercise_language()
        exercise_modules(sys.modules)
    except Exception:
        pass  # somebody has replaced what this uses


def exercise_language():
    class Thing:
        def __init__(self, **more):
            self.__dict__.update(more)

    def some(n):
        for i in range(n):
            yield i, -i / 3

    numbers = [round(x, 2) for _, x in some(8) if x <= 0]
    table = {str(k): (k, v, {k, v}) for k, v in enumerate(sorted(numbers, key=lambda x: (abs(x), x)))}
    text = "; ".join("%s = %r" % pair for pair in table.items()) + f"{sum(numbers):.3f}{len(table):>4}"
    text = text.upper().replace("=", ":").strip().split(";")[-1].encode().hex() + repr(Thing(a=1).a << 70)
    json.loads(to_json({"text": text, "list": numbers, "nested": [None, True, {"x": 1.5}]}))
    try:
        raise ValueError(text[::-1])
    except ValueError as e:
        str(e)
    eval(compile("(lambda x, *y: [*y, x])(2, *range(3))", "<rehearsal>", "eval"), {})


def exercise_modules(modules):
    if "random" in modules:
        modules["random"].Random(1).random()
    if "uuid" in modules:
        modules["uuid"].uuid4().hex
    numpy = modules.get("numpy")
    if numpy is not None:
        a = numpy.arange(6, dtype=float).reshape(2, 3)
        b = (a * 2 + numpy.ones(3)).dot(a.T)
        [b.sum(), b.mean(axis=0).tolist(), numpy.zeros(5).tolist(), b[b > 0].max(), repr(b)]
    if "numpy.random" in modules:
        modules["numpy.random"].RandomState(1).random_sample(2)


REHEARSAL = '{"argv0":"waiting","caps":0,"env":{"PANDO_REHEARSAL":"x"},"id":1,"op":"adopt","workdir":"/"}'


def become(req):
    """Take on the name and the environment of a cell."""
    set_environment(req.get("env"))
    if req.get("argv0"):
        LIBC.prctl(ctypes.c_int(PR_SET_NAME), ctypes.c_char_p(req["argv0"].encode()[:15]), 0, 0, 0)
    threading = sys.modules.get("threading")
    if threading is not None:
        threading._main_thread._set_native_id()


def adopt(req, files):
    hazards = ""
    if not Fork.mode:  # all that it runs in was copied
        become(req)
        Trunk.seeded, Trunk.ssl = seeded(True), loaded_ssl()  # now: nobody has looked for them before it was copied
        Trunk.frozen = {}
        return adopted(req, [], renew() + at_time() + run_hooks())
    if Fork.mode == "fork":
        settle(req, files)
    elif Fork.mode != "settled":
        confine(req, files)
        Fork.dropped = []
        go_to(req.get("workdir"), Fork.dropped)
    become(req)
    if Fork.mode == "settled":
        call_all([f for f in AtFork.child if not known(f)])
        State.count = 0
        hazards = Fork.renewed + at_time() + run_hooks()
        start_timers(False)
    else:  # the source itself, elsewhere: to its code nothing was forked
        for o in Fork.was:
            if o.kind == "file" and not o.deleted:
                try:
                    o.reopen()
                except OSError as e:
                    Fork.dropped.append("file %s: %s" % (o.path, e.strerror))
                    dead(o)
        lock_again([o for o in Fork.was if o.kind == "file"], Fork.dropped)
        if not AtFork.complete:
            ctypes.pythonapi.PyOS_AfterFork_Parent()
        go_on()
        start_timers(True)
    AtFork.ours = False
    Fork.was, Fork.filled, Fork.mode = None, False, ""
    return adopted(req, Fork.dropped, hazards)


def set_environment(env):
    for name, value in (env or {}).items():
        if value == "":
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def adopted(req, dropped, hazards):
    return '{"id":%d,"adopted":{"dropped":%s,"hazards":[%s]}}' % (req["id"], to_json(dropped) if dropped else "[]", hazards[1:])


def known(f):
    """Hooks of the standard library for what a fork of one thread does not have:
    locks that others held, threads that are gone."""
    if getattr(f, "__module__", "") == "threading":
        return True
    random = sys.modules.get("random")
    return random is not None and getattr(f, "__self__", None) is random._inst


def must(result, what):
    if result != 0:
        raise Refused("%s: %s" % (what, os.strerror(ctypes.get_errno())))


def confine(req, files):
    """Landlock, identity, capabilities: only ever less than before."""
    if files:
        must(syscall(LANDLOCK_RESTRICT_SELF, files[0], 0), "landlock")
    caps = req.get("caps") or 0
    uid, gid = req.get("uid"), req.get("gid")
    if Fork.filled and caps == Stand.kept and uid is None and gid is None:
        return
    call, drop, number, none = LIBC.prctl, ctypes.c_long(PR_CAPBSET_DROP), ctypes.c_long(0), ctypes.c_long(0)
    for b in Trunk.caps:
        if not caps >> b & 1:
            number.value = b
            if call(drop, number, none, none, none) != 0 and prctl(PR_CAPBSET_READ, b, 0, 0, 0) != 0:
                break  # who has no capabilities can't drop any; the keeper looks at what is left
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    if gid is not None and os.getresgid() != (gid, gid, gid):
        try:
            os.setgroups([])
        except PermissionError:
            pass  # an id map of one
        os.setresgid(gid, gid, gid)
    if uid is not None and os.getresuid() != (uid, uid, uid):
        os.setresuid(uid, uid, uid)
    low, high = caps & 0xffffffff, caps >> 32
    must(LIBC.capset(struct.pack("Ii", 0x20080522, 0), struct.pack("6I", low, low, 0, high, high, 0)), "capset")
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


def digest(data):
    return "fresh, sha256 " + sha256(b"pando" + data).hexdigest()[:16]


def hazard(name, value):
    return ',{"name":"%s","value":%s}' % (name, quote(value))


def generators():
    """Find the states of the common generators, so that a fork can fill them
    with randomness as they lie. Where that does not go, it seeds them."""
    random, numpy_random = sys.modules.get("random"), sys.modules.get("numpy.random")
    if random is not None:
        random.seed()
        state = random.getstate()[1]
        position = id(random._inst) + object.__basicsize__
        at = position + 4
        if len(state) == MT_WORDS + 1 and tuple((ctypes.c_uint32 * MT_WORDS).from_address(at)) == state[:-1] and \
                ctypes.c_int.from_address(position).value == state[-1]:
            ctypes.c_int.from_address(position).value = MT_WORDS  # all of it is used up
            Trunk.words.append(("randomness", at))
    try:
        numpy_random.seed()
        generator = numpy_random.mtrand._rand._bit_generator
        at = generator.ctypes.state_address
        state = generator.state["state"]
        position = at + 4 * MT_WORDS
        if list((ctypes.c_uint32 * MT_WORDS).from_address(at)) == state["key"].tolist() and ctypes.c_int.from_address(position).value == state["pos"]:
            ctypes.c_int.from_address(position).value = MT_WORDS
            Trunk.words.append(("numpy randomness", at))
    except Exception:
        pass  # not there, or made otherwise: it is seeded

    if Trunk.state is None:
        Trunk.state = ctypes.create_string_buffer(4 + 4 * MT_WORDS)
        LIBC.initstate(ctypes.c_uint(1), Trunk.state, ctypes.c_size_t(C_STATE))
    Trunk.words.append((C_RANDOM, ctypes.addressof(Trunk.state) + 4))


MANY = 1 << 18  # objects that are looked at while a source stands still


def seeded(template):
    """Say how many generators code has made itself (random.Random,
    numpy.random.default_rng and their like): each fork has a copy, which goes on
    from the same state. It is found out before anything is forked."""
    try:
        return seeded_text(gc.get_objects(), template)
    except Exception as e:
        return hazard(SEEDED, "inherited: cannot be counted: " + describe(e))


def seeded_text(objects, template):
    random, numpy_random = sys.modules.get("random"), sys.modules.get("numpy.random")
    bases = tuple(getattr(m, n) for m, n in ((random, "Random"), (numpy_random, "BitGenerator")) if hasattr(m, n))
    if not bases:
        return ""
    if not template and len(objects) > MANY:
        return hazard(SEEDED, "inherited: not counted, there are more than %d objects" % MANY)
    renewed = [getattr(random, "_inst", None)]
    try:
        renewed.append(numpy_random.mtrand._rand._bit_generator)
    except AttributeError:
        pass
    try:
        renewed.append(sys.modules["tempfile"]._name_sequence._rng)
    except (AttributeError, KeyError):
        pass
    system = getattr(random, "SystemRandom", ())  # has no state
    kinds = {t for t in set(map(type, objects)) if issubclass(t, bases) and not issubclass(t, system)}
    found = dict(Trunk.frozen)
    for o in [o for o in objects if type(o) in kinds]:
        if not any(o is x for x in renewed):
            module = type(o).__module__
            name = ("numpy.random" if module.startswith("numpy.random.") else module) + "." + type(o).__qualname__
            found[name] = found.get(name, 0) + 1
    Trunk.frozen = found
    if not found:
        return hazard(SEEDED, "none that code has made")
    return hazard(SEEDED, "inherited: %d that code has made: in each fork they go on from the same state, unless a hook renews them (%s)" % (
        sum(found.values()), ", ".join("%d %s" % (found[k], k[:80]) for k in sorted(found)[:8])))


SEEDED = "seeded generators"
C_RANDOM = "randomness of C"
C_STATE = 128  # bytes, of which the first four say what it is


def renew():
    """Renew the generators and identities that memory holds. What was done, as
    cell.Hazard's text, each with a comma before it."""
    out = hazard("kernel randomness", digest(os.urandom(16)))
    done = []
    for name, at in Trunk.words:
        if not Fork.filled:
            ctypes.memmove(at, os.urandom(4 * MT_WORDS), 4 * MT_WORDS)
        done.append(name)
        if name != C_RANDOM:
            out += hazard(name, digest(ctypes.string_at(at, 32)))
    modules = sys.modules
    for name, module, f in RENEWALS:
        if name not in done and module in modules:
            try:
                out += hazard(name, f(modules[module]))
            except Exception as e:
                out += hazard(name, "cannot be renewed: " + describe(e))
    out += renew_ssl()
    if C_RANDOM not in done:
        LIBC.srandom(ctypes.c_uint(int.from_bytes(os.urandom(4), "little")))
    if State.loop is not None:
        asyncio = modules["asyncio"]
        if not State.loop.is_closed() and not asyncio.all_tasks(State.loop):
            State.loop.close()
            State.loop = None
    return out + Trunk.seeded + hazard("hash seed", "inherited: sets of strings have the order that they have in what it was forked from")


def at_time():
    """The time of the adoption, as a hazard's text."""
    return hazard("clock", "%.3f" % time.time())


def renew_random(random):
    data = os.urandom(32)
    random.seed(data)
    return digest(data)


def renew_numpy(numpy_random):
    data = os.urandom(32)
    numpy_random.seed(list(struct.unpack("8I", data)))
    return digest(data)


def renew_uuid(uuid):
    data = os.urandom(6)
    uuid._node = int.from_bytes(data, "big") | 1 << 40  # multicast: no card's
    uuid._last_timestamp = None
    for name in ("_generate_time_safe", "_uuid_generate_time"):
        if hasattr(uuid, name):
            setattr(uuid, name, None)  # libuuid's keeps a state of its own
    return digest(data)


def renew_ssl():
    """Every OpenSSL that is loaded takes new randomness: it only looks at the
    process's number itself, which is the same in copies."""
    said = ""
    for name, add, draw in Trunk.ssl:
        seed, out = os.urandom(48), ctypes.create_string_buffer(32)
        add(seed, len(seed), float(len(seed)))
        if draw(out, 32) == 1:
            said += hazard("ssl randomness", digest(out.raw) + " of " + name)
        else:
            said += hazard("ssl randomness", "cannot be renewed: " + name + " gives no numbers")
    return said


RTLD_NOLOAD, RTLD_NOW = 4, 2


@one
class Loaded:
    """Every OpenSSL that is loaded, as it was last looked for."""

    ssl = []
    loads = None  # how many libraries had been loaded then
    look = None  # counts them


def loaded_ssl():
    """What Trunk.ssl holds, of this process as it is now. The list of what is mapped is
    read again only when a library was loaded since."""
    now = loads()
    if now is not None and now == Loaded.loads:
        return Loaded.ssl
    found, seen = [], set()
    for path in sorted(mapped_files(), key=lambda p: not os.path.basename(p).startswith("libcrypto")):
        try:
            lib = ctypes.CDLL(path, mode=RTLD_NOLOAD | RTLD_NOW)
            add, draw = lib.RAND_add, lib.RAND_bytes
        except (OSError, AttributeError):
            continue
        where = ctypes.cast(add, ctypes.c_void_p).value
        if where in seen:  # a library that needs one has its functions, too
            continue
        seen.add(where)
        add.argtypes, add.restype = [ctypes.c_char_p, ctypes.c_int, ctypes.c_double], None
        found.append((os.path.basename(path), add, draw))
    Loaded.ssl, Loaded.loads = found, now
    return found


def loads():
    """How often libraries have been loaded into this process, and unloaded; None if that
    is not known. See dl_iterate_phdr(3)."""
    try:
        if Loaded.look is None:
            Loaded.look = counter()
        count = ctypes.c_ulonglong()
        return count.value if LIBC.dl_iterate_phdr(Loaded.look, ctypes.byref(count)) == 1 else None
    except Exception:
        return None  # this C library has no such function, or no memory may be run as code


def counter():
    class Info(ctypes.Structure):  # struct dl_phdr_info
        _fields_ = [("addr", ctypes.c_void_p), ("name", ctypes.c_char_p), ("phdr", ctypes.c_void_p),
                    ("phnum", ctypes.c_uint16), ("adds", ctypes.c_ulonglong), ("subs", ctypes.c_ulonglong)]

    def look(info, size, count):
        if size < ctypes.sizeof(Info):
            return -1
        count[0] = info[0].adds + info[0].subs
        return 1

    return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Info), ctypes.c_size_t, ctypes.POINTER(ctypes.c_ulonglong))(look)


def mapped_files():
    """The libraries that are loaded and by their names may be an OpenSSL. What has
    another name is not renewed, and the certificate says so."""
    try:
        text = read("/proc/self/maps")
    except OSError:
        return []
    found = []
    for line in text.splitlines():
        f = line.split(None, 5)
        if len(f) == 6 and "x" in f[1] and f[5].startswith("/") and ".so" in f[5] and f[5] not in found:
            found.append(f[5])
    return [p for p in found if "crypto" in os.path.basename(p) or "ssl" in os.path.basename(p)]


def renew_key(process):
    data = os.urandom(32)
    process.current_process().authkey = data
    return digest(data)


def renew_names(tempfile):
    tempfile._name_sequence = None
    return "made anew"


RENEWALS = (
    ("randomness", "random", renew_random),
    ("numpy randomness", "numpy.random", renew_numpy),
    ("uuid", "uuid", renew_uuid),
    ("multiprocessing key", "multiprocessing.process", renew_key),
    ("names of temporary files", "tempfile", renew_names),
)


def run_hooks():
    """What code has asked for with pando.at_fork."""
    for f in Hooks.list:
        try:
            f()
        except BaseException as e:
            raise Refused("a hook of pando.at_fork failed:\n" + error_of(e, "")["traceback"])
    return hooks_ran()


def hooks_ran():
    return hazard("hooks", "%d ran" % len(Hooks.list))


def inherit(req, files):
    """Say, before anything is forked or copied, which generators copies will have in
    common that are not renewed in them."""
    found = seeded(True)
    Trunk.frozen = {}  # they are counted again when it is forked
    return '{"id":%d,"hazards":[%s]}' % (req["id"], found[1:])


OPS.update(settle=settle, rehearse=rehearse_copy, adopt=adopt, inherit=inherit)
