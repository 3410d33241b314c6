"""Against servers that answer as no daemon should, and by TCP."""

import asyncio
import gzip
import os
import re
import socket
import tempfile
import threading
import unittest
import unittest.mock

import pando
import pando.aio
from pando import _ask, _files, _wire, errors


class Server:
    """Gives each connection the next of its answers, the last one to all that
    follow, and keeps what was asked. None: it says nothing until asked to close."""

    def __init__(self, *answers, family=socket.AF_UNIX, address=None):
        self.answers, self.asked, self.gone = list(answers), [], threading.Event()
        self.l = socket.socket(family, socket.SOCK_STREAM)
        self.l.bind(address)
        self.l.listen()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                c, _ = self.l.accept()
            except OSError:
                return
            with c:
                data = b""
                while b"\r\n\r\n" not in data:
                    more = c.recv(1 << 16)
                    if not more:
                        break
                    data += more
                self.asked.append(data)
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                if answer is None:
                    if not c.recv(1 << 16):
                        self.gone.set()
                    continue
                c.sendall(answer)

    def close(self):
        self.l.close()


def ok(body, *head):
    """A good answer."""
    return b"\r\n".join([b"HTTP/1.1 200 OK", b"Content-Length: %d" % len(body), *head, b"", body])


def both(host, token="pando_t"):
    """The two clients of an address, as functions that list cells."""
    return {"sync": pando.Client(host, token).cells, "aio": lambda: asyncio.run(pando.aio.Client(host, token).cells())}


class Waited:
    """A client of asyncio for those who wait."""

    def __init__(self, c):
        self.c = c

    def cells(self, **labels):
        return asyncio.run(self.c.cells(**labels))


class Answers(unittest.TestCase):
    def setUp(self):
        p = unittest.mock.patch.object(_wire, "WAITS", (0.01, 0.01))
        p.start()
        self.addCleanup(p.stop)

    def answering(self, *answers):
        s = Server(*answers, family=socket.AF_INET, address=("127.0.0.1", 0))
        self.addCleanup(s.close)
        return s, f"http://127.0.0.1:{s.l.getsockname()[1]}"

    def fails(self, answer, kind, text):
        _, url = self.answering(answer)
        for name, ask in both(url).items():
            with self.subTest(name), self.assertRaises(pando.Error) as e:
                ask()
            self.assertEqual(e.exception.kind, kind, e.exception)
            self.assertRegex(e.exception.message, text)

    def test_E51_empty_replies_are_clear_errors(self):
        self.fails(b"", "unavailable", "lost the daemon at 127.0.0.1")
        self.fails(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "internal", "answer to GET /v1/cells: it is empty")
        self.fails(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n", "internal", "answered 502 Bad Gateway to GET /v1/cells and nothing else")

    def test_answers_that_are_none(self):
        self.fails(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nwhat", "internal", "cannot read the daemon's answer")
        self.fails(b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n[", "unavailable", "lost the daemon")
        self.fails(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n[", "unavailable", "lost the daemon")
        self.fails(b"SSH-2.0-x\r\n\r\n", "unavailable", "lost the daemon")
        self.fails(b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\n<html", "internal", "answered 404 Not Found.*<html")

    def test_compressed_answers(self):
        packed = gzip.compress(b'[{"cell": "c-1", "name": "%s"}]' % (b"x" * 5_000_000))
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(packed[i:i + 700]), packed[i:i + 700]) for i in range(0, len(packed), 700)) + b"0\r\n\r\n"
        head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n"
        for good in (head + b"Content-Length: %d\r\n\r\n%b" % (len(packed), packed), head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks):
            _, url = self.answering(good)
            for name, ask in both(url).items():
                with self.subTest(name):
                    self.assertEqual([len(c.name) for c in ask()], [5_000_000])
        cut = packed[:len(packed) // 2]
        self.fails(head + b"Content-Length: %d\r\n\r\n%b" % (len(cut), cut), "unavailable", "broke off")
        self.fails(head + b"Content-Length: 4\r\n\r\nwhat", "unavailable", "can't be decompressed")
        refused = gzip.compress(b'{"kind":"conflict","message":"cannot do it"}')
        self.fails(b"HTTP/1.1 409 Conflict\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%b" % (len(refused), refused), "conflict", "cannot do it")

    def test_compressed_answers_are_asked_for_from_elsewhere_alone(self):
        ask = _wire.Request("GET", "/v1/cells")
        self.assertIn(b"Accept-Encoding: gzip\r\n", ask.head(_wire.Address(host="h", port=1, tls=True)))
        for near in (_wire.Address(host="127.0.0.1", port=1), _wire.Address(socket="/run/pando.sock")):
            self.assertNotIn(b"Accept-Encoding", ask.head(near))

    def test_labels_are_asked_for(self):
        s, url = self.answering(ok(b"[]"))
        for make in (pando.Client, lambda *a: Waited(pando.aio.Client(*a))):
            make(url, "").cells(labels={"team": "a", "job": "b=c"})
            self.assertTrue(s.asked[-1].startswith(b"GET /v1/cells?label=team%3Da&label=job%3Db%3Dc HTTP/1.1\r\n"), s.asked[-1])

    def test_errors_are_typed(self):
        body = b'{"kind":"conflict","message":"cannot do it","hint":"wait"}'
        _, url = self.answering(b"HTTP/1.1 409 Conflict\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        with self.assertRaises(pando.Conflict) as e:
            pando.Client(url, "").cells()
        self.assertEqual((e.exception.message, e.exception.hint, str(e.exception)), ("cannot do it", "wait", "cannot do it\nhint: wait"))

    def test_what_goes_on_without_its_client(self):
        self.assertFalse(_ask.start("c", "true", None, "", None, True).body["attach"])
        self.assertTrue(_ask.start("c", "true", None, "", None, False).body["attach"])

    def test_hints_name_parameters(self):
        for hint, want in {
            "confirm it with --yes, or name one run": "confirm it with lose=True, or name one run",
            "give the path of a directory with --from": "give the path of a directory with source",
            "choose another --name": "choose another name",
            "to apply it all the same: --force --reason TEXT": "to apply it all the same: force=True reason=TEXT",
            "leave out --with-secret": "leave out with_secret",
            "look at it with pando diff r-1; to take it all the same: --force": "look at it with pando diff r-1; to take it all the same: --force",
            "run `pando ls --all`": "run `pando ls --all`",
        }.items():
            self.assertEqual(pando.errors.from_json({"kind": "conflict", "message": "m", "hint": hint}).hint, want)

    def test_E51_streams_that_break_off(self):
        for body in (b'{"stdout":"b3V0"}\n', b'{"stdout":"b3V0"}\n{"result":{"na', b""):
            _, url = self.answering(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + body)
            c = pando.Cell(pando.Client(url, ""), {"cell": "c"})
            a = pando.aio.Cell(pando.aio.Client(url, ""), {"cell": "c"})
            for ask in (lambda: c.eval("1"), lambda: asyncio.run(a.eval("1"))):
                with self.assertRaises(pando.Unavailable):
                    ask()

    def test_C32_what_makes_something_is_asked_again_with_its_key(self):
        cell = ok(b'{"cell":"c"}')

        def keys(asked):
            return [k for a in asked for k in re.findall(b"\r\nIdempotency-Key: ([0-9a-f]{32})\r\n", a)]

        for make in (lambda url: pando.Client(url, "").create("n", ""), lambda url: asyncio.run(pando.aio.Client(url, "").create("n", ""))):
            s, url = self.answering(b"", b"HTTP/1.1 200 OK\r\nContent-Length: 400\r\n\r\n{", cell)
            make(url)
            self.assertEqual((len(s.asked), len(keys(s.asked)), len(set(keys(s.asked)))), (3, 3, 1))
            make(url)
            self.assertEqual(len(set(keys(s.asked))), 2, "another call has another key")
        # What is removed may be gone when it is asked for again.
        body = b'{"kind":"not-found","message":"cannot find it"}'
        gone = b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        s, url = self.answering(b"", gone)
        pando.Cell(pando.Client(url, ""), {"cell": "c"}).remove()
        self.assertEqual([a.split()[0] for a in s.asked], [b"DELETE", b"DELETE"])
        s, url = self.answering(gone)
        with self.assertRaises(pando.NotFound):
            pando.Cell(pando.Client(url, ""), {"cell": "c"}).remove()
        # What goes on where it broke off is not begun again.
        for ask in (lambda c: c.eval("1"), lambda c: c.exec("true")):
            s, url = self.answering(b"", cell)
            with self.assertRaises(pando.Lost):
                ask(pando.Cell(pando.Client(url, ""), {"cell": "c"}))
            self.assertEqual((len(s.asked), keys(s.asked)), (1, []))
        # Of answers in lines, nothing is told twice.
        line = b'{"fork":{"cell":{"cell":"c"}}}\n'
        s, url = self.answering(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + line)
        told = []
        with self.assertRaises(pando.Lost):
            pando.Template(pando.Client(url, ""), pando.TemplateInfo("t", "warm")).fork(1, progress=told.append)
        self.assertEqual((len(s.asked), len(told)), (1, 1))
        # A daemon that can remember no more keys is asked without.
        body = b'{"kind":"limited","message":"cannot remember another key"}'
        s, url = self.answering(b"HTTP/1.1 429 Too Many Requests\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body), cell)
        pando.Client(url, "").create("n", "")
        self.assertEqual((len(s.asked), len(keys(s.asked))), (2, 1))

    def test_nobody_there_is_said_at_once(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{s.getsockname()[1]}"
            for ask in both(url).values():
                with self.assertRaises(pando.Lost) as e:
                    ask()
                self.assertFalse(e.exception.reached)
                self.assertIn("pando serve", e.exception.hint)

    def test_C29_time_outs_hang_up(self):
        for make in (pando.Client, lambda *a, **k: Waited(pando.aio.Client(*a, **k))):
            s, url = self.answering(None)
            with self.assertRaises(pando.TimedOut):
                make(url, "", timeout=0.2).cells()
            self.assertTrue(s.gone.wait(5), "the connection is still there, and what was asked for goes on")
            self.assertEqual(len(s.asked), 1)

    def test_pages(self):
        def page(names, cursor=b""):
            body = b",".join(b'{"cell":"%s"}' % n for n in names)
            return ok(b"[" + body + b"]", b"X-Next-Cursor: " + cursor)

        async def names(c):
            return [i.id async for i in c.iter_cells(2)]

        for ask in (lambda url: [i.id for i in pando.Client(url, "").iter_cells(2)], lambda url: asyncio.run(names(pando.aio.Client(url, "")))):
            s, url = self.answering(page([b"a", b"b"], b"x="), page([b"c", b"d"], b"y"), page([b"e"]))
            self.assertEqual(ask(url), ["a", "b", "c", "d", "e"])
            for asked, want in zip(s.asked, (b"?limit=2 ", b"?limit=2&cursor=x%3D ", b"?limit=2&cursor=y ")):
                self.assertIn(b"GET /v1/cells" + want, asked)
        with self.assertRaises(pando.Invalid):
            list(pando.Client(url, "").iter_cells(0))

    def test_tokens_and_ipv6(self):
        s, url = self.answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]")
        for ask in both(url, "pando_x").values():
            self.assertEqual(ask(), [])
        for asked in s.asked:
            self.assertIn(b"\r\nAuthorization: Bearer pando_x\r\n", asked)
        with self.assertRaises(pando.Invalid):
            pando.Client(url, "a\r\nX-Evil: 1").cells()
        try:
            six = Server(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", family=socket.AF_INET6, address=("::1", 0))
        except OSError:
            self.skipTest("needs IPv6")
        self.addCleanup(six.close)
        port = six.l.getsockname()[1]
        for ask in both(f"http://[::1]:{port}").values():
            self.assertEqual(ask(), [])
        for asked in six.asked:
            self.assertIn(b"\r\nHost: [::1]:%d\r\n" % port, asked)

    def test_E51_identifiers_are_escaped(self):
        s, url = self.answering(b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{\"cell\":\"c\"}")
        for name, want in {"a/b": b"a%2Fb", "a?x=1": b"a%3Fx%3D1", "a#b": b"a%23b", "a%2fb": b"a%252fb", "a\r\nX: 1": b"a%0D%0AX%3A%201", "ü": b"%C3%BC"}.items():
            pando.Client(url, "").cell(name)
            self.assertTrue(s.asked[-1].startswith(b"GET /v1/cells/" + want + b" HTTP/1.1\r\n"), s.asked[-1])
        for name in ("", ".", ".."):
            with self.assertRaises(pando.Invalid):
                pando.Client(url, "").cell(name)

    def test_addresses(self):
        for bad in ("http://example.com", "http://192.0.2.1:80", "ftp://x", "https://", "https://x#sha256=12", "https://x#md5=12", "http://localhost#sha256=" + "0" * 64,
                    "https://u@x", "https://x/path", "https://x:99999"):
            with self.subTest(bad), self.assertRaises(pando.Invalid):
                pando.Client(bad)
        at = _wire.find("https://x:1#sha256=" + "AB:" * 31 + "cd", "t", {})
        self.assertEqual((at.host, at.port, at.tls, at.pin.hex()), ("x", 1, True, "ab" * 31 + "cd"))
        with self.assertRaises(pando.Denied):
            at.check(b"another certificate")

    def test_long_paths_of_sockets(self):
        with tempfile.TemporaryDirectory() as tmp:
            deep = os.path.join(tmp, "d" * 100, "run")
            os.makedirs(deep)
            fd = os.open(deep, os.O_RDONLY)
            s = Server(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", address=f"/proc/self/fd/{fd}/pando.sock")
            os.close(fd)
            self.addCleanup(s.close)
            old = os.environ.get("PANDO_HOME")
            os.environ["PANDO_HOME"] = os.path.dirname(deep)
            try:
                for ask in both("").values():
                    self.assertEqual(ask(), [])
            finally:
                os.environ.pop("PANDO_HOME") if old is None else os.environ.update(PANDO_HOME=old)


class Frames(unittest.TestCase):
    def test_frames_there_and_back(self):
        for n in (0, 1, 3, 4, 5, 125, 126, 127, 65535, 65536, 1 << 20):
            payload = os.urandom(n)
            f = _wire.frame(_wire.BINARY, payload)
            at = {126: 4, 127: 10}.get(f[1] & 0x7F, 2)
            mask, masked = f[at:at + 4], f[at + 4:]
            self.assertEqual(bytes(b ^ mask[i % 4] for i, b in enumerate(masked[:1000])), payload[:1000])
            self.assertEqual(len(masked), n)
            whole = f[:1] + bytes([f[1] & 0x7F]) + f[2:at] + payload
            for step in (1, 7, 1 << 21) if n < 200 else (1 << 14, 1 << 21):
                r, got = _wire.Frames(), []
                for i in range(0, len(whole), step):
                    got += r.feed(whole[i:i + step])
                self.assertEqual(got, [(_wire.BINARY, payload)])

    def test_fragments_and_control(self):
        r = _wire.Frames()
        got = list(r.feed(b"\x02\x01a" + b"\x89\x01p" + b"\x00\x01b" + b"\x80\x01c" + b"\x88\x00"))
        self.assertEqual(got, [(_wire.PING, b"p"), (_wire.BINARY, b"abc"), (_wire.CLOSE, b"")])
        for bad in (b"\x80\x01c", b"\x02\x01a\x02\x01b", b"\xc2\x01a", b"\x82\x81aaaab", b"\x82\x7f\x00\x00\x00\x00\xff\xff\xff\xff"):
            with self.subTest(bad), self.assertRaises(pando.Internal):
                list(_wire.Frames().feed(bad))


class Arguments(unittest.TestCase):
    def test_variables(self):
        self.assertEqual(_ask.variables({"A": "1=2", "B": 3}), ["A=1=2", "B=3"])
        for bad in ({"A=B": "x"}, {"": "x"}, {"A": None}):
            with self.assertRaises(errors.Invalid, msg=repr(bad)):
                _ask.variables(bad)

    def test_no_other_file_is_written(self):
        self.assertEqual(_files.place("a/b"), ("a", "b"))
        for bad in ("a\0b", "a\0/b", "a/b\0", "a/", ".."):
            with self.assertRaises(errors.Invalid, msg=repr(bad)):
                _files.place(bad)


if __name__ == "__main__":
    unittest.main()
