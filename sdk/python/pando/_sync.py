"""Clients that wait for answers. See aio for asyncio."""

from __future__ import annotations

import http.client
import os
import queue
import shutil
import socket
import tarfile
import tempfile
import threading
import time
from typing import IO, Any, Callable, Dict, Generic, Iterator, List, Mapping, Optional, Sequence, Tuple, TypeVar, Union

from . import _ask, _wire, errors
from ._ask import Command, Env
from ._wire import Request
from .models import Answer, CellInfo, Checkpoint, Diff, Progress, Receipt, Restored, Result, RunInfo, TemplateInfo
from .values import Evaluation

__all__ = ["Client", "Cell", "Cells", "Template", "Run", "Process"]

Sink = Optional[Callable[[bytes], Any]]
Watch = Optional[Callable[[Progress], Any]]


class _Connection(http.client.HTTPConnection):
    """HTTP to wherever the daemon is."""

    def __init__(self, at: _wire.Address, start: Callable[[], None], timeout: Optional[float]) -> None:
        super().__init__(at.host or "pando", at.port or 80, timeout=timeout)
        self.at, self.start, self.answered = at, start, 0.0

    def connect(self) -> None:
        try:
            if self.at.socket:
                self.sock = self._unix()
                self.sock.settimeout(self.timeout)
                return
            self.sock = socket.create_connection((self.at.host, self.at.port), 30 if self.timeout is None else self.timeout)
            ctx = self.at.context()
            if ctx:
                tls = ctx.wrap_socket(self.sock, server_hostname=self.at.host)
                self.sock = tls
                self.at.check(tls.getpeercert(True))
            self.sock.settimeout(self.timeout)
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, errors.Error) as e:
            self.close()
            raise _wire.unreachable(e, self.at) from None

    def _unix(self) -> socket.socket:
        try:
            return _wire.connect_unix(self.at.socket)
        except OSError:
            self.start()
            return _wire.connect_unix(self.at.socket)


class Client:
    """Calls the API. It is safe for concurrent use by threads.

    host is http://HOST:PORT or https://HOST:PORT[#sha256=FINGERPRINT] of a daemon
    elsewhere, with the token that it knows; by default they are what PANDO_HOST and
    PANDO_TOKEN say, or else it is this user's daemon, which is started when none
    answers. timeout is how many seconds of silence are an error; by default none:
    work takes as long as it takes.
    """

    def __init__(self, host: Optional[str] = None, token: Optional[str] = None, *, timeout: Optional[float] = None) -> None:
        self._at = _wire.find(host, token, os.environ)
        self._timeout = timeout
        self._mu = threading.Lock()
        self._idle: List[_Connection] = []

    def close(self) -> None:
        """Closes connections that wait for the next request."""
        with self._mu:
            idle, self._idle = self._idle, []
        for c in idle:
            c.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_idle"):
            self.close()

    # Connections.

    def _start(self) -> None:
        _wire.start_daemon(os.environ)

    def _connection(self) -> _Connection:
        now = time.monotonic()
        with self._mu:
            while self._idle:
                c = self._idle.pop()
                if now - c.answered < _wire.LATELY:
                    return c
                c.close()
        return _Connection(self._at, self._start, self._timeout)

    def _release(self, c: _Connection, resp: http.client.HTTPResponse) -> None:
        if resp.will_close or not resp.isclosed():
            c.close()
            return
        c.answered = time.monotonic()
        with self._mu:
            if len(self._idle) < 8:
                self._idle.append(c)
                return
        c.close()

    def _send(self, req: Request, body: Any = None) -> Tuple[_Connection, http.client.HTTPResponse]:
        """Sends a request; the answer is none of an error. body is instead of what
        the request has: an open file, which is sent in chunks."""
        data = req.data() if body is None else body
        head = req.headers(self._at)
        c = self._connection()
        try:
            c.putrequest(req.method, req.target, skip_host=True, skip_accept_encoding=True)
            for k, v in head:
                c.putheader(k, v)
            if body is not None:
                c.putheader("Transfer-Encoding", "chunked")
            elif data is not None or req.method in ("POST", "PUT"):
                c.putheader("Content-Length", str(len(data or b"")))
            try:
                c.endheaders(data, encode_chunked=body is not None)
            except (BrokenPipeError, ConnectionResetError):
                pass  # it may have answered before it had everything
            resp = c.getresponse()
        except BaseException as e:
            c.close()
            if isinstance(e, (OSError, http.client.HTTPException)):
                raise _wire.lost(e, self._at) from None
            raise
        if resp.status // 100 == 2:
            return c, resp
        text = self._drain(c, resp, 1 << 20)
        raise _wire.said(req, resp.status, resp.reason, text)

    def _drain(self, c: _Connection, resp: http.client.HTTPResponse, limit: int = -1) -> bytes:
        try:
            b = resp.read() if limit < 0 else resp.read(limit)
        except (OSError, http.client.HTTPException) as e:
            c.close()
            raise _wire.lost(e, self._at) from None
        self._release(c, resp)
        return b

    def _call(self, req: Request) -> Any:
        return _wire.document(req, self._bytes(req))

    def _bytes(self, req: Request) -> bytes:
        c, resp = self._send(req)
        return self._drain(c, resp)

    def _lines(self, req: Request, on: Callable[[str, Any], None]) -> Tuple[Any, _wire.Events]:
        """Asks for an answer in lines, and tells on of all but the result."""
        c, resp = self._send(req)
        events = _wire.Events(req)
        try:
            while True:
                line = resp.readline(_wire.MAX_LINE + 1)
                if not line.endswith(b"\n"):
                    raise events.broke_off()
                word, v = events.line(line)
                if word == "result":
                    break
                on(word, v)
            self._drain(c, resp)
            return v, events
        except BaseException as e:
            c.close()  # and the work ends
            if isinstance(e, (OSError, http.client.HTTPException)):
                raise _wire.lost(e, self._at) from None
            raise

    # Cells.

    def cells(self) -> List[CellInfo]:
        """Lists the cells there are, newest first."""
        return [CellInfo.from_json(d) for d in self._call(_ask.cells())]

    def cell(self, name: str) -> "Cell":
        """Returns a cell by name or id."""
        return Cell(self, self._call(_ask.cell(name)))

    def create(self, name: str = "", source: Optional[str] = None, *, backend: str = "", image: str = "", env: Env = None, allow: Sequence[str] = (),
               credentials: Sequence[str] = (), limits: Mapping[str, str] = {}, labels: Mapping[str, str] = {}, policy: str = "") -> "Cell":
        """Makes a cell with a copy of a directory: by default this one, or none
        where the daemon is elsewhere; "" for none. Without a name one is made up."""
        req = _ask.create(name, source, backend, image, env, allow, credentials, limits, labels, policy, not self._at.socket)
        return Cell(self, self._call(req))

    def templates(self) -> List[TemplateInfo]:
        """Lists the templates there are."""
        return [TemplateInfo.from_json(d) for d in self._call(_ask.templates())]

    def template(self, name: str) -> "Template":
        """Returns a template by name."""
        return Template(self, TemplateInfo.from_json(self._call(_ask.template(name))))

    def build_template(self, name: str, *, source: str = "", setup: str = "", warm: str = "", ready: str = "", backend: str = "", image: str = "",
                       env: Env = None, allow: Sequence[str] = (), limits: Mapping[str, str] = {}, timeout: Union[str, float, None] = None,
                       stdout: Sink = None, stderr: Sink = None, progress: Watch = None) -> "Template":
        """Makes a template: a cell with a warmed interpreter, to be forked."""
        doc, _ = self._lines(_ask.build(name, source, setup, warm, ready, backend, image, env, allow, limits, timeout, not self._at.socket), _teller(stdout, stderr, progress))
        return Template(self, TemplateInfo.from_json(doc))

    # Runs.

    def run(self, command: Command, *, cell: str = "", source: Optional[str] = None, backend: str = "", image: str = "", env: Env = None,
            allow: Sequence[str] = (), credentials: Sequence[str] = (), workdir: str = "", limits: Mapping[str, str] = {},
            timeout: Union[str, float, None] = None, check: str = "", on_failure: str = "", on_success: str = "", policy: str = "",
            input: Union[bytes, str, None] = None, stdout: Sink = None, stderr: Sink = None, progress: Watch = None, check_exit: bool = False) -> "Run":
        """Does a governed run: checkpoint, command, check, verdict, receipt.

        command is a program and its arguments, or a line for a shell. source is the
        directory that a new cell begins with, by default this one; it is never
        written. A failure is rolled back, and is an ExitError with check_exit.
        """
        doc = self._call(_ask.start_run(command, cell, source, backend, image, env, allow, credentials, workdir, limits, timeout, check, on_failure,
                                        on_success, policy, not self._at.socket))
        p = Process(self, "runs", doc["run"], progress)
        result = p.communicate(input, stdout, stderr)
        if result.exit_code is None and result.raw.get("error"):
            raise errors.from_json(result.raw["error"])
        if check_exit:
            _ask.must(command, result)
        return Run(self, RunInfo.from_json(result.raw), result)

    def runs(self, cell: str = "") -> List[RunInfo]:
        """Lists runs, newest first."""
        return [RunInfo.from_json(d) for d in self._call(_ask.runs(cell))]

    def get_run(self, id: str, wait: bool = False) -> "Run":
        """Returns a run; with wait, when it has ended."""
        doc = self._call(_ask.run(id, wait))
        return Run(self, RunInfo.from_json(doc), None)

    def receipt(self, id: str) -> Receipt:
        """Returns a receipt: by its digest, or that of a run."""
        return Receipt.from_json(self._call(_ask.receipt(id)))

    def verify(self, id: str = "all") -> Dict[str, Any]:
        """Verifies receipts and the files they name; raises Corrupt when something is wrong."""
        doc = self._call(_ask.verify(id))
        if not doc.get("ok"):
            problems = "; ".join(p.get("what", "") for p in doc.get("problems") or doc.get("unproven") or [])
            raise errors.Corrupt(f"cannot verify {id}: {problems}")
        return dict(doc)

    def why(self, request: str, of: str = "", allow: Sequence[str] = ()) -> Answer:
        """Says what a policy makes of a request: that of a cell or run, or that of a
        new cell. "POST https://api.github.com/repos", "connect HOST:PORT", …"""
        return Answer.from_json(self._call(_ask.why(request, of, allow)))


def _teller(stdout: Sink, stderr: Sink, progress: Watch) -> Callable[[str, Any], None]:
    def on(word: str, v: Any) -> None:
        if word == "stdout" and stdout:
            stdout(v)
        elif word == "stderr" and stderr:
            stderr(v)
        elif word == "progress" and progress:
            progress(Progress.from_json(v))
    return on


class Process:
    """A command while it runs. Iterating yields ("stdout", bytes) and ("stderr",
    bytes) as they come; then result is how it ended. Leaving its context ends it."""

    def __init__(self, client: Client, kind: str, id: str, progress: Watch = None) -> None:
        self.id = id
        self.result: Optional[Result] = None
        self._client, self._progress, self._stream, self._frames = client, progress, _ask.Stream(), _wire.Frames()
        self._mu = threading.Lock()  # guards writing
        self._sock = self._upgrade(_ask.attach(kind, id))

    def _upgrade(self, req: Request) -> socket.socket:
        at = self._client._at
        c = _Connection(at, self._client._start, self._client._timeout)
        c.connect()
        text, accept = _wire.upgrade(req.target, req.headers(at))
        try:
            c.sock.sendall(text)
            resp = http.client.HTTPResponse(c.sock, method="GET")
            resp.begin()
            if resp.status != 101:
                raise _wire.said(req, resp.status, resp.reason, resp.read(1 << 20))
            if resp.headers.get("Sec-WebSocket-Accept") != accept:
                raise errors.Internal("cannot attach: the answer is not one to what was asked")
            self._file, resp.fp = resp.fp, None  # it may have read ahead
            return c.sock
        except BaseException as e:
            c.close()
            if isinstance(e, (OSError, http.client.HTTPException)):
                raise _wire.lost(e, at) from None
            raise

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Hangs up; a command that has not ended is interrupted."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._file.close()
        self._sock.close()

    def _write(self, op: int, payload: bytes) -> None:
        try:
            with self._mu:
                self._sock.sendall(_wire.frame(op, payload))
        except OSError as e:
            raise _wire.lost(e, self._client._at) from None

    def write(self, data: Union[bytes, str]) -> None:
        """Writes to the command's standard input."""
        data = data.encode() if isinstance(data, str) else bytes(data)
        for i in range(0, len(data), 1 << 18):
            self._write(_wire.BINARY, b"i" + data[i:i + (1 << 18)])

    def close_stdin(self) -> None:
        """Ends the command's standard input."""
        self._write(_wire.BINARY, b"e")

    def signal(self, name: str) -> None:
        """Sends the command a signal, such as "SIGINT"."""
        self._write(_wire.BINARY, b"s" + name.encode())

    def __iter__(self) -> Iterator[Tuple[str, bytes]]:
        while self.result is None:
            try:
                data = self._file.read1(1 << 16)
            except (OSError, ValueError) as e:
                raise _wire.lost(e, self._client._at) from None
            if not data:
                raise errors.Unavailable(f"lost the daemon while {self.id} was under way", "see what became of it: pando daemon status")
            for op, message in self._frames.feed(data):
                if op == _wire.PING:
                    self._write(_wire.PONG, message)
                elif op == _wire.CLOSE:
                    raise errors.Unavailable(f"lost the daemon while {self.id} was under way: it hung up")
                elif op == _wire.BINARY:
                    got = self._stream.take(message)
                    if got and got[0] == "progress":
                        if self._progress:
                            self._progress(Progress.from_json(got[1]))
                    elif got:
                        yield got
                    if self._stream.result is not None:
                        self.result = _ask.result(self._stream.result, b"", b"", self._stream.lost)
                        self._sock.settimeout(5)
                        try:
                            self._write(_wire.CLOSE, b"\x03\xe8")
                        except errors.Error:
                            pass
                        return

    def communicate(self, input: Union[bytes, str, None] = None, stdout: Sink = None, stderr: Sink = None) -> Result:
        """Gives the command its input, takes what it writes, and waits for its end.
        What a function takes (stdout, stderr) is not kept."""
        kept = {"stdout": bytearray(), "stderr": bytearray()}
        sinks = {"stdout": stdout, "stderr": stderr}
        failed: "queue.Queue[BaseException]" = queue.Queue()

        def feed() -> None:
            try:
                if input:
                    self.write(input)
                self.close_stdin()
            except errors.Error as e:  # it may have ended meanwhile
                failed.put(e)

        feeder = threading.Thread(target=feed, daemon=True)
        feeder.start()
        try:
            for name, data in self:
                sink = sinks[name]
                if sink:
                    sink(data)
                else:
                    kept[name] += data
        finally:
            self.close()
            feeder.join()
        assert self.result is not None
        r = self.result
        return Result(r.exit_code, bytes(kept["stdout"]), bytes(kept["stderr"]), r.signal, r.cause, r.lost, r.raw)


class Cell:
    """An isolated place where commands and code run. As a context it is removed at
    the end."""

    def __init__(self, client: Client, doc: Dict[str, Any], answer: Union[Evaluation, Result, None] = None) -> None:
        self._client = client
        self.id: str = doc["cell"]
        self.name: str = doc.get("name") or doc["cell"]
        self.answer = answer
        """What it answered when it was forked with eval or command."""

    def __repr__(self) -> str:
        return f"<pando.Cell {self.name}>"

    def __enter__(self) -> "Cell":
        return self

    def __exit__(self, *_: Any) -> None:
        try:
            self.remove()
        except errors.NotFound:
            pass

    def info(self) -> CellInfo:
        """Tells about it as it is now."""
        return CellInfo.from_json(self._client._call(_ask.cell(self.id)))

    def remove(self) -> None:
        """Removes it, with its processes, files and checkpoints."""
        self._client._call(_ask.remove(self.id))

    def pause(self) -> None:
        """Freezes its processes."""
        self._client._call(_ask.act(self.id, "pause"))

    def resume(self) -> None:
        """Lets its processes go on."""
        self._client._call(_ask.act(self.id, "resume"))

    def stop(self) -> None:
        """Ends its processes; its files stay."""
        self._client._call(_ask.act(self.id, "stop"))

    def evaluate(self, code: str, *, timeout: Union[str, float, None] = None, fresh: bool = False, kind: str = "", stdout: Sink = None,
                 stderr: Sink = None) -> Evaluation:
        """Evaluates code and returns all that came of it; an exception is no error
        here. stdout and stderr are told what it writes as it comes."""
        doc, events = self._client._lines(_ask.evaluate(self.id, code, timeout, fresh, kind), _teller(stdout, stderr, None))
        return Evaluation.from_json(doc.get("result") or {}, bytes(events.stdout), bytes(events.stderr), doc.get("notes"))

    def eval(self, code: str, *, timeout: Union[str, float, None] = None, fresh: bool = False, kind: str = "", stdout: Sink = None,
             stderr: Sink = None) -> Any:
        """Evaluates code in the cell's interpreter, whose state lasts, and returns
        the value of the last expression: exact, or an Opaque. What the code raises
        is an EvalError."""
        return _ask.value(self.evaluate(code, timeout=timeout, fresh=fresh, kind=kind, stdout=stdout, stderr=stderr))

    def popen(self, command: Command, *, env: Env = None, workdir: str = "", timeout: Union[str, float, None] = None) -> Process:
        """Starts a command, and returns while it runs."""
        doc = self._client._call(_ask.start(self.id, command, env, workdir, timeout))
        return Process(self._client, "execs", doc["exec"])

    def exec(self, command: Command, *, env: Env = None, workdir: str = "", timeout: Union[str, float, None] = None,
             input: Union[bytes, str, None] = None, stdout: Sink = None, stderr: Sink = None, check: bool = False) -> Result:
        """Runs a command to its end: a program and its arguments, or a line for a
        shell. With check, a failure is an ExitError."""
        r = self.popen(command, env=env, workdir=workdir, timeout=timeout).communicate(input, stdout, stderr)
        if check:
            _ask.must(command, r)
        return r

    def run(self, command: Command, **more: Any) -> "Run":
        """Does a governed run in it; see Client.run."""
        return self._client.run(command, cell=self.name, source="", **more)

    def runs(self) -> List[RunInfo]:
        """Lists its runs, newest first."""
        return self._client.runs(self.id)

    # Copies and states.

    def fork(self, n: int = 1, *, checkpoint: int = 0, name: str = "", files: bool = False) -> "Cells[Cell]":
        """Makes cells with its files as of a checkpoint; 0 for its present state."""
        doc = self._client._call(_ask.fork(self.id, n, checkpoint, name, files))
        return Cells(Cell(self._client, d) for d in doc["cells"])

    def branch(self, n: int = 1, *, name: str = "") -> "Cells[Cell]":
        """Copies it with its interpreter as it is now; it goes on."""
        doc = self._client._call(_ask.branch(self.id, n, name))
        return Cells(Cell(self._client, d) for d in doc["cells"])

    def checkpoint(self, message: str = "") -> Checkpoint:
        """Makes its present state a checkpoint."""
        return Checkpoint.from_json(self._client._call(_ask.checkpoint(self.id, message)))

    def history(self) -> List[Checkpoint]:
        """Lists its checkpoints."""
        return [Checkpoint.from_json(d) for d in self._client._call(_ask.history(self.id))]

    def restore(self, checkpoint: Union[int, Checkpoint], *, lose: bool = False, files: bool = False, dry_run: bool = False) -> Restored:
        """Brings it back to a checkpoint. lose confirms that results of later runs
        leave its workspace."""
        n = checkpoint.number if isinstance(checkpoint, Checkpoint) else checkpoint
        return Restored.from_json(self._client._call(_ask.restore(self.id, n, lose, files, dry_run)))

    def undo(self, to: int = 0, *, lose: bool = False) -> Restored:
        """Brings it back to before its latest change."""
        return Restored.from_json(self._client._call(_ask.undo(self.id, to, lose)))

    def diff(self, start: int = 0, end: int = 0, *, ignored: bool = False) -> Diff:
        """Compares two checkpoints; by default the one before its latest run with
        its present state."""
        return Diff.from_json(self._client._call(_ask.diff(self.id, start, end, ignored)))

    # Files. Paths are absolute, or relative to the workspace.

    def read_bytes(self, path: str) -> bytes:
        """Reads a file."""
        return _ask.unpacked(path, self._client._bytes(_ask.read(self.id, path)))

    def read_text(self, path: str, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Reads a file as text."""
        return self.read_bytes(path).decode(encoding, errors)

    def write_bytes(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Writes a file; directories above it are made."""
        directory, name = _ask.place(path)
        self._client._bytes(_ask.write(self.id, directory, _ask.packed(name, data, mode)))

    def write_text(self, path: str, text: str, mode: int = 0o644) -> None:
        """Writes a file as UTF-8."""
        self.write_bytes(path, text.encode(), mode)

    def download(self, path: str, to: str) -> None:
        """Copies a file or directory out of it, to a path that need not be there."""
        c, resp = self._client._send(_ask.read(self.id, path))
        try:
            _extract(resp, to)
            self._client._drain(c, resp)
        except BaseException as e:
            c.close()
            if isinstance(e, http.client.HTTPException):
                raise _wire.lost(e, self._client._at) from None
            raise

    def upload(self, source: str, to: str) -> None:
        """Copies a file or directory into it, as the path to."""
        directory, name = _ask.place(to)
        with tempfile.TemporaryFile() as f:
            with tarfile.open(fileobj=f, mode="w", format=tarfile.PAX_FORMAT) as t:
                t.add(source, name, filter=_plain)
            f.seek(0)
            c, resp = self._client._send(_ask.write(self.id, directory, b""), f)
            self._client._drain(c, resp)


def _plain(h: tarfile.TarInfo) -> Optional[tarfile.TarInfo]:
    """Only files, directories and symlinks can be copied. A second name of a file
    becomes a file of its own."""
    return h if h.isreg() or h.isdir() or h.issym() else None


def _extract(source: IO[bytes], to: str) -> None:
    """Extracts what a cell sends. It is the cell's word: no name in it may lead out
    of the destination, and no symlink is followed."""
    top = os.path.abspath(to)
    with tarfile.open(fileobj=source, mode="r|") as t:
        for h in t:
            parts = [p for p in h.name.split("/") if p not in ("", ".")][1:]
            if ".." in parts:
                raise errors.Denied(f"cannot copy {h.name!r}: it leads out of the destination")
            at = top
            for p in parts[:-1]:
                at = os.path.join(at, p)
                if os.path.islink(at) or not os.path.isdir(at):
                    raise errors.Denied(f"cannot copy {h.name!r}: it leads through what is no directory")
            if parts:
                at = os.path.join(at, parts[-1])
            if h.isdir():
                if os.path.islink(at) or not os.path.isdir(at):
                    _away(at)
                    os.mkdir(at)
                continue
            _away(at)
            if h.issym():
                os.symlink(h.linkname, at)
            elif h.isreg():
                f = t.extractfile(h)
                assert f is not None
                with open(os.open(at, os.O_WRONLY | os.O_CREAT | os.O_EXCL, h.mode & 0o777), "wb") as out:
                    shutil.copyfileobj(f, out)


def _away(path: str) -> None:
    """Removes what is no directory."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


C = TypeVar("C")


class Cells(List[C], Generic[C]):
    """Cells that were made together. As a context they are removed at the end."""

    def __enter__(self) -> "Cells[C]":
        return self

    def __exit__(self, *_: Any) -> None:
        self.remove()

    def remove(self) -> None:
        """Removes all of them; the first error is raised when all were tried."""
        first: Optional[errors.Error] = None
        for c in self:
            try:
                c.remove()  # type: ignore[attr-defined]
            except errors.NotFound:
                pass
            except errors.Error as e:
                first = first or e
        if first:
            raise first


class Template:
    """A warm cell that is kept to be forked."""

    def __init__(self, client: Client, info: TemplateInfo) -> None:
        self._client = client
        self.name = info.name
        self.built = info

    def __repr__(self) -> str:
        return f"<pando.Template {self.name}>"

    def info(self) -> TemplateInfo:
        """Tells about it as it is now."""
        return TemplateInfo.from_json(self._client._call(_ask.template(self.name)))

    def fork(self, n: int = 1, *, name: str = "", eval: str = "", command: Optional[Command] = None, timeout: Union[str, float, None] = None,
             remove: bool = False, progress: Optional[Callable[[Cell], Any]] = None) -> Cells[Cell]:
        """Makes cells with its memory and files. With eval or command each answers
        (Cell.answer); progress is told each cell when it has. With remove they are
        removed then. A cell that could not be made is an error, and none is left."""
        made: List[Dict[str, Any]] = []

        def on(word: str, v: Any) -> None:
            if word == "fork":
                made.append(v)
                if progress and not v.get("error"):
                    progress(Cell(self._client, v["cell"], _ask.forked(v)))

        doc, _ = self._client._lines(_ask.warm_fork(self.name, n, name, eval, command, timeout, remove), on)
        cells = Cells(Cell(self._client, f["cell"], _ask.forked(f)) for f in doc["forks"] if not f.get("error"))
        bad = [f["error"] for f in doc["forks"] if f.get("error")]
        if bad:
            if not remove:
                cells.remove()
            raise errors.from_json(bad[0])
        return cells

    def map(self, code: str, n: int = 1, *, timeout: Union[str, float, None] = None) -> List[Any]:
        """Evaluates code in n forks, which are removed, and returns the values."""
        values = []
        for c in self.fork(n, eval=code, timeout=timeout, remove=True):
            assert isinstance(c.answer, Evaluation)
            values.append(_ask.value(c.answer))
        return values

    def remove(self, *, cascade: bool = False, force: bool = False) -> None:
        """Removes it. cascade removes the cells that were forked from it, too; force
        leaves them."""
        self._client._call(_ask.remove_template(self.name, cascade, force))


class Run:
    """A governed run."""

    def __init__(self, client: Client, info: RunInfo, result: Optional[Result]) -> None:
        self._client = client
        self.id = info.id
        self.info = info
        self.result = result
        """How its command ended, and what it wrote; None when it was not waited for."""

    def __repr__(self) -> str:
        return f"<pando.Run {self.id} {self.info.verdict or self.info.phase}>"

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

    @property
    def stdout(self) -> bytes:
        """What its command wrote: as it was told, or as it is kept."""
        return self.result.stdout if self.result else self.file("stdout")

    @property
    def stderr(self) -> bytes:
        return self.result.stderr if self.result else self.file("stderr")

    def refresh(self, wait: bool = False) -> "Run":
        """Asks for it again; with wait, when it has ended."""
        self.info = RunInfo.from_json(self._client._call(_ask.run(self.id, wait)))
        return self

    def file(self, name: str) -> bytes:
        """Reads one of its records: stdout, stderr, events.jsonl, patch, manifest.json."""
        return self._client._bytes(_ask.run_file(self.id, name))

    def diff(self, *, ignored: bool = False) -> Diff:
        """Shows what it changed."""
        return Diff.from_json(self._client._call(_ask.run_diff(self.id, ignored)))

    def receipt(self) -> Receipt:
        """The receipt that it left."""
        return self._client.receipt(self.id)

    def accept(self, *, apply: bool = False, include: Sequence[str] = (), force: bool = False, reason: str = "") -> Dict[str, Any]:
        """Accepts its result; with apply, writes it to the source."""
        doc = self._client._call(_ask.accept(self.id, apply, include, force, reason))
        self.info = RunInfo.from_json(doc["run"])
        return dict(doc)

    def discard(self) -> None:
        """Throws its result away."""
        self.info = RunInfo.from_json(self._client._call(_ask.discard(self.id)))
