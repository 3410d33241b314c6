"""Every call of pando's Python SDK, in the order in which a user meets them. It works on
the directory that it is started in, which is as before at the end."""
import asyncio
import io
import os
import pathlib
import pickle
import tarfile
import tempfile
import threading

import pando
import pando.aio

say = print


def files(p):
    with p.create("tour-files", source=".", labels={"tour": "files"}, ttl="30m", then="remove", limits={"memory": "512M"}) as c:
        info = c.info()
        say("cell", info.name, info.state, info.labels, info.lease.then)
        c.mkdir("data/raw")
        c.write_text("data/raw/a.txt", "ä one\n")
        c.write_bytes("data/raw/b.bin", b"\x00\xff" * 4, mode=0o600)
        say("read", repr(c.read_text("data/raw/a.txt")), c.read_bytes("data/raw/b.bin"))
        st = c.stat("data/raw/b.bin", digest=True)
        say("stat", st.name, st.type, st.size, oct(st.mode), st.digest[:14], st.is_dir)
        say("list", [f.name for f in c.listdir("data", depth=2)])
        say("rename", c.rename("data/raw/b.bin", "data/c.bin").name, c.exists("data/raw/b.bin"))
        c.delete("data/c.bin")
        with tempfile.TemporaryDirectory() as d:
            c.download("data", d + "/out")
            say("download", sorted(os.path.relpath(os.path.join(b, f), d) for b, _, fs in os.walk(d) for f in fs))
            c.upload(d + "/out", "again")
            say("upload", [f.name for f in c.listdir("again", depth=3)])
        buf = io.BytesIO()
        c.read_archive("data", buf)
        buf.seek(0)
        say("archive", sorted(tarfile.open(fileobj=buf).getnames()))
        buf.seek(0)
        c.write_archive(buf, "third")
        say("archive back", [f.name for f in c.listdir("third", depth=3)])
        for e in c.watch("data", below=True):
            if not e.what:
                threading.Thread(target=c.write_text, args=("data/raw/new", "x")).start()
            else:
                say("watch", e.what, e.path.rpartition("/")[2])
                break
        info = c.lease("10m", then="stop", labels={"tour": "leased"}, env={"TOUR": "1"})
        say("lease", info.labels, info.lease.then, c.exec("echo $TOUR").text.strip())
        say("cells", [i.name for i in p.cells(labels={"tour": "leased"})], [i.name for i in p.iter_cells(page=1, labels={"tour": "files"})])
        c.write_text("plan", "one", expect="")
        try:
            c.write_text("plan", "two", expect="sha256:" + 64 * "0")
        except pando.Stale as e:
            say("stale", e.hint)


def commands(p):
    with p.create(source="") as c:
        r = c.exec(["sh", "-c", "cat; echo err >&2; echo $X; pwd"], input="in\n", env={"X": "y"}, workdir="/tmp", timeout=20)
        say("exec", r.exit_code, r.ok, r.stdout, r.stderr, r.how())
        try:
            c.exec("exit 3", check=True)
        except pando.ExitError as e:
            say("check", e, "|", e.result.exit_code)
        say("timeout", c.exec("sleep 60", timeout=0.5).cause)
        out = []
        c.exec("echo a; echo b >&2", on_stdout=out.append, on_stderr=out.append)
        say("sinks", sorted(out))
        p1 = c.popen("read x; echo got $x; sleep 1000")
        p1.write("line\n")
        p1.close_stdin()
        for name, data in p1:
            say("stream", name, data)
            break
        say("ps", any("sleep 1000" in x.command for x in c.processes()))
        p2 = c.attach(p1.id)
        p2.signal("SIGTERM")
        say("attach", p2.communicate().signal)
        p1.close()
        with c.terminal(["sh"], rows=10, cols=40) as t:
            t.resize(20, 60)
            t.write("stty size; exit 4\n")
            say("terminal", b"20 60" in b"".join(d for _, d in t), t.result.exit_code)
        srv = c.popen(["python3", "-m", "http.server", "8000"], detached=True)
        srv.close()
        while not c.ports():
            pass
        say("server", [(x.port, x.address) for x in c.ports()], [x.running for x in c.commands()][-1], c.stats().processes)
        with c.connect(8000) as conn:
            conn.write("GET /nowhere HTTP/1.0\r\n\r\n")
            say("connect", b"".join(conn).split(b"\r\n")[0])
        c.pause()
        say("paused", c.info().state)
        c.resume()
        say("resumed", c.info().state)
        c.stop()
        say("stopped", c.info().state, c.processes())


def states(p):
    with p.create("tour-states", source=".") as c:
        one = c.checkpoint("one")
        c.exec("rm greet.py")
        say("diff", [(f.status, f.path) for f in c.diff().files])
        say("restore", c.restore(one, dry_run=True).number, c.restore(one).number, c.exists("greet.py"))
        c.run("echo 1 > n").discard()
        c.run("echo 2 > n")
        say("undo", c.undo().number, c.exists("n"))
        say("history", [x.kind for x in c.history()])
        with c.fork(2, checkpoint=one, name="tour-fork") as forks:
            say("fork", [f.name for f in forks], [f.read_text("greet.py")[:3] for f in forks])
        r = c.run("sed -i s/Helo/Hello/ greet.py", check="grep -q Hello greet.py")
        d = c.diff()
        a = c.accept(apply=True, expect=d.digest)
        say("accept", a["applied"], pathlib.Path("greet.py").read_text().count("Hello"), [x.verdict for x in c.runs()])
        say("revert", c.revert(reason="tour")["reverted"], pathlib.Path("greet.py").read_text().count("Hello"), r.refresh().verdict)
        say("discard", [x["verdict"] for x in c.discard()["runs"]])


def runs(p):
    steps = []
    r = p.run("echo out; echo err >&2; cat > two", input="2\n", check="test -s two", progress=lambda x: steps.append(x.step), limits={"memory": "256M"}, timeout="1m")
    say("run", r.verdict, r.ok, r.exit_code, r.result.stdout, r.output("stderr"))
    say("changed", [(f.status, f.path, f.added) for f in r.diff().files])
    say("events", [e.kind for e in r.events("process")], [e.fields["code"] for e in r.events("process.exit")], list(r.events(denied=True)))
    buf = io.BytesIO()
    r.export(buf)
    say("records", r.file("stdout"), buf.tell() > 0)
    rec = r.receipt()
    say("receipt", rec.verdict, p.receipt(rec.id).run == r.id, p.verify(r.id)["ok"])
    say("runs", p.runs()[0].id == r.id, next(p.iter_runs(page=1)).id == r.id, next(p.iter_receipts(page=1)).run == r.id)
    r.accept(apply=True)
    say("applied", os.path.exists("two"), r.revert(reason="only a tour")["reverted"], os.path.exists("two"))
    r.discard()
    say("discarded", p.get_run(r.id, wait=True).verdict)
    p.cell(r.info.cell).remove()
    with p.create(source="") as c:
        say("failed", c.run("touch junk; exit 7").verdict, c.listdir())
        try:
            c.run("exit 7", check_exit=True)
        except pando.ExitError as e:
            say("check_exit", e.result.exit_code)
        say("cell's runs", [x.verdict for x in c.runs()])
        r = c.start("echo begun; sleep 1000", on_failure="pending")
        with r.attach() as looking:
            say("attach", next(iter(looking)))
        r.interrupt()
        say("interrupted", r.refresh(wait=True).info.cause, [e.kind for e in r.events("process.exit", follow=True)])


def warm(p):
    out = []
    t = p.build_template("tour-t", setup="import json; x = 20; print('setting up')", on_stdout=out.append, progress=lambda s: None, labels={"tour": "t"})
    say("template", t.info().state, b"".join(out), "tour-t" in [i.name for i in p.templates()], p.template("tour-t").info().name)
    with t.fork(3, eval="x + 1") as cells:
        say("answers", [c.answer.value for c in cells])
        cells[0].eval("x = float('nan'), 2**100, {1: b'\\xff'}")
        say("values", cells[0].eval("x"), cells[1].eval("x"), cells[0].eval("object"))
        with cells[0].branch(2, name="tour-b", certify="strict") as bs:
            say("branch", [b.name for b in bs], [b.eval("x[1] == 2**100") for b in bs])
        ev = cells[1].evaluate("import sys; print('o'); sys.stderr.write('e'); 1/0")
        say("evaluate", ev.ok, ev.stdout, ev.stderr, ev.error_type, ev.error_message)
        for code, t_o in (("1/0", None), ("while True: pass", 0.5)):
            try:
                cells[2].eval(code, timeout=t_o)
            except pando.EvalError as e:
                say("error", e.type, e.cause, "|", e.message)
        say("fresh", cells[2].evaluate("x", fresh=True).error_type)
    with t.fork(2, command="echo hi", progress=lambda c: None) as cells:
        say("commands", [c.answer.stdout for c in cells])
    say("map", t.map("x + 22", 3, timeout=10))
    t.remove(cascade=True)


def policy(p):
    a = p.why("connect example.com:443")
    say("why", bool(a), a.effect, a.steps[-1].permit, bool(p.why("connect example.com:443", allow=["example.com"])))
    say("policy", [(x.text, x.force) for x in p.policy(allow=["example.com"]).lines if "example" in x.text])
    with p.create(source="", policy="version: 1\nnetwork: {ask: [192.0.2.1]}\n") as c:
        say("ask", p.why("GET http://192.0.2.1/", of=c.id).effect)
        for answer in (lambda i: p.deny(i), lambda i: p.approve(i, "10m")):
            asking = c.popen(["python3", "-c", "import urllib.request as u; u.urlopen('http://192.0.2.1/')"])
            while not (waiting := [a for a in p.approvals() if a.cell == c.id]):
                pass
            say("approval", waiting[0].want, answer(waiting[0].id).state)
            asking.close()
        say("answered", sorted(a.state for a in p.approvals(answered=True) if a.cell == c.id))
    d = p.disk(objects=True)
    say("disk", d.held > 0, d.free > 0, bool(d.objects))


def errors(p):
    for f in (lambda: p.cell("nowhere"), lambda: p.create("bad name!"), lambda: p.create(source="/nowhere"), lambda: p.template("nope"),
              lambda: p.create(source="", limits={"memory": "lots"}), lambda: pando.Client("http://127.0.0.1:1", "x").cells()):
        try:
            say("no error", f())
        except pando.Error as e:
            say("error", type(e).__name__, "|", e.message, "|", e.hint)


def pickles(p):
    with p.create(source="") as c:
        again = pickle.loads(pickle.dumps(c))
        say("pickle", again.name == c.name, again.exec("echo same").text.strip())


async def same():
    async with pando.aio.Client() as p:
        async with await p.create(source="") as c:
            a, b = await asyncio.gather(c.exec("echo a"), c.eval("6*7"))
            say("aio", a.text.strip(), b)
            async with await c.popen("read x; echo $x") as proc:
                await proc.write("z\n")
                async for name, data in proc:
                    say("aio stream", name, data)
            try:
                await asyncio.wait_for(c.exec("sleep 100"), 1)
            except asyncio.TimeoutError:
                while any("sleep 100" in x.command for x in await c.processes()):
                    await asyncio.sleep(0.05)
                say("cancelled")
            async for e in c.watch("."):
                say("aio watch", repr(e.what))
                break


def main():
    p = pando.Client(timeout=60)
    for part in (files, commands, states, runs, warm, policy, errors, pickles):
        say("##", part.__name__)
        part(p)
    asyncio.run(same())
    p.close()


main()
