# A trunk that stands: between its forks no Python runs in it. See stand.c.

STANDING = {
    "x86_64":
    "QVdIjUdQQb84AAAAQVZBvgQAAABBVUFUVVNIiftIiUQk+EiLQxhIi3MgRTHSRTHASIs7RTHJugAAAEBIiUYouC8AAAAPBUiD+Px0"
    "1kiFwH8TSMfC/////0gPRdBIidXpmQEAAEiLQyBIi0goSIP5Dw+GVwEAAEiD6RBIichImUn3/kmJxUiD+Q9+IjHSSIt7CEyLUxBF"
    "McBFMclMifhIidYPBUiJxUiFwHUJ6w9Ix8Xq////RTHk6eoAAABIi0MoRTHSRTHARTHJvgMAAAC6AAAIAEhjOLgkAQAADwUx9kG+"
    "JAEAAEiLQyhMjWYBRTHSRTHARTHJMdJIY3ywBEyJ8A8FTInmSYP8A3XaQbwEAAAAugEAAABNOex9H0iLQyhIi3NIRTHSRTHARTHJ"
    "SmM8oEiJ0A8FSf/E69xFMdJFMcBFMcm4tAEAAL8EAAAAvv////8x0g8FTItjMEmLBCRIhcB4JEmLVCQYSYt0JBBFMclJi3wkCE2L"
    "VCQgTYtEJCgPBUmDxDDr00iLU0BIi3M4RTHSRTHARTHJuAEAAAC/AwAAAA8F61dNOex9KUiLQygx0kUx0kUxwEUxyUiJ1kpjPKC4"
    "AwAAAA8FSf/E69lIx8Xq////SIlrUEiLO0G6AEAAAEUxwEiLdCT4RTHJuCwAAAC6CAAAAA8F6SX+//9bSInoXUFcQV1BXkFfww==",
    "aarch64":
    "5gMAqgtAAZGMAIDSwIRBqYgagNICAKjSAwCA0gQAgNIFAIDSIBQA+cAAQPkBAADUHxAAscD+/1QfAADxjAAAVAcQn9rgAweqwANf"
    "1sAQQPkAFED5HzwA8SkMAFQAQADRCgzMmh88APFNBgBUwJBAqYgbgNIBAIDSAgCA0gEAANTnAwCqgAUAtcAUQPkIA4DSYQCA0gIB"
    "oNIEAIDSAACAuQEAANQBAIDSwBRA+SkEAJEIA4DSAgCA0gMAgNIEAIDSAHipuAUAgNIBAADU4QMJqj8NAPGh/v9UiQCA0j8BCutL"
    "BABUiDaA0oAAgNLhf0CyAgCA0gMAgNIEAIDSBQCA0gEAANTJGED5KAFA+UgE+LbBiEOpCAiA0mAAgNIDAIDSBACA0gUAgNIBAADU"
    "xv//F6cCgJIJAIDSPwEK66sDAFTAAED54QMLqsgZgNICAYDSAwCI0gQAgNIFAIDSxygA+QEAANSq//8XwBRA+QgIgNLBJED5IgCA"
    "0gB4qbgDAIDSBACA0gUAgNIBAADUKQECi9P//xcghUCpBQCA0iKNQakkFUD5AQAA1CnBAJHX//8XwBRA+SgHgNIBAIDSAgCA0gMA"
    "gNIEAIDSAHipuAUAgNIBAADUKQUAkdj//xenAoCS2P//Fw==",
}
SYS_GETRANDOM = {"x86_64": 318, "aarch64": 278}
SYS_SETSID = {"x86_64": 112, "aarch64": 157}
SYS_SETPGID = {"x86_64": 109, "aarch64": 154}
SYS_PRCTL = {"x86_64": 157, "aarch64": 167}
SYS_CAPSET = {"x86_64": 126, "aarch64": 91}
FILES = 32  # at most, in one request
SAID = b'{"forked":{}}\n'


@one
class Stand:
    keep = []  # memory that the code points into
    code = None
    kept = None  # capabilities that a fork keeps, where the code has dropped the others


def code():
    """The machine code, as a function; OSError where there can be none."""
    if Stand.code is None:
        text = STANDING.get(platform.machine())
        if text is None or not hasattr(os, "memfd_create"):
            raise OSError("no code for this processor")
        fd = os.memfd_create("pando", os.MFD_CLOEXEC)
        try:
            os.write(fd, binascii.a2b_base64(text))
            LIBC.mmap.restype = ctypes.c_void_p
            at = LIBC.mmap(None, ctypes.c_size_t(4096), 5, 2, fd, ctypes.c_long(0))  # executable, private
        finally:
            os.close(fd)
        if at in (None, ctypes.c_void_p(-1).value):
            raise OSError("no memory may be executed here")
        Stand.code = ctypes.PYFUNCTYPE(ctypes.c_long, ctypes.c_void_p)(at)
    return Stand.code


def memory(*values):
    """Words in memory that stays, and its address."""
    m = (ctypes.c_long * len(values))(*[v - (1 << 64) if v >= 1 << 63 else v for v in values])
    Stand.keep.append(m)
    return ctypes.addressof(m)


def text(data):
    m = ctypes.create_string_buffer(data, max(len(data), 1))
    Stand.keep.append(m)
    return ctypes.addressof(m)


def first_calls():
    """What a fork calls before it goes back to Python, six words each."""
    machine = platform.machine()
    calls = [(SYS_SETSID if Trunk.terminal else SYS_SETPGID)[machine], 0, 0, 0, 0, 0]  # see leave
    if Forking.clear and Forking.clear != Forking.tid:
        calls += [Forking.numbers["set_tid_address"], Forking.clear, 0, 0, 0, 0]
    allowed = 0
    for line in read("/proc/self/status").splitlines():
        if line.startswith("CapPrm:"):
            allowed = int(line.split()[1], 16)
    for b in Trunk.caps:
        if not allowed >> b & 1:
            calls += [SYS_PRCTL[machine], PR_CAPBSET_DROP, b, 0, 0, 0]
    calls += [SYS_PRCTL[machine], PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0]
    low, high = allowed & 0xffffffff, allowed >> 32
    calls += [SYS_CAPSET[machine], text(struct.pack("Ii", 0x20080522, 0)), text(struct.pack("6I", low, low, 0, high, high, 0)), 0, 0, 0]
    for _, at in Trunk.words:
        calls += [SYS_GETRANDOM[machine], at, 4 * MT_WORDS, 0, 0, 0]
    Stand.kept = allowed
    return calls + [-1, 0, 0, 0, 0, 0]


def stand(req, files):
    """Fork whenever the socket that came with the request says so, until it is
    closed. It says so with five files or more, and is told the number of the
    child; what is left of the arguments was said before."""
    if cannot_fork():
        raise Refused(cannot_fork())
    if not AtFork.complete:
        raise Refused("threading or random was loaded before pando's code, by a .pth file or sitecustomize of this Python, so what they registered for a fork is not known")
    if Held.plan is None or len(files) != 1:
        raise Refused("it is not held for forks")
    if not set(os.listdir("/proc/self/fd")) >= {"0", "1", "2"}:
        raise Refused("it has no standard streams")
    try:
        enter = code()
    except OSError as e:
        raise Refused(str(e))
    Stand.keep = []
    room = _socket.CMSG_LEN(FILES * 4)
    control, byte = text(bytes(room + 8)), text(b"\0")
    message = memory(0, 0, memory(byte, 1), 1, control, room, 0)
    calls, length = memory(*first_calls()), len(SAID)
    at = memory(files[0], req["flags"] | _signal.SIGCHLD, Forking.tid, room, message, control + _socket.CMSG_LEN(0), calls,
                text(SAID), length, text(b"0"), 0)
    Fork.mode, Fork.was, Fork.filled = "fork", Held.plan, True
    WIRES[0].send({"id": req["id"], "standing": True})
    gc.disable()
    child = enter(at) == 0
    gc.enable()
    if child:
        files.clear()
    else:
        Fork.was, Fork.filled = None, False
    return None


OPS.update(stand=stand)
