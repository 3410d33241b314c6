"""Cells, templates and runs: what is done with them."""

from __future__ import annotations

import tempfile
from typing import IO, Any, AsyncIterator, Callable, Dict, Generic, Iterable, List, Mapping, Optional, Sequence, TypeVar, Union

from .. import _aio_net as _net
from .. import _ask, _files, errors
from .._ask import Command, Env, Timeout
from .._wire import Request
from ..models import (CellInfo, Checkpoint, CommandInfo, Diff, Event, FileEvent, FileInfo, Port, ProcessInfo, Receipt, Restored, Result, RunInfo, Stats,
                      TemplateInfo)
from ..values import Evaluation
from .http import Http
from .process import Connection, Process, Sink, Watch

__all__ = ["Cell", "Cells", "Run", "Template"]


class Cell:
    """An isolated place where commands and code run. As a context it is removed at
    the end."""

    def __init__(self, http: Http, doc: Dict[str, Any], answer: Union[Evaluation, Result, None] = None) -> None:
        self._http = http
        self.id: str = doc["cell"]
        self.name: str = doc.get("name") or doc["cell"]
        self.answer = answer
        """What it answered when it was forked with eval or command."""

    def __repr__(self) -> str:
        return f"<pando.aio.Cell {self.name}>"

    async def __aenter__(self) -> "Cell":
        return self

    async def __aexit__(self, *_: Any) -> None:
        try:
            await self.remove()
        except errors.NotFound:
            pass

    async def info(self) -> CellInfo:
        """Tells about it as it is now."""
        return CellInfo.from_json(await self._http._call(_ask.cell(self.id)))

    async def remove(self) -> None:
        """Removes it, with its processes, files and checkpoints."""
        await self._http._gone(_ask.remove(self.id))

    async def pause(self) -> None:
        """Freezes its processes."""
        await self._http._call(_ask.act(self.id, "pause"))

    async def resume(self) -> None:
        """Lets its processes go on."""
        await self._http._call(_ask.act(self.id, "resume"))

    async def stop(self) -> None:
        """Ends its processes; its files stay."""
        await self._http._call(_ask.act(self.id, "stop"))

    async def lease(self, ttl: Timeout = None, then: str = "", *, extend: bool = False, labels: Optional[Mapping[str, str]] = None,
                    env: Env = None) -> CellInfo:
        """Changes how long it lives, from now on: seconds, or "5m"; "" for ever; and
        what becomes of it then: "pause" (default), "stop" or "remove". With extend
        its life never gets shorter. labels and env replace those that it has."""
        return CellInfo.from_json(await self._http._call(_ask.lease(self.id, ttl, then, extend, labels, env)))

    # Code and commands.

    async def evaluate(self, code: str, *, timeout: Timeout = None, fresh: bool = False, kind: str = "", on_stdout: Sink = None,
                       on_stderr: Sink = None) -> Evaluation:
        """Evaluates code and returns all that came of it; an exception is no error
        here. on_stdout and on_stderr are told what it writes as it comes."""
        doc, events = await self._http._lines(_ask.evaluate(self.id, code, timeout, fresh, kind), _ask.teller(on_stdout, on_stderr, None))
        return Evaluation.from_json(doc.get("result") or {}, bytes(events.stdout), bytes(events.stderr), doc.get("notes"))

    async def eval(self, code: str, *, timeout: Timeout = None, fresh: bool = False, kind: str = "", on_stdout: Sink = None,
                   on_stderr: Sink = None) -> Any:
        """Evaluates code in the cell's interpreter, whose state lasts, and returns
        the value of the last expression: exact, or an Opaque. What the code raises
        is an EvalError."""
        return _ask.value(await self.evaluate(code, timeout=timeout, fresh=fresh, kind=kind, on_stdout=on_stdout, on_stderr=on_stderr))

    async def popen(self, command: Command, *, env: Env = None, workdir: str = "", timeout: Timeout = None, detached: bool = False) -> Process:
        """Starts a command, and returns while it runs. With detached it goes on when the
        Process is closed, as a server does: commands and attach find it again. It gets
        no input from here."""
        doc = await self._http._call(_ask.start(self.id, command, env, workdir, timeout, detached))
        return await Process._attach(self._http, "execs", doc["exec"], input=not detached)

    async def terminal(self, command: Command = ("sh",), *, rows: int = 24, cols: int = 80, env: Env = None, workdir: str = "",
                       timeout: Timeout = None) -> Process:
        """Starts a command at a terminal of its own. What it writes is all "stdout";
        control characters and Process.resize work as at any terminal."""
        doc = await self._http._call(_ask.start(self.id, command, env, workdir, timeout, False, (rows, cols)))
        return await Process._attach(self._http, "execs", doc["exec"])

    async def processes(self) -> List[ProcessInfo]:
        """Lists what runs in it."""
        return [ProcessInfo.from_json(d) for d in await self._http._call(_ask.processes(self.id))]

    async def stats(self) -> Stats:
        """Tells what it uses now."""
        return Stats.from_json(await self._http._call(_ask.stats(self.id)))

    async def commands(self) -> List[CommandInfo]:
        """Lists the commands that were started in it, outside runs, and can be attached
        to, oldest first."""
        return [CommandInfo.from_json(d) for d in await self._http._call(_ask.commands(self.id))]

    async def connect(self, port: int) -> Connection:
        """Connects to a TCP port on which something in it listens."""
        return Connection(await self._http._upgrade(_ask.connect(self.id, port)))

    async def ports(self) -> List[Port]:
        """Lists the TCP ports on which something in it listens."""
        return [Port.from_json(d) for d in await self._http._call(_ask.ports(self.id))]

    async def attach(self, id: str, *, input: bool = True) -> Process:
        """Attaches to a command that was started in it, by the id that its Process and
        commands have; its output comes from the beginning, as far as it is kept. Leaving
        it ends the command; with input=False it only looks on, and the command goes on."""
        return await Process._attach(self._http, "execs", id, input=input)

    async def exec(self, command: Command, *, env: Env = None, workdir: str = "", timeout: Timeout = None,
                   input: Union[bytes, str, None] = None, on_stdout: Sink = None, on_stderr: Sink = None, check: bool = False) -> Result:
        """Runs a command to its end: a program and its arguments, or a line for a
        shell. With check, a failure is an ExitError."""
        p = await self.popen(command, env=env, workdir=workdir, timeout=timeout)
        r = await p.communicate(input, on_stdout, on_stderr)
        if check:
            _ask.must(command, r)
        return r

    async def run(self, command: Command, *, env: Env = None, workdir: str = "", limits: Mapping[str, str] = {}, timeout: Timeout = None,
                  check: str = "", on_failure: str = "", on_success: str = "", input: Union[bytes, str, None] = None, on_stdout: Sink = None,
                  on_stderr: Sink = None, progress: Watch = None, check_exit: bool = False) -> "Run":
        """Does a governed run in it; see Client.run."""
        req = _ask.start_run(command, self.name, "", "", "", env, (), (), workdir, limits, timeout, check, on_failure, on_success, "",
                             not self._http._at.socket)
        return await Run._of(self._http, req, command, input, on_stdout, on_stderr, progress, check_exit)

    async def start(self, command: Command, *, env: Env = None, workdir: str = "", limits: Mapping[str, str] = {}, timeout: Timeout = None,
                    check: str = "", on_failure: str = "", on_success: str = "") -> "Run":
        """Begins a governed run in it; see Client.start."""
        req = _ask.start_run(command, self.name, "", "", "", env, (), (), workdir, limits, timeout, check, on_failure, on_success, "",
                             not self._http._at.socket, attach=False)
        return Run(self._http, RunInfo.from_json(await self._http._call(req)))

    async def runs(self) -> List[RunInfo]:
        """Lists its runs, newest first."""
        return [RunInfo.from_json(d) for d in await self._http._call(_ask.runs(self.id))]

    # Copies and states.

    async def fork(self, n: int = 1, *, checkpoint: Union[int, Checkpoint] = 0, turn: int = 0, name: str = "", files: bool = False,
                   certify: str = "", at_fork: str = "") -> "Cells[Cell]":
        """Makes cells with its files as of a checkpoint, or as of the beginning of a turn of
        its agent, with its home; 0 for its present state. Of a checkpoint with memory,
        certify and at_fork are as in branch."""
        doc = await self._http._call(_ask.fork(self.id, n, _number(checkpoint), turn, name, files, certify, at_fork))
        return Cells((Cell(self._http, d) for d in doc["cells"]), doc.get("inherited"), doc.get("renewed"))

    async def branch(self, n: int = 1, *, name: str = "", certify: str = "", at_fork: str = "") -> "Cells[Cell]":
        """Copies it with its interpreter as it is now; it goes on. With certify="strict"
        it is an error if a copy inherits a generator of random numbers. at_fork is a
        command that a shell runs in each copy before anything else of it goes on."""
        doc = await self._http._call(_ask.branch(self.id, n, name, certify, at_fork))
        return Cells((Cell(self._http, d) for d in doc["cells"]), doc.get("inherited"), doc.get("renewed"))

    async def checkpoint(self, message: str = "") -> Checkpoint:
        """Makes its present state a checkpoint."""
        return Checkpoint.from_json(await self._http._call(_ask.checkpoint(self.id, message)))

    async def history(self) -> List[Checkpoint]:
        """Lists its checkpoints."""
        return [Checkpoint.from_json(d) for d in await self._http._call(_ask.history(self.id))]

    async def restore(self, checkpoint: Union[int, Checkpoint], *, lose: bool = False, files: bool = False, dry_run: bool = False,
                      certify: str = "", at_fork: str = "") -> Restored:
        """Brings it back to a checkpoint. lose confirms that results of later runs
        leave its workspace. Of a checkpoint with memory, certify and at_fork are as in
        branch; when certify="strict" refuses, the cell stays as it was."""
        return Restored.from_json(await self._http._call(_ask.restore(self.id, _number(checkpoint), lose, files, dry_run, certify, at_fork)))

    async def undo(self, to: int = 0, *, turn: int = 0, lose: bool = False, keep_source: bool = False) -> Restored:
        """Brings it back to before its latest change, to a checkpoint, or to before a turn
        of its agent, which is ended first. What was applied of that is taken
        back from the source, unless keep_source is set; if a file there is not what was
        written, nothing is changed."""
        return Restored.from_json(await self._http._call(_ask.undo(self.id, to, turn, lose, keep_source)))

    async def accept(self, *, apply: bool = False, paths: Sequence[str] = (), include: Sequence[str] = (), force: bool = False, reason: str = "", expect: str = "", merge: bool = False, no_conflicts: bool = False) -> Dict[str, Any]:
        """Accepts what it is now, with all results in it, which is what diff shows; with
        apply, writes it to the source; with paths, only the changes there and below, and the
        rest waits. With expect, the digest of the changes as diff has it, others are refused.
        With merge, files that changed in the source, too, are merged as git does it; where that
        leaves conflicts they are marked, or with no_conflicts nothing is written."""
        return dict(await self._http._call(_ask.accept_cell(self.id, apply, paths, include, force, reason, expect, merge, no_conflicts)))

    async def sync(self, *, paths: Sequence[str] = (), no_conflicts: bool = False, dry_run: bool = False) -> Dict[str, Any]:
        """Brings in what its source has become, merged with what changed in it, as git does
        that; with paths, only the changes there and below. Conflicts are marked, or with
        no_conflicts nothing is changed. undo takes it back."""
        return dict(await self._http._call(_ask.sync_cell(self.id, paths, no_conflicts, dry_run)))

    async def revert(self, *, reason: str = "") -> Dict[str, Any]:
        """Takes back from the source what accept wrote there last."""
        return dict(await self._http._call(_ask.revert_cell(self.id, reason)))

    async def discard(self, *, lose: bool = False, reason: str = "") -> Dict[str, Any]:
        """Throws away what waits in it; of several runs, only with lose. The reason goes
        into the receipts."""
        return dict(await self._http._call(_ask.discard_cell(self.id, lose, reason)))

    async def diff(self, start: int = 0, end: int = 0, *, ignored: bool = False) -> Diff:
        """Shows what it is beside its source, which is what accept takes; with start or
        end, compares two checkpoints."""
        return Diff.from_json(await self._http._call(_ask.diff(self.id, start, end, ignored)))

    # Files. Paths are absolute, or relative to the workspace.

    async def read_bytes(self, path: str) -> bytes:
        """Reads a file."""
        return _files.unpacked(path, await self._http._bytes(_ask.read(self.id, path)))

    async def read_text(self, path: str, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Reads a file as text."""
        return (await self.read_bytes(path)).decode(encoding, errors)

    async def write_bytes(self, path: str, data: bytes, mode: int = 0o644, *, expect: Optional[str] = None) -> None:
        """Writes a file; directories above it are made. With expect, the digest that
        stat(digest=True) tells, only if that is what is there, else it is Stale; with
        "" only if nothing is there. A file that is replaced so keeps its mode."""
        if expect is not None:
            await self._http._bytes(_ask.write_if(self.id, path, data, expect))
            return
        directory, name = _files.place(path)
        await self._http._bytes(_ask.write(self.id, directory, _files.packed(name, data, mode)))

    async def write_text(self, path: str, text: str, mode: int = 0o644, *, expect: Optional[str] = None) -> None:
        """Writes a file as UTF-8; see write_bytes."""
        await self.write_bytes(path, text.encode(), mode, expect=expect)

    async def listdir(self, path: str = ".", *, depth: int = 1) -> List[FileInfo]:
        """Lists what is in a directory, by path; with depth 2 and more, what is in those
        in it, too."""
        return [FileInfo.from_json(d) for d in await self._http._call(_ask.listdir(self.id, path, depth))]

    async def stat(self, path: str, *, digest: bool = False) -> FileInfo:
        """Tells about a file or directory; of a symlink, about itself. NotFound if there
        is none. With digest, it has that of its bytes."""
        return FileInfo.from_json(await self._http._call(_ask.stat(self.id, path, digest)))

    async def exists(self, path: str) -> bool:
        """Whether there is something; a symlink is something, wherever it leads."""
        try:
            await self.stat(path)
        except errors.NotFound:
            return False
        return True

    async def mkdir(self, path: str) -> FileInfo:
        """Makes a directory, and those above it."""
        return FileInfo.from_json(await self._http._call(_ask.mkdir(self.id, path)))

    async def rename(self, path: str, to: str) -> FileInfo:
        """Gives a file or directory another path; what is there is replaced."""
        return FileInfo.from_json(await self._http._call(_ask.rename(self.id, path, to)))

    async def delete(self, path: str) -> None:
        """Removes a file, or a directory with all that is in it."""
        await self._http._gone(_ask.delete(self.id, path))

    async def watch(self, path: str = ".", *, below: bool = False) -> AsyncIterator[FileEvent]:
        """Yields what changes in a directory, from now on and until the iteration is
        left; with below also in those in it. What changes while nobody watches is not
        told. The first event is of the directory and has no what: from then on nothing
        is missed."""
        async for kind, doc in self._http._sse(_ask.watch(self.id, path, below)):
            if kind == "error":
                raise errors.from_json(doc)
            yield FileEvent.from_json(doc)

    async def download(self, path: str, to: str) -> None:
        """Copies a file or directory out of it, to a path that need not be there."""
        with tempfile.TemporaryFile() as f:
            await self.read_archive(path, f)
            f.seek(0)
            await _net.apart(lambda: _files.extract(f, to))

    async def upload(self, source: str, to: str) -> None:
        """Copies a file or directory into it, as the path to."""
        directory, name = _files.place(to)
        with tempfile.TemporaryFile() as f:
            await _net.apart(lambda: _files.pack(source, name, f))
            f.seek(0)
            await self.write_archive(f, directory)

    async def read_archive(self, path: str, f: IO[bytes]) -> None:
        """Writes a file or directory of it to an open file, as a tar archive."""
        await self._http._into(_ask.read(self.id, path), f)

    async def write_archive(self, f: IO[bytes], directory: str = ".") -> None:
        """Puts what a tar archive holds, an open file, into one of its directories."""
        await self._http._put(_ask.write(self.id, directory, b""), f)


def _number(checkpoint: Union[int, Checkpoint]) -> int:
    return checkpoint.number if isinstance(checkpoint, Checkpoint) else checkpoint


C = TypeVar("C", bound=Cell)


class Cells(List[C], Generic[C]):
    """Cells that were made together. As a context they are removed at the end.
    inherited names the generators of random numbers that they have in common with
    their source: they may draw the same numbers. renewed names those that would be,
    and that seed themselves anew in each cell instead."""

    def __init__(self, cells: Iterable[C] = (), inherited: Optional[List[str]] = None, renewed: Optional[List[str]] = None) -> None:
        super().__init__(cells)
        self.inherited: List[str] = inherited or []
        self.renewed: List[str] = renewed or []

    async def __aenter__(self) -> "Cells[C]":
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.remove_all()

    async def remove_all(self) -> None:
        """Removes all of them; the first error is raised when all were tried."""
        for e in await _net.each([c.remove for c in self]):
            if e is not None and not isinstance(e, errors.NotFound):
                raise e


class Template:
    """A warm cell that is kept to be forked."""

    def __init__(self, http: Http, info: TemplateInfo) -> None:
        self._http = http
        self.name = info.name
        self.built = info

    def __repr__(self) -> str:
        return f"<pando.aio.Template {self.name}>"

    async def info(self) -> TemplateInfo:
        """Tells about it as it is now."""
        return TemplateInfo.from_json(await self._http._call(_ask.template(self.name)))

    async def fork(self, n: int = 1, *, name: str = "", eval: str = "", command: Optional[Command] = None, timeout: Timeout = None,
                   remove: bool = False, certify: str = "", at_fork: str = "",
                   progress: Optional[Callable[[Cell], Any]] = None) -> Cells[Cell]:
        """Makes cells with its memory and files. With eval or command each answers
        (Cell.answer); progress is told each cell when it has. With remove they are
        removed then. A cell that could not be made is an error, and none is left.
        certify and at_fork are as in Cell.branch."""
        def on(word: str, v: Any) -> None:
            if word == "fork" and progress and not v.get("error"):
                progress(Cell(self._http, v["cell"], _ask.forked(v)))

        doc, _ = await self._http._lines(_ask.warm_fork(self.name, n, name, eval, command, timeout, remove, certify, at_fork), on)
        cells = Cells((Cell(self._http, f["cell"], _ask.forked(f)) for f in doc["forks"] if not f.get("error")), doc.get("inherited"), doc.get("renewed"))
        bad = [f["error"] for f in doc["forks"] if f.get("error")]
        if bad:
            if not remove:
                await cells.remove_all()
            raise errors.from_json(bad[0])
        return cells

    async def map(self, code: str, n: int = 1, *, timeout: Timeout = None) -> List[Any]:
        """Evaluates code in n forks, which are removed, and returns the values."""
        values = []
        for c in await self.fork(n, eval=code, timeout=timeout, remove=True):
            assert isinstance(c.answer, Evaluation)
            values.append(_ask.value(c.answer))
        return values

    async def remove(self, *, cascade: bool = False, force: bool = False) -> None:
        """Removes it. cascade removes the cells that were forked from it, too; force
        leaves them."""
        await self._http._gone(_ask.remove_template(self.name, cascade, force))


class Run:
    """A governed run."""

    def __init__(self, http: Http, info: RunInfo, result: Optional[Result] = None) -> None:
        self._http = http
        self.id = info.id
        self.info = info
        self.result = result
        """How its command ended, and what it wrote; None when it was not waited for."""

    @classmethod
    async def _of(cls, http: Http, req: Request, command: Command, input: Union[bytes, str, None], on_stdout: Sink, on_stderr: Sink,
                  progress: Watch, check_exit: bool) -> "Run":
        doc = await http._call(req)
        p = await Process._attach(http, "runs", doc["run"], progress)
        result = await p.communicate(input, on_stdout, on_stderr)
        if result.exit_code is None and result.raw.get("error"):
            raise errors.from_json(result.raw["error"])
        if check_exit:
            _ask.must(command, result)
        return cls(http, RunInfo.from_json(result.raw), result)

    def __repr__(self) -> str:
        return f"<pando.aio.Run {self.id} {self.info.verdict or self.info.phase}>"

    @property
    def exit_code(self) -> Optional[int]:
        return self.info.exit_code

    @property
    def ok(self) -> bool:
        """Its command, and its check if it had one, ended well."""
        check = self.info.raw.get("check") or {}
        return self.info.exit_code == 0 and not self.info.cause and not check.get("exit_code")

    @property
    def verdict(self) -> str:
        return self.info.verdict

    async def output(self, name: str = "stdout") -> bytes:
        """What its command wrote ("stdout" or "stderr"): as it is kept."""
        return await self.file(name)

    async def refresh(self, wait: bool = False) -> "Run":
        """Asks for it again; with wait, when it has ended."""
        self.info = RunInfo.from_json(await self._http._call(_ask.run(self.id, wait)))
        return self

    async def attach(self) -> Process:
        """Looks on at its command; its output comes from the beginning, as far as it is
        kept. It goes on when the Process is closed."""
        return await Process._attach(self._http, "runs", self.id, input=False)

    async def interrupt(self) -> None:
        """Ends its command; it becomes pending."""
        self.info = RunInfo.from_json(await self._http._call(_ask.interrupt(self.id)))

    async def events(self, *kinds: str, denied: bool = False, follow: bool = False) -> AsyncIterator[Event]:
        """Yields what happened in it, in order; with follow until it has ended. A
        kind stands for all that begin with it: "process", "flow". With denied only
        what was denied. A chain of events that is not whole is a Corrupt at its end."""
        seen, req = 0, _ask.events(self.id, kinds, denied, follow)
        while True:
            try:
                async for doc in self._http._told(req):
                    if doc.get("error"):
                        raise errors.from_json(doc["error"])
                    if doc.get("seq", 0) > seen:
                        seen = doc["seq"]
                        yield Event.from_json(doc)
                return
            except errors.Unavailable as e:
                if not follow:
                    raise
                await self._http._reached(e)  # the run outlives the daemon

    async def file(self, name: str) -> bytes:
        """Reads one of its records: stdout, stderr, events.jsonl, patch, manifest.json."""
        return await self._http._bytes(_ask.run_file(self.id, name))

    async def export(self, f: IO[bytes]) -> None:
        """Writes everything kept of it to an open file, as a tar archive."""
        await self._http._into(_ask.run_export(self.id), f)

    async def diff(self, *, ignored: bool = False) -> Diff:
        """Shows what it changed."""
        return Diff.from_json(await self._http._call(_ask.run_diff(self.id, ignored)))

    async def receipt(self) -> Receipt:
        """The receipt that it left."""
        return Receipt.from_json(await self._http._call(_ask.receipt(self.id)))

    async def accept(self, *, apply: bool = False, paths: Sequence[str] = (), include: Sequence[str] = (), force: bool = False, reason: str = "", expect: str = "", merge: bool = False, no_conflicts: bool = False) -> Dict[str, Any]:
        """Accepts what it changed; with apply, writes that to the source; with paths, only the
        changes there and below, and the rest waits. With expect, the digest of the changes as
        diff has it, others are refused. merge and no_conflicts are as for a cell."""
        return self._decided(await self._http._call(_ask.accept(self.id, apply, paths, include, force, reason, expect, merge, no_conflicts)))

    async def revert(self, *, reason: str = "") -> Dict[str, Any]:
        """Takes back from the source what accept wrote there."""
        return self._decided(await self._http._call(_ask.revert(self.id, reason)))

    async def discard(self, *, lose: bool = False, reason: str = "") -> None:
        """Throws its result away; a kept one, only with lose. The reason goes into the receipt."""
        self._decided(await self._http._call(_ask.discard(self.id, lose, reason)))

    def _decided(self, doc: Dict[str, Any]) -> Dict[str, Any]:
        for r in doc.get("runs") or []:
            if r["run"] == self.id:
                self.info = RunInfo.from_json(r)
        return dict(doc)
