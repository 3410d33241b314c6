# The loop.

def ready():
    v = sys.version_info
    reason = cannot_fork()
    answer = {"protocol": 1, "kind": "python", "version": "%s %d.%d.%d" % (
        {"cpython": "Python", "pypy": "PyPy"}.get(sys.implementation.name, sys.implementation.name), v[0], v[1], v[2]),
        "fork": not reason}
    if reason:
        answer["reason"] = reason
    return {"ready": answer}


WIRES = []  # one: a fork has another


def serve():
    while True:
        answer(WIRES[0])


def answer(wire):
    """Answer one question."""
    try:
        req, files = wire.next()
    except (EOFError, OSError):
        flush()
        os._exit(0)  # nobody will ask any more
    op = req.get("op")
    if op == "eval":
        wire.send_text(evaluate(req))
        return
    try:
        f = OPS.get(op)
        if f is None:
            raise Refused("this interpreter does not know %r" % op)
        said = f(req, files)
    except Exception as e:
        said = {"error": str(e) if isinstance(e, Refused) else error_of(e, "")["traceback"]}
    finally:
        for fd in files:
            close(fd)
    if said is None:
        return  # a child, which was not asked
    if type(said) is str:
        wire.send_text(said)
        return
    said["id"] = req.get("id")
    wire.send(said)


class Module:
    """import pando, in code that is evaluated; a package of that name comes
    before it."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "pando":
            return None
        from importlib.machinery import ModuleSpec
        return ModuleSpec("pando", Module)

    @staticmethod
    def create_module(spec):
        return None

    @staticmethod
    def exec_module(module):
        def at_fork(f):
            """Have f called in every fork, before anything is evaluated there."""
            if not callable(f):
                raise TypeError("at_fork needs something that can be called")
            Hooks.list.append(f)
            return f
        module.at_fork, module.display = at_fork, display
        module.__getattr__ = lambda name: os.environ.get("PANDO_CELL", "") if name == "cell" else missing(name)
        module.__all__ = ["at_fork", "display", "cell"]


def missing(name):
    raise AttributeError("module 'pando' has no attribute %r" % name)


def main():
    for f in (sys.stdout, sys.stderr):
        try:
            f.reconfigure(line_buffering=True)  # who watches sees lines as they come
        except Exception:
            pass
    _signal.signal(_signal.SIGINT, on_interrupt)
    sys.argv = [""]
    builtins.display = display
    sys.meta_path.insert(0, Displays)
    sys.meta_path.append(Module)
    AtFork.register(before=lambda: AtFork.ours or call_all(reversed(AtFork.before)), after_in_parent=lambda: AtFork.ours or call_all(AtFork.parent),
                    after_in_child=forked_by_code)
    MAIN.__dict__.pop("__pando__", None)
    WIRES.append(Wire(EVAL_FD))
    os.set_inheritable(EVAL_FD, False)
    WIRES[0].send(ready())
    serve()


def forked_by_code():
    """In a process that evaluated code has forked: it has no part in this."""
    if not AtFork.ours:
        WIRES[0].sock.close()
        call_all(AtFork.child)


main()
