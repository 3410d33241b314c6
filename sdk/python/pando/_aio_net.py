"""Connections of asyncio, and what else is done while others go on; _net is the same
for those who wait."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any, Awaitable, Callable, List, Optional, Sequence, TypeVar

from . import _wire, errors

T = TypeVar("T")

KEEPS = False
"""Connections are kept for the next request only in a client's context: a loop may
end at any time, and nobody would close them."""

Lock = asyncio.Lock
sleep = asyncio.sleep


class Stream:
    """A connection to a daemon, of one event loop."""

    def __init__(self, r: asyncio.StreamReader, w: asyncio.StreamWriter, at: _wire.Address, timeout: Optional[float]) -> None:
        self._r, self._w, self._at, self._timeout = r, w, at, timeout
        self._loop = asyncio.get_running_loop()
        self.answered = 0.0

    def usable(self) -> bool:
        """Whether another request may be sent over it."""
        return time.monotonic() - self.answered < _wire.LATELY and self._loop is asyncio.get_running_loop() and not self._r.at_eof()

    async def _soon(self, work: Awaitable[T]) -> T:
        try:
            return await work if self._timeout is None else await asyncio.wait_for(work, self._timeout)
        except asyncio.TimeoutError:
            raise _wire.silent(self._at, self._timeout) from None
        except OSError as e:
            raise _wire.lost(e, self._at) from None

    async def read(self, n: int) -> bytes:
        """Returns what has come, at most n bytes; b"" at the end."""
        return await self._soon(self._r.read(n))

    async def write(self, data: bytes) -> None:
        self._w.write(data)
        await self._soon(self._w.drain())

    def close(self) -> None:
        """Hangs up."""
        try:
            self._w.close()
        except RuntimeError:  # its loop has ended, and closed it
            pass


async def connect(at: _wire.Address, timeout: Optional[float]) -> Stream:
    """Connects to a daemon; one of this user's is started when none answers."""
    try:
        if at.socket:
            try:
                sock = _wire.connect_unix(at.socket)
            except OSError:
                await apart(lambda: _wire.start_daemon(os.environ))
                sock = _wire.connect_unix(at.socket)
            sock.setblocking(False)
            r, w = await asyncio.open_connection(sock=sock)
            return Stream(r, w, at, timeout)
        opening = asyncio.open_connection(at.host, at.port, ssl=at.context(), server_hostname=at.host if at.tls else None)
        try:
            r, w = await asyncio.wait_for(opening, _wire.CONNECT if timeout is None else timeout)
        except asyncio.TimeoutError:
            raise OSError("it does not answer") from None
        try:
            tls = w.get_extra_info("ssl_object")
            at.check(tls.getpeercert(True) if tls else None)
        except errors.Error:
            w.close()
            raise
        return Stream(r, w, at, timeout)
    except OSError as e:
        raise _wire.unreachable(e, at) from None


class Beside:
    """Work beside what goes on here."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._task = asyncio.ensure_future(work())

    async def end(self) -> None:
        """Ends it."""
        self._task.cancel()
        await asyncio.wait([self._task])


async def each(work: Sequence[Callable[[], Awaitable[Any]]]) -> List[Optional[BaseException]]:
    """Does all of it at once, and returns what each raised."""
    ends = await asyncio.gather(*(w() for w in work), return_exceptions=True)
    return [e if isinstance(e, BaseException) else None for e in ends]


async def apart(work: Callable[[], T]) -> T:
    """Does what is about files of this host in a thread."""
    return await asyncio.get_running_loop().run_in_executor(None, work)
