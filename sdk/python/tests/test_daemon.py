"""Against a real daemon: PANDO_HOME says whose. Cells are made of DIR, a directory
with a file greeting; there is a template pyagent."""

import math
import os
import tempfile
import unittest

import pando

DIR = os.environ["PANDO_TEST_DIR"]


class Cells(unittest.TestCase):
    def test_readme(self):
        t = pando.template("pyagent")
        with t.fork(10) as cells:
            self.assertEqual([c.eval("6*7") for c in cells], [42] * 10)
            names = [c.name for c in cells]
        left = {c.name for c in pando.cells()}
        self.assertFalse(left & set(names), "they are removed with their context")

    def test_E48_values(self):
        with pando.template("pyagent").fork()[0] as c:
            self.assertTrue(math.isnan(c.eval("float('nan')")))
            for code, want in {
                "float('-inf')": float("-inf"), "2**200": 2**200, "-2**70": -2**70, "b'\\xff\\0'": b"\xff\0", "'\\udcff'": "\udcff",
                "(1, [2.5, None, True])": (1, [2.5, None, True]), "{1, 2}": {1, 2}, "{1: 'a', (2,): b'b'}": {1: "a", (2,): b"b"},
                "{'$x': 1}": {"$x": 1}, "None": None, "'\\U0001f333'": "\U0001f333", "[]": [], "{}": {}, "10**5000": 10**5000,
            }.items():
                with self.subTest(code):
                    got = c.eval(code)
                    self.assertEqual(got, want)
                    self.assertIs(type(got), type(want))
            opaque = c.eval("object")
            self.assertIsInstance(opaque, pando.Opaque)
            self.assertEqual((opaque.type, opaque.repr), ("type", "<class 'object'>"))

    def test_eval_state_output_and_exceptions(self):
        with pando.template("pyagent").fork()[0] as c:
            c.eval("x = 40")
            got = []
            ev = c.evaluate("print('out'); import sys; print('err', file=sys.stderr); x + 2", stdout=got.append)
            self.assertEqual((ev.value, ev.stdout, ev.stderr, b"".join(got)), (42, b"out\n", b"err\n", b"out\n"))
            with self.assertRaises(pando.EvalError) as e:
                c.eval("{}['missing']")
            self.assertEqual(e.exception.type, "KeyError")
            self.assertIn("missing", e.exception.message)
            self.assertIn("Traceback", e.exception.traceback)
            with self.assertRaises(pando.EvalError) as e:
                c.eval("while True: pass", timeout=0.2)
            self.assertEqual(e.exception.cause, "timeout")
            self.assertEqual(c.eval("x"), 40)

    def test_fork_answers(self):
        t = pando.template("pyagent")
        self.assertEqual(t.map("[i for i in range(3)]", 3), [[0, 1, 2]] * 3)
        with t.fork(2, command=["sh", "-c", "echo $PANDO_CELL; exit 3"]) as cells:
            for c in cells:
                self.assertEqual((c.answer.exit_code, c.answer.text.strip()), (3, c.name))

    def test_branch(self):
        with pando.template("pyagent").fork()[0] as c:
            c.eval("x = [1]")
            with c.branch(2) as branches:
                branches[0].eval("x.append(2)")
                self.assertEqual([b.eval("x") for b in branches] + [c.eval("x")], [[1, 2], [1], [1]])


class Commands(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cell = pando.create("py-commands", DIR)

    @classmethod
    def tearDownClass(cls):
        cls.cell.remove()

    def test_exec(self):
        r = self.cell.exec(["sh", "-c", "cat; echo \"$A\"; pwd; echo oops >&2; exit 3"], input="in\n", env={"A": "b c"})
        self.assertEqual((r.exit_code, r.stdout, r.stderr), (3, f"in\nb c\n{DIR}\n".encode(), b"oops\n"))
        with self.assertRaises(pando.ExitError) as e:
            self.cell.exec("echo why >&2; exit 4", check=True)
        self.assertEqual(e.exception.result.exit_code, 4)
        self.assertIn("why", str(e.exception))
        with self.assertRaises(pando.NoSuchBinary):
            self.cell.exec(["no-such-program"])
        self.assertEqual(self.cell.exec("sleep 60", timeout=0.3).cause, "timeout")

    def test_create(self):
        with pando.create(source="", labels={"a": "b"}) as c:
            self.assertEqual(c.exec("pwd; ls -A").text, "/workspace\n")
        with self.assertRaises(pando.Exists):
            pando.create("py-commands", DIR)
        with self.assertRaises(pando.NotFound):
            pando.create(source=DIR + "/nowhere")

    def test_exec_much(self):
        n = 5 << 20
        r = self.cell.exec(["sh", "-c", f"head -c {n} /dev/zero; cat | wc -c >&2"], input=b"\xff" * (1 << 20))
        self.assertEqual((len(r.stdout), r.lost, r.stderr.strip()), (n, 0, b"1048576"))

    def test_exec_streams(self):
        with self.cell.popen("read a; echo 1$a; read b; echo 2$b; exit 5") as p:
            p.write("x\n")
            got = b""
            for name, data in p:
                got += data
                if got == b"1x\n":
                    p.write("y\n")
                    p.close_stdin()
            self.assertEqual((got, p.result.exit_code), (b"1x\n2y\n", 5))
        with self.cell.popen("trap 'echo caught; exit 7' INT; echo ready; while :; do sleep 0.05; done") as p:
            for name, data in p:
                if data == b"ready\n":
                    p.signal("SIGINT")
            self.assertEqual(p.result.exit_code, 7)

    def test_hang_up_ends_it(self):
        p = self.cell.popen("echo $$ > /tmp/hung; echo up; exec sleep 1000")
        next(iter(p))
        p.close()
        self.assertEqual(self.cell.exec("for i in $(seq 100); do kill -0 $(cat /tmp/hung) 2>/dev/null || exit 0; sleep 0.05; done; exit 1").exit_code, 0)

    def test_files(self):
        c = self.cell
        c.write_bytes("deep/er/bytes", b"\0\xff", 0o755)
        self.assertEqual(c.read_bytes("deep/er/bytes"), b"\0\xff")
        c.write_text("/tmp/naïve name", "ünï\n")
        self.assertEqual(c.read_text("/tmp/naïve name"), "ünï\n")
        self.assertEqual(c.exec(["stat", "-c", "%a", "deep/er/bytes"]).text, "755\n")
        with self.assertRaises(pando.NotFound):
            c.read_bytes("nowhere")
        with self.assertRaises(pando.Invalid):
            c.read_bytes("deep")
        with tempfile.TemporaryDirectory() as tmp:
            c.exec("ln -s ../greeting deep/link; mkdir deep/empty", check=True)
            c.download("deep", tmp + "/got")
            with open(tmp + "/got/er/bytes", "rb") as f:
                self.assertEqual(f.read(), b"\0\xff")
            self.assertEqual(os.readlink(tmp + "/got/link"), "../greeting")
            self.assertTrue(os.path.isdir(tmp + "/got/empty"))
            c.download("deep/er/bytes", tmp + "/one")
            self.assertEqual(os.stat(tmp + "/one").st_size, 2)
            c.upload(tmp + "/got", "again")
            self.assertEqual(c.read_bytes("again/er/bytes"), b"\0\xff")

    def test_checkpoint_restore_fork_diff(self):
        c = self.cell
        c.write_text("state", "one\n")
        p = c.checkpoint("one")
        c.write_text("state", "two\n")
        self.assertIn("+two", str(c.diff(p.number)))
        self.assertEqual(c.restore(p).number, p.number)
        self.assertEqual(c.read_text("state"), "one\n")
        self.assertIn("one", [h.message for h in c.history()])
        with c.fork(2, checkpoint=p.number) as forks:
            forks[0].write_text("state", "three\n")
            self.assertEqual([f.read_text("state") for f in forks], ["three\n", "one\n"])


class Runs(unittest.TestCase):
    def test_run(self):
        got = []
        r = pando.run(["sh", "-c", "echo changed > greeting; echo out; echo err >&2"], source=DIR, stderr=got.append)
        self.assertEqual((r.ok, r.exit_code, r.stdout, b"".join(got), r.verdict), (True, 0, b"out\n", b"err\n", "pending"))
        self.assertIn("+changed", str(r.diff()))
        self.assertIn(r.id, str(r.receipt()))
        self.assertEqual(r.receipt().verdict, "pending")
        self.assertTrue(pando.verify(r.id)["ok"])
        with open(DIR + "/greeting") as f:
            self.assertEqual(f.read(), "hello\n")
        again = pando.get_run(r.id)
        self.assertEqual(again.stdout, b"out\n")
        self.assertIn(r.id, [i.id for i in pando.runs()])
        again.discard()
        self.assertEqual(again.verdict, "discarded")

    def test_failures(self):
        r = pando.run("rm greeting; exit 7", source=DIR)
        self.assertEqual((r.exit_code, r.verdict), (7, "restored"))
        with self.assertRaises(pando.ExitError):
            pando.run("exit 7", source=DIR, check_exit=True)
        with self.assertRaises(pando.NoSuchBinary):
            pando.run(["no-such-program"], source=DIR)

    def test_policy(self):
        self.assertFalse(pando.why("connect example.com:443"))
        self.assertEqual(pando.why("connect example.com:443").effect, "deny")
        self.assertTrue(pando.why("connect example.com:443", allow=["example.com"]))


class Errors(unittest.TestCase):
    def test_kinds_and_hints(self):
        with self.assertRaises(pando.NotFound) as e:
            pando.cell("no-such-cell")
        self.assertEqual(e.exception.kind, "not-found")
        self.assertTrue(e.exception.message.startswith("cannot "))
        self.assertTrue(e.exception.hint)
        with self.assertRaises(pando.Error):
            pando.template("../../v1/daemon")
        for name in (".", "..", ""):
            with self.assertRaises(pando.Error):
                pando.cell(name)

    def test_E51_identifiers_are_escaped(self):
        for name in ("a/b", "a?x=1", "a#b", "a%2fb", "ü b", "a\nb", "a\r\nX-Evil: 1", "\udcff"):
            with self.subTest(name), self.assertRaises(pando.Error) as e:
                pando.cell(name)
            self.assertIn(e.exception.kind, ("not-found", "invalid"))


if __name__ == "__main__":
    unittest.main()
