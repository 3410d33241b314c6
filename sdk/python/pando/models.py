"""What the API tells about things. Each has raw, all that the daemon said."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Dict, List, Optional

__all__ = ["CellInfo", "Checkpoint", "Diff", "Disk", "DiskObject", "FileChange", "FileEvent", "FileInfo", "Approval", "CommandInfo", "Stats", "Port", "ProcessInfo", "Receipt", "Result", "RunInfo", "Restored", "TemplateInfo", "Answer", "Step", "Progress",
           "Event", "Lease", "Policy", "PolicyLine"]

_Doc = Dict[str, Any]


def _time(text: str) -> datetime:
    """Reads a time of the API, whose fractions may be finer than Python's."""
    day, _, fraction = text.rstrip("Z").partition(".")
    return datetime.strptime(f"{day}.{fraction[:6] or '0'}", "%Y-%m-%dT%H:%M:%S.%f").replace(tzinfo=timezone.utc)


@dataclass(frozen=True)
class Lease:
    """How long a cell lives."""

    then: str
    """What becomes of it: pause, stop or remove."""
    until: Optional[datetime] = None
    """None: for ever."""
    paused: bool = False

    @classmethod
    def from_json(cls, d: _Doc) -> "Lease":
        return cls(d.get("then", ""), _time(d["until"]) if d.get("until") else None, d.get("paused", False))


@dataclass(frozen=True)
class CellInfo:
    """A cell, as it was when it was asked for."""

    id: str
    name: str
    state: str
    source: str = ""
    backend: str = ""
    head: int = 0
    processes: int = 0
    latest_run: str = ""
    interpreter: str = ""
    labels: Dict[str, str] = field(default_factory=dict)
    lease: Optional[Lease] = None
    raw: _Doc = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_json(cls, d: _Doc) -> "CellInfo":
        return cls(d["cell"], d.get("name", ""), d.get("state", ""), d.get("source", ""), d.get("backend", ""), d.get("head", 0),
                   d.get("processes", 0), d.get("latest_run", ""), (d.get("interpreter") or {}).get("version", ""), d.get("labels") or {},
                   Lease.from_json(d["lease"]) if d.get("lease") else None, d)


@dataclass(frozen=True)
class FileInfo:
    """A file of a cell, as it was when it was asked for."""

    path: str
    """Absolute, in the cell."""
    type: str
    """file, directory, symlink or other."""
    size: int
    """Bytes."""
    mode: int
    """Permissions, with the bits for set-user-id, set-group-id and sticky."""
    mtime: datetime
    target: str = ""
    """Of a symlink: what it says."""
    digest: str = ""
    """Of its bytes, "sha256:…", where it was asked for."""
    raw: _Doc = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> str:
        return self.path.rstrip("/").rpartition("/")[2]

    @property
    def is_dir(self) -> bool:
        return self.type == "directory"

    @classmethod
    def from_json(cls, d: _Doc) -> "FileInfo":
        return cls(d["path"], d.get("type", ""), d.get("size", 0), d.get("mode", 0), _time(d["mtime"]), d.get("target", ""), d.get("digest", ""), d)


@dataclass(frozen=True)
class FileEvent:
    """A change in a directory of a cell."""

    path: str
    what: str
    """create, write, remove, rename or chmod; overflow: more changed than is told; "" in
    the first event, from which on nothing is missed."""

    @classmethod
    def from_json(cls, d: _Doc) -> "FileEvent":
        return cls(d.get("path", ""), d.get("what", ""))


@dataclass(frozen=True)
class Port:
    """A TCP port on which something in a cell listens."""

    port: int
    address: str
    """In the cell: 127.0.0.1, 0.0.0.0, ::1, ::"""

    @classmethod
    def from_json(cls, d: _Doc) -> "Port":
        return cls(d["port"], d.get("address", ""))


@dataclass(frozen=True)
class ProcessInfo:
    """A process of a cell, as it was when it was asked for."""

    pid: int
    """In the cell."""
    parent: int
    """Its parent's; 0 outside the cell."""
    state: str
    memory: int
    """Bytes that are resident."""
    cpu: float
    """Seconds of processor time."""
    started: datetime
    command: str
    raw: _Doc = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_json(cls, d: _Doc) -> "ProcessInfo":
        return cls(d["pid"], d.get("ppid", 0), d.get("state", ""), d.get("rss", 0), d.get("cpu_ms", 0) / 1000, _time(d["started"]), d.get("command", ""), d)


@dataclass(frozen=True)
class CommandInfo:
    """A command that was started in a cell, and that can be attached to."""

    id: str
    command: List[str]
    running: bool
    exit_code: Optional[int] = None
    signal: str = ""
    raw: _Doc = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_json(cls, d: _Doc) -> "CommandInfo":
        return cls(d["exec"], d.get("command") or [], d.get("running", False), d.get("exit_code"), d.get("signal", ""), d)


@dataclass(frozen=True)
class Stats:
    """What a cell uses now."""

    processes: int
    memory: int
    """Bytes."""
    peak_memory: int
    """Bytes."""
    cpu: float
    """Seconds of CPU time."""
    disk: int
    """Bytes of its files, home and /tmp that are its own."""
    written: int
    """Bytes written to disks."""
    measured: List[str] = field(default_factory=list)
    """Names of the fields of raw that this host counts; others are 0."""
    raw: _Doc = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_json(cls, d: _Doc) -> "Stats":
        return cls(d.get("processes", 0), d.get("memory", 0), d.get("peak_memory", 0), d.get("cpu_us", 0) / 1e6, d.get("disk", 0), d.get("written", 0),
                   d.get("measured") or [], d)


@dataclass(frozen=True)
class Approval:
    """Something that a cell wants, and that a person decides on."""

    id: str
    want: str
    """"POST https://api.github.com/repos/x/y/issues", "connect HOST:PORT", …"""
    state: str
    """waiting, approved, denied or expired."""
    cell: str = ""
    """Id of the cell that wants it."""
    run: str = ""
    reason: str = ""
    expires: Optional[datetime] = None
    """When it is denied without an answer; of one that is approved, when that ends."""
    raw: _Doc = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_json(cls, d: _Doc) -> "Approval":
        return cls(d["approval"], d.get("want", ""), d.get("state", ""), d.get("cell", ""), d.get("run", ""), d.get("reason", ""),
                   _time(d["expires"]) if d.get("expires") else None, d)


@dataclass(frozen=True)
class TemplateInfo:
    """A template, as it was when it was asked for."""

    name: str
    state: str
    version: str = ""
    cells: List[str] = field(default_factory=list)
    raw: _Doc = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_json(cls, d: _Doc) -> "TemplateInfo":
        return cls(d["name"], d.get("state", ""), d.get("version", ""), d.get("cells") or [], d)


@dataclass(frozen=True)
class DiskObject:
    """One thing on disk: bytes is what its removal frees, shared what it has in common
    with others, command what removes it."""

    kind: str
    name: str
    bytes: int
    shared: int
    state: str = ""
    command: str = ""
    raw: _Doc = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_json(cls, d: _Doc) -> "DiskObject":
        return cls(d["kind"], d["name"], d.get("bytes", 0), d.get("shared", 0), d.get("state", ""), d.get("command", ""), d)


@dataclass(frozen=True)
class Disk:
    """What pando holds on disk, in bytes. objects is empty unless it was asked for; next
    is removed next if the state grows beyond its budget."""

    held: int
    budget: int
    free: int
    kinds: Dict[str, int] = field(default_factory=dict)
    objects: List[DiskObject] = field(default_factory=list)
    next: List[DiskObject] = field(default_factory=list)
    removed: List[DiskObject] = field(default_factory=list)
    warning: str = ""
    raw: _Doc = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_json(cls, d: _Doc) -> "Disk":
        things = {k: [DiskObject.from_json(o) for o in d.get(k) or []] for k in ("objects", "next", "removed")}
        kinds = {k["kind"]: k.get("bytes", 0) for k in d.get("kinds") or []}
        return cls(d["held"], d["budget"], d["free"], kinds, things["objects"], things["next"], things["removed"], d.get("warning", ""), d)


@dataclass(frozen=True)
class Checkpoint:
    """An immutable state of a cell."""

    id: str
    number: int
    kind: str
    message: str = ""
    run: str = ""
    memory: bool = False
    tree_digest: str = ""
    turn: int = 0
    raw: _Doc = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_json(cls, d: _Doc) -> "Checkpoint":
        return cls(d["checkpoint"], d.get("number", 0), d.get("kind", ""), d.get("message", ""), d.get("run", ""), d.get("memory", False),
                   d.get("tree_digest", ""), d.get("turn", 0), d)


@dataclass(frozen=True)
class Restored:
    """What a restore did."""

    number: int
    lost: List[str] = field(default_factory=list)
    ended: int = 0
    proof: str = ""
    memory: str = ""
    inherited: List[str] = field(default_factory=list)
    renewed: List[str] = field(default_factory=list)
    raw: _Doc = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_json(cls, d: _Doc) -> "Restored":
        return cls(d.get("number", 0), d.get("lost") or [], d.get("ended", 0), d.get("proof", ""), d.get("memory", ""), d.get("inherited") or [],
                   d.get("renewed") or [], d)


@dataclass(frozen=True)
class FileChange:
    """One changed file."""

    path: str
    status: str
    added: int = 0
    deleted: int = 0
    raw: _Doc = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True)
class Diff:
    """What differs between two states. str() is a unified diff."""

    start: str
    end: str
    files: List[FileChange]
    text: str = ""
    notes: List[str] = field(default_factory=list)
    digest: str = ""  # of the changes; accept(expect=digest) takes no others
    raw: _Doc = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_json(cls, d: _Doc) -> "Diff":
        files = [FileChange(f["path"], f.get("status", ""), f.get("added", 0), f.get("deleted", 0), f) for f in d.get("files") or []]
        return cls(d.get("from", ""), d.get("to", ""), files, d.get("text", ""), d.get("notes") or [], d.get("digest", ""), d)

    def __str__(self) -> str:
        return self.text

    def __bool__(self) -> bool:
        return bool(self.files)


@dataclass(frozen=True)
class Receipt:
    """A signed statement of the ledger. str() is Markdown."""

    id: str
    type: str = ""
    run: str = ""
    verdict: str = ""
    summary: str = ""
    statement: Any = None
    markdown: str = ""
    raw: _Doc = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_json(cls, d: _Doc) -> "Receipt":
        return cls(d["receipt"], d.get("type", ""), d.get("run", ""), d.get("verdict", ""), d.get("summary", ""), d.get("statement"), d.get("markdown", ""), d)

    def __str__(self) -> str:
        return self.markdown


@dataclass(frozen=True)
class Result:
    """How a command ended, and what it wrote.

    exit_code is None when it did not start; cause says why it ended, when that was
    not its own doing ("timeout", "memory limit", …).
    """

    exit_code: Optional[int]
    stdout: bytes = b""
    stderr: bytes = b""
    signal: str = ""
    cause: str = ""
    lost: int = 0
    """Bytes of output that were no longer kept when they were asked for."""
    raw: _Doc = field(default_factory=dict, repr=False, compare=False)

    @property
    def ok(self) -> bool:
        return self.exit_code == 0 and not self.cause

    @property
    def text(self) -> str:
        """Standard output as text; what is not UTF-8 becomes U+FFFD."""
        return self.stdout.decode("utf-8", "replace")

    def how(self) -> str:
        """How it ended, in words."""
        if self.cause:
            return f"ended: {self.cause}"
        if self.signal:
            return f"ended by {self.signal}"
        return "did not start" if self.exit_code is None else f"exit code {self.exit_code}"


@dataclass(frozen=True)
class RunInfo:
    """A governed run, as far as it has come."""

    id: str
    cell: str
    phase: str
    verdict: str = ""
    reason: str = ""
    exit_code: Optional[int] = None
    cause: str = ""
    files_changed: int = 0
    receipt: str = ""
    notes: List[str] = field(default_factory=list)
    raw: _Doc = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_json(cls, d: _Doc) -> "RunInfo":
        return cls(d["run"], str(d.get("cell_name") or d.get("cell") or ""), d.get("phase", ""), d.get("verdict", ""), d.get("reason", ""),
                   d.get("exit_code"), d.get("cause", ""), (d.get("changes") or {}).get("files", 0), d.get("receipt", ""), d.get("notes") or [], d)


@dataclass(frozen=True)
class Event:
    """One thing that happened in a run, as its keeper or its gateway recorded it."""

    seq: int
    time: datetime
    kind: str
    text: str = ""
    denied: bool = False
    fields: Any = None
    raw: _Doc = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_json(cls, d: _Doc) -> "Event":
        return cls(d["seq"], _time(d["time"]), d["kind"], d.get("text", ""), d.get("denied", False), d.get("fields"), d)


@dataclass(frozen=True)
class PolicyLine:
    """One line of a policy, and where it comes from."""

    text: str
    origin: str = ""
    force: str = ""
    """enforced, accounted or not enforced."""


@dataclass(frozen=True)
class Policy:
    """What governs a cell or a run."""

    of: str
    digest: str
    lines: List[PolicyLine]
    raw: _Doc = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_json(cls, d: _Doc) -> "Policy":
        return cls(d.get("of", ""), d.get("policy_digest", ""), [PolicyLine(x.get("text", ""), x.get("origin", ""), x.get("force", "")) for x in d.get("lines") or []], d)

    def __str__(self) -> str:
        return "\n".join(x.text for x in self.lines)


@dataclass(frozen=True)
class Step:
    """One decision of a policy."""

    want: str
    effect: str
    rule: str = ""
    reason: str = ""
    permit: str = ""
    """The flag that would allow it."""


@dataclass(frozen=True)
class Answer:
    """What a policy makes of a request."""

    request: str
    effect: str
    """allow, deny or ask: the strictest of all steps."""
    steps: List[Step]
    raw: _Doc = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_json(cls, d: _Doc) -> "Answer":
        steps = [Step(s.get("want", ""), s.get("effect", ""), s.get("rule", ""), s.get("reason", ""), s.get("permit", "")) for s in d.get("steps") or []]
        return cls(d.get("request", ""), d.get("effect", ""), steps, d)

    def __bool__(self) -> bool:
        return self.effect == "allow"


@dataclass(frozen=True)
class Progress:
    """How far long work is."""

    step: str
    done: int = 0
    total: int = 0
    unit: str = ""
    note: str = ""

    @classmethod
    def from_json(cls, d: _Doc) -> "Progress":
        return cls(d.get("step", ""), d.get("done", 0), d.get("total", 0), d.get("unit", ""), d.get("note", ""))
