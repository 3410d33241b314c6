# IPython's shell inside this interpreter: no process and no thread of its own, no
# history on disk, no files in the home. Its namespace is __main__'s.

from IPython.core import interactiveshell as _interactiveshell
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.formatters import DisplayFormatter
from traitlets import Type
from traitlets.config import Config

HERE = os.path.dirname(os.path.dirname(_interactiveshell.__file__)) + "/"  # leading frames of tracebacks that are left out
UsageError = sys.modules["IPython.core.error"].UsageError


class Memory(dict):
    """What IPython keeps in files otherwise (%store), as long as this process lives."""

    def keys(self, pattern="*"):
        import fnmatch
        return [k for k in list(super().keys()) if fnmatch.fnmatch(k, pattern)]

    def hset(self, table, key, value):
        self.setdefault(table, {})[key] = value

    def hget(self, table, key, default=None):
        return self.get(table, {}).get(key, default)


class Compiler(_interactiveshell.CachingCompiler):
    def cache(self, transformed_code, number=0, raw_code=None):
        keep_source(Shell.name, transformed_code)
        return Shell.name


class Hook(DisplayHook):
    """Keeps the value of the last expression, instead of printing it."""

    def __call__(self, result=None):
        self.check_for_underscore()
        if result is None or not Shell.aside and self.quiet():
            return
        if not Shell.aside:
            self.update_user_ns(result)
        self.fill_exec_result(result)
        Shell.value = result


class Publisher(DisplayPublisher):
    def publish(self, data, metadata=None, source=None, *, transient=None, update=False, **_):
        show_forms(data, (transient or {}).get("display_id"), update)

    def clear_output(self, wait=False):
        clear_shown(wait)


class Formatter(DisplayFormatter):
    """IPython's forms, and those of data frames and figures that it has none for."""

    def format(self, obj, include=None, exclude=None):
        forms, metadata = super().format(obj, include=include, exclude=exclude)
        more = {}
        forms_of_libraries(obj, more)
        for kind, form in more.items():
            if kind not in forms and (not include or kind in include) and (not exclude or kind not in exclude):
                forms[kind] = form
        return forms, metadata


class PandoShell(_interactiveshell.InteractiveShell):
    compiler_class = Compiler
    display_pub_class = Type(Publisher)
    displayhook_class = Type(Hook)

    def init_ipython_dir(self, ipython_dir):
        pass

    def init_profile_dir(self, profile_dir):
        self.profile_dir = sys.modules["IPython.core.profiledir"].ProfileDir()

    def init_virtualenv(self):
        pass  # the interpreter is the environment's, or there is none

    def init_prompts(self):
        pass

    def init_display_formatter(self):
        self.display_formatter = Formatter(parent=self)
        self.configurables.append(self.display_formatter)

    def showtraceback(self, exc_tuple=None, *_, **__):
        """Nothing is printed yet: most are the evaluation's own error."""
        e = exc_tuple[1] if exc_tuple else sys.exc_info()[1]
        if e is not None:
            Shell.errors.append((e, error_of(e, "")["traceback"]))

    def showsyntaxerror(self, *_, **__):
        self.showtraceback()

    def showindentationerror(self):
        self.showtraceback()

    def system(self, cmd):
        self.user_ns["_exit_code"] = run_command(self.var_expand(cmd, depth=1))

    system_piped = system_raw = system

    def enable_gui(self, gui=None):
        if gui not in (None, "inline", "agg"):
            raise UsageError("there is no screen for %s: figures are shown without it" % gui)

    def ask_exit(self):
        raise SystemExit

    def enter(self):
        """Get ready for the evaluation State.count. The histories are those of the
        namespace, which contexts of E2B's exchange; their indices are evaluations'."""
        ns, h = self.user_ns, self.history_manager
        if ns.get("_oh") is not h.output_hist or ns.get("_ih") is not h.input_hist_parsed:
            known = isinstance(ns.get("_oh"), dict) and isinstance(ns.get("_ih"), list)
            h.output_hist, h.input_hist_parsed = (ns["_oh"], ns["_ih"]) if known else ({}, [""])
            self.init_user_ns()
            for under in ("_", "__", "___"):
                setattr(self.displayhook, under, ns.setdefault(under, ""))
        for inputs in (h.input_hist_parsed, h.input_hist_raw):
            inputs.extend([""] * (State.count - len(inputs)))
        h.db_input_cache.clear()  # nothing writes them to a disk
        h.db_output_cache.clear()
        self.execution_count = State.count


def new_shell():
    module = _interactiveshell
    if module.InteractiveShell.initialized():
        module.InteractiveShell.clear_instance()  # another's, which prints
    files = getattr(module, "PickleShareDB", None)
    module.PickleShareDB = lambda *_: Memory()
    try:
        shell = PandoShell.instance(user_module=MAIN, config=Config({"HistoryManager": {"enabled": False, "hist_file": ":memory:"},
                                                                     "InteractiveShell": {"colors": "NoColor"}}))
    finally:
        if files is not None:
            module.PickleShareDB = files
    LISTS.append(sys.modules["IPython.utils.text"].SList)
    shell.loop_runner = run_async
    shell.compile.flags |= State.futures
    shell.set_hook("show_in_pager", lambda _, data, **__: show_forms(data if isinstance(data, dict) else {"text/plain": data}), 0)
    shell.register_magic_function(Words.pip, "line", "pip")  # IPython's own says that one should restart
    import warnings
    warnings.filterwarnings("ignore", "To exit: use")
    builtins.display = display
    for name, own in Displays.own.items():
        sys.modules[name].display = own
    if builtins.__dict__.get("_") is State.last:
        builtins.__dict__.pop("_", None)
    if State.last is not None:
        shell.displayhook._ = MAIN.__dict__["_"] = State.last
    State.last = None
    return shell


def in_shell(code, name):
    """The value of code, evaluated by IPython's shell."""
    shell = Shell.it
    Shell.name, Shell.value, Shell.errors = name, None, []
    shell.enter()
    error = None
    try:
        result = shell.run_cell(code, store_history=not Shell.aside)
        error = result.error_before_exec or result.error_in_exec
    finally:
        tell_errors(error)
        end_threads(shell)
    if error is not None:
        raise error
    v, Shell.value = Shell.value, None
    return v


def tell_errors(own):
    """Print what was not the error of the evaluation, but of what went on in it."""
    for e, text in Shell.errors:
        if e is not own:
            print(text, file=sys.stderr, end="")
    Shell.errors = []


def shell_forms(v):
    """The richer forms of v, by media type."""
    out = {}
    forms, _ = Shell.it.display_formatter.format(v, exclude=("text/plain",))
    tell_errors(None)
    for kind, data in forms.items():
        text = form_text(kind, data)
        if text is not None:
            out[kind] = text
    return out


def end_threads(shell):
    """End the thread that runs %%bash and the like, when nothing is left for it to do:
    what has threads can't be forked."""
    scripts = shell.magics_manager.registry.get("ScriptMagics")
    loop = getattr(scripts, "event_loop", None)
    if loop is None or any(p.returncode is None for p in scripts.bg_processes):
        return
    import threading
    threads = [t for t in threading.enumerate() if getattr(t, "_target", None) == loop.run_forever]
    loop.call_soon_threadsafe(loop.stop)
    for t in threads:
        t.join(1)
    if not any(t.is_alive() for t in threads):
        loop.close()
        scripts.event_loop = None
