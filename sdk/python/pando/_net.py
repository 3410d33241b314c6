"""Connections, and what else is done while others wait: _aio_net in the manner of
those who wait."""

from __future__ import annotations

import os
import select
import socket
import ssl
import threading
import time
from typing import Any, Callable, List, Optional, Sequence, TypeVar

from . import _wire

T = TypeVar("T")

KEEPS = True
"""Connections are kept for the next request."""

Lock = threading.Lock
sleep = time.sleep


class Stream:
    """A connection to a daemon."""

    def __init__(self, sock: socket.socket, at: _wire.Address, timeout: Optional[float]) -> None:
        self._sock, self._at, self._timeout = sock, at, timeout
        self._one = threading.Lock()  # one thread at a time may be in OpenSSL with it
        self._secret = isinstance(sock, ssl.SSLSocket)
        sock.settimeout(0 if self._secret else timeout)
        self.answered = 0.0

    def _soon(self, do: Callable[[], T]) -> T:
        """Does what a socket can do at once, waiting until it can. Who reads and who
        writes wait beside each other."""
        if not self._secret:
            return do()
        end = None if self._timeout is None else time.monotonic() + self._timeout
        while True:
            event = select.POLLIN
            try:
                with self._one:
                    return do()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLWantWriteError:
                event = select.POLLOUT
            left = 1.0 if end is None else end - time.monotonic()
            if left <= 0:
                raise socket.timeout("timed out")
            p = select.poll()
            p.register(self._sock, event)
            p.poll(min(left, 1.0) * 1000)

    def usable(self) -> bool:
        """Whether another request may be sent over it."""
        if time.monotonic() - self.answered >= _wire.LATELY:
            return False
        p = select.poll()
        p.register(self._sock, select.POLLIN)
        return not p.poll(0)  # nothing has come: it has not hung up

    def read(self, n: int) -> bytes:
        """Returns what has come, at most n bytes; b"" at the end."""
        try:
            return self._soon(lambda: self._sock.recv(n))
        except socket.timeout:
            raise _wire.silent(self._at, self._timeout) from None
        except OSError as e:
            raise _wire.lost(e, self._at) from None

    def write(self, data: bytes) -> None:
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[self._soon(lambda: self._sock.send(rest)):]
        except socket.timeout:
            raise _wire.silent(self._at, self._timeout) from None
        except OSError as e:
            raise _wire.lost(e, self._at) from None

    def close(self) -> None:
        """Hangs up; who reads in another thread finds the end."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._sock.close()


def connect(at: _wire.Address, timeout: Optional[float]) -> Stream:
    """Connects to a daemon; one of this user's is started when none answers."""
    try:
        if at.socket:
            try:
                sock = _wire.connect_unix(at.socket)
            except OSError:
                _wire.start_daemon(os.environ)
                sock = _wire.connect_unix(at.socket)
        else:
            sock = socket.create_connection((at.host, at.port), _wire.CONNECT if timeout is None else timeout)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ctx = at.context()
            try:
                if ctx:
                    tls = ctx.wrap_socket(sock, server_hostname=at.host)
                    sock = tls
                    at.check(tls.getpeercert(True))
            except BaseException:
                sock.close()
                raise
        return Stream(sock, at, timeout)
    except OSError as e:
        raise _wire.unreachable(e, at) from None


class Beside:
    """Work beside what goes on here."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Waits for it, once nothing holds it any more."""
        self._thread.join()


def each(work: Sequence[Callable[[], Any]]) -> List[Optional[BaseException]]:
    """Does all of it, and returns what each raised."""
    out: List[Optional[BaseException]] = []
    for w in work:
        try:
            w()
            out.append(None)
        except Exception as e:
            out.append(e)
    return out


def apart(work: Callable[[], T]) -> T:
    """Does what is about files of this host."""
    return work()
