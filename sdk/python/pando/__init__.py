"""pando runs AI agents, and the code they write, in cells: isolated places that fork
like processes, roll back like transactions and leave signed evidence.

    import pando

    t = pando.template("pyagent")
    print([c.eval("6*7") for c in t.fork(100)])

The functions of this module use one client, made when it is first needed; see
Client for others, and aio for asyncio.
"""

from __future__ import annotations

import threading
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

from ._sync.client import Client
from ._sync.process import Connection, Process
from ._sync.things import Cell, Cells, Run, Template
from .errors import (Conflict, Corrupt, Denied, Error, EvalError, Exists, ExitError, Internal, Interrupted, Invalid, Limited, Lost, NoSuchBinary, NotFound,
                     NotRunnable, Stale, TimedOut, Unauthenticated, Unavailable, Unsupported)
from .models import (Answer, Approval, CellInfo, Checkpoint, CommandInfo, Diff, Disk, DiskObject, Event, FileChange, FileEvent, FileInfo, Lease, Policy, PolicyLine, Port, ProcessInfo, Progress, Receipt,
                     Restored, Result, RunInfo, Stats, Step, TemplateInfo)
from .values import Evaluation, Opaque

__version__ = "0.1.0"

__all__ = [
    "Answer", "Approval", "Cell", "CellInfo", "Cells", "Checkpoint", "Client", "CommandInfo", "Conflict", "Connection", "Corrupt", "Denied", "Diff", "Disk", "DiskObject", "Error", "EvalError", "Evaluation", "Event",
    "Exists", "ExitError", "FileChange", "FileEvent", "FileInfo", "Internal", "Interrupted", "Invalid", "Lease", "Limited", "Lost", "NoSuchBinary", "NotFound", "NotRunnable", "Opaque",
    "Policy", "PolicyLine", "Port", "Process", "ProcessInfo", "Progress", "Receipt", "Restored", "Result", "Run", "RunInfo", "Stale", "Stats", "Step", "Template", "TemplateInfo", "TimedOut",
    "Unauthenticated", "Unavailable", "Unsupported", "approvals", "approve", "build_template", "cell", "cells", "client", "create", "deny", "disk", "get_run", "iter_cells", "iter_receipts", "iter_runs",
    "policy", "receipt", "run", "runs", "start", "template", "templates", "verify", "why",
]

_mu = threading.Lock()
_client: Optional[Client] = None


def client() -> Client:
    """The client of this module's functions."""
    global _client
    with _mu:
        if _client is None:
            _client = Client()
        return _client


def cells(*, labels: Mapping[str, str] = {}) -> List[CellInfo]:
    """See Client.cells."""
    return client().cells(labels=labels)


def iter_cells(page: int = 100, *, labels: Mapping[str, str] = {}) -> Iterator[CellInfo]:
    """See Client.iter_cells."""
    return client().iter_cells(page, labels=labels)


def cell(name: str) -> Cell:
    """See Client.cell."""
    return client().cell(name)


def create(name: str = "", source: Optional[str] = None, **more: Any) -> Cell:
    """See Client.create."""
    return client().create(name, source, **more)


def templates() -> List[TemplateInfo]:
    """See Client.templates."""
    return client().templates()


def template(name: str) -> Template:
    """See Client.template."""
    return client().template(name)


def build_template(name: str, **more: Any) -> Template:
    """See Client.build_template."""
    return client().build_template(name, **more)


def run(command: Any, **more: Any) -> Run:
    """See Client.run."""
    return client().run(command, **more)


def start(command: Any, **more: Any) -> Run:
    """See Client.start."""
    return client().start(command, **more)


def runs(cell: str = "") -> List[RunInfo]:
    """See Client.runs."""
    return client().runs(cell)


def iter_runs(cell: str = "", page: int = 100) -> Iterator[RunInfo]:
    """See Client.iter_runs."""
    return client().iter_runs(cell, page)


def get_run(id: str, wait: bool = False) -> Run:
    """See Client.get_run."""
    return client().get_run(id, wait)


def approvals(*, answered: bool = False) -> List[Approval]:
    """See Client.approvals."""
    return client().approvals(answered=answered)


def approve(id: str, scope: str = "once") -> Approval:
    """See Client.approve."""
    return client().approve(id, scope)


def deny(id: str) -> Approval:
    """See Client.deny."""
    return client().deny(id)


def disk(objects: bool = False) -> Disk:
    """See Client.disk."""
    return client().disk(objects)


def receipt(id: str) -> Receipt:
    """See Client.receipt."""
    return client().receipt(id)


def iter_receipts(page: int = 100) -> Iterator[Receipt]:
    """See Client.iter_receipts."""
    return client().iter_receipts(page)


def verify(id: str = "all") -> Dict[str, Any]:
    """See Client.verify."""
    return client().verify(id)


def policy(of: str = "", **more: Any) -> Policy:
    """See Client.policy."""
    return client().policy(of, **more)


def why(request: str, of: str = "", allow: Sequence[str] = (), **more: Any) -> Answer:
    """See Client.why."""
    return client().why(request, of, allow, **more)
