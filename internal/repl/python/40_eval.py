# Evaluation: code, its last expression, what it raised.

import ast
import __future__
import builtins
import linecache
import traceback

AWAIT = getattr(ast, "PyCF_ALLOW_TOP_LEVEL_AWAIT", 0)
COROUTINE = 0x80  # of a code's flags
FUTURES = 0
for _name in __future__.all_feature_names:
    FUTURES |= getattr(__future__, _name).compiler_flag

MAX_TRACEBACK = 256 << 10
MAX_SOURCES = 16 << 20  # of code that is kept for tracebacks

MAIN = sys.modules["__main__"]


@one
class State:
    count = 0  # evaluations so far
    running = False  # SIGINT means something
    futures = 0  # from __future__ imports so far
    sources = 0
    names = []
    loop = None
    last = None  # value, which _ is


@one
class Shell:
    """IPython's, which begins with the first code that needs it."""

    it = None
    beginning = False
    why = ""  # it did not begin
    here = SELF  # where its own code is
    aside = False  # the evaluation is no one's: it has no number, and no part in histories
    name = ""  # of the code
    value = None  # of the last expression
    errors = []  # what IPython would print, and their texts


DOOR = "def __pando_"  # how code begins that is a door's own

def on_interrupt(number, frame):
    if State.running:
        raise KeyboardInterrupt


def keep_source(name, code):
    """Tracebacks show lines of code that was evaluated, also long ago."""
    lines = code.splitlines(True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"  # as in a file: where the marks below a line stand depends on it
    linecache.cache[name] = (len(code), None, lines, name)
    if State.names and State.names[-1][0] == name:  # IPython's shell has made something else of it
        State.sources -= State.names.pop()[1]
    State.names.append((name, len(code)))
    State.sources += len(code)
    while State.sources > MAX_SOURCES and len(State.names) > 1:
        old, size = State.names.pop(0)
        linecache.cache.pop(old, None)
        State.sources -= size


def compiled(node, name, mode):
    code = compile(node, name, mode, AWAIT | State.futures, dont_inherit=True)
    State.futures |= code.co_flags & FUTURES
    return code


def execute(code):
    result = eval(code, MAIN.__dict__)
    if code.co_flags & COROUTINE:
        return run_async(result)
    return result


def run_async(coroutine):
    """Top-level await. The loop lasts: what was made in one evaluation can be
    awaited in the next."""
    import asyncio
    if State.loop is None or State.loop.is_closed():
        State.loop = asyncio.new_event_loop()
    asyncio.set_event_loop(State.loop)
    task = State.loop.create_task(coroutine)
    try:
        return State.loop.run_until_complete(task)
    except BaseException:
        if not task.done():  # interrupted: give it a chance to clean up
            task.cancel()
            State.loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
        raise


def run(code, name):
    """Evaluate code: the value if it ended with an expression, else None."""
    if "\n" not in code and code[:1] not in " \t\f" and "=" not in code:  # an expression alone, most likely
        try:
            expression = compiled(code, name, "eval")
        except (SyntaxError, ValueError):
            expression = None
        if expression is not None:
            return execute(expression)
    try:
        tree = compile(code, name, "exec", ast.PyCF_ONLY_AST | AWAIT | State.futures, dont_inherit=True)
    except SyntaxError as e:
        wrong = e
    else:
        return run_tree(tree, name)
    later("words")
    return run_word(code, name, wrong)


def run_tree(tree, name):
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)
    if tree.body:
        execute(compiled(tree, name, "exec"))
    if last is None:
        return None
    return execute(compiled(last, name, "eval"))


def import_ipython():
    """Whether IPython is there. It goes without Jedi, which completes what is typed and
    takes long to load, and without SQLite, whose generators of random numbers forks would
    have in common: it has no history to keep."""
    import importlib.util
    importlib.invalidate_caches()
    try:
        if importlib.util.find_spec("IPython") is None:
            return False
    except ValueError:
        return False
    sqlite = type(sys)("sqlite3")
    sqlite.DatabaseError = sqlite.OperationalError = sqlite.IntegrityError = type("DatabaseError", (Exception,), {})
    sqlite.Connection = type("Connection", (), {})
    sqlite.register_adapter = sqlite.register_converter = lambda *_: None
    spared = {m: x for m, x in (("jedi", None), ("sqlite3", sqlite)) if m not in sys.modules}
    sys.modules.update(spared)
    try:
        import IPython.core.interactiveshell
        return True
    except ImportError:
        pass  # it is one that needs them
    finally:
        for m in spared:
            sys.modules.pop(m, None)
    import IPython.core.interactiveshell
    return True


def begin_shell():
    """Whether evaluations go through IPython's shell from now on, or since before."""
    if Shell.it is not None:
        return True
    if Shell.beginning:
        return False
    Shell.beginning = True
    try:
        if import_ipython():
            later("words")
            later("ipython")
            Shell.it, Shell.here = new_shell(), HERE
    except Exception as e:
        Shell.why = describe(e)
        print("pando: IPython's shell cannot begin: " + Shell.why, file=sys.stderr)
    finally:
        Shell.beginning = False
    return Shell.it is not None


def error_of(e, name):
    """An exception as cell.EvalError."""
    tb, line = e.__traceback__, 0
    while tb is not None and tb.tb_frame.f_code.co_filename.startswith((SELF, Shell.here)):
        tb = tb.tb_next
    t, theirs = tb, None
    while t is not None:
        if t.tb_frame.f_code.co_filename == name:
            line = t.tb_lineno
        if t.tb_frame.f_code.co_filename != SELF:
            theirs = t
        t = t.tb_next
    if theirs is not None:
        theirs.tb_next = None  # what interrupted it is none of theirs
    if isinstance(e, SyntaxError) and e.filename == name:
        line, tb = e.lineno or line, None  # nothing of the code has run
    try:
        if Shell.it is not None and type(e) is UsageError:
            text = "UsageError: %s\n" % e
        else:
            text = "".join(traceback.format_exception(type(e), e, tb))
    except BaseException as worse:
        text = "%s: <its traceback can't be written: %s>\n" % (type(e).__name__, type(worse).__name__)
    if len(text) > MAX_TRACEBACK:
        half = MAX_TRACEBACK // 2
        text = text[:half] + "\n  … %d characters …\n" % (len(text) - 2 * half) + text[-half:]
    try:
        message = str(e)
    except BaseException:
        message = "<its text can't be had>"
    if type(e) is NameError and message == "name 'get_ipython' is not defined":
        message += ": " + no_ipython()
        text += message + "\n"
    return {"type": type_name(type(e)), "message": message[:1 << 16], "traceback": text, "line": line}


def no_ipython():
    if Shell.why:
        return "the IPython of this Python (%s) cannot be used: %s" % (sys.executable, Shell.why)
    return "this Python (%s) has no IPython: install it (%%pip install ipython, or the distribution's python3-ipython)" % sys.executable


def value_text(v, limit):
    """A value as cell.Value, with a comma before it."""
    text, cut = repr_of(v, limit)
    out = ',"value":{"type":' + quote(type_name(type(v))) + ',"repr":' + quote(text)
    if cut:
        out += ',"repr_cut":%d' % cut
    exact, long = json_of(v)
    if exact:
        out += ',"json":' + exact
    elif long:
        out += ',"json_cut":true'
    mime = bundle_of(v)
    if mime:
        out += ',"mime":' + to_json(mime)
    return out + "}"


def own_under():
    """Whether _ is what this end has made it, and not gettext's."""
    now = builtins.__dict__.get("_")
    return now is None or now is State.last


def work(code, name, limit):
    keep_source(name, code)
    if code.startswith(DOOR):
        v = run(code, name)
    elif Shell.it is not None or ("IPython" in code or "get_ipython" in code) and begin_shell():
        v = in_shell(code, name)
    else:
        v = run(code, name)
        if v is not None and Shell.it is None and not Shell.aside and own_under():
            builtins._ = State.last = v  # as in Python's own prompt; gettext's is left alone
    return "" if v is None else value_text(v, limit)


def finish(*_):
    show_figures()
    flush()


def guard(part, *args):
    """What a part of an evaluation returns, and the exception that ended it."""
    try:
        try:
            State.running = True
            return part(*args), None
        finally:
            State.running = False
    except BaseException as e:
        State.running = False
        return "", e


def evaluate(req):
    """The answer to "eval", as text."""
    name = req.get("name")
    Shell.aside = bool(name)
    if not name:
        State.count += 1
        name = "<eval %d>" % State.count
    limit = Shown.limit = max(0, min(int(req.get("limit", MAX_FORM)), MAX_FORM))
    if _signal.getsignal(_signal.SIGINT) is not on_interrupt:
        _signal.signal(_signal.SIGINT, on_interrupt)
    began = clock()
    value, error = guard(work, req.get("code", ""), name, limit)
    _, late = guard(finish)
    error = error or late
    out = '{"id":%d,"evaluated":{"took_ms":%.4f,"n":%d,"ok":%s' % (
        req["id"], (clock() - began) * 1000, State.count, "false" if error else "true")
    if error is not None:
        out += ',"error":' + to_json(error_of(error, name))
        error.__traceback__ = None  # it would keep what the frames hold
    if Shown.bundles or Shown.left_out:
        display = ',"display":' + to_json(shown())
        if len(out) + len(display) + len(value) >= MAX_LINE:
            display = ',"display":[{"text/plain":"<what was shown is left out: together with the value too much for one answer>"}]'
        out += display
    if len(out) + len(value) > MAX_LINE:
        value = ',"value":{"type":"?","repr":"<too much to show>"}'
    return out + value + "}}"
