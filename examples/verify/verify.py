#!/usr/bin/env python3
"""Checks receipts of pando without pando's code: nothing but docs/format.md and Python.

    verify.py KEY.pub receipts.json           what `pando receipt export` wrote
    verify.py KEY.pub LEDGER                  a ledger, as it lies in pando's state
    verify.py KEY.pub LEDGER --runs FOLDER    and the files of the runs that it names
"""

import argparse
import base64
import hashlib
import json
import pathlib
import sys


class Wrong(Exception):
    """What is checked is not what it says it is."""


def sha256(data):
    return hashlib.sha256(data).digest()


def text_of(digest):
    return "sha256:" + digest.hex()


def bytes_of(text):
    kind, _, digits = text.partition(":")
    if kind != "sha256" or len(digits) != 64:
        raise Wrong(f"{text!r} is not a digest")
    return bytes.fromhex(digits)


# Ed25519 as in RFC 8032, verification alone. Points are (X, Y, Z, T) with x = X/Z, y = Y/Z,
# x*y = T/Z.

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P


def add(p, q):
    a = (p[1] - p[0]) * (q[1] - q[0]) % P
    b = (p[1] + p[0]) * (q[1] + q[0]) % P
    c = 2 * p[3] * q[3] * D % P
    d = 2 * p[2] * q[2] % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % P, g * h % P, f * g % P, e * h % P


def times(n, p):
    total = (0, 1, 1, 0)
    while n:
        if n & 1:
            total = add(total, p)
        p = add(p, p)
        n >>= 1
    return total


def point(data):
    """The point that 32 bytes stand for; None if there is none."""
    y = int.from_bytes(data, "little")
    sign, y = y >> 255, y & (1 << 255) - 1
    if y >= P:
        return None
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * pow(2, (P - 1) // 4, P) % P
    if (x * x - square) % P or x == 0 and sign:
        return None
    if x & 1 != sign:
        x = P - x
    return x, y, 1, x * y % P


BASE = point((4 * pow(5, P - 2, P) % P).to_bytes(32, "little"))


def signed(key, message, signature):
    a, r = point(key), point(signature[:32])
    s = int.from_bytes(signature[32:], "little")
    if len(signature) != 64 or a is None or r is None or s >= ORDER:
        return False
    h = int.from_bytes(hashlib.sha512(signature[:32] + key + message).digest(), "little") % ORDER
    left, right = times(s, BASE), add(r, times(h, a))
    return (left[0] * right[2] - right[0] * left[2]) % P == 0 and (left[1] * right[2] - right[1] * left[2]) % P == 0


class Key:
    """The public key of an installation: a PEM file in PKIX form."""

    PREFIX = bytes.fromhex("302a300506032b6570032100")  # DER: Ed25519, 32 bytes follow

    def __init__(self, pem):
        der = base64.b64decode("".join(pem.strip().splitlines()[1:-1]), validate=True)
        if not der.startswith(self.PREFIX) or len(der) != len(self.PREFIX) + 32:
            raise Wrong("the key is not an Ed25519 key in PKIX form")
        self.raw = der[-32:]
        self.id = text_of(sha256(der))
        self.origin = "pando.dev/ledger/" + sha256(der).hex()[:16]


# Receipts.

PAYLOAD = "application/vnd.in-toto+json"


def statement(key, envelope):
    """What a receipt says, once its signature is checked."""
    e = json.loads(envelope)
    if set(e) != {"payload", "payloadType", "signatures"} or e["payloadType"] != PAYLOAD or len(e["signatures"]) != 1:
        raise Wrong("it is not an envelope of pando")
    payload = base64.b64decode(e["payload"], validate=True)
    message = b"DSSEv1 %d %s %d " % (len(PAYLOAD), PAYLOAD.encode(), len(payload)) + payload
    if e["signatures"][0]["keyid"] != key.id:
        raise Wrong("it is signed by another key")
    if not signed(key.raw, message, base64.b64decode(e["signatures"][0]["sig"], validate=True)):
        raise Wrong("its signature is not right")
    return json.loads(payload)


def leaf(envelope):
    return sha256(b"\x00" + envelope)


def node(left, right):
    return sha256(b"\x01" + left + right)


class Tree:
    """The Merkle tree of RFC 6962, of which the roots of complete subtrees are kept."""

    def __init__(self):
        self.size, self.peaks = 0, []

    def add(self, hash):
        n = self.size
        while n & 1:
            hash = node(self.peaks.pop(), hash)
            n >>= 1
        self.peaks.append(hash)
        self.size += 1

    def root(self):
        if not self.peaks:
            return sha256(b"")
        hash = self.peaks[-1]
        for peak in reversed(self.peaks[:-1]):
            hash = node(peak, hash)
        return hash


def proven_root(index, size, hash, proof):
    """The root of a tree of that size to which a proof leads from one leaf (RFC 9162, 2.1.3.2)."""
    at, last = index, size - 1
    if not 0 <= index < size:
        raise Wrong(f"receipt {index} is not among the {size} that the head signs")
    for other in proof:
        if last == 0:
            raise Wrong("its proof is too long")
        if at & 1 or at == last:
            hash = node(other, hash)
            while not at & 1 and at:
                at, last = at >> 1, last >> 1
        else:
            hash = node(hash, other)
        at, last = at >> 1, last >> 1
    if last:
        raise Wrong("its proof is too short")
    return hash


def head(key, note):
    """Size and root of a signed head (C2SP tlog-checkpoint)."""
    text, _, signatures = note.partition("\n\n")
    lines = text.split("\n")
    if len(lines) != 3 or lines[0] != key.origin:
        raise Wrong("the head is not one of this ledger")
    for line in signatures.strip().split("\n"):
        dash, name, sig = line.split(" ")
        raw = base64.b64decode(sig, validate=True)
        if dash == "\u2014" and name == key.origin and raw[:4] == sha256(name.encode() + b"\n\x01" + key.raw)[:4]:
            if not signed(key.raw, (text + "\n").encode(), raw[4:]):
                raise Wrong("the head's signature is wrong")
            return int(lines[1]), base64.b64decode(lines[2], validate=True)
    raise Wrong("the head is signed by another key")


def bundle(key, text):
    """The receipts of an export, each with its place."""
    b = json.loads(text)
    if b["format"] != "pando receipts 1":
        raise Wrong("it is not a bundle of receipts")
    size, root = head(key, b["head"])
    tree = Tree()
    for r in b["receipts"]:
        envelope = json.dumps(r["envelope"], separators=(",", ":")).encode()
        try:
            s = statement(key, envelope)
            if s["predicate"]["ledger"]["index"] != r["index"]:
                raise Wrong("it stands in another's place")
            if not b.get("all") and proven_root(r["index"], size, leaf(envelope), [bytes_of(d) for d in r.get("proof", [])]) != root:
                raise Wrong("it is not shown to be in the ledger")
        except Wrong as e:
            raise Wrong(f"receipt {r['index']}: {e}") from None
        tree.add(leaf(envelope))
        yield s
    if b.get("all") and (tree.size, tree.root()) != (size, root):
        raise Wrong(f"these are not the {size} receipts that the head signs")


# Journals.

CASTAGNOLI = []
for i in range(256):
    for _ in range(8):
        i = i >> 1 ^ (0x82F63B78 if i & 1 else 0)
    CASTAGNOLI.append(i)


def crc32c(data):
    c = 0xFFFFFFFF
    for b in data:
        c = CASTAGNOLI[(c ^ b) & 0xFF] ^ c >> 8
    return c ^ 0xFFFFFFFF


def journal(path):
    """The records of a journal. A torn end, which was never acknowledged, is left out."""
    data = path.read_bytes()
    first, _, rest = data.partition(b"\n")
    words = first.split(b" ")
    if words[:2] != [b"pando-log", b"1"] or int(words[3], 16) != crc32c(words[2]):
        raise Wrong(f"{path.name} is not a journal of pando")
    salt, number, group, records = words[2], 0, [], []
    while rest:
        try:
            sum, seq, part, length, after = rest.split(b" ", 4)
            record, end = after[: int(length)], after[int(length) : int(length) + 1]
            k, n = (int(x) for x in part.split(b"/"))
            body = b" ".join([seq, part, length, record])
            if end != b"\n" or int(sum, 16) != crc32c(salt + body) or int(seq) != number + 1 or k != len(group) + 1:
                raise ValueError
        except ValueError:
            if b"\n" in rest[:-1]:
                raise Wrong(f"{path.name}: record {number + 1} was changed") from None
            break
        number, group, rest = number + 1, group + [record], after[int(length) + 1 :]
        if k == n:
            records, group = records + group, []
    return records


def ledger(key, folder):
    """All receipts of a ledger, in order."""
    heads = journal(folder / "heads")
    size, root = head(key, heads[-1].decode()) if heads else (0, sha256(b""))
    tree = Tree()
    for envelope in journal(folder / "entries"):
        if tree.size == size and tree.root() != root:
            break
        try:
            s = statement(key, envelope)
            at = s["predicate"]["ledger"]
            if at["index"] != tree.size or bytes_of(at["root"]) != tree.root():
                raise Wrong("it followed other receipts than those that are before it")
        except Wrong as e:
            raise Wrong(f"receipt {tree.size}: {e}") from None
        tree.add(leaf(envelope))
        if tree.size == size and tree.root() != root:
            raise Wrong(f"these are not the {size} receipts that the head signs")
        yield s
    if tree.size < size:
        raise Wrong(f"there are {tree.size} receipts, and the head signs {size}")


def files(s, folder):
    """Checks the files that the receipt of a run names, and the chain of its events."""
    p = s["predicate"]
    for name, digest in sorted(p.get("files", {}).items()):
        path = folder / p["run"] / name
        if not path.exists():
            raise Wrong(f"{p['run']}: {name} is not there")
        data = path.read_bytes()
        if text_of(sha256(data)) != digest:
            raise Wrong(f"{p['run']}: {name} was changed")
        if name == "events.jsonl":
            before = sha256(p["run"].encode())
            for n, line in enumerate(data.splitlines(), 1):
                e = json.loads(line)
                if e["seq"] != n or bytes_of(e["prev"]) != before:
                    raise Wrong(f"{p['run']}: event {n} does not follow the one before it")
                before = sha256(line)


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("key", type=pathlib.Path)
    args.add_argument("receipts", type=pathlib.Path)
    args.add_argument("--runs", type=pathlib.Path, metavar="FOLDER", help="the folders of runs, by their ids")
    args = args.parse_args()
    n = 0
    try:
        key = Key(args.key.read_text())
        for s in ledger(key, args.receipts) if args.receipts.is_dir() else bundle(key, args.receipts.read_text()):
            if args.runs and s["predicateType"] == "https://pando.dev/run/v1":
                files(s, args.runs)
            print(s["predicate"]["ledger"]["index"], s["predicateType"].split("/")[-2], s["predicate"]["key"])
            n += 1
    except (Wrong, ValueError, KeyError, OSError) as e:
        sys.exit(f"wrong: {e}")
    print(f"{n} receipts are genuine")


if __name__ == "__main__":
    main()
