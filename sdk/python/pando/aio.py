"""The same for asyncio: every call is awaited, and cancelling it ends the work.

    import asyncio, pando.aio

    async def main():
        async with pando.aio.Client() as p:
            t = await p.template("pyagent")
            async with await t.fork(100) as cells:
                print(await asyncio.gather(*(c.eval("6*7") for c in cells)))

    asyncio.run(main())
"""

from __future__ import annotations

import asyncio
import os
from typing import Any, AsyncIterator, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from . import _ask, _wire, errors
from . import _sync as _waiting
from ._ask import Command, Env
from ._wire import Request
from .models import Answer, CellInfo, Checkpoint, Diff, Progress, Receipt, Restored, Result, RunInfo, TemplateInfo
from .values import Evaluation

__all__ = ["Client", "Cell", "Cells", "Template", "Run", "Process"]

Sink = Optional[Callable[[bytes], Any]]
Watch = Optional[Callable[[Progress], Any]]
Timeout = Union[str, float, None]

_Broken = (OSError, EOFError, asyncio.LimitOverrunError, ValueError)


class _Reply:
    """The answer to one request, over a connection of its own."""

    def __init__(self, r: asyncio.StreamReader, w: asyncio.StreamWriter) -> None:
        self.r, self.w = r, w
        self.status, self.reason = 0, ""
        self.headers: Dict[str, str] = {}
        self._left: Optional[int] = None  # bytes of a body of known length, or of a chunk
        self._chunked = self._over = False
        self._ahead = bytearray()

    async def head(self) -> None:
        line = await self.r.readline()
        parts = line.decode("latin-1").split(None, 2)
        if len(parts) < 2 or not parts[0].startswith("HTTP/1.") or not parts[1].isdigit():
            raise EOFError("it hung up without an answer" if not line else "it does not talk HTTP")
        self.status, self.reason = int(parts[1]), parts[2].strip() if len(parts) > 2 else ""
        while True:
            line = await self.r.readline()
            if line in (b"\r\n", b"\n"):
                break
            if not line.endswith(b"\n") or len(self.headers) > 100:
                raise EOFError("its answer broke off")
            k, _, v = line.decode("latin-1").partition(":")
            self.headers[k.strip().lower()] = v.strip()
        self._chunked = self.headers.get("transfer-encoding", "").lower() == "chunked"
        if not self._chunked and "content-length" in self.headers:
            self._left = int(self.headers["content-length"])

    async def some(self) -> bytes:
        """Returns a part of the body; b"" at its end."""
        if self._ahead:
            b, self._ahead = bytes(self._ahead), bytearray()
            return b
        if self._over:
            return b""
        if self._chunked and not self._left:
            if self._left == 0:
                await self.r.readline()  # behind the chunk before
            line = await self.r.readline()
            self._left = int(line.split(b";")[0], 16)  # ValueError when it broke off
            if self._left == 0:
                self._over = True
                while (await self.r.readline()) not in (b"\r\n", b"\n", b""):
                    pass
                return b""
        if self._left == 0:
            self._over = True
            return b""
        b = await self.r.read(min(self._left or 1 << 16, 1 << 16))
        if not b and self._left is not None:
            raise EOFError("its answer broke off")
        if self._left is not None:
            self._left -= len(b)
        self._over = not b
        return b

    async def all(self, limit: int = 0) -> bytes:
        out = bytearray()
        while b := await self.some():
            out += b
            if limit and len(out) > limit:
                break
        return bytes(out)

    async def line(self) -> bytes:
        """Returns a line; without its end when the body ended before."""
        out = bytearray()
        while b := await self.some():
            i = b.find(b"\n")
            if i >= 0:
                out += b[:i + 1]
                self._ahead = bytearray(b[i + 1:])
                break
            out += b
            if len(out) > _wire.MAX_LINE:
                raise ValueError("a line of its answer is too long")
        return bytes(out)

    def close(self) -> None:
        self.w.close()


class Client:
    """Calls the API; see pando.Client. It belongs to no event loop."""

    def __init__(self, host: Optional[str] = None, token: Optional[str] = None) -> None:
        self._at = _wire.find(host, token, os.environ)
        self._host, self._token = host, token

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    async def close(self) -> None:
        """There is nothing to close: connections are those of calls."""

    # Connections.

    async def _connect(self) -> Tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        at = self._at
        try:
            if not at.socket:
                r, w = await asyncio.open_connection(at.host, at.port, ssl=at.context(), server_hostname=at.host if at.tls else None, limit=1 << 20)
                tls = w.get_extra_info("ssl_object")
                try:
                    at.check(tls.getpeercert(True) if tls else None)
                except errors.Error:
                    w.close()
                    raise
                return r, w
            try:
                s = _wire.connect_unix(at.socket)
            except OSError:
                await asyncio.get_running_loop().run_in_executor(None, _wire.start_daemon, os.environ)
                s = _wire.connect_unix(at.socket)
            s.setblocking(False)
            return await asyncio.open_connection(sock=s, limit=1 << 20)
        except OSError as e:
            raise _wire.unreachable(e, at) from None

    async def _send(self, req: Request) -> _Reply:
        r, w = await self._connect()
        reply = _Reply(r, w)
        try:
            data = req.data() or b""
            lines = [f"{req.method} {req.target} HTTP/1.1"] + [f"{k}: {v}" for k, v in req.headers(self._at)]
            lines += ["Connection: close", f"Content-Length: {len(data)}", "", ""]
            w.write("\r\n".join(lines).encode("latin-1") + data)
            try:
                await w.drain()
            except OSError:
                pass  # it may have answered before it had everything
            await reply.head()
            if reply.status // 100 != 2:
                raise _wire.said(req, reply.status, reply.reason, await reply.all(1 << 20))
            return reply
        except _Broken as e:
            reply.close()
            raise _wire.lost(e, self._at) from None
        except BaseException:
            reply.close()
            raise

    async def _bytes(self, req: Request) -> bytes:
        reply = await self._send(req)
        try:
            return await reply.all()
        except _Broken as e:
            raise _wire.lost(e, self._at) from None
        finally:
            reply.close()

    async def _call(self, req: Request) -> Any:
        return _wire.document(req, await self._bytes(req))

    async def _lines(self, req: Request, on: Callable[[str, Any], None]) -> Tuple[Any, _wire.Events]:
        reply = await self._send(req)
        events = _wire.Events(req)
        try:
            while True:
                try:
                    line = await reply.line()
                except _Broken as e:
                    raise _wire.lost(e, self._at) from None
                if not line.endswith(b"\n"):
                    raise events.broke_off()
                word, v = events.line(line)
                if word == "result":
                    return v, events
                on(word, v)
        finally:
            reply.close()  # and the work ends, if it has not

    async def _thread(self, work: Callable[[_waiting.Client], Any]) -> Any:
        """Does what is about files of this host in a thread."""
        def do() -> Any:
            with _waiting.Client(self._host, self._token) as c:
                return work(c)
        return await asyncio.get_running_loop().run_in_executor(None, do)

    # Cells.

    async def cells(self) -> List[CellInfo]:
        """Lists the cells there are, newest first."""
        return [CellInfo.from_json(d) for d in await self._call(_ask.cells())]

    async def cell(self, name: str) -> "Cell":
        """Returns a cell by name or id."""
        return Cell(self, await self._call(_ask.cell(name)))

    async def create(self, name: str = "", source: Optional[str] = None, *, backend: str = "", image: str = "", env: Env = None, allow: Sequence[str] = (),
                     credentials: Sequence[str] = (), limits: Mapping[str, str] = {}, labels: Mapping[str, str] = {}, policy: str = "") -> "Cell":
        """Makes a cell with a copy of a directory: by default this one, or none
        where the daemon is elsewhere; "" for none. Without a name one is made up."""
        req = _ask.create(name, source, backend, image, env, allow, credentials, limits, labels, policy, not self._at.socket)
        return Cell(self, await self._call(req))

    async def templates(self) -> List[TemplateInfo]:
        """Lists the templates there are."""
        return [TemplateInfo.from_json(d) for d in await self._call(_ask.templates())]

    async def template(self, name: str) -> "Template":
        """Returns a template by name."""
        return Template(self, TemplateInfo.from_json(await self._call(_ask.template(name))))

    async def build_template(self, name: str, *, source: str = "", setup: str = "", warm: str = "", ready: str = "", backend: str = "", image: str = "",
                             env: Env = None, allow: Sequence[str] = (), limits: Mapping[str, str] = {}, timeout: Timeout = None,
                             stdout: Sink = None, stderr: Sink = None, progress: Watch = None) -> "Template":
        """Makes a template: a cell with a warmed interpreter, to be forked."""
        req = _ask.build(name, source, setup, warm, ready, backend, image, env, allow, limits, timeout, not self._at.socket)
        doc, _ = await self._lines(req, _waiting._teller(stdout, stderr, progress))
        return Template(self, TemplateInfo.from_json(doc))

    # Runs.

    async def run(self, command: Command, *, cell: str = "", source: Optional[str] = None, backend: str = "", image: str = "", env: Env = None,
                  allow: Sequence[str] = (), credentials: Sequence[str] = (), workdir: str = "", limits: Mapping[str, str] = {}, timeout: Timeout = None,
                  check: str = "", on_failure: str = "", on_success: str = "", policy: str = "", input: Union[bytes, str, None] = None,
                  stdout: Sink = None, stderr: Sink = None, progress: Watch = None, check_exit: bool = False) -> "Run":
        """Does a governed run; see pando.Client.run."""
        doc = await self._call(_ask.start_run(command, cell, source, backend, image, env, allow, credentials, workdir, limits, timeout, check, on_failure,
                                              on_success, policy, not self._at.socket))
        p = await Process._attach(self, "runs", doc["run"], progress)
        result = await p.communicate(input, stdout, stderr)
        if result.exit_code is None and result.raw.get("error"):
            raise errors.from_json(result.raw["error"])
        if check_exit:
            _ask.must(command, result)
        return Run(self, RunInfo.from_json(result.raw), result)

    async def runs(self, cell: str = "") -> List[RunInfo]:
        """Lists runs, newest first."""
        return [RunInfo.from_json(d) for d in await self._call(_ask.runs(cell))]

    async def get_run(self, id: str, wait: bool = False) -> "Run":
        """Returns a run; with wait, when it has ended."""
        return Run(self, RunInfo.from_json(await self._call(_ask.run(id, wait))), None)

    async def receipt(self, id: str) -> Receipt:
        """Returns a receipt: by its digest, or that of a run."""
        return Receipt.from_json(await self._call(_ask.receipt(id)))

    async def verify(self, id: str = "all") -> Dict[str, Any]:
        """Verifies receipts and the files they name; raises Corrupt when something is wrong."""
        result: Dict[str, Any] = await self._thread(lambda c: c.verify(id))
        return result

    async def why(self, request: str, of: str = "", allow: Sequence[str] = ()) -> Answer:
        """Says what a policy makes of a request."""
        return Answer.from_json(await self._call(_ask.why(request, of, allow)))


class Process:
    """A command while it runs; see pando.Process. It is iterated with async for."""

    def __init__(self, client: Client, id: str, reply: _Reply, progress: Watch) -> None:
        self.id = id
        self.result: Optional[Result] = None
        self._client, self._reply, self._progress = client, reply, progress
        self._stream, self._frames = _ask.Stream(), _wire.Frames()

    @classmethod
    async def _attach(cls, client: Client, kind: str, id: str, progress: Watch = None) -> "Process":
        req = _ask.attach(kind, id)
        r, w = await client._connect()
        reply = _Reply(r, w)
        try:
            text, accept = _wire.upgrade(req.target, req.headers(client._at))
            w.write(text)
            await w.drain()
            await reply.head()
            if reply.status != 101:
                raise _wire.said(req, reply.status, reply.reason, await reply.all(1 << 20))
            if reply.headers.get("sec-websocket-accept") != accept:
                raise errors.Internal("cannot attach: the answer is not one to what was asked")
            return cls(client, id, reply, progress)
        except _Broken as e:
            reply.close()
            raise _wire.lost(e, client._at) from None
        except BaseException:
            reply.close()
            raise

    async def __aenter__(self) -> "Process":
        return self

    async def __aexit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Hangs up; a command that has not ended is interrupted."""
        self._reply.close()

    async def _write(self, op: int, payload: bytes) -> None:
        try:
            self._reply.w.write(_wire.frame(op, payload))
            await self._reply.w.drain()
        except OSError as e:
            raise _wire.lost(e, self._client._at) from None

    async def write(self, data: Union[bytes, str]) -> None:
        """Writes to the command's standard input."""
        data = data.encode() if isinstance(data, str) else bytes(data)
        for i in range(0, len(data), 1 << 18):
            await self._write(_wire.BINARY, b"i" + data[i:i + (1 << 18)])

    async def close_stdin(self) -> None:
        """Ends the command's standard input."""
        await self._write(_wire.BINARY, b"e")

    async def signal(self, name: str) -> None:
        """Sends the command a signal, such as "SIGINT"."""
        await self._write(_wire.BINARY, b"s" + name.encode())

    async def __aiter__(self) -> AsyncIterator[Tuple[str, bytes]]:
        while self.result is None:
            try:
                data = await self._reply.r.read(1 << 16)
            except OSError as e:
                raise _wire.lost(e, self._client._at) from None
            if not data:
                raise errors.Unavailable(f"lost the daemon while {self.id} was under way", "see what became of it: pando daemon status")
            for op, message in self._frames.feed(data):
                if op == _wire.PING:
                    await self._write(_wire.PONG, message)
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
                        try:
                            await self._write(_wire.CLOSE, b"\x03\xe8")
                        except errors.Error:
                            pass
                        return

    async def communicate(self, input: Union[bytes, str, None] = None, stdout: Sink = None, stderr: Sink = None) -> Result:
        """Gives the command its input, takes what it writes, and waits for its end."""
        kept = {"stdout": bytearray(), "stderr": bytearray()}
        sinks = {"stdout": stdout, "stderr": stderr}

        async def feed() -> None:
            try:
                if input:
                    await self.write(input)
                await self.close_stdin()
            except errors.Error:
                pass  # it has ended meanwhile

        feeder = asyncio.ensure_future(feed())
        try:
            async for name, data in self:
                sink = sinks[name]
                if sink:
                    sink(data)
                else:
                    kept[name] += data
        finally:
            feeder.cancel()
            self.close()
        assert self.result is not None
        r = self.result
        return Result(r.exit_code, bytes(kept["stdout"]), bytes(kept["stderr"]), r.signal, r.cause, r.lost, r.raw)


class Cell:
    """An isolated place where commands and code run; see pando.Cell."""

    def __init__(self, client: Client, doc: Dict[str, Any], answer: Union[Evaluation, Result, None] = None) -> None:
        self._client = client
        self.id: str = doc["cell"]
        self.name: str = doc.get("name") or doc["cell"]
        self.answer = answer

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
        return CellInfo.from_json(await self._client._call(_ask.cell(self.id)))

    async def remove(self) -> None:
        """Removes it, with its processes, files and checkpoints."""
        await self._client._call(_ask.remove(self.id))

    async def pause(self) -> None:
        """Freezes its processes."""
        await self._client._call(_ask.act(self.id, "pause"))

    async def resume(self) -> None:
        """Lets its processes go on."""
        await self._client._call(_ask.act(self.id, "resume"))

    async def stop(self) -> None:
        """Ends its processes; its files stay."""
        await self._client._call(_ask.act(self.id, "stop"))

    async def evaluate(self, code: str, *, timeout: Timeout = None, fresh: bool = False, kind: str = "", stdout: Sink = None, stderr: Sink = None) -> Evaluation:
        """Evaluates code and returns all that came of it."""
        doc, events = await self._client._lines(_ask.evaluate(self.id, code, timeout, fresh, kind), _waiting._teller(stdout, stderr, None))
        return Evaluation.from_json(doc.get("result") or {}, bytes(events.stdout), bytes(events.stderr), doc.get("notes"))

    async def eval(self, code: str, *, timeout: Timeout = None, fresh: bool = False, kind: str = "", stdout: Sink = None, stderr: Sink = None) -> Any:
        """Evaluates code and returns the value of the last expression. What the code
        raises is an EvalError."""
        return _ask.value(await self.evaluate(code, timeout=timeout, fresh=fresh, kind=kind, stdout=stdout, stderr=stderr))

    async def popen(self, command: Command, *, env: Env = None, workdir: str = "", timeout: Timeout = None) -> Process:
        """Starts a command, and returns while it runs."""
        doc = await self._client._call(_ask.start(self.id, command, env, workdir, timeout))
        return await Process._attach(self._client, "execs", doc["exec"])

    async def exec(self, command: Command, *, env: Env = None, workdir: str = "", timeout: Timeout = None, input: Union[bytes, str, None] = None,
                   stdout: Sink = None, stderr: Sink = None, check: bool = False) -> Result:
        """Runs a command to its end. With check, a failure is an ExitError."""
        p = await self.popen(command, env=env, workdir=workdir, timeout=timeout)
        r = await p.communicate(input, stdout, stderr)
        if check:
            _ask.must(command, r)
        return r

    async def run(self, command: Command, **more: Any) -> "Run":
        """Does a governed run in it; see Client.run."""
        return await self._client.run(command, cell=self.name, source="", **more)

    async def runs(self) -> List[RunInfo]:
        """Lists its runs, newest first."""
        return await self._client.runs(self.id)

    async def fork(self, n: int = 1, *, checkpoint: int = 0, name: str = "", files: bool = False) -> "Cells":
        """Makes cells with its files as of a checkpoint; 0 for its present state."""
        doc = await self._client._call(_ask.fork(self.id, n, checkpoint, name, files))
        return Cells(Cell(self._client, d) for d in doc["cells"])

    async def branch(self, n: int = 1, *, name: str = "") -> "Cells":
        """Copies it with its interpreter as it is now; it goes on."""
        doc = await self._client._call(_ask.branch(self.id, n, name))
        return Cells(Cell(self._client, d) for d in doc["cells"])

    async def checkpoint(self, message: str = "") -> Checkpoint:
        """Makes its present state a checkpoint."""
        return Checkpoint.from_json(await self._client._call(_ask.checkpoint(self.id, message)))

    async def history(self) -> List[Checkpoint]:
        """Lists its checkpoints."""
        return [Checkpoint.from_json(d) for d in await self._client._call(_ask.history(self.id))]

    async def restore(self, checkpoint: Union[int, Checkpoint], *, lose: bool = False, files: bool = False, dry_run: bool = False) -> Restored:
        """Brings it back to a checkpoint."""
        n = checkpoint.number if isinstance(checkpoint, Checkpoint) else checkpoint
        return Restored.from_json(await self._client._call(_ask.restore(self.id, n, lose, files, dry_run)))

    async def undo(self, to: int = 0, *, lose: bool = False) -> Restored:
        """Brings it back to before its latest change."""
        return Restored.from_json(await self._client._call(_ask.undo(self.id, to, lose)))

    async def diff(self, start: int = 0, end: int = 0, *, ignored: bool = False) -> Diff:
        """Compares two checkpoints; by default the one before its latest run with
        its present state."""
        return Diff.from_json(await self._client._call(_ask.diff(self.id, start, end, ignored)))

    async def read_bytes(self, path: str) -> bytes:
        """Reads a file."""
        return _ask.unpacked(path, await self._client._bytes(_ask.read(self.id, path)))

    async def read_text(self, path: str, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Reads a file as text."""
        return (await self.read_bytes(path)).decode(encoding, errors)

    async def write_bytes(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Writes a file; directories above it are made."""
        directory, name = _ask.place(path)
        await self._client._bytes(_ask.write(self.id, directory, _ask.packed(name, data, mode)))

    async def write_text(self, path: str, text: str, mode: int = 0o644) -> None:
        """Writes a file as UTF-8."""
        await self.write_bytes(path, text.encode(), mode)

    async def download(self, path: str, to: str) -> None:
        """Copies a file or directory out of it, to a path that need not be there."""
        await self._client._thread(lambda c: c.cell(self.id).download(path, to))

    async def upload(self, source: str, to: str) -> None:
        """Copies a file or directory into it, as the path to."""
        await self._client._thread(lambda c: c.cell(self.id).upload(source, to))


class Cells(List[Cell]):
    """Cells that were made together. As a context they are removed at the end."""

    async def __aenter__(self) -> "Cells":
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.remove()

    async def remove(self) -> None:  # type: ignore[override]
        """Removes all of them; the first error is raised when all were tried."""
        ends = await asyncio.gather(*(c.remove() for c in self), return_exceptions=True)
        for e in ends:
            if isinstance(e, BaseException) and not isinstance(e, errors.NotFound):
                raise e


class Template:
    """A warm cell that is kept to be forked; see pando.Template."""

    def __init__(self, client: Client, info: TemplateInfo) -> None:
        self._client = client
        self.name = info.name
        self.built = info

    def __repr__(self) -> str:
        return f"<pando.aio.Template {self.name}>"

    async def info(self) -> TemplateInfo:
        """Tells about it as it is now."""
        return TemplateInfo.from_json(await self._client._call(_ask.template(self.name)))

    async def fork(self, n: int = 1, *, name: str = "", eval: str = "", command: Optional[Command] = None, timeout: Timeout = None,
                   remove: bool = False, progress: Optional[Callable[[Cell], Any]] = None) -> Cells:
        """Makes cells with its memory and files; see pando.Template.fork."""
        def on(word: str, v: Any) -> None:
            if word == "fork" and progress and not v.get("error"):
                progress(Cell(self._client, v["cell"], _ask.forked(v)))

        doc, _ = await self._client._lines(_ask.warm_fork(self.name, n, name, eval, command, timeout, remove), on)
        cells = Cells(Cell(self._client, f["cell"], _ask.forked(f)) for f in doc["forks"] if not f.get("error"))
        bad = [f["error"] for f in doc["forks"] if f.get("error")]
        if bad:
            if not remove:
                await cells.remove()
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
        """Removes it."""
        await self._client._call(_ask.remove_template(self.name, cascade, force))


class Run:
    """A governed run; see pando.Run."""

    def __init__(self, client: Client, info: RunInfo, result: Optional[Result]) -> None:
        self._client = client
        self.id = info.id
        self.info = info
        self.result = result

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

    async def refresh(self, wait: bool = False) -> "Run":
        """Asks for it again; with wait, when it has ended."""
        self.info = RunInfo.from_json(await self._client._call(_ask.run(self.id, wait)))
        return self

    async def file(self, name: str) -> bytes:
        """Reads one of its records: stdout, stderr, events.jsonl, patch, manifest.json."""
        return await self._client._bytes(_ask.run_file(self.id, name))

    async def diff(self, *, ignored: bool = False) -> Diff:
        """Shows what it changed."""
        return Diff.from_json(await self._client._call(_ask.run_diff(self.id, ignored)))

    async def receipt(self) -> Receipt:
        """The receipt that it left."""
        return await self._client.receipt(self.id)

    async def accept(self, *, apply: bool = False, include: Sequence[str] = (), force: bool = False, reason: str = "") -> Dict[str, Any]:
        """Accepts its result; with apply, writes it to the source."""
        doc = await self._client._call(_ask.accept(self.id, apply, include, force, reason))
        self.info = RunInfo.from_json(doc["run"])
        return dict(doc)

    async def discard(self) -> None:
        """Throws its result away."""
        self.info = RunInfo.from_json(await self._client._call(_ask.discard(self.id)))
