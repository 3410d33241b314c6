"""Values of interpreters, as the protocol of evaluations writes them in JSON
(docs/reference/eval-protocol.md)."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional

__all__ = ["Opaque", "Evaluation", "decode"]


@dataclass(frozen=True)
class Opaque:
    """A value that has no exact form in JSON: an array, a function, a module. One that
    is in a list or a dictionary is in its place there.

    type is the name of its type, repr how its language writes it, mime its richer
    forms by media type (what is binary is base64).
    """

    type: str
    repr: str
    mime: Dict[str, str] = field(default_factory=dict, compare=False, hash=False)
    repr_cut: int = 0
    """How many characters of the repr were left out."""

    def __repr__(self) -> str:
        more = f"… {self.repr_cut} more characters" if self.repr_cut else ""
        return f"<{self.type} {self.repr}{more}>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Dict[str, str]:
        """Its pictures, for notebooks. Its HTML is not for these: it would be run as the
        notebook's own."""
        return {"text/plain": repr(self), **{k: self.mime[k] for k in PICTURES if k in self.mime}}


PICTURES = ("image/png", "image/jpeg")


def decode(v: Any) -> Any:
    """Makes a Python value of a value as the protocol writes it."""
    if isinstance(v, list):
        return [decode(x) for x in v]
    if not isinstance(v, dict):
        return v
    if len(v) == 1:
        (word, x), = v.items()
        if word == "$float":
            return float(x)  # NaN, Infinity, -Infinity
        if word == "$int":
            return _int(x)
        if word == "$bytes":
            return base64.b64decode(x)
        if word == "$str":
            return base64.b64decode(x).decode("utf-8", "surrogatepass")
        if word == "$tuple":
            return tuple(decode(y) for y in x)
        if word == "$set":
            return _set([decode(y) for y in x])
        if word == "$opaque":
            return Opaque(x["type"], x["repr"])
        if word == "$dict":
            return _dict([(decode(k), decode(y)) for k, y in x])
    return {k: decode(x) for k, x in v.items()}


def _int(digits: str) -> int:
    try:
        return int(digits)
    except ValueError:
        # Python refuses to read more than some thousand digits at once, since that
        # takes quadratic time. Pieces of that size are no more work than the result.
        sign, digits = (-1, digits[1:]) if digits.startswith("-") else (1, digits)
        if not digits.isdigit():
            raise
        n = 0
        for i in range(0, len(digits), 4000):
            part = digits[i:i + 4000]
            n = n * 10 ** len(part) + int(part)
        return sign * n


def _set(items: List[Any]) -> Any:
    try:
        return set(items)
    except TypeError:  # a set of frozen sets, which come as sets
        return {frozenset(x) if isinstance(x, set) else x for x in items}


def _dict(pairs: List[Any]) -> Dict[Any, Any]:
    return {frozenset(k) if isinstance(k, set) else k: v for k, v in pairs}


@dataclass(frozen=True)
class Evaluation:
    """What came of an evaluation."""

    ok: bool
    value: Any
    """The value of the last expression: exact, or an Opaque; None for none."""
    type: str = ""
    repr: str = ""
    mime: Dict[str, str] = field(default_factory=dict)
    display: List[Dict[str, str]] = field(default_factory=list)
    """What the code showed on the way, each in several forms by media type."""
    stdout: bytes = b""
    stderr: bytes = b""
    error_type: str = ""
    error_message: str = ""
    traceback: str = ""
    cause: str = ""
    """Why it was ended, when that was not the code's doing."""
    took_ms: float = 0
    notes: List[str] = field(default_factory=list)
    raw: Dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def images(self) -> List[bytes]:
        """The pictures that were shown, and the value's, in this order: PNG or JPEG."""
        found = ((b.get("image/png") or b.get("image/jpeg")) for b in [*self.display, self.mime])
        return [base64.b64decode(text) for text in found if text]

    @property
    def data(self) -> Optional[Dict[str, List[Any]]]:
        """The columns of a value that is a data frame, by name: dates as ISO 8601, None
        for what is missing. None for other values, and for frames that are too long."""
        columns: Optional[Dict[str, List[Any]]] = json.loads(self.mime["e2b/data"]) if "e2b/data" in self.mime else None
        return columns

    @property
    def charts(self) -> List[Dict[str, Any]]:
        """What the figures that were shown, and the value's, show, as data: type, title,
        elements and so on, as E2B has them."""
        return [json.loads(b["e2b/chart"]) for b in [*self.display, self.mime] if "e2b/chart" in b]

    @classmethod
    def from_json(cls, doc: Dict[str, Any], stdout: bytes = b"", stderr: bytes = b"", notes: Optional[List[str]] = None) -> "Evaluation":
        v = doc.get("value") or {}
        value = None
        if "json" in v:
            value = decode(v["json"])
        elif v:
            value = Opaque(v.get("type", ""), v.get("repr", ""), v.get("mime") or {}, v.get("repr_cut", 0))
        e = doc.get("error") or {}
        return cls(
            ok=bool(doc.get("ok")), value=value, type=v.get("type", ""), repr=v.get("repr", ""), mime=v.get("mime") or {},
            display=doc.get("display") or [], stdout=stdout, stderr=stderr, error_type=e.get("type", ""),
            error_message=e.get("message", ""), traceback=e.get("traceback", ""), cause=doc.get("cause", ""),
            took_ms=doc.get("took_ms", 0), notes=notes or [], raw=doc,
        )
