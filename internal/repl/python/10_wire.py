# The Python end of pando's interpreters. The files of this folder are joined in
# the order of their names and run in a namespace of their own: code that is
# evaluated lives in __main__ and sees nothing of this. Python 3.8 and later, the
# standard library alone; ctypes and numpy are used where they are there.

#
# What runs in a fork is written so that it touches little: each object that is
# used, if only to count its references, is a page that the fork does not share
# any more. A fork of a numpy template that had answered had 2.6 MiB of its own
# before this was looked at.

import sys
import os


def one(c):
    """The only one of its class. What changes is not kept in classes themselves:
    each change would throw away what Python remembers of them."""
    return c()


@one
class AtFork:
    """What code has registered with os.register_at_fork while this end was
    there. A fork of this end's calls it itself."""

    before, parent, child = [], [], []
    complete = "threading" not in sys.modules and "random" not in sys.modules  # nobody was earlier
    register = os.register_at_fork
    ours = False  # a fork of this end's, in which nothing else is to call it


def register_at_fork(*, before=None, after_in_child=None, after_in_parent=None):
    if not callable(before) and not callable(after_in_child) and not callable(after_in_parent):
        raise TypeError("At least one argument is required and must be callable")
    for f, where in ((before, AtFork.before), (after_in_parent, AtFork.parent), (after_in_child, AtFork.child)):
        if f is not None:
            if not callable(f):
                raise TypeError("%r is not callable" % (f,))
            where.append(f)


def call_all(hooks):
    for f in hooks:
        try:
            f()
        except BaseException:
            traceback.print_exc()


os.register_at_fork = register_at_fork

import time
import json
import array
import _signal
import _socket

SELF = "<pando>"  # the name of this code in tracebacks, which leave it out
EVAL_FD = 3
CLOEXEC_RIGHTS = 0x40000000  # MSG_CMSG_CLOEXEC
MAX_LINE = 10 << 20  # of an answer: the other end reads no more than 12 MiB

# What talks to the other end is taken once: code may put something else in its place.
decode_json = json.JSONDecoder().scan_once
to_json = json.dumps
clock = time.perf_counter
doze = time.sleep
quote = json.encoder.encode_basestring_ascii


class Wire:
    """One JSON object per line over a stream socket, files beside it."""

    def __init__(self, fd):
        self.sock = _socket.socket(fileno=fd)
        self.rest = b""
        self.files = []
        self.room = _socket.CMSG_SPACE(32 * 4)
        self.space = [bytearray(4096)]

    def next(self):
        """The next request and the descriptors that came with it."""
        data = self.rest
        while True:
            at = data.find(b"\n")
            if at >= 0:
                self.rest = data[at + 1:]
                files, self.files = self.files, []
                return decode_json(data[:at].decode(), 0)[0], files
            if len(data) > 8192:  # much code: no files come with its end
                more = self.sock.recv(1 << 20)
                n = len(more)
                pieces = [data, more]
                while n and b"\n" not in more:
                    more = self.sock.recv(1 << 20)
                    n = len(more)
                    pieces.append(more)
                data = b"".join(pieces)
            else:
                n, extra, _, _ = self.sock.recvmsg_into(self.space, self.room, CLOEXEC_RIGHTS)
                for level, kind, raw in extra:
                    if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
                        fds = array.array("i")
                        fds.frombytes(raw[:len(raw) - len(raw) % fds.itemsize])
                        self.files.extend(fds)
                data = data + self.space[0][:n] if data else bytes(self.space[0][:n])
            if not n:
                raise EOFError

    def send(self, answer):
        self.send_text(to_json(answer))

    def send_text(self, text):
        self.sock.sendall(text.encode("utf-8", "backslashreplace") + b"\n")


OPS = {}  # what can be asked, besides evaluations


def later(name):
    """Load a part that most interpreters never need: to compile it takes time at the start.
    LATER has the text of each part that is not loaded."""
    if name in LATER:
        exec(compile(LATER[name], SELF, "exec"), globals())
        del LATER[name]


def close(fd):
    try:
        os.close(fd)
    except OSError:
        pass


class Refused(Exception):
    """Why a request can't be done, for the other end."""


def flush():
    """Everything written so far is on its way before the answer is."""
    for f in (sys.stdout, sys.stderr):
        try:
            f.flush()
        except Exception:
            pass  # closed, replaced by something else, or nobody reads
    if sys.stdout is not STDOUT:
        try:
            STDOUT.flush()
        except Exception:
            pass
    if LIBC is not None:
        FFLUSH(None)  # what C code printed


STDOUT, STDERR = sys.stdout, sys.stderr

try:
    import ctypes
    LIBC = ctypes.PyDLL(None, use_errno=True)  # holds the interpreter's lock: calls here are short
    FFLUSH = LIBC.fflush
    NO_CTYPES = ""
except Exception as e:  # Pythons without ctypes evaluate, and can't fork
    ctypes = LIBC = None
    NO_CTYPES = "this Python has no ctypes (%s)" % e
