"""Where the daemon is, and what connections to it carry; no input or output of its
own but for starting a daemon."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import json
import os
import shutil
import socket
import ssl
import struct
import subprocess
import time
from dataclasses import dataclass, replace
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple
from urllib.parse import quote, urlencode, urlsplit

from . import errors

MAX_LINE = 64 << 20
"""Bytes of one line of an answer."""

LATELY = 1.0
"""Seconds after an answer in which a daemon is not thought to be ending."""

CONNECT = 30.0
"""Seconds that a daemon elsewhere has to take a connection."""

WAITS = (0.05, 0.2, 0.5, 1.0, 2.0)
"""Seconds to wait before asking again, when a connection broke."""

now = time.monotonic


@dataclass(frozen=True)
class Address:
    """Where a daemon answers: on a unix socket, or by TCP."""

    socket: str = ""
    host: str = ""
    port: int = 0
    tls: bool = False
    pin: bytes = b""  # SHA-256 of the certificate
    token: str = ""

    @property
    def name(self) -> str:
        """What stands in the Host header."""
        if self.socket:
            return "pando"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def context(self) -> Optional[ssl.SSLContext]:
        if not self.tls:
            return None
        ctx = ssl.create_default_context()
        ctx.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.pin:  # the fingerprint takes the place of names and authorities
            ctx.check_hostname = False
            ctx.verify_mode = ssl.CERT_NONE
        return ctx

    def check(self, certificate: Optional[bytes]) -> None:
        """Compares the other side's certificate (DER) with the fingerprint."""
        if not self.pin:
            return
        got = hashlib.sha256(certificate or b"").digest()
        if not hmac.compare_digest(got, self.pin):
            raise errors.Denied(
                f"cannot trust the daemon at {self.name}: its certificate has the fingerprint sha256={got.hex()}",
                "if it was made anew, compare with what pando serve prints there, and change PANDO_HOST")


def find(host: Optional[str], token: Optional[str], env: Mapping[str, str]) -> Address:
    """Returns the daemon at host, or at PANDO_HOST, or that of this user."""
    host = host if host is not None else env.get("PANDO_HOST", "")
    token = token if token is not None else env.get("PANDO_TOKEN", "")
    if not host:
        return Address(socket=_socket(env))
    bad = errors.Invalid(
        f"cannot use {host} as the daemon's address",
        "PANDO_HOST is http://HOST:PORT (this host alone) or https://HOST:PORT, with #sha256=FINGERPRINT behind it where pando serve prints one")
    try:
        u = urlsplit(host)
        name, port = u.hostname or "", u.port
    except ValueError:
        raise bad from None
    if not name or u.query or u.username is not None or u.path.strip("/") or u.scheme not in ("http", "https"):
        raise bad
    pin = b""
    if u.fragment:
        word, _, digits = u.fragment.partition("=")
        try:
            pin = bytes.fromhex(digits.replace(":", ""))
        except ValueError:
            raise bad from None
        if word != "sha256" or len(pin) != 32 or u.scheme == "http":
            raise bad
    if u.scheme == "http" and not _loopback(name):  # the token would be readable on the way
        raise bad
    return Address(host=name, port=port or (443 if u.scheme == "https" else 80), tls=u.scheme == "https", pin=pin, token=token)


def _loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def _socket(env: Mapping[str, str]) -> str:
    """The socket of this user's daemon, as package home has it."""
    if env.get("PANDO_HOME"):
        run = os.path.join(os.path.abspath(env["PANDO_HOME"]), "run")
    elif os.geteuid() == 0:
        run = "/run/pando"
    elif os.path.isabs(env.get("XDG_RUNTIME_DIR", "")) and os.path.isdir(env["XDG_RUNTIME_DIR"]):
        run = os.path.join(env["XDG_RUNTIME_DIR"], "pando")
    else:
        data = env.get("XDG_DATA_HOME", "")
        if not os.path.isabs(data):
            if not env.get("HOME"):
                raise errors.Invalid("cannot find pando's socket: neither PANDO_HOME nor HOME is set", "set PANDO_HOST or PANDO_HOME")
            data = os.path.join(env["HOME"], ".local/share")
        run = os.path.join(data, "pando", "run")
    return os.path.join(run, "pando.sock")


def connect_unix(path: str) -> socket.socket:
    """Connects to a unix socket, whose path may be longer than an address can be."""
    s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if len(os.fsencode(path)) < 100:
            s.connect(path)
            return s
        fd = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            s.connect(f"/proc/self/fd/{fd}/{os.path.basename(path)}")
        finally:
            os.close(fd)
        return s
    except BaseException:
        s.close()
        raise


def start_daemon(env: Mapping[str, str]) -> None:
    """Starts this user's daemon, by a command that needs one."""
    program = env.get("PANDO_BIN") or shutil.which("pando", path=env.get("PATH"))
    if not program:
        raise errors.Unavailable("cannot start the daemon: there is no program pando on PATH", "install pando, or say where it is with PANDO_BIN")
    try:
        # The daemon keeps nothing of ours open, so that its starter's end is what is waited for.
        done = subprocess.run([program, "ls", "--json"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(env), check=False)
    except OSError as e:
        raise errors.Unavailable(f"cannot start the daemon: {program}: {e.strerror}", "say where pando is with PANDO_BIN") from None
    if done.returncode != 0:
        try:
            raise errors.from_json(json.loads(done.stdout)["error"])
        except (ValueError, KeyError, TypeError):
            raise errors.Unavailable("cannot start the daemon: " + done.stderr.decode("utf-8", "replace").strip()) from None


def segment(name: str) -> str:
    """Makes a name or id a part of a path. What a server would take for a way up is
    no name."""
    if name in (".", ".."):
        raise errors.Invalid(f"cannot use {name!r} as a name", "use letters, digits, '.', '_' and '-', at most 64, starting with a letter, a digit or '_'")
    return quote(name, safe="", errors="surrogatepass") if name else "-"


@dataclass
class Request:
    """One question to the API."""

    method: str
    path: str
    query: Optional[Dict[str, Any]] = None
    body: Any = None  # for JSON, unless it is bytes
    kind: str = "application/json"
    lines: bool = False  # the answer comes in lines
    once: bool = False  # it makes something: a key has it done once, however often it is asked
    key: str = ""  # that key
    seen: Optional[Tuple[str, str]] = None  # If-Match or If-None-Match, and what it says: done only if that holds

    def keyed(self) -> "Request":
        return replace(self, key=os.urandom(16).hex()) if self.once and not self.key else self

    @property
    def repeatable(self) -> bool:
        """Asking twice does nothing twice."""
        return (self.method in ("GET", "PUT") and not self.seen) or bool(self.key)

    @property
    def target(self) -> str:
        q = {k: ("1" if v is True else v) for k, v in (self.query or {}).items() if v not in (None, False, "", [])}
        return self.path + ("?" + urlencode(q, doseq=True, errors="surrogatepass") if q else "")

    def data(self) -> Optional[bytes]:
        if self.body is None or isinstance(self.body, bytes):
            return self.body
        return json.dumps(self.body).encode()

    def headers(self, at: Address) -> List[Tuple[str, str]]:
        out = [("Host", at.name)]
        if at.token and not at.socket:
            if any(c in at.token for c in "\r\n"):
                raise errors.Invalid("cannot use the token: it has a line break in it", "set PANDO_TOKEN to what pando token create printed")
            out.append(("Authorization", "Bearer " + at.token))
        if at.tls:  # on this host compression costs more than it saves
            out.append(("Accept-Encoding", "gzip"))
        if self.lines:
            out.append(("Accept", "application/jsonl"))
        if self.key:
            out.append(("Idempotency-Key", self.key))
        if self.seen:
            out.append(self.seen)
        if self.body is not None:
            out.append(("Content-Type", self.kind))
        return out

    def head(self, at: Address, chunked: bool = False) -> bytes:
        """What stands before the body."""
        lines = [f"{self.method} {self.target} HTTP/1.1"] + [f"{k}: {v}" for k, v in self.headers(at)]
        if chunked:
            lines.append("Transfer-Encoding: chunked")
        elif self.body is not None or self.method in ("POST", "PUT"):
            lines.append(f"Content-Length: {len(self.data() or b'')}")
        return "\r\n".join(lines + ["", ""]).encode("latin-1")


def said(req: Request, status: int, reason: str, body: bytes) -> errors.Error:
    """Makes an error of an answer that is none."""
    try:
        doc = json.loads(body)
        if isinstance(doc, dict) and doc.get("message"):
            return errors.from_json(doc)
    except ValueError:
        pass
    text = body[:4096].decode("utf-8", "replace").strip()
    return errors.Internal(f"the daemon answered {status} {reason} to {req.method} {req.path}" + (": " + text if text else " and nothing else"))


def document(req: Request, body: bytes) -> Any:
    """Reads an answer."""
    if not body.strip():
        raise errors.Internal(f"cannot read the daemon's answer to {req.method} {req.path}: it is empty", "read its log: pando daemon status says where it is")
    try:
        return json.loads(body)
    except ValueError as e:
        raise errors.Internal(f"cannot read the daemon's answer to {req.method} {req.path}: {e}") from None


def lost(e: BaseException, where: Address, final: bool = False) -> errors.Error:
    """Makes an error of a connection that broke."""
    text = str(e) or type(e).__name__
    return errors.Lost(f"lost the daemon at {where.socket or where.name}: {text}", "read its log, then try again: pando daemon status", final=final)


def unreachable(e: BaseException, where: Address) -> errors.Error:
    hint = "" if where.socket else "see whether pando serve runs there, and PANDO_HOST"
    return errors.Lost(f"cannot reach the daemon at {where.socket or where.name}: {e}", hint, reached=False)


def silent(where: Address, seconds: Optional[float]) -> errors.Error:
    return errors.TimedOut(f"the daemon at {where.socket or where.name} said nothing for {seconds:g} seconds, and what it was doing is ended",
                           "give the client a longer timeout, or none")


class Events:
    """What the lines of an answer say, until its result."""

    def __init__(self, req: Request) -> None:
        self.req = req
        self.stdout = bytearray()
        self.stderr = bytearray()

    def line(self, raw: bytes) -> Tuple[str, Any]:
        """Returns what a line says: its word, and what goes with it."""
        doc = document(self.req, raw)
        if not isinstance(doc, dict):
            raise errors.Internal(f"cannot read the daemon's answer to {self.req.method} {self.req.path}: a line is no object")
        if doc.get("error"):
            raise errors.from_json(doc["error"])
        for word in ("result", "stdout", "stderr", "progress", "needs", "fork"):
            if doc.get(word) is not None:
                v = doc[word]
                if word in ("stdout", "stderr"):
                    v = base64.b64decode(v)
                    getattr(self, word).extend(v)
                return word, v
        return "", None  # of a newer daemon

    def broke_off(self, where: Address) -> errors.Error:
        return lost(EOFError(f"its answer to {self.req.method} {self.req.path} broke off"), where)


# WebSockets (RFC 6455), as a client of a server that sends no extensions.

MAX_MESSAGE = (1 << 20) + 64
CONTINUE, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10


def upgrade(target: str, headers: List[Tuple[str, str]]) -> Tuple[bytes, str]:
    """Returns a request to become a WebSocket, and what the answer must accept."""
    key = base64.b64encode(os.urandom(16)).decode()
    lines = [f"GET {target} HTTP/1.1"] + [f"{k}: {v}" for k, v in headers]
    lines += ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: " + key, "", ""]
    accept = hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()
    return "\r\n".join(lines).encode("latin-1"), base64.b64encode(accept).decode()


def frame(op: int, payload: bytes = b"") -> bytes:
    """Returns a frame as a client sends it: whole, and masked."""
    n = len(payload)
    head = bytes([0x80 | op])
    if n < 126:
        head += bytes([0x80 | n])
    elif n < 1 << 16:
        head += struct.pack(">BH", 0x80 | 126, n)
    else:
        head += struct.pack(">BQ", 0x80 | 127, n)
    mask = os.urandom(4)
    if n:
        key = int.from_bytes(mask * (n // 4 + 1), "big") >> (8 * (4 - n % 4))
        payload = (int.from_bytes(payload, "big") ^ key).to_bytes(n, "big")
    return head + mask + payload


class Frames:
    """Reads frames out of bytes, in whatever pieces they come."""

    def __init__(self) -> None:
        self._in = bytearray()
        self._message: Optional[bytearray] = None

    def feed(self, data: bytes) -> Iterator[Tuple[int, bytes]]:
        """Yields what is whole: messages (as BINARY), and PING, PONG and CLOSE."""
        self._in += data
        while True:
            part = self._next()
            if part is None:
                return
            fin, op, payload = part
            if op >= CLOSE:
                yield op, payload
                continue
            if (op == CONTINUE) != (self._message is not None):
                raise errors.Internal("cannot read what the daemon streams: its frames are out of order")
            self._message = (self._message or bytearray()) + payload
            if len(self._message) > MAX_MESSAGE:
                raise errors.Internal("cannot read what the daemon streams: a message is too long")
            if fin:
                whole, self._message = bytes(self._message), None
                yield BINARY, whole

    def _next(self) -> Optional[Tuple[bool, int, bytes]]:
        b = self._in
        if len(b) < 2:
            return None
        n, at = b[1] & 0x7F, 2
        if b[0] & 0x70 or b[1] & 0x80:
            raise errors.Internal("cannot read what the daemon streams: a frame is not one of a server")
        if n == 126:
            if len(b) < 4:
                return None
            (n,), at = struct.unpack_from(">H", b, 2), 4
        elif n == 127:
            if len(b) < 10:
                return None
            (n,), at = struct.unpack_from(">Q", b, 2), 10
        if n > MAX_MESSAGE:
            raise errors.Internal("cannot read what the daemon streams: a frame is too long")
        if len(b) < at + n:
            return None
        head, payload = b[0], bytes(b[at:at + n])
        del b[:at + n]
        return bool(head & 0x80), head & 0x0F, payload


def output(payload: bytes) -> Tuple[int, bytes]:
    """The bytes of an output frame, and their offset."""
    if len(payload) < 8:
        raise errors.Internal("cannot read what the daemon streams: an output frame is too short")
    (at,) = struct.unpack_from(">Q", payload)
    return at, payload[8:]
