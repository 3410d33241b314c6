"""A code interpreter for many visitors: each has a fork of a warm Python, which
remembers what they did, can be branched, and goes when nobody comes any more."""

import json
import os
import secrets
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pando

SETUP = """
import json, math, random, re, statistics

class Table(list):
    "Rows that a browser shows as a table."
    def _repr_html_(self):
        return "<table>" + "".join("<tr>" + "".join(f"<td>{x}</td>" for x in row) + "</tr>" for row in self) + "</table>"
"""
IDLE = 600.0  # seconds until a context that nobody uses is removed

contexts = {}  # what a visitor knows, to the cell that it means


def opened(make):
    began = time.monotonic()
    cell = make()[0]
    key = secrets.token_urlsafe(16)
    contexts[key] = cell
    cell.lease(IDLE, "remove")
    return {"context": key, "ready_ms": round((time.monotonic() - began) * 1000)}


def begin(_key, _ask):
    return opened(template.fork)


def run(key, ask):
    cell = contexts[key]
    cell.lease(IDLE, "remove", extend=True)
    ev = cell.evaluate(ask["code"], timeout=ask.get("timeout", 30))
    results = ev.display + ([{"text/plain": ev.repr, **ev.mime}] if ev.repr else [])
    error = {"type": ev.error_type, "message": ev.error_message, "traceback": ev.traceback, "cause": ev.cause}
    return {"ok": ev.ok, "results": results, "stdout": ev.stdout.decode("utf-8", "replace"), "stderr": ev.stderr.decode("utf-8", "replace"),
            "error": None if ev.ok else error}


def branch(key, _ask):
    return opened(contexts[key].branch)


def end(key, _ask):
    contexts.pop(key).remove()
    return {}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    actions = {("POST", ""): begin, ("POST", "run"): run, ("POST", "branch"): branch, ("DELETE", ""): end}

    def do_POST(self):
        _, first, *rest = self.path.split("/")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        key, action = (rest + ["", ""])[:2]
        do = self.actions.get((self.command, action)) if first == "contexts" else None
        try:
            if do is None or (do is not begin and key not in contexts):
                return self.answer(404, {"error": "there is no such context"})
            self.answer(200, do(key, json.loads(body or b"{}")))
        except pando.NotFound:
            self.answer(404, {"error": "this context was removed: nobody used it for long"})
        except pando.Error as e:
            self.answer(503, {"error": str(e)})
        except (ValueError, KeyError, TypeError):
            self.answer(400, {"error": 'send JSON: {"code": "6*7"}'})

    do_DELETE = do_POST

    def answer(self, status, doc):
        body = json.dumps(doc).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    template = pando.build_template("interpreter", setup=SETUP)
    server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "8000"))), Handler)
    print(f"http://127.0.0.1:{server.server_port}/contexts", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        for c in contexts.values():
            c.remove()
        template.remove()
        sys.exit(0)
