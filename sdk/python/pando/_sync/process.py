# Made by generate.py of ../_async. Do not edit.
"""Commands while they run."""

from __future__ import annotations

import json
from typing import Any, Iterator, Callable, List, Optional, Tuple, Union

from .. import _net as _net
from .. import _ask, _wire, errors
from ..models import Progress, Result
from .http import Conn, Http

__all__ = ["Connection", "Process", "Sink", "Watch"]

Sink = Optional[Callable[[bytes], Any]]
Watch = Optional[Callable[[Progress], Any]]


class Process:
    """A command while it runs. Iterating yields ("stdout", bytes) and ("stderr",
    bytes) as they come; then result is how it ended. Leaving its context ends it.

    It outlives the daemon: when the connection breaks, its output is taken up again
    where it broke off, unless it was given input, of which nobody knows what has
    arrived. One that only looks on (of popen with detached, of attach with input=False,
    of Run.attach) takes no input, and leaves the command running when it is closed.
    """

    def __init__(self, http: Http, kind: str, id: str, conn: Conn, progress: Watch = None, input: bool = True) -> None:
        self.id = id
        self.result: Optional[Result] = None
        self._http, self._kind, self._conn, self._progress, self._input = http, kind, conn, progress, input
        self._stream, self._frames = _ask.Stream(), _wire.Frames()
        self._given = self._ended = self._closed = False  # it was given input; its input has ended; we have hung up
        self._writing = _net.Lock()

    @classmethod
    def _attach(cls, http: Http, kind: str, id: str, progress: Watch = None, input: bool = True) -> "Process":
        return cls(http, kind, id, http._upgrade(_ask.attach(kind, id, input)), progress, input)

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Hangs up; a command that has not ended is interrupted, unless this Process only
        looks on."""
        self._closed = True
        self._conn.stream.close()

    def _say(self, payload: bytes) -> None:
        if not self._input:
            raise errors.Invalid(f"cannot give {self.id} input: this Process only looks on", "attach to it with input=True")
        self._write(_wire.BINARY, payload)

    def _write(self, op: int, payload: bytes) -> None:
        with self._writing:
            self._conn.stream.write(_wire.frame(op, payload))

    def write(self, data: Union[bytes, str]) -> None:
        """Writes to the command's standard input."""
        data = data.encode() if isinstance(data, str) else bytes(data)
        self._given = self._given or bool(data)
        for i in range(0, len(data), 1 << 18):
            self._say(b"i" + data[i:i + (1 << 18)])

    def close_stdin(self) -> None:
        """Ends the command's standard input."""
        self._say(b"e")
        self._ended = True

    def signal(self, name: str) -> None:
        """Sends the command a signal, such as "SIGINT"."""
        if self._kind == "execs":  # whoever else is attached and gives it input
            self._http._call(_ask.signal(self.id, name))
            return
        self._say(b"s" + name.encode())

    def resize(self, rows: int, cols: int) -> None:
        """Tells its terminal how large it is now."""
        self._say(b"w" + json.dumps({"rows": rows, "cols": cols}).encode())

    def __iter__(self) -> Iterator[Tuple[str, bytes]]:
        while self.result is None:
            try:
                data = self._conn.some(1 << 16)
                if not data:
                    raise errors.Lost(f"lost the daemon while {self.id} was under way", "see what became of it: pando daemon status")
                for got in self._take(data):
                    yield got
            except errors.Lost as e:
                self._resume(e)

    def _take(self, data: bytes) -> List[Tuple[str, bytes]]:
        """Returns the output that came."""
        out: List[Tuple[str, bytes]] = []
        for op, message in self._frames.feed(data):
            if op == _wire.PING:
                self._write(_wire.PONG, message)
            elif op == _wire.CLOSE:
                raise errors.Lost(f"lost the daemon while {self.id} was under way: it hung up", "see what became of it: pando daemon status")
            elif op == _wire.BINARY:
                got = self._stream.take(message)
                if got and got[0] == "progress":
                    if self._progress:
                        self._progress(Progress.from_json(got[1]))
                elif got:
                    out.append(got)
                if self._stream.result is not None:
                    self.result = _ask.result(self._stream.result, b"", b"", self._stream.lost)
                    self._conn.stream.close()
                    break
        return out

    def _resume(self, lost: errors.Lost) -> None:
        """Attaches again, behind the output that has come."""
        if self._given or self._closed:
            raise lost
        self._conn.stream.close()
        for wait in _wire.WAITS:
            _net.sleep(wait)
            try:
                self._conn = self._http._upgrade(_ask.attach(self._kind, self.id, self._input, self._stream.seen))
                self._frames = _wire.Frames()
                if self._ended:
                    self._write(_wire.BINARY, b"e")
                return
            except errors.Lost as e:
                lost = e
            except errors.NotFound:  # it went with its cell, or the host
                break
        raise lost

    def communicate(self, input: Union[bytes, str, None] = None, on_stdout: Sink = None, on_stderr: Sink = None) -> Result:
        """Gives the command its input, takes what it writes, and waits for its end.
        What a function takes (on_stdout, on_stderr) is not kept."""
        kept = {"stdout": bytearray(), "stderr": bytearray()}
        sinks = {"stdout": on_stdout, "stderr": on_stderr}

        def feed() -> None:
            try:
                if input:
                    self.write(input)
                if self._input:
                    self.close_stdin()
            except errors.Error:
                pass  # it has ended meanwhile, or the reader finds out why not

        feeder = _net.Beside(feed)
        try:
            for name, data in self:
                sink = sinks[name]
                if sink:
                    sink(data)
                else:
                    kept[name] += data
        finally:
            self.close()
            feeder.end()
        assert self.result is not None
        r = self.result
        return Result(r.exit_code, bytes(kept["stdout"]), bytes(kept["stderr"]), r.signal, r.cause, r.lost, r.raw)


class Connection:
    """A connection to a port of a cell. Iterating yields bytes as they come, until the
    other side sends no more."""

    def __init__(self, conn: Conn) -> None:
        self._conn, self._frames = conn, _wire.Frames()
        self._in: List[bytes] = []
        self._over = False
        self._writing = _net.Lock()

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Ends it."""
        self._conn.stream.close()

    def _send(self, op: int, payload: bytes) -> None:
        with self._writing:
            self._conn.stream.write(_wire.frame(op, payload))

    def write(self, data: Union[bytes, str]) -> None:
        """Sends bytes."""
        data = data.encode() if isinstance(data, str) else bytes(data)
        for i in range(0, len(data), 1 << 18):
            self._send(_wire.BINARY, data[i:i + (1 << 18)])

    def close_write(self) -> None:
        """Says that no more bytes come; what the other side sends is still read."""
        self._send(_wire.BINARY, b"")

    def read(self) -> bytes:
        """Returns the next bytes that came, however many; b"" when no more come."""
        while not self._in and not self._over:
            data = self._conn.some(1 << 16)
            self._over = not data
            for op, message in self._frames.feed(data):
                if op == _wire.PING:
                    self._send(_wire.PONG, message)
                elif op == _wire.CLOSE:
                    self._over = True
                elif op == _wire.BINARY and message:
                    self._in.append(message)
        return self._in.pop(0) if self._in else b""

    def __iter__(self) -> Iterator[bytes]:
        while True:
            data = self.read()
            if not data:
                return
            yield data
