# IPython's words in code that is no Python: !cmd, %pip and so on. Where IPython is
# there, its shell runs such code; else the few that are simple are done here, and the
# others say what to install.

import re
import shlex
import subprocess

COMMANDS = ("pip", "conda", "cd", "ls", "cat", "mkdir", "rm", "cp", "mv")  # which IPython takes without a % before them


def where(lines, e):
    """The index of the line that e complains of, or of the first of those that continue there."""
    at = min(e.lineno or 1, len(lines)) - 1
    while at > 0 and lines[at - 1].endswith("\\"):
        at -= 1
    return at


def is_word(code, e):
    """Whether the error of code may be one for Python alone."""
    lines = code.splitlines() or [""]
    line = lines[where(lines, e)].strip()
    return bool(re.match(r"[!?]|%%?[A-Za-z]|[\w., ]+=\s*(!|%[A-Za-z])", line) or line.endswith("?")
                or len(lines) == 1 and re.match(r"(%s)\s" % "|".join(COMMANDS), line))


def run_word(code, name, e):
    """Evaluate code that Python does not understand because of e."""
    if not is_word(code, e):
        raise e
    if begin_shell():
        return in_shell(code, name)
    tree = None
    while tree is None:
        code, line = without_word(code, name, e), e.lineno
        try:
            tree = compile(code, name, "exec", ast.PyCF_ONLY_AST | AWAIT | State.futures, dont_inherit=True)
        except SyntaxError as another:
            e = another
        if tree is None and (e.lineno == line or not is_word(code, e)):
            raise e
    builtins.__pando_words__ = Words
    return run_tree(tree, name)


def without_word(code, name, e):
    """code with Python in the place of the word in the line that e complains of. It has
    as many lines as before."""
    lines = code.splitlines()
    at = last = where(lines, e)
    line = lines[at]
    while line.endswith("\\") and last + 1 < len(lines):
        last += 1
        line = line[:-1] + lines[last]
    m = re.match(r"(\s*)(?:([\w.]+)\s*=\s*)?(!!?|%pip\b|%cd\b|%matplotlib\b|pip\b)\s*(.*)$", line)
    if m is None or not m.group(4) and m.group(3)[0] == "!":
        word = (re.search(r"%%?\w+|[!?]", line) or re.search(r"\w+", line)).group(0)
        raise SyntaxError("%s needs IPython, and %s, or write it in Python" % (word, no_ipython()), (name, at + 1, None, line))
    indent, target, word, rest = m.groups()
    if word == "%cd":
        call = "cd(%r)" % rest
    elif word == "%matplotlib":
        call = "figures()"
    else:
        if word[-3:] == "pip" and target:
            rest = pip_command(rest)
        call = ("output" if target or word == "!!" else "pip" if word[-3:] == "pip" else "system") + "(%r)" % rest
    lines[at:last + 1] = [indent + (target + " = " if target else "") + "__pando_words__." + call] + [""] * (last - at)
    return "\n".join(lines) + "\n"


def pip_command(rest):
    return shlex.quote(sys.executable or "python3") + " -m pip " + rest


class Words:
    """What words become, where there is no IPython."""

    @staticmethod
    def system(command):
        MAIN.__dict__["_exit_code"] = run_command(command)

    @staticmethod
    def output(command):
        text = subprocess.run(command, shell=True, executable=shell_of(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout
        look_again()
        return text.decode("utf-8", "replace").splitlines()

    @staticmethod
    def pip(rest):
        """Run pip of this Python."""
        Words.system(pip_command(rest))

    @staticmethod
    def figures():
        """Figures are shown without being asked."""

    @staticmethod
    def cd(where):
        os.chdir(os.path.expanduser(where.strip() or "~"))
        print(os.getcwd())


def shell_of():
    shell = os.environ.get("SHELL", "")
    return shell if os.access(shell, os.X_OK) else "/bin/sh"


def run_command(command):
    """Run a command of a shell, and return its exit code, negative for a signal. Its
    output goes where this process's goes, or, where code has put something else in the
    place of the streams, through that."""
    flush()
    direct = sys.stdout is STDOUT and sys.stderr is STDERR
    p = subprocess.Popen(command, shell=True, executable=shell_of(), start_new_session=True,
                         **({} if direct else {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}))
    try:
        if not direct:
            import codecs
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            for piece in iter(lambda: p.stdout.read1(1 << 16), b""):
                sys.stdout.write(decoder.decode(piece))
        p.wait()
    except BaseException:
        end_group(p)
        raise
    finally:
        if p.stdout:
            p.stdout.close()
        look_again()
    return p.returncode


def end_group(p):
    """End a command that was interrupted, with all that it has begun."""
    for number, patience in ((_signal.SIGINT, 1), (_signal.SIGKILL, None)):
        try:
            os.killpg(p.pid, number)
        except OSError:
            pass
        try:
            p.wait(patience)
        except subprocess.TimeoutExpired:
            pass


def look_again():
    """See what a command has installed."""
    import importlib
    import site
    importlib.invalidate_caches()
    try:
        own = site.getusersitepackages()
        if site.ENABLE_USER_SITE and own not in sys.path and os.path.isdir(own):
            site.addsitedir(own)
    except Exception:
        pass  # there is none
