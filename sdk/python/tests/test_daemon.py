"""Against a real daemon: PANDO_HOME says whose. Cells are made of DIR, a directory
with a file greeting; there is a template pyagent."""

import datetime
import hashlib
import itertools
import json
import math
import multiprocessing
import os
import pickle
import queue
import shutil
import signal
import subprocess
import tarfile
import tempfile
import threading
import time
import unittest

import pando

DIR = os.environ["PANDO_TEST_DIR"]
PANDO = os.environ.get("PANDO_BIN") or shutil.which("pando")


def source():
    """Returns what cells begin with: the directory, or for a daemon elsewhere an upload."""
    if not os.environ.get("PANDO_HOST"):
        return DIR
    return subprocess.run([PANDO, "upload", DIR], check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE).stdout.decode().strip()



def kill_daemon():
    """Ends the daemon as a crash would."""
    said = subprocess.run([PANDO, "daemon", "status", "--json"], check=True, stdout=subprocess.PIPE)
    os.kill(json.loads(said.stdout)["pid"], signal.SIGKILL)


# ENDED waits until no command "sleep 1000" is in a cell. It looks by name: numbers
# begin anew when the cell has rested meanwhile.
ENDED = "for i in $(seq 100); do cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -q 's[l]eep 1000' || exit 0; sleep 0.05; done; exit 1"


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
            self.assertEqual(c.eval("[1, 2j]"), [1, pando.Opaque("complex", "2j")])
            self.assertEqual((opaque.type, opaque.repr), ("type", "<class 'object'>"))

    def test_rich_results(self):
        with pando.template("pyagent").fork()[0] as c:
            ev = c.evaluate("""class R:
    def __repr__(self): return "R()"
    def _repr_mimebundle_(self, **_): return {"image/png": b"\\x89PNG", "text/html": "<b>", "e2b/data": {"a": [1, None]}, "e2b/chart": {"type": "line"}}
display(R())
R()""")
            self.assertEqual((ev.images, ev.data, ev.charts), ([b"\x89PNG"] * 2, {"a": [1, None]}, [{"type": "line"}] * 2))
            self.assertEqual(ev.value._repr_mimebundle_(), {"text/plain": "<__main__.R R()>", "image/png": "iVBORw=="})
            plain = c.evaluate("1")
            self.assertEqual((plain.images, plain.data, plain.charts), ([], None, []))
            long = c.eval("'x' * 5_000_000")
            self.assertEqual((long.type, long.repr_cut), ("str", 3951426))
            self.assertTrue(repr(long).endswith("… 3951426 more characters>"))

    def test_eval_state_output_and_exceptions(self):
        with pando.template("pyagent").fork()[0] as c:
            c.eval("x = 40")
            got = []
            ev = c.evaluate("print('out'); import sys; print('err', file=sys.stderr); x + 2", on_stdout=got.append)
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

    def test_cells_are_found_by_labels(self):
        with pando.create(source="", labels={"made": "for labels", "n": "1"}) as a, pando.create(source="", labels={"made": "for labels", "n": "2"}) as b:
            self.assertEqual({c.id for c in pando.cells(labels={"made": "for labels"})}, {a.id, b.id})
            self.assertEqual([c.id for c in pando.iter_cells(page=1, labels={"made": "for labels", "n": "2"})], [b.id])
            self.assertEqual(pando.cells(labels={"made": "for nothing"}), [])

    def test_runs_that_are_not_waited_for(self):
        with pando.create(source="") as c:
            r = c.start("mkfifo go; echo begun; read x <go; echo went on", on_failure="pending")
            self.assertNotEqual(r.info.phase, "ended")
            with r.attach() as p:
                self.assertEqual(next(iter(p)), ("stdout", b"begun\n"))
            self.assertNotEqual(r.refresh().info.phase, "ended", "it goes on without its client")
            r.interrupt()
            self.assertEqual(r.refresh(wait=True).info.phase, "ended")
            self.assertEqual(r.output(), b"begun\n")

    def test_files_that_must_be_what_was_seen(self):
        with pando.create(source="") as c:
            c.write_text("f", "one", expect="")
            seen = c.stat("f", digest=True).digest
            with self.assertRaises(pando.Stale):
                c.write_text("f", "two", expect="")
            c.write_text("f", "two", expect=seen)
            with self.assertRaises(pando.Stale):
                c.write_bytes("f", b"three", expect=seen)
            self.assertEqual(c.read_text("f"), "two")
            with self.assertRaises(pando.Invalid):
                c.write_text("f", "x", expect='"\r\nX: y')

    def test_servers_outlive_their_client(self):
        with pando.create(source="") as c:
            serve = "import socket; s = socket.create_server(('127.0.0.1', 8000)); c, _ = s.accept(); d = c.makefile('rb').read(); c.sendall(d[::-1] * 1000); c.close(); s.accept()"
            p = c.popen(["python3", "-c", serve], detached=True)
            p.close()
            deadline = time.monotonic() + 60
            while not c.ports():
                self.assertLess(time.monotonic(), deadline)
            self.assertEqual([(x.id, x.running) for x in c.commands()], [(p.id, True)])
            self.assertGreater(c.stats().processes, 0)
            with c.connect(8000) as conn:
                conn.write("ab")
                conn.write(b"c")
                conn.close_write()
                self.assertEqual(b"".join(conn), b"cba" * 1000)
            with c.attach(p.id, input=False) as looking:
                self.assertRaises(pando.Invalid, looking.write, "x")
            self.assertEqual([x.running for x in c.commands()], [True], "who looks on ends nothing")
            with c.attach(p.id) as last:
                last.signal("SIGTERM")
                self.assertEqual(last.communicate().signal, "SIGTERM")
            with self.assertRaises(pando.Unavailable):
                c.stop()
                c.connect(8000)

    def test_approvals(self):
        with pando.create(source="", policy='version: 1\nnetwork: {ask: ["192.0.2.1", "192.0.2.2"]}\n') as c:
            ask = "import urllib.request as u\nfor i in '12':\n try: u.urlopen('http://192.0.2.' + i)\n except OSError as e: print(e)"
            p = c.popen(["python3", "-c", ask])
            for host, decide, state in (("192.0.2.1", pando.deny, "denied"), ("192.0.2.2", lambda i: pando.approve(i, "10m"), "approved")):
                deadline = time.monotonic() + 60
                while True:
                    waiting = [a for a in pando.approvals() if a.cell == c.id and host in a.want]
                    if waiting:
                        break
                    self.assertLess(time.monotonic(), deadline, host)
                self.assertEqual((waiting[0].state, decide(waiting[0].id).state), ("waiting", state))
            p.close()  # nothing answers at the second
            self.assertEqual({a.state for a in pando.approvals(answered=True) if a.cell == c.id}, {"approved", "denied"})
            with self.assertRaises(pando.Invalid):
                pando.approve("")

    def test_X27_what_takes_space(self):
        client = pando.Client()
        sums, things = client.disk(), client.disk(objects=True)
        self.assertGreater(sums.held, 0)
        self.assertGreater(sums.budget, 0)
        self.assertEqual(sums.objects, [])
        self.assertEqual(sum(sums.kinds.values()), sums.held)
        self.assertEqual(sum(o.bytes for o in things.objects), things.held)
        self.assertIn("log", {o.kind for o in things.objects})

    def test_templates_are_built(self):
        steps, out = [], []
        t = pando.build_template("py-built", setup="print('set up'); x = 41", labels={"made": "here"}, progress=lambda p: steps.append(p.step), on_stdout=out.append)
        try:
            self.assertEqual((t.map("x + 1"), b"".join(out)), ([42], b"set up\n"))
            self.assertTrue(steps)
            with self.assertRaises(pando.Error) as e:
                pando.build_template("py-built", setup="1/0")
            self.assertIn("ZeroDivisionError", str(e.exception))
            self.assertEqual(t.map("x"), [41], "a build that fails leaves what was there")
        finally:
            t.remove(force=True)

    def test_branch(self):
        with pando.template("pyagent").fork()[0] as c:
            c.eval("x = [1]")
            with c.branch(2) as branches:
                branches[0].eval("x.append(2)")
                self.assertEqual([b.eval("x") for b in branches] + [c.eval("x")], [[1, 2], [1], [1]])

    def test_copies_are_certified_and_begin_with_a_command(self):
        t = pando.template("pyagent")
        with t.fork(2, certify="strict", at_fork="echo $PANDO_CELL >/tmp/first") as forks:
            self.assertEqual(forks.inherited, [])
            self.assertEqual([c.read_text("/tmp/first").strip() for c in forks], [c.name for c in forks])
            forks[0].eval("import random; dice = random.Random(7)")
            with forks[0].branch(at_fork="rm /tmp/first") as branches:
                self.assertIn("seeded generators: 1", branches.inherited[0])
                self.assertEqual(branches[0].eval("__import__('os').path.exists('/tmp/first')"), False)
            with self.assertRaises(pando.Unsupported):
                forks[0].branch(certify="strict")
            with self.assertRaises(pando.Error) as e:
                forks[0].branch(at_fork="echo nothing came of it; exit 3")
            self.assertIn("nothing came of it", str(e.exception))


class Commands(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cell = pando.create("py-commands", source())

    @classmethod
    def tearDownClass(cls):
        cls.cell.remove()

    def test_exec(self):
        r = self.cell.exec(["sh", "-c", "cat; echo \"$A\"; pwd; echo oops >&2; exit 3"], input="in\n", env={"A": "b c"})
        self.assertEqual((r.exit_code, r.stdout, r.stderr), (3, f"in\nb c\n{DIR if source() == DIR else '/workspace'}\n".encode(), b"oops\n"))
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
            pando.create("py-commands", source())
        with self.assertRaises(pando.Invalid if os.environ.get("PANDO_HOST") else pando.NotFound):
            pando.create(source=DIR + "/nowhere")

    def test_leases(self):
        with pando.create(source="", ttl=300, then="stop", labels={"a": "b"}) as c:
            i = c.info()
            self.assertEqual((i.lease.then, i.labels), ("stop", {"a": "b"}))
            left = (i.lease.until - datetime.datetime.now(datetime.timezone.utc)).total_seconds()
            self.assertTrue(240 < left <= 301, left)
            self.assertEqual(c.lease(10, extend=True).lease.until, i.lease.until)
            i = c.lease("10m", "pause", labels={"c": "d"}, env={"LENT": "x"})
            self.assertEqual((i.lease.then, i.labels), ("pause", {"c": "d"}))
            self.assertEqual(c.exec("echo $LENT").text, "x\n")
            for bad in (-1, 0):
                with self.assertRaises(pando.Invalid):
                    c.lease(bad)
            with c.popen("sleep 1000") as p:
                c.lease(0.3, "stop")
                list(p)
                self.assertFalse(p.result.ok, "its lease was over")

    def test_terminals(self):
        with self.cell.terminal(["sh"], rows=10, cols=33) as p:
            got = b""
            p.write("stty size; test -t 0 && echo yes-a-tty\n")
            for name, data in p:
                self.assertEqual(name, "stdout")
                got += data
                if b"10 33\r\n" in got and b"\nyes-a-tty\r\n" in got:  # and not only the echo
                    got = b""
                    p.resize(20, 44)
                    p.write("stty size; exit 3\n")
            self.assertIn(b"20 44", got)
            self.assertEqual(p.result.exit_code, 3)

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
        p = self.cell.popen("echo up; exec sleep 1000")
        next(iter(p))
        p.close()
        self.assertEqual(self.cell.exec(ENDED).exit_code, 0)

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
            with open(tmp + "/archive.tar", "w+b") as f:
                c.read_archive("deep", f)
                f.seek(0)
                with tarfile.open(fileobj=f) as t:
                    self.assertIn("deep/er/bytes", t.getnames())
                f.seek(0)
                c.write_archive(f, "copies")
            self.assertEqual(c.read_bytes("copies/deep/er/bytes"), b"\0\xff")
            with open(tmp + "/no-archive", "w+b") as f:
                f.write(b"x" * 2000)
                f.seek(0)
                with self.assertRaises(pando.Error):
                    c.write_archive(f)

    def test_X47_files_by_name(self):
        with pando.create(source="" if os.environ.get("PANDO_HOST") else None) as c:
            self.assertTrue(c.mkdir("d/e").is_dir)
            c.write_text("d/e/f", "text\n", 0o600)
            f = c.stat("d/e/f", digest=True)
            self.assertEqual((f.name, f.type, f.size, f.mode & 0o777, f.is_dir), ("f", "file", 5, 0o600, False))
            self.assertEqual(f.digest, "sha256:" + hashlib.sha256(b"text\n").hexdigest())
            self.assertLess(abs((datetime.datetime.now(datetime.timezone.utc) - f.mtime).total_seconds()), 60)
            c.exec("ln -s f d/e/l")
            self.assertEqual([(f.name, f.type, f.target) for f in c.listdir("d/e")], [("f", "file", ""), ("l", "symlink", "f")])
            self.assertEqual([f.name for f in c.listdir("d")], ["e"])
            self.assertEqual([f.name for f in c.listdir("d", depth=2)], ["e", "f", "l"])
            with self.assertRaises(pando.Invalid):
                c.listdir("d", depth=0)
            self.assertTrue(c.rename("d/e/f", "d/g").path.endswith("/d/g"))
            self.assertEqual((c.exists("d/e/f"), c.exists("d/e/l"), c.read_text("d/g")), (False, True, "text\n"))
            c.delete("d")
            self.assertFalse(c.exists("d"))
            with self.assertRaises(pando.NotFound):
                c.delete("d")
            with self.assertRaises(pando.NotFound):
                c.stat("d")

    def test_X47_directories_are_watched(self):
        with pando.create(source="") as c:
            c.mkdir("w/below")
            seen = []
            for ev in c.watch("w", below=True):
                if not ev.what:  # from now on
                    c.write_text("w/below/new", "x")
                seen.append(ev)
                if ev.path.endswith("/new"):
                    break
            self.assertIn(seen[-1].what, ("create", "write", "rename"))
            with self.assertRaises(pando.NotFound):
                next(iter(c.watch("nowhere")))

    def test_X47_processes_and_ports(self):
        with pando.create(source="") as c:
            p = c.popen(["python3", "-c", "import socket, time; s = socket.socket(); s.bind(('127.0.0.1', 7007)); s.listen(); print('listens\\n', end='', flush=True); time.sleep(1000)"])
            self.assertEqual(next(iter(p)), ("stdout", b"listens\n"))
            self.assertEqual([(x.port, x.address) for x in c.ports()], [(7007, "127.0.0.1")])
            ours = [x for x in c.processes() if "7007" in x.command]
            self.assertEqual(len(ours), 1)
            self.assertGreater(ours[0].memory, 1 << 20)
            again = c.attach(p.id)
            self.assertEqual(next(iter(again)), ("stdout", b"listens\n"), "from the beginning")
            again.signal("SIGTERM")
            self.assertEqual((p.communicate().signal, again.communicate().signal), ("SIGTERM", "SIGTERM"))
            self.assertEqual(c.ports(), [])

    def test_X47_handles_are_pickled(self):
        with pando.create(source="") as c:
            c.write_text("f", "here")
            for x in (c, pickle.loads(pickle.dumps(c))):
                self.assertEqual(x.read_text("f"), "here")
            self.assertEqual(pickle.loads(pickle.dumps(pando.template("pyagent"))).info().name, "pyagent")
            with multiprocessing.get_context("spawn").Pool(2) as pool:
                self.assertEqual(pool.map(c.read_text, ["f", "f"]), ["here", "here"])
            given = pickle.dumps(pando.Client("http://127.0.0.1:1", "pando_given"))
            self.assertIn(b"pando_given", given)
            if os.environ.get("PANDO_TOKEN"):
                self.assertNotIn(os.environ["PANDO_TOKEN"].encode(), pickle.dumps(c))

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
        r = pando.run(["sh", "-c", "echo changed > greeting; echo out; echo err >&2"], source=source(), on_stderr=got.append)
        self.assertEqual((r.ok, r.exit_code, r.result.stdout, b"".join(got), r.verdict), (True, 0, b"out\n", b"err\n", "pending"))
        self.assertIn("+changed", str(r.diff()))
        self.assertIn(r.id, str(r.receipt()))
        self.assertEqual(r.receipt().verdict, "pending")
        self.assertTrue(pando.verify(r.id)["ok"])
        with open(DIR + "/greeting") as f:
            self.assertEqual(f.read(), "hello\n")
        again = pando.get_run(r.id)
        self.assertEqual((again.output(), again.output("stderr")), (b"out\n", b"err\n"))
        self.assertIn(r.id, [i.id for i in pando.runs()])
        again.discard(reason="only a test")
        self.assertEqual(again.verdict, "discarded")
        self.assertEqual(again.refresh().info.raw["reason"], "only a test")

    @unittest.skipIf(os.environ.get("PANDO_HOST"), "a daemon elsewhere has no directory of this host")
    def test_merge_and_sync(self):
        with tempfile.TemporaryDirectory() as d:
            def write(text):
                with open(d + "/f", "w") as f:
                    f.write(text)
            write("1\n2\n3\n4\n5\n")
            r = pando.run("sed -i s/1/one/ f", source=d)
            write("1\n2\n3\n4\nfive\n")
            with self.assertRaises(pando.Conflict):
                r.accept(apply=True)
            c = pando.cell(r.info.raw["cell"])
            self.assertEqual(c.sync(dry_run=True)["synced"], ["f"])
            self.assertEqual([m["path"] for m in c.sync()["merged"]], ["f"])
            self.assertEqual(c.read_text("f"), "one\n2\n3\n4\nfive\n")
            write("1\n2\n3\n4\nfünf\n")
            done = c.accept(apply=True, merge=True, no_conflicts=True)
            self.assertEqual(([m["path"] for m in done["merged"]], done["applied"]), (["f"], ["f"]))
            with open(d + "/f") as f:
                self.assertEqual(f.read(), "one\n2\n3\n4\nfünf\n")

    def test_events(self):
        r = pando.run("echo x > new; exit 7", source=source())
        events = list(r.events())
        self.assertEqual([e.seq for e in events], list(range(1, len(events) + 1)))
        end = [e for e in events if e.kind == "process.exit"][0]
        self.assertEqual((end.fields["code"], end.time.tzinfo), (7, datetime.timezone.utc))
        self.assertEqual({e.kind.split(".")[0] for e in r.events("process")}, {"process"})
        self.assertEqual(list(r.events(denied=True)), [])
        with tempfile.TemporaryFile() as f:
            r.export(f)
            f.seek(0)
            with tarfile.open(fileobj=f) as t:
                self.assertTrue(any(n.endswith("events.jsonl") for n in t.getnames()))
        with self.assertRaises(pando.NotFound):
            list(pando.Run(pando.client(), pando.RunInfo("r-" + "0" * 16, "", "")).events())

    def test_pages(self):
        for _ in range(3):
            pando.run("true", source=source())
        for all, pages in (([i.id for i in pando.runs()], [i.id for i in pando.iter_runs(page=2)]),
                           ([i.id for i in pando.cells()], [i.id for i in pando.iter_cells(page=1)])):
            self.assertEqual(pages, all)
        self.assertEqual(len({r.id for r in itertools.islice(pando.iter_receipts(page=2), 5)}), 5)

    @unittest.skipIf(os.environ.get("PANDO_HOST"), "the daemon is not ours to end")
    def test_runs_outlive_the_daemon(self):
        for end in (kill_daemon, lambda: subprocess.run([PANDO, "daemon", "stop"], check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)):
            ended, got, seqs = [], [], []

            def on(data):
                got.append(data)
                if not ended and b"".join(got).count(b"\n") >= 3:
                    ended.append(True)
                    end()
            r = pando.run("for i in $(seq 20); do echo $i; sleep 0.05; done; echo end >&2", source=source(), on_stdout=on)
            self.assertEqual((b"".join(got).split(), ended), ([str(i).encode() for i in range(1, 21)], [True]), "each byte once")
            self.assertEqual((r.exit_code, r.result.stderr, r.result.lost), (0, b"end\n", 0))
            self.assertEqual(r.output(), b"".join(got))

    @unittest.skipIf(os.environ.get("PANDO_HOST"), "the daemon is not ours to end")
    def test_commands_outlive_the_daemon(self):
        with pando.create(source=source()) as c:
            got, ended = [], []

            def on(data):
                got.append(data)
                if not ended and b"".join(got).count(b"\n") >= 3:
                    ended.append(True)
                    kill_daemon()
            r = c.exec("for i in $(seq 20); do echo $i; sleep 0.05; done; exit 3", on_stdout=on)
            self.assertEqual((b"".join(got).split(), r.exit_code, r.lost, ended), ([str(i).encode() for i in range(1, 21)], 3, 0, [True]), "each byte once")
            with self.assertRaises(pando.Lost), c.popen("cat") as p:  # who knows what it was given
                p.write("x")
                kill_daemon()
                list(p)

    def test_C29_time_outs_end_the_work(self):
        with pando.create(source=source()) as c, pando.Client(timeout=1) as hasty:
            with self.assertRaises(pando.TimedOut):
                hasty.cell(c.id).exec("exec sleep 1000")
            self.assertEqual(c.exec(ENDED).exit_code, 0)
            c.eval("import time")  # an interpreter that is only starting would be ended
            with self.assertRaises(pando.TimedOut):
                hasty.cell(c.id).eval("time.sleep(1000)")
            self.assertEqual(c.eval("6*7", timeout=20), 42)
            known = {i.id for i in pando.runs()}
            with self.assertRaises(pando.TimedOut):
                hasty.run("sleep 1000", source=source())
            late = pando.get_run([i.id for i in pando.runs() if i.id not in known][0], wait=True)
            self.assertEqual((late.info.phase, bool(late.info.cause)), ("ended", True))

    @unittest.skipIf(os.environ.get("PANDO_HOST"), "the daemon is not ours to end")
    def test_events_are_followed_over_restarts(self):
        box = queue.Queue()
        t = threading.Thread(target=lambda: pando.run("for i in $(seq 30); do sleep 0.05; done", source=source(), progress=lambda p: box.put(p)))
        known = {i.id for i in pando.runs()}
        t.start()
        while not (new := [i for i in pando.runs() if i.id not in known and i.phase == "executing"]):
            time.sleep(0.02)
        seqs = []
        for e in pando.get_run(new[0].id).events(follow=True):
            if not seqs:
                kill_daemon()
            seqs.append(e.seq)
            last = e.kind
        t.join()
        self.assertEqual(seqs, list(range(1, len(seqs) + 1)))
        self.assertEqual(pando.get_run(new[0].id).exit_code, 0)

    def test_failures(self):
        r = pando.run("rm greeting; exit 7", source=source())
        self.assertEqual((r.exit_code, r.verdict), (7, "restored"))
        with self.assertRaises(pando.ExitError):
            pando.run("exit 7", source=source(), check_exit=True)
        with self.assertRaises(pando.NoSuchBinary):
            pando.run(["no-such-program"], source=source())

    def test_policies(self):
        p = pando.policy(allow=["example.com"])
        self.assertTrue(p.digest)
        self.assertIn("example.com", str(p))
        text = "version: 1\nnetwork:\n  allow:\n    - host: example.org\n"
        self.assertTrue(pando.why("connect example.org:443", policy=text))
        r = pando.run("true", source=source())
        self.assertTrue(pando.policy(r.id).digest)

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
