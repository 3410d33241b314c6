# Made by generate.py of ../_async. Do not edit.
"""Clients: where everything begins."""

from __future__ import annotations

from typing import Any, Iterator, Dict, List, Mapping, Optional, Sequence, Union

from .. import _ask, errors
from .._ask import Command, Env, Timeout
from ..models import Answer, Approval, CellInfo, Disk, Policy, Receipt, RunInfo, TemplateInfo
from .http import Http
from .process import Sink, Watch
from .things import Cell, Run, Template

__all__ = ["Client"]


class Client(Http):
    """Calls the API. It is safe for concurrent use by threads and tasks.

    host is http://HOST:PORT or https://HOST:PORT[#sha256=FINGERPRINT] of a daemon
    elsewhere, with the token that it knows; by default they are what PANDO_HOST and
    PANDO_TOKEN say, or else it is this user's daemon, which is started when none
    answers. timeout is how many seconds of silence are an error, and end the work;
    by default none: work takes as long as it takes.

    A call that makes something has an Idempotency-Key, so that it is asked again
    when the connection breaks, and done once.
    """

    def __init__(self, host: Optional[str] = None, token: Optional[str] = None, *, timeout: Optional[float] = None) -> None:
        super().__init__(host, token, timeout)

    def __enter__(self) -> "Client":
        self._keeps = True
        return self

    def __exit__(self, *_: Any) -> None:
        self._keeps = False
        self.close()

    def close(self) -> None:
        """Closes connections that wait for the next request."""
        self._hang_up()

    # Cells.

    def cells(self, *, labels: Mapping[str, str] = {}) -> List[CellInfo]:
        """Lists the cells there are, newest first; with labels those that carry all of
        them."""
        return [CellInfo.from_json(d) for d in self._call(_ask.cells(labels))]

    def iter_cells(self, page: int = 100, *, labels: Mapping[str, str] = {}) -> Iterator[CellInfo]:
        """Yields the cells there are, asking for so many at a time. What is made or
        removed meanwhile neither hides nor repeats another."""
        for d in self._pages(_ask.cells(labels), page):
            yield CellInfo.from_json(d)

    def cell(self, name: str) -> Cell:
        """Returns a cell by name or id."""
        return Cell(self, self._call(_ask.cell(name)))

    def create(self, name: str = "", source: Optional[str] = None, *, backend: str = "", image: str = "", env: Env = None,
                     allow: Sequence[str] = (), credentials: Sequence[str] = (), limits: Mapping[str, str] = {}, labels: Mapping[str, str] = {},
                     policy: str = "", ttl: Timeout = None, then: str = "") -> Cell:
        """Makes a cell with a copy of a directory: by default this one, or none
        where the daemon is elsewhere: source is the id that `pando upload` prints
        there; "" for none. Without a name one is made up.
        ttl and then say how long it lives; see Cell.lease."""
        req = _ask.create(name, source, backend, image, env, allow, credentials, limits, labels, policy, ttl, then, not self._at.socket)
        return Cell(self, self._call(req))

    # Templates.

    def templates(self) -> List[TemplateInfo]:
        """Lists the templates there are."""
        return [TemplateInfo.from_json(d) for d in self._call(_ask.templates())]

    def template(self, name: str) -> Template:
        """Returns a template by name."""
        return Template(self, TemplateInfo.from_json(self._call(_ask.template(name))))

    def build_template(self, name: str, *, source: str = "", setup: str = "", warm: str = "", ready: str = "", backend: str = "",
                             image: str = "", env: Env = None, allow: Sequence[str] = (), credentials: Sequence[str] = (),
                             limits: Mapping[str, str] = {}, labels: Mapping[str, str] = {}, policy: str = "", timeout: Timeout = None,
                             on_stdout: Sink = None, on_stderr: Sink = None, progress: Watch = None) -> Template:
        """Makes a template: a cell with a warmed interpreter, to be forked. progress
        is told how far that is, on_stdout and on_stderr what its set-up writes."""
        req = _ask.build(name, source, setup, warm, ready, backend, image, env, allow, credentials, limits, labels, policy, timeout,
                         not self._at.socket)
        doc, _ = self._lines(req, _ask.teller(on_stdout, on_stderr, progress))
        return Template(self, TemplateInfo.from_json(doc))

    # Runs.

    def run(self, command: Command, *, cell: str = "", source: Optional[str] = None, backend: str = "", image: str = "",
                  env: Env = None, allow: Sequence[str] = (), credentials: Sequence[str] = (), workdir: str = "",
                  limits: Mapping[str, str] = {}, timeout: Timeout = None, check: str = "", on_failure: str = "", on_success: str = "",
                  policy: str = "", input: Union[bytes, str, None] = None, on_stdout: Sink = None, on_stderr: Sink = None, progress: Watch = None,
                  check_exit: bool = False) -> Run:
        """Does a governed run: checkpoint, command, check, verdict, receipt.

        command is a program and its arguments, or a line for a shell. source is the
        directory that a new cell begins with, by default this one; it is never
        written. For a daemon elsewhere it is the id that `pando upload` prints. A failure is rolled back, and is an ExitError with check_exit.
        """
        req = _ask.start_run(command, cell, source, backend, image, env, allow, credentials, workdir, limits, timeout, check, on_failure,
                             on_success, policy, not self._at.socket)
        return Run._of(self, req, command, input, on_stdout, on_stderr, progress, check_exit)

    def start(self, command: Command, *, cell: str = "", source: Optional[str] = None, backend: str = "", image: str = "",
                    env: Env = None, allow: Sequence[str] = (), credentials: Sequence[str] = (), workdir: str = "",
                    limits: Mapping[str, str] = {}, timeout: Timeout = None, check: str = "", on_failure: str = "", on_success: str = "",
                    policy: str = "") -> Run:
        """Begins a governed run as run does, and returns while it goes on, which it does
        without this program, too: Run.refresh(wait=True) waits for its end, Run.attach
        has its output as it comes, Run.interrupt ends it."""
        req = _ask.start_run(command, cell, source, backend, image, env, allow, credentials, workdir, limits, timeout, check, on_failure,
                             on_success, policy, not self._at.socket, attach=False)
        return Run(self, RunInfo.from_json(self._call(req)))

    def runs(self, cell: str = "") -> List[RunInfo]:
        """Lists runs, newest first."""
        return [RunInfo.from_json(d) for d in self._call(_ask.runs(cell))]

    def iter_runs(self, cell: str = "", page: int = 100) -> Iterator[RunInfo]:
        """Yields runs, newest first, asking for so many at a time."""
        for d in self._pages(_ask.runs(cell), page):
            yield RunInfo.from_json(d)

    def get_run(self, id: str, wait: bool = False) -> Run:
        """Returns a run; with wait, when it has ended."""
        return Run(self, RunInfo.from_json(self._call(_ask.run(id, wait))))

    # What waits for a person.

    def approvals(self, *, answered: bool = False) -> List[Approval]:
        """Lists what cells want and a person decides on, newest first; with answered also
        what was decided."""
        return [Approval.from_json(d) for d in self._call(_ask.approvals(answered))]

    def approve(self, id: str, scope: str = "once") -> Approval:
        """Allows what an approval asks for: "once", for the rest of the "run", or for a
        time, such as "10m"."""
        return Approval.from_json(self._call(_ask.answer(id, "approve", scope)))

    def deny(self, id: str) -> Approval:
        """Refuses what an approval asks for."""
        return Approval.from_json(self._call(_ask.answer(id, "deny")))

    # Space.

    def disk(self, objects: bool = False) -> Disk:
        """Tells what pando holds on disk, of which budget, and what is removed next; with
        objects each thing that takes space, and the command that frees it."""
        return Disk.from_json(self._call(_ask.disk(objects)))

    # Evidence and policy.

    def receipt(self, id: str) -> Receipt:
        """Returns a receipt: by its digest, or that of a run."""
        return Receipt.from_json(self._call(_ask.receipt(id)))

    def iter_receipts(self, page: int = 100) -> Iterator[Receipt]:
        """Yields receipts, newest first, asking for so many at a time."""
        for d in self._pages(_ask.receipts(), page):
            yield Receipt.from_json(d)

    def verify(self, id: str = "all") -> Dict[str, Any]:
        """Verifies receipts and the files they name; raises Corrupt when something is wrong."""
        doc = self._call(_ask.verify(id))
        if not doc.get("ok"):
            problems = "; ".join(p.get("what", "") for p in doc.get("problems") or doc.get("unproven") or [])
            raise errors.Corrupt(f"cannot verify {id}: {problems}")
        return dict(doc)

    def policy(self, of: str = "", *, policy: str = "", allow: Sequence[str] = ()) -> Policy:
        """Shows the policy of a cell or a run; or that of a new run from this
        directory, with the text of a policy file."""
        return Policy.from_json(self._call(_ask.policy("show", of, policy, allow, "", not self._at.socket)))

    def why(self, request: str, of: str = "", allow: Sequence[str] = (), *, policy: str = "") -> Answer:
        """Says what a policy makes of a request: that of a cell or run, or that of a
        new one. "POST https://api.github.com/repos", "connect HOST:PORT", …"""
        return Answer.from_json(self._call(_ask.policy("why", of, policy, allow, request, not self._at.socket)))
