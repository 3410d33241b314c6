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
from typing import Any, Dict, List, Optional, Sequence

from ._sync import Cell, Cells, Client, Process, Run, Template
from .errors import (Conflict, Corrupt, Denied, Error, EvalError, Exists, ExitError, Internal, Interrupted, Invalid, NoSuchBinary, NotFound, NotRunnable,
                     TimedOut, Unavailable, Unsupported)
from .models import Answer, CellInfo, Checkpoint, Diff, FileChange, Progress, Receipt, Restored, Result, RunInfo, Step, TemplateInfo
from .values import Evaluation, Opaque

__version__ = "0.1.0"

__all__ = [
    "Answer", "Cell", "CellInfo", "Cells", "Checkpoint", "Client", "Conflict", "Corrupt", "Denied", "Diff", "Error", "EvalError", "Evaluation", "Exists",
    "ExitError", "FileChange", "Internal", "Interrupted", "Invalid", "NoSuchBinary", "NotFound", "NotRunnable", "Opaque", "Process", "Progress", "Receipt",
    "Restored", "Result", "Run", "RunInfo", "Step", "Template", "TemplateInfo", "TimedOut", "Unavailable", "Unsupported", "build_template", "cell", "cells",
    "client", "create", "get_run", "receipt", "run", "runs", "template", "templates", "verify", "why",
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


def cells() -> List[CellInfo]:
    """See Client.cells."""
    return client().cells()


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


def runs(cell: str = "") -> List[RunInfo]:
    """See Client.runs."""
    return client().runs(cell)


def get_run(id: str, wait: bool = False) -> Run:
    """See Client.get_run."""
    return client().get_run(id, wait)


def receipt(id: str) -> Receipt:
    """See Client.receipt."""
    return client().receipt(id)


def verify(id: str = "all") -> Dict[str, Any]:
    """See Client.verify."""
    return client().verify(id)


def why(request: str, of: str = "", allow: Sequence[str] = ()) -> Answer:
    """See Client.why."""
    return client().why(request, of, allow)
