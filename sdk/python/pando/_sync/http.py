# Made by generate.py of ../_async. Do not edit.
"""Questions to the API and their answers, over connections that are kept."""

from __future__ import annotations

import os
import zlib
from dataclasses import replace
from typing import IO, Any, Iterator, Callable, Dict, List, Optional, Tuple, TypeVar

from .. import _net as _net
from .. import _wire, errors
from .._wire import Request

T = TypeVar("T")

BROKEN = (EOFError, ValueError)
"""What an answer that is none raises while it is read."""


class Conn:
    """A connection, and what was read ahead from it."""

    def __init__(self, stream: _net.Stream) -> None:
        self.stream = stream
        self.ahead = bytearray()

    def some(self, n: int) -> bytes:
        """Returns what has come, at most n bytes; b"" at the end."""
        if self.ahead:
            b = bytes(self.ahead[:n])
            del self.ahead[:n]
            return b
        return self.stream.read(n)

    def line(self) -> bytes:
        """Returns a line of a head; without its end when there is no more."""
        while b"\n" not in self.ahead:
            b = self.stream.read(1 << 16)
            if not b or len(self.ahead) > 1 << 20:
                break
            self.ahead += b
        return self.some(self.ahead.find(b"\n") + 1 or len(self.ahead)) if self.ahead else b""


class Reply:
    """The answer to one request."""

    def __init__(self, conn: Conn) -> None:
        self.conn = conn
        self.status, self.reason = 0, ""
        self.headers: Dict[str, str] = {}
        self.over = False
        self._left: Optional[int] = None  # bytes of a body of known length, or of a chunk
        self._chunked = False
        self._ahead = bytearray()
        self._z: Any = None  # decompresses the body

    def head(self) -> None:
        line = self.conn.line()
        parts = line.decode("latin-1").split(None, 2)
        if len(parts) < 2 or not parts[0].startswith("HTTP/1.") or not parts[1].isdigit():
            raise EOFError("it hung up without an answer" if not line else "it does not talk HTTP")
        self.status, self.reason = int(parts[1]), parts[2].strip() if len(parts) > 2 else ""
        while True:
            line = self.conn.line()
            if line in (b"\r\n", b"\n"):
                break
            if not line.endswith(b"\n") or len(self.headers) > 100:
                raise EOFError("its answer broke off")
            k, _, v = line.decode("latin-1").partition(":")
            self.headers[k.strip().lower()] = v.strip()
        self._chunked = self.headers.get("transfer-encoding", "").lower() == "chunked"
        if not self._chunked and "content-length" in self.headers:
            self._left = int(self.headers["content-length"])
            self.over = self._left == 0
        if self.headers.get("content-encoding", "").lower() == "gzip":
            self._z = zlib.decompressobj(16 + zlib.MAX_WBITS)

    @property
    def last(self) -> bool:
        """Nothing can be asked after it over the same connection."""
        return not self.over or self.headers.get("connection", "").lower() == "close"

    def some(self) -> bytes:
        """Returns a part of the body; b"" at its end."""
        if self._ahead:
            b, self._ahead = bytes(self._ahead), bytearray()
            return b
        if self._z is None:
            return self._sent()
        while not self._z.eof:
            packed = self._z.unconsumed_tail or self._sent()
            try:
                b = bytes(self._z.decompress(packed, 1 << 20))
            except zlib.error as e:
                raise ValueError(f"its answer can't be decompressed: {e}") from None
            if b:
                return b
            if not packed and not self._z.eof:
                raise EOFError("its answer broke off")
        while self._sent():
            pass
        return b""

    def _sent(self) -> bytes:
        """Returns a part of the body as it was sent; b"" at its end."""
        if self.over:
            return b""
        if self._chunked and not self._left:
            if self._left == 0:
                self.conn.line()  # behind the chunk before
            size = self.conn.line()
            self._left = int(size.split(b";")[0], 16)  # ValueError when it broke off
            if self._left == 0:
                while (self.conn.line()) not in (b"\r\n", b"\n", b""):
                    pass
                self.over = True
                return b""
        b = self.conn.some(min(self._left or 1 << 16, 1 << 16))
        if self._left is None:  # to the end of the connection
            return b
        if not b:
            raise EOFError("its answer broke off")
        self._left -= len(b)
        self.over = not self._left and not self._chunked
        return b

    def all(self, limit: int = 0) -> bytes:
        out = bytearray()
        while not limit or len(out) <= limit:
            b = self.some()
            if not b:
                break
            out += b
        return bytes(out)

    def line(self) -> bytes:
        """Returns a line of the body; without its end when the body ended before."""
        out = bytearray()
        while True:
            b = self.some()
            i = b.find(b"\n")
            if i >= 0:
                self._ahead = bytearray(b[i + 1:])
                return bytes(out + b[:i + 1])
            out += b
            if not b:
                return bytes(out)
            if len(out) > _wire.MAX_LINE:
                raise ValueError("a line of its answer is too long")


class Http:
    """Asks one daemon."""

    def __init__(self, host: Optional[str] = None, token: Optional[str] = None, timeout: Optional[float] = None) -> None:
        self._at = _wire.find(host, token, os.environ)
        self._given = (host if host is not None else os.environ.get("PANDO_HOST", ""), token)
        self._timeout = timeout
        self._keeps = _net.KEEPS
        self._idle: List[Conn] = []

    def __reduce__(self) -> Tuple[Any, ...]:
        """A pickle has the daemon's address. A token that was given is in it, too; one of
        PANDO_TOKEN is not, and is read where the pickle is."""
        return type(self), (self._given[0], self._given[1]), {"_timeout": self._timeout}

    def __del__(self) -> None:
        if hasattr(self, "_idle"):
            self._hang_up()

    def _hang_up(self) -> None:
        while self._idle:
            self._idle.pop().stream.close()

    # One question.

    def _connect(self) -> Conn:
        while self._idle:
            try:
                c = self._idle.pop()
            except IndexError:  # another thread was faster
                break
            if c.stream.usable():
                return c
            c.stream.close()
        return Conn(_net.connect(self._at, self._timeout))

    def _send(self, req: Request, body: Optional[IO[bytes]] = None) -> Reply:
        """Sends a request and reads the head of its answer, which is none of an
        error. body is instead of what the request has: an open file."""
        head = req.head(self._at, body is not None)  # before anything is contacted
        reply = Reply(self._connect())
        try:
            try:
                reply.conn.stream.write(head + (b"" if body else req.data() or b""))
                while body:
                    b = _net.apart(lambda: body.read(1 << 20))  # type: ignore[union-attr]
                    reply.conn.stream.write(b"%x\r\n%b\r\n" % (len(b), b))
                    if not b:
                        break
            except errors.Lost:
                pass  # it may have answered before it had everything
            reply.head()
            if reply.status // 100 != 2:
                raise _wire.said(req, reply.status, reply.reason, reply.all(1 << 20))
            return reply
        except BROKEN as e:
            reply.conn.stream.close()
            raise _wire.lost(e, self._at) from None
        except BaseException:
            self._done(reply)
            raise

    def _done(self, reply: Reply) -> None:
        """Lets go of an answer: its connection is kept when it was read to its end."""
        if reply.last or not self._keeps or len(self._idle) >= 8:
            reply.conn.stream.close()
            return
        reply.conn.stream.answered = _wire.now()
        self._idle.append(reply.conn)

    def _again(self, req: Request, ask: Callable[[Request], T]) -> T:
        """Asks, and asks again when the connection broke, if that does nothing twice."""
        req, reached = req.keyed(), False
        for wait in _wire.WAITS if req.repeatable else ():
            try:
                return ask(req)
            except errors.Lost as e:
                reached = reached or e.reached
                if e.final or not reached:
                    raise
            except errors.Limited:
                if not req.key:
                    raise
                req = replace(req, once=False, key="")  # it can remember no more keys
                break
            _net.sleep(wait)
        return ask(req)

    def _reached(self, lost: errors.Error) -> None:
        """Waits until the daemon answers again; raises lost when it does not soon."""
        for wait in _wire.WAITS:
            _net.sleep(wait)
            try:
                self._read(Request("GET", "/v1/daemon"))
                return
            except errors.Lost:
                pass
        raise lost

    def _gone(self, req: Request) -> None:
        """Removes something. What is not there any more, when it is asked again because
        the connection broke, was removed."""
        lost: Optional[errors.Lost] = None
        for wait in _wire.WAITS:
            try:
                self._read(req)
                return
            except errors.NotFound:
                if lost is None:
                    raise
                return
            except errors.Lost as e:
                if lost is None and not e.reached:
                    raise
                lost = e
            _net.sleep(wait)
        assert lost is not None
        raise lost

    # Kinds of answers.

    def _bytes(self, req: Request) -> bytes:
        def ask(req: Request) -> bytes:
            return (self._read(req))[0]
        return self._again(req, ask)

    def _read(self, req: Request) -> Tuple[bytes, Reply]:
        reply = self._send(req)
        try:
            return reply.all(), reply
        except BROKEN as e:
            raise _wire.lost(e, self._at) from None
        finally:
            self._done(reply)

    def _call(self, req: Request) -> Any:
        return _wire.document(req, self._bytes(req))

    def _lines(self, req: Request, on: Callable[[str, Any], None]) -> Tuple[Any, _wire.Events]:
        """Asks for an answer in lines, and tells on of all but the result."""
        def ask(req: Request) -> Tuple[Any, _wire.Events]:
            reply = self._send(req)
            events = _wire.Events(req)
            told = False
            try:
                while True:
                    line = reply.line()
                    if not line.endswith(b"\n"):
                        raise events.broke_off(self._at)
                    word, v = events.line(line)
                    if word == "result":
                        reply.all(1 << 16)
                        return v, events
                    told = True
                    on(word, v)
            except BROKEN as e:
                raise _wire.lost(e, self._at, final=told) from None
            except errors.Lost as e:
                e.final = told  # nothing is told twice
                raise
            finally:
                self._done(reply)  # and the work ends, if it has not
        return self._again(req, ask)

    def _pages(self, req: Request, page: int) -> Iterator[Any]:
        """Yields the items of a list, of which so many are asked for at a time."""
        if page < 1:
            raise errors.Invalid(f"cannot ask for {page} items at a time", "give a number of 1 or more")
        cursor = ""
        while True:
            part = replace(req, query={**(req.query or {}), "limit": page, "cursor": cursor})

            def ask(req: Request) -> Tuple[bytes, Reply]:
                return self._read(req)
            body, reply = self._again(part, ask)
            for doc in _wire.document(part, body):
                yield doc
            cursor = reply.headers.get("x-next-cursor", "")
            if not cursor:
                return

    def _told(self, req: Request) -> Iterator[Any]:
        """Yields the documents of an answer in lines."""
        reply = self._send(req)
        try:
            while True:
                line = reply.line()
                if not line.endswith(b"\n"):
                    if line:
                        raise EOFError("its answer broke off")
                    return
                yield _wire.document(req, line)
        except BROKEN as e:
            raise _wire.lost(e, self._at) from None
        finally:
            self._done(reply)

    def _sse(self, req: Request) -> Iterator[Tuple[str, Any]]:
        """Yields the kinds and documents of server-sent events (HTML, 9.2.6)."""
        reply = self._send(req)
        try:
            kind = ""
            while True:
                line = reply.line()
                if not line.endswith(b"\n"):
                    if line:
                        raise EOFError("its answer broke off")
                    return
                name, _, text = line.strip().partition(b": ")
                if name == b"event":
                    kind = text.decode("utf-8", "replace")
                elif name == b"data":
                    yield kind, _wire.document(req, text)
                elif not line.strip():
                    kind = ""
        except BROKEN as e:
            raise _wire.lost(e, self._at) from None
        finally:
            self._done(reply)

    def _into(self, req: Request, f: IO[bytes]) -> None:
        """Writes an answer to an open file."""
        reply = self._send(req)
        try:
            while True:
                b = reply.some()
                if not b:
                    return
                _net.apart(lambda: f.write(b))
        except BROKEN as e:
            raise _wire.lost(e, self._at) from None
        finally:
            self._done(reply)

    def _put(self, req: Request, f: IO[bytes]) -> None:
        """Sends an open file."""
        reply = self._send(req, f)
        try:
            reply.all()
        except BROKEN as e:
            raise _wire.lost(e, self._at) from None
        finally:
            self._done(reply)

    def _upgrade(self, req: Request) -> Conn:
        """Makes a WebSocket of a request."""
        text, accept = _wire.upgrade(req.target, req.headers(self._at))
        reply = Reply(Conn(_net.connect(self._at, self._timeout)))
        try:
            reply.conn.stream.write(text)
            reply.head()
            if reply.status != 101:
                raise _wire.said(req, reply.status, reply.reason, reply.all(1 << 20))
            if reply.headers.get("sec-websocket-accept") != accept:
                raise errors.Internal("cannot attach: the answer is not one to what was asked")
            return reply.conn
        except BROKEN as e:
            reply.conn.stream.close()
            raise _wire.lost(e, self._at) from None
        except BaseException:
            reply.conn.stream.close()
            raise
