"""What is asked of the API, and how its answers are read: the same for those who
wait and for asyncio."""

from __future__ import annotations

import json
import os
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from . import errors
from ._wire import Request, output, segment
from .models import Progress, Result
from .values import Evaluation

Env = Union[Mapping[str, str], Sequence[str], None]
Command = Union[str, Sequence[str]]
Timeout = Union[str, float, None]


def _cell(sel: str, what: str = "") -> str:
    if not sel:
        raise errors.Invalid("cannot tell which cell is meant", "give its name or id")
    return "/v1/cells/" + segment(sel) + what


def _run(sel: str, what: str = "") -> str:
    if not sel:
        raise errors.Invalid("cannot tell which run is meant", "give its id")
    return "/v1/runs/" + segment(sel) + what


def words(command: Command) -> List[str]:
    """A string is a line for a shell; a list is a program and its arguments."""
    if isinstance(command, str):
        return ["sh", "-c", command]
    return [os.fspath(c) for c in command]


def variables(env: Env) -> List[str]:
    if env is None:
        return []
    if isinstance(env, Mapping):
        for k, v in env.items():
            if not k or "=" in str(k):
                raise errors.Invalid(f"cannot set {k!r}: it is no name of a variable", "give a name without =")
            if v is None:
                raise errors.Invalid(f"cannot set {k}: its value is None", "give text, or leave it out")
        return [f"{k}={v}" for k, v in env.items()]
    return list(env)


def duration(v: Timeout) -> Optional[str]:
    """Seconds, or what the daemon takes: "90s", "10m"."""
    if v is None or isinstance(v, str):
        return v
    return f"{round(v * 1000)}ms"


def _body(**kv: Any) -> Dict[str, Any]:
    return {k: v for k, v in kv.items() if v not in (None, "", False, [], {}, 0)}


def cells(labels: Mapping[str, str]) -> Request:
    return Request("GET", "/v1/cells", {"label": [f"{k}={v}" for k, v in labels.items()]})


def cell(sel: str) -> Request:
    return Request("GET", _cell(sel))


def remove(sel: str) -> Request:
    return Request("DELETE", _cell(sel))


def act(sel: str, what: str) -> Request:
    return Request("POST", _cell(sel, "/" + what), once=True)


def lease(sel: str, ttl: Timeout, then: str, extend: bool, labels: Optional[Mapping[str, str]], env: Env) -> Request:
    body = _lease(ttl, then, extend)
    if labels is not None:
        body["labels"] = dict(labels)
    if env is not None:
        body["env"] = variables(env)
    return Request("POST", _cell(sel, "/lease"), body=body, once=True)


def _lease(ttl: Timeout, then: str, extend: bool = False) -> Dict[str, Any]:
    if isinstance(ttl, (int, float)) and ttl <= 0:
        raise errors.Invalid(f"cannot lease for {ttl:g} seconds", 'give more than 0; "" is for ever')
    return _body(**{"for": duration(ttl)}, then=then, extend=extend)


def history(sel: str) -> Request:
    return Request("GET", _cell(sel, "/history"))


def checkpoint(sel: str, message: str) -> Request:
    return Request("POST", _cell(sel, "/checkpoints"), body=_body(message=message), once=True)


def restore(sel: str, number: int, lose: bool, files: bool, dry_run: bool, certify: str, at_fork: str) -> Request:
    return Request("POST", _cell(sel, "/restore"), body={"number": number, **_body(lose=lose, files=files, dry_run=dry_run, certify=certify, at_fork=at_fork)}, once=True)


def undo(sel: str, to: int, turn: int, lose: bool, keep_source: bool) -> Request:
    return Request("POST", _cell(sel, "/undo"), body=_body(to=to, turn=turn, lose=lose, keep_source=keep_source), once=True)


def accept_cell(sel: str, apply: bool, paths: Sequence[str], include: Sequence[str], force: bool, reason: str, expect: str, merge: bool, no_conflicts: bool) -> Request:
    return Request("POST", _cell(sel, "/accept"), body=_accepting(apply, paths, include, force, reason, expect, merge, no_conflicts), once=True)


def sync_cell(sel: str, paths: Sequence[str], no_conflicts: bool, dry_run: bool) -> Request:
    return Request("POST", _cell(sel, "/sync"), body=_body(paths=list(paths), no_conflicts=no_conflicts, dry_run=dry_run), once=True)


def discard_cell(sel: str, lose: bool, reason: str) -> Request:
    return Request("POST", _cell(sel, "/discard"), body=_body(lose=lose, reason=reason), once=True)


def revert_cell(sel: str, reason: str) -> Request:
    return Request("POST", _cell(sel, "/revert"), body=_body(reason=reason), once=True)


def _accepting(apply: bool, paths: Sequence[str], include: Sequence[str], force: bool, reason: str, expect: str, merge: bool, no_conflicts: bool) -> Dict[str, Any]:
    return _body(apply=apply, paths=list(paths), include=list(include), force=force, reason=reason, expect=expect, merge=merge, no_conflicts=no_conflicts)


def fork(sel: str, n: int, number: int, turn: int, name: str, files: bool, certify: str, at_fork: str) -> Request:
    return Request("POST", _cell(sel, "/fork"), once=True,
                   body=_body(count=_count(n), number=number, turn=turn, name=name, files=files, certify=certify, at_fork=at_fork))


def branch(sel: str, n: int, name: str, certify: str, at_fork: str) -> Request:
    return Request("POST", _cell(sel, "/branch"), body=_body(count=_count(n), name=name, certify=certify, at_fork=at_fork), once=True)


def _count(n: int) -> int:
    if n < 1:
        raise errors.Invalid(f"cannot make {n} cells", "give a number of 1 or more")
    return n


def diff(sel: str, start: int, end: int, ignored: bool) -> Request:
    return Request("GET", _cell(sel, "/diff"), {"from": start, "to": end, "form": "text", "ignored": ignored})


def evaluate(sel: str, code: str, timeout: Any, fresh: bool, kind: str) -> Request:
    return Request("POST", _cell(sel, "/eval"), body={"code": code, **_body(timeout=duration(timeout), fresh=fresh, kind=kind)}, lines=True)


# Evaluations and commands are not begun again when the connection breaks: what they
# have done until then is done.


def start(sel: str, command: Command, env: Env, workdir: str, timeout: Any, detached: bool, terminal: Optional[Tuple[int, int]] = None) -> Request:
    rows, cols = terminal or (0, 0)
    tty = _body(tty=terminal is not None, rows=rows, cols=cols, caller_env=["TERM=" + os.environ.get("TERM", "dumb")] if terminal else None)
    return Request("POST", _cell(sel, "/execs"),
                   body={"command": words(command), "attach": not detached, **_body(env=variables(env), workdir=workdir, timeout=duration(timeout)), **tty})


def read(sel: str, path: str) -> Request:
    return Request("GET", _cell(sel, "/files"), {"path": path})


def write(sel: str, directory: str, archive: Any) -> Request:
    return Request("PUT", _cell(sel, "/files"), {"path": directory}, archive, "application/x-tar")


def write_if(sel: str, path: str, data: bytes, expect: str) -> Request:
    seen = ("If-Match", f'"{expect}"') if expect else ("If-None-Match", "*")
    if any(c in expect for c in '"\r\n'):
        raise errors.Invalid(f"cannot expect {expect!r}", "give the digest of the file, as stat(digest=True) has it")
    return Request("PUT", _cell(sel, "/file"), {"path": path}, data, "application/octet-stream", seen=seen)


def commands(sel: str) -> Request:
    return Request("GET", _cell(sel, "/execs"))


def stats(sel: str) -> Request:
    return Request("GET", _cell(sel, "/stats"))


def connect(sel: str, port: int) -> Request:
    return Request("GET", _cell(sel, f"/ports/{int(port)}/connect"))


def stat(sel: str, path: str, digest: bool) -> Request:
    return Request("GET", _cell(sel, "/stat"), {"path": path, "digest": digest})


def listdir(sel: str, path: str, depth: int) -> Request:
    if depth < 1:
        raise errors.Invalid(f"cannot list {depth} levels", "give a depth of 1 or more")
    return Request("GET", _cell(sel, "/list"), {"path": path, "depth": depth})


def mkdir(sel: str, path: str) -> Request:
    return Request("POST", _cell(sel, "/mkdir"), body={"path": path}, once=True)


def rename(sel: str, path: str, to: str) -> Request:
    return Request("POST", _cell(sel, "/rename"), body={"path": path, "to": to}, once=True)


def delete(sel: str, path: str) -> Request:
    return Request("DELETE", _cell(sel, "/file"), {"path": path})


def watch(sel: str, path: str, below: bool) -> Request:
    return Request("GET", _cell(sel, "/watch"), {"path": path, "below": below})


def ports(sel: str) -> Request:
    return Request("GET", _cell(sel, "/ports"))


def processes(sel: str) -> Request:
    return Request("GET", _cell(sel, "/processes"))


def create(name: str, source: Optional[str], backend: str, image: str, env: Env, allow: Sequence[str], credentials: Sequence[str],
           limits: Mapping[str, str], labels: Mapping[str, str], policy: str, ttl: Timeout, then: str, remote: bool) -> Request:
    if source is None:
        source = "" if remote else "."
    body = _body(name=name, **_source(source, remote), backend=backend, image=image, env=variables(env), allow=list(allow),
                 credentials=list(credentials), limits=dict(limits), labels=dict(labels), policy=policy, lease=_lease(ttl, then),
                 **({} if remote else _caller()))
    return Request("POST", "/v1/cells", body=body, once=True)


def _source(source: str, remote: bool) -> Dict[str, str]:
    if not remote:
        return {"from": os.path.abspath(source) if source else ""}
    if source and not source.startswith("u-"):
        raise errors.Invalid(f"cannot use {source!r}: the daemon is elsewhere", "send it with `pando upload`, and give the id that it prints: u-…")
    return {"upload": source}


def templates() -> Request:
    return Request("GET", "/v1/templates")


def template(name: str) -> Request:
    if not name:
        raise errors.Invalid("cannot tell which template is meant", "give its name")
    return Request("GET", "/v1/templates/" + segment(name))


def remove_template(name: str, cascade: bool, force: bool) -> Request:
    return Request("DELETE", template(name).path, {"cascade": cascade, "force": force})


def build(name: str, source: str, setup: str, warm: str, ready: str, backend: str, image: str, env: Env, allow: Sequence[str],
          credentials: Sequence[str], limits: Mapping[str, str], labels: Mapping[str, str], policy: str, timeout: Any, remote: bool) -> Request:
    body = _body(name=name, **_source(source, remote), setup=setup, warm=warm, ready=ready, backend=backend, image=image,
                 env=variables(env), allow=list(allow), credential=list(credentials), limits=dict(limits), labels=dict(labels), policy=policy,
                 timeout=duration(timeout), **({} if remote else _caller()))
    return Request("POST", "/v1/templates", body=body, lines=True, once=True)


def warm_fork(name: str, n: int, stem: str, code: str, command: Optional[Command], timeout: Any, remove: bool, certify: str,
              at_fork: str) -> Request:
    return Request("POST", template(name).path + "/fork", lines=True, once=True,
                   body=_body(count=_count(n), name=stem, eval=code, command=words(command) if command else None, timeout=duration(timeout), remove=remove,
                              certify=certify, at_fork=at_fork))


def _caller() -> Dict[str, Any]:
    try:
        return {"caller_dir": os.getcwd(), "caller_env": [f"{k}={v}" for k, v in os.environ.items()]}
    except OSError:  # the directory is gone
        return {}


def start_run(command: Command, cell: str, source: Optional[str], backend: str, image: str, env: Env, allow: Sequence[str], credentials: Sequence[str],
              workdir: str, limits: Mapping[str, str], timeout: Any, check: str, on_failure: str, on_success: str, policy: str, remote: bool, attach: bool = True) -> Request:
    if source is None and not cell:
        source = "."
    lim = dict(limits)
    if timeout is not None:
        lim["timeout"] = duration(timeout) or ""
    body = _body(cell=cell, **_source(source or "", remote), backend=backend, image=image, env=variables(env), allow=list(allow),
                 credentials=list(credentials), workdir=workdir, limits=lim, check=check, on_failure=on_failure, on_success=on_success, policy=policy,
                 **({} if remote else _caller()))
    return Request("POST", "/v1/runs", body={"command": words(command), "attach": attach, **body}, once=True)


def runs(sel: str) -> Request:
    return Request("GET", "/v1/runs", {"cell": sel})


def run(sel: str, wait: bool = False) -> Request:
    return Request("GET", _run(sel), {"wait": wait})


def run_diff(sel: str, ignored: bool) -> Request:
    return Request("GET", _run(sel, "/diff"), {"form": "text", "ignored": ignored})


def run_file(sel: str, name: str) -> Request:
    return Request("GET", _run(sel, "/files/" + segment(name)))


def run_export(sel: str) -> Request:
    return Request("GET", _run(sel, "/export"))


def events(sel: str, kinds: Sequence[str], denied: bool, follow: bool) -> Request:
    return Request("GET", _run(sel, "/events"), {"kind": ",".join(kinds), "denied": denied, "follow": follow})


def interrupt(sel: str) -> Request:
    return Request("POST", _run(sel, "/interrupt"), once=True)


def accept(sel: str, apply: bool, paths: Sequence[str], include: Sequence[str], force: bool, reason: str, expect: str, merge: bool, no_conflicts: bool) -> Request:
    return Request("POST", _run(sel, "/accept"), body=_accepting(apply, paths, include, force, reason, expect, merge, no_conflicts), once=True)


def revert(sel: str, reason: str) -> Request:
    return Request("POST", _run(sel, "/revert"), body=_body(reason=reason), once=True)


def discard(sel: str, lose: bool, reason: str) -> Request:
    return Request("POST", _run(sel, "/discard"), body=_body(lose=lose, reason=reason), once=True)


def approvals(answered: bool) -> Request:
    return Request("GET", "/v1/approvals", {"all": answered})


def answer(id: str, verb: str, scope: str = "") -> Request:
    if not id:
        raise errors.Invalid("cannot tell which approval is meant", "give its id, as approvals() has it")
    return Request("POST", f"/v1/approvals/{segment(id)}/{verb}", body=_body(scope=scope) if verb == "approve" else None, once=True)


def disk(objects: bool) -> Request:
    return Request("GET", "/v1/disk", {"objects": True} if objects else {})


def receipt(sel: str) -> Request:
    if not sel:
        raise errors.Invalid("cannot tell which receipt is meant", "give a run's id, or a receipt's digest")
    return Request("GET", "/v1/receipts/" + segment(sel))


def verify(sel: str) -> Request:
    return Request("POST", receipt(sel).path + "/verify")


def receipts() -> Request:
    return Request("GET", "/v1/receipts")


def policy(what: str, of: str, text: str, allow: Sequence[str], request: str, remote: bool) -> Request:
    body = _body(of=of, request=request)
    if not of:
        here = {} if remote else {"from": os.getcwd()}
        body["run"] = {"command": ["true"], **here, **_body(allow=list(allow), policy=text)}
        if not remote:
            body["dir"] = os.getcwd()
    return Request("POST", "/v1/policies/" + what, body=body)


# Streams of commands.

def signal(id: str, name: str) -> Request:
    return Request("POST", f"/v1/execs/{segment(id)}/signal", body={"signal": name}, once=True)


def attach(kind: str, id: str, input: bool, seen: Optional[Mapping[str, int]] = None) -> Request:
    return Request("GET", f"/v1/{kind}/{segment(id)}/attach", {"input": input, **{k: n for k, n in (seen or {}).items() if n}})


class Stream:
    """What the frames of a command say, until its result."""

    def __init__(self) -> None:
        self.result: Optional[Dict[str, Any]] = None
        self.lost = 0
        self.seen = {"stdout": 0, "stderr": 0}
        """How many bytes of each have come."""

    def take(self, message: bytes) -> Optional[Tuple[str, Any]]:
        """Returns ("stdout", bytes), ("stderr", bytes), ("progress", object), or None."""
        if not message:
            raise errors.Internal("the daemon sent an empty frame")
        kind, payload = message[:1], message[1:]
        if kind in (b"o", b"E"):
            name = "stdout" if kind == b"o" else "stderr"
            at, data = output(payload)
            self.seen[name] = at + len(data)
            return name, data
        if kind == b"r":
            self.result = json.loads(payload)
        elif kind == b"!":
            raise errors.from_json(json.loads(payload))
        elif kind == b"g":
            self.lost += int(json.loads(payload).get("bytes", 0))
        elif kind == b"p":
            return "progress", json.loads(payload)
        return None


def teller(stdout: Optional[Callable[[bytes], Any]], stderr: Optional[Callable[[bytes], Any]],
           progress: Optional[Callable[[Progress], Any]]) -> Callable[[str, Any], None]:
    """Hands on what lines say."""
    def on(word: str, v: Any) -> None:
        if word == "stdout" and stdout:
            stdout(v)
        elif word == "stderr" and stderr:
            stderr(v)
        elif word == "progress" and progress:
            progress(Progress.from_json(v))
    return on


def result(doc: Dict[str, Any], stdout: bytes, stderr: bytes, lost: int) -> Result:
    return Result(doc.get("exit_code"), stdout, stderr, doc.get("signal", ""), doc.get("cause", ""), lost, doc)


def must(command: Command, r: Result) -> None:
    """Raises unless a command ended well."""
    if r.ok:
        return
    name = command if isinstance(command, str) else " ".join(words(command))
    tail = r.stderr[-2000:].decode("utf-8", "replace").strip()
    raise errors.ExitError(f"{name}: {r.how()}" + ("\n" + tail if tail else ""), r)


def value(ev: Evaluation) -> Any:
    """The value of an evaluation, or its exception."""
    if ev.ok:
        return ev.value
    raise errors.EvalError(ev.error_type, ev.error_message or f"it was ended: {ev.cause}", ev.traceback, ev.cause, ev)


def forked(f: Dict[str, Any]) -> Union[Evaluation, Result, None]:
    """What a fork answered."""
    stdout, stderr = f.get("stdout", "").encode(), f.get("stderr", "").encode()
    if f.get("result") is not None:
        return Evaluation.from_json(f["result"], stdout, stderr)
    if f.get("exit") is not None:
        return Result(f["exit"], stdout, stderr, raw=f)
    return None
