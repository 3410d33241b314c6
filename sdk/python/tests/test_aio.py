"""The asyncio variants, against a real daemon; see test_daemon."""

import asyncio
import os
import shutil
import subprocess
import tempfile
import unittest

import pando
import pando.aio

DIR = os.environ["PANDO_TEST_DIR"]


def source():
    """Returns what cells begin with: the directory, or for a daemon elsewhere an upload."""
    if not os.environ.get("PANDO_HOST"):
        return DIR
    pando_bin = os.environ.get("PANDO_BIN") or shutil.which("pando")
    return subprocess.run([pando_bin, "upload", DIR], check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE).stdout.decode().strip()


class Aio(unittest.IsolatedAsyncioTestCase):
    async def test_forks(self):
        async with pando.aio.Client() as p:
            t = await p.template("pyagent")
            async with await t.fork(10) as cells:
                self.assertEqual(await asyncio.gather(*(c.eval("6*7") for c in cells)), [42] * 10)
                names = {c.name for c in cells}
            self.assertFalse({c.name for c in await p.cells()} & names)
            self.assertEqual(await t.map("2**100", 2), [2**100] * 2)

    async def test_eval(self):
        p = pando.aio.Client()
        async with (await (await p.template("pyagent")).fork())[0] as c:
            got = []
            ev = await c.evaluate("print('x' * 3000000); float('inf')", on_stdout=got.append)
            self.assertEqual((ev.value, len(ev.stdout), sum(map(len, got))), (float("inf"), len(ev.stdout), len(ev.stdout)))
            with self.assertRaises(pando.EvalError) as e:
                await c.eval("1/0")
            self.assertEqual(e.exception.type, "ZeroDivisionError")
            await c.eval("x = 1")
            slow = asyncio.ensure_future(c.eval("import time; time.sleep(60)"))
            await asyncio.sleep(0.3)
            slow.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await slow
            self.assertEqual(await asyncio.wait_for(c.eval("x"), 10), 1, "what was cancelled has ended")
            async with await c.branch(2) as b:
                self.assertEqual([await x.eval("x + 1") for x in b], [2, 2])

    async def test_commands_and_files(self):
        p = pando.aio.Client()
        async with await p.create("py-aio", source()) as c:
            r = await c.exec("cat; exit 3", input=b"\xff" * (1 << 20))
            self.assertEqual((r.exit_code, len(r.stdout)), (3, 1 << 20))
            many = await asyncio.gather(*(c.exec(["sh", "-c", f"echo {i}"]) for i in range(10)))
            self.assertEqual([x.text for x in many], [f"{i}\n" for i in range(10)])
            async with await c.popen("read a; echo got $a; exit 4") as proc:
                await proc.write("x\n")
                out = b"".join([data async for _, data in proc])
                self.assertEqual((out, proc.result.exit_code), (b"got x\n", 4))
            with self.assertRaises(pando.ExitError):
                await c.exec("exit 1", check=True)
            await c.write_text("f", "text")
            self.assertEqual(await c.read_text("f"), "text")
            with tempfile.TemporaryDirectory() as tmp:
                await c.download(".", tmp + "/all")
                self.assertEqual(sorted(os.listdir(tmp + "/all")), ["f", "greeting"])
                await c.upload(tmp + "/all", "again")
            self.assertEqual(await c.read_text("again/f"), "text")
            k = await c.checkpoint("here")
            await c.write_text("f", "other")
            self.assertTrue(await c.diff(k.number))
            await c.restore(k)
            self.assertEqual(await c.read_text("f"), "text")
            async with await c.fork(2) as forks:
                self.assertEqual(len(forks), 2)
        with self.assertRaises(pando.NotFound):
            await p.cell("py-aio")

    async def test_runs(self):
        p = pando.aio.Client()
        r = await p.run("echo x > new; echo out", source=source())
        self.assertEqual((r.ok, r.result.stdout, r.verdict), (True, b"out\n", "pending"))
        self.assertEqual([f.path for f in (await r.diff()).files], ["new"])
        self.assertIn(r.id, str(await r.receipt()))
        self.assertTrue((await p.verify(r.id))["ok"])
        await r.discard(reason="only a test", lose=True)
        self.assertEqual((await p.get_run(r.id)).verdict, "discarded")
        self.assertEqual([e.fields["code"] async for e in r.events("process.exit")], [0])
        self.assertEqual([i.id async for i in p.iter_runs(page=1)], [i.id for i in await p.runs()])
        known = {i.id for i in await p.runs()}
        slow = asyncio.ensure_future(p.run("sleep 1000", source=source()))
        while not [i for i in await p.runs() if i.id not in known and i.phase == "executing"]:
            await asyncio.sleep(0.02)
        slow.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await slow
        new = [i for i in await p.runs() if i.id not in known][0]
        ended = (await p.get_run(new.id, wait=True)).info
        self.assertEqual((ended.phase, bool(ended.cause)), ("ended", True), "what was cancelled has ended")


if __name__ == "__main__":
    unittest.main()
