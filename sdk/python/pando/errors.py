"""What can go wrong. Every error has a kind that a program decides on, a message
for people, and, where there is one, a hint what to do about it."""

from __future__ import annotations

import re
from typing import Any, Dict, Optional, Type

__all__ = [
    "Error", "Invalid", "NotFound", "Exists", "Conflict", "Stale", "Denied", "Unsupported", "Corrupt", "Unavailable", "Lost",
    "TimedOut", "Limited", "Unauthenticated", "Interrupted", "NotRunnable", "NoSuchBinary", "Internal", "EvalError", "ExitError",
]


class Error(Exception):
    """An error of pando's. Its class goes with its kind; a kind that this version
    does not know is an Error itself."""

    kind = "internal"

    def __init__(self, message: str, hint: str = "", kind: Optional[str] = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if kind is not None:
            self.kind = kind

    def __str__(self) -> str:
        return self.message + ("\nhint: " + self.hint if self.hint else "")

    def __reduce__(self) -> Any:
        return (type(self), (self.message, self.hint, self.kind))


class Invalid(Error):
    """The request itself is wrong."""

    kind = "invalid"


class NotFound(Error):
    """There is no such cell, run, checkpoint or file."""

    kind = "not-found"


class Exists(Error):
    """The name exists already."""

    kind = "exists"


class Conflict(Error):
    """It is not possible in the present state."""

    kind = "conflict"


class Stale(Error):
    """The object changed since the caller read it."""

    kind = "stale"


class Denied(Error):
    """A policy or a permission denies it."""

    kind = "denied"


class Unsupported(Error):
    """This host or this backend cannot do it."""

    kind = "unsupported"


class Corrupt(Error):
    """Verification failed."""

    kind = "corrupt"


class Unavailable(Error):
    """A part is missing or full; it may work later."""

    kind = "unavailable"


class Lost(Unavailable):
    """The daemon could not be reached (reached is False), or the connection to it
    broke: then what was asked for may have been done. Calls that do nothing twice
    have been tried again for some seconds by then."""

    def __init__(self, message: str, hint: str = "", kind: Optional[str] = None, reached: bool = True, final: bool = False) -> None:
        super().__init__(message, hint, kind)
        self.reached = reached
        self.final = final


class TimedOut(Error):
    """A time limit was reached."""

    kind = "timeout"


class Interrupted(Error):
    """It was interrupted."""

    kind = "interrupted"


class NotRunnable(Error):
    """The program exists but can't be executed."""

    kind = "not-runnable"


class NoSuchBinary(Error):
    """The program was not found."""

    kind = "no-such-binary"


class Limited(Error):
    """Too many requests in a short time."""

    kind = "limited"


class Unauthenticated(Error):
    """The token is missing, wrong, expired or revoked."""

    kind = "unauthenticated"


class Internal(Error):
    """A bug in pando."""

    kind = "internal"


_KINDS: Dict[str, Type[Error]] = {
    c.kind: c
    for c in (Invalid, NotFound, Exists, Conflict, Stale, Denied, Unsupported, Corrupt, Unavailable, TimedOut, Interrupted,
              NotRunnable, NoSuchBinary, Limited, Unauthenticated, Internal)
}


_PARAMETERS = {"yes": "lose", "from": "source", "credential": "credentials"}  # that are called otherwise here
_SWITCHES = {"lose", "force", "cascade", "apply", "files", "ignored", "keep_source"}


def _hint(text: str) -> str:
    """Says flags as parameters. Hints are written for the command line; a whole command,
    which is for a terminal, stays."""
    def parameter(m: "re.Match[str]") -> str:
        name = m[1].replace("-", "_")
        name = _PARAMETERS.get(name, name)
        return f"{name}={m[2]}" if m[2] else name + ("=True" if name in _SWITCHES else "")
    before, command, rest = text.partition("pando ")
    return re.sub(r"--([a-z][a-z-]*)(?: ([A-Z]{3,})\b)?", parameter, before) + command + rest


def from_json(doc: Dict[str, Any]) -> Error:
    """Makes an error of one as the API says it."""
    kind = str(doc.get("kind", "internal"))
    message = str(doc.get("message") or "the daemon failed without saying why")
    return _KINDS.get(kind, Error)(message, _hint(str(doc.get("hint") or "")), kind)


class EvalError(Error):
    """Code that was evaluated raised an exception, or was ended.

    type and traceback are the exception's, as its language says them, and message is
    its type and its text;
    cause is why it was ended ("timeout", "stuck", "interrupted", "ended"), when
    that was not the code's doing. evaluation has all of it.
    """

    kind = "eval"

    def __init__(self, type: str, message: str, traceback: str = "", cause: str = "", evaluation: Any = None) -> None:
        text = f"{type}: {message}" if type else message
        hint = {
            "timeout": "the time limit was reached; the interpreter can be used again. Raise the limit with timeout=",
            "stuck": "it cannot be interrupted: fresh=True starts a new interpreter",
            "ended": "fresh=True starts a new interpreter",
        }.get(cause, "")
        super().__init__(text, hint)
        self.type = type
        self.traceback = traceback
        self.cause = cause
        self.evaluation = evaluation

    def __reduce__(self) -> Any:
        prefix = self.type + ": " if self.type else ""
        return (EvalError, (self.type, self.message[len(prefix):], self.traceback, self.cause, self.evaluation))


class ExitError(Error):
    """A command that had to succeed did not; result has what came of it."""

    kind = "exit"

    def __init__(self, message: str, result: Any = None) -> None:
        super().__init__(message)
        self.result = result

    def __reduce__(self) -> Any:
        return (ExitError, (self.message, self.result))
