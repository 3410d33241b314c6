#!/usr/bin/env python3
"""Checks receipts of pando without pando's code: nothing but docs/format.md and Python.

    verify.py FILE                    what `pando receipt export` wrote: a bundle or JSON
    verify.py FILE --key pando.pub    with the key of `pando receipt key`, got another way
"""
import argparse, base64, contextlib, functools, hashlib, itertools, json, pathlib, re, sys, tarfile

# Ed25519 as in RFC 8032, verification alone. Points are (X, Y, Z, T) with x = X/Z, y = Y/Z, x*y = T/Z.
P, ORDER = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P

def add(p, q):
    a, b = (p[1] - p[0]) * (q[1] - q[0]) % P, (p[1] + p[0]) * (q[1] + q[0]) % P
    c, d = 2 * p[3] * q[3] * D % P, 2 * p[2] * q[2] % P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % P, g * h % P, f * g % P, e * h % P

def times(n, p, total=(0, 1, 1, 0)):
    while n:
        total, p, n = add(total, p) if n & 1 else total, add(p, p), n >> 1
    return total

def point(data):
    sign, y = divmod(int.from_bytes(data, "little"), 1 << 255)
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(square, (P + 3) // 8, P)
    x = x * pow(2, (P - 1) // 4, P) % P if (x * x - square) % P else x
    bad = y >= P or (x * x - square) % P or x == 0 and sign
    x = P - x if x & 1 != sign else x
    return None if bad else (x, y, 1, x * y % P)

BASE = point((4 * pow(5, P - 2, P) % P).to_bytes(32, "little"))

def signed(key, message, signature):
    a, r, s = point(key), point(signature[:32]), int.from_bytes(signature[32:], "little")
    if len(signature) != 64 or a is None or r is None or s >= ORDER:
        return False
    h = hashlib.sha512(signature[:32] + key + message).digest()
    left, right = times(s, BASE), add(r, times(int.from_bytes(h, "little") % ORDER, a))
    return all((left[i] * right[2] - right[i] * left[2]) % P == 0 for i in (0, 1))

sha256, un64 = lambda data: hashlib.sha256(data).digest(), lambda text: base64.b64decode(text, validate=True)
to64, node = lambda data: base64.b64encode(data).decode(), lambda left, right: sha256(b"\x01" + left + right)
TYPE, STATEMENT, ED25519 = "application/vnd.in-toto+json", "https://in-toto.io/Statement/v1", bytes.fromhex("302a300506032b6570032100")  # PKIX
told, open_ends = [], ["that no newer receipts were cut off: compare the head with one that you know"]

class Key:
    def __init__(self, pem="", der=None):
        der = der or un64(re.sub(r"\s", "", re.search(r"-----BEGIN PUBLIC KEY-----(.*)-----END PUBLIC KEY-----", pem, re.S).group(1)))
        if der[:-32] != ED25519:
            raise ValueError("the key is not an Ed25519 key")
        self.raw, self.id, self.origin = der[-32:], "sha256:" + sha256(der).hex(), "pando.dev/ledger/" + sha256(der).hex()[:16]

def statement(key, envelope, *types):  # what it says, and what is wrong with it: "unreadable", "unsigned", "foreign" or ""
    try:
        e = json.loads(envelope)
        payload, keyid, sig = un64(e["payload"]), e["signatures"][0]["keyid"], un64(e["signatures"][0]["sig"])
        form = '{"payload":"%s","payloadType":"%s","signatures":[{"keyid":"%s","sig":"%s"}]}'
        says, written = json.loads(payload), (form % (to64(payload), TYPE, keyid, to64(sig))).encode()
        if written != envelope or (says["_type"], says["predicateType"]) not in [(STATEMENT, f"https://pando.dev/{t}/v1") for t in types]:
            return None, "unreadable"
    except (ValueError, LookupError, TypeError):
        return None, "unreadable"
    good = signed(key.raw, b"DSSEv1 %d %s %d " % (len(TYPE), TYPE.encode(), len(payload)) + payload, sig)
    return says, "" if good and keyid == key.id else "foreign" if not good and keyid != key.id else "unsigned"

def signed_off(key, act):  # whether an approver signed what the receipt of that says, of this cell and these changes, here
    with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):
        said = act["sign_off"]
        s, fault = statement(Key(der=ED25519 + un64(said["key"].split("ed25519:")[1])), said["envelope"].encode(), "sign-off")
        digest = "sha256:" + sha256("pando changes 1\n{base}\n{after}\n".format(**(p := s["predicate"])).encode()).hex()
        here = [act["act"], act["cell"], act["digest"], said["digest"], key.origin, [{"name": "changes", "digest": {"sha256": digest[7:]}}]]
        same = act["act"] in ("approve", "reject") and all(p.get(k) == said.get(k) for k in ("approver", "decision", "commit", "runs", "message", "at"))
        return not fault and same and here == [p["decision"], p["cell"], digest, digest, p["ledger"], s["subject"]]

def trees(leaves):  # RFC 6962: the root of those before each leaf, and at last that of all
    peaks = []
    for at, leaf in enumerate([*leaves, b""]):
        yield functools.reduce(lambda right, left: node(left, right), reversed(peaks)) if peaks else sha256(b"")
        peaks.append(leaf)
        while at & 1:
            peaks[-2:], at = [node(*peaks[-2:])], at >> 1

def proven(at, size, hash, proof):  # RFC 9162, 2.1.3.2
    last = size - 1
    for other in (bytes.fromhex(digest[7:]) for digest in proof):
        right = at & 1 or at == last
        hash = node(other, hash) if right else node(hash, other)
        while right and not at & 1 and at:
            at, last = at >> 1, last >> 1
        at, last = at >> 1, last >> 1
    return None if last else hash

def head(key, note):  # size and root (C2SP tlog-checkpoint), and what is wrong; signatures of other keys do not count
    try:
        text, signatures = note.split("\n\n", 1)
        origin, size, root = text.split("\n")
        size, root, mine = int(size), un64(root), sha256(key.origin.encode() + b"\n\x01" + key.raw)[:4]
        lines = (un64(line.split(" ")[2]) for line in signatures.splitlines() if line.startswith(f"\u2014 {key.origin} "))
        own = [line[4:] for line in lines if line[:4] == mine]
    except (ValueError, LookupError):
        return -1, b"", "edited"
    good = bool(own) and signed(key.raw, (text + "\n").encode(), own[0])
    return size, root, "wrong-key" if not own or origin != key.origin else "" if good else "edited"

def receipts(key, b):  # of an export: its genuine statements by index, all indexes, and the digests of all envelopes
    (size, root, bad), every, found, last, any_fits, strange = head(key, b["head"]), b.get("all"), {}, -1, False, False
    envelopes = [json.dumps(r["envelope"], separators=(",", ":")).encode() for r in b["receipts"]]
    roots = list(trees([sha256(b"\0" + e) for e in envelopes])) if every else []
    whole = every and len(envelopes) == size and roots[-1] == root
    for n, (r, e) in enumerate(zip(b["receipts"], envelopes)):
        at, (s, fault) = r["index"], statement(key, e, "run", "verdict", "fork")
        fits = whole if every else at < size and proven(at, size, sha256(b"\0" + e), r.get("proof", [])) == root
        kind = ("wrong-key" if fault == "foreign" else "recomputed" if fault and fits else "edited" if fault
                else "reordered" if s["predicate"]["ledger"]["index"] != at else "repeated" if at in found
                else "reordered" if at < last else "" if bad else "truncated" if at >= size
                else "" if fits or every else "not-included")
        if kind:
            tell(kind, f"receipt {at}", "it is not what was written there")
        strange = strange or every and not fault and s["predicate"]["ledger"]["root"] != "sha256:" + roots[n].hex()
        found[at], last, any_fits = None if fault else s, max(last, at), any_fits or fits
    good = [at for at, s in found.items() if s and at < size]  # those that are not genuine say nothing of what is missing
    gap = range(0 if every else min(good, default=0), 0 if b.get("chosen") else max(good, default=0))
    missing = [f"receipt {at}" for at in itertools.islice((at for at in gap if at not in found), 100)]
    for where in missing if every or envelopes else ["receipts"]:
        tell("dropped", where, "it is missing")
    if every and not bad and last + 1 < size:
        tell("truncated", f"receipt {last + 1}", f"the head signs {size} receipts")
    if bad:
        tell("recomputed" if bad == "edited" and any_fits else bad, "head", "this key did not sign it")
    elif every and not told and (strange or not whole):
        tell("forked", "head", "these are not the receipts that it signs")
    return {at: s for at, s in found.items() if s}, set(found), {"sha256:" + sha256(e).hex() for e in envelopes}

def bundle(key, sums, texts):
    if "contents.json" not in sums:
        return tell("truncated", "contents.json", "the bundle ends before it, and it is the last file") or {}
    s, fault = statement(key, texts["contents.json"].rstrip(b"\n"), "bundle")
    wanted, says, found = {f["name"]: f["digest"]["sha256"] for f in s["subject"]} if s else {}, s["predicate"] if s else {}, {}
    if fault:
        tell("wrong-key" if fault == "foreign" else "recomputed" if wanted and wanted.items() <= sums.items() else "edited", "contents.json", "this key did not sign it")
        wanted, says = {}, {}
    try:
        found, there, ids = receipts(key, b := json.loads(texts["receipts.json"]))
        odd, seen = there ^ set(says.get("receipts", there) if not b.get("all") else there), {where for _, where in told}
        for at in sorted(at for at in odd if f"receipt {at}" not in seen):
            tell("added" if at in there else "dropped", f"receipt {at}", "the bundle was made otherwise")
    except (ValueError, TypeError, KeyError):
        tell("edited" if "receipts.json" in sums else "missing", "receipts.json", "it is not an export")
    for name in ("contents.json", "receipts.json") if told else ("contents.json",):
        sums.pop(name, None), wanted.pop(name, None)
    for at, p in sorted((at, s["predicate"]) for at, s in found.items()):
        if (p.get("act") in ("approve", "reject") or "sign_off" in p) and not signed_off(key, p):
            tell("edited", f"receipt {at}", "it is not what its approver signed")
        open_ends.extend(f"what receipt {at} comes from, {parent}" for parent in set(p.get("parents", [])) - ids)
        wanted.update({f"runs/{p['run']}/{name}": digest[7:] for name, digest in p.get("files", {}).items()})
    erased = {f"runs/{e['run']}/{e['file']}": (e["digest"][7:], e.get("found"), f"erased on {p['at'][:10]} by {p['by']}, for: {p['reason']}")
              for p in (s["predicate"] for s in found.values()) if p.get("act") == "erase" for e in p["erased"]}
    open_ends.extend(f"what {name} said: it was {how if was == d else 'gone when the bundle was made'}" for name in says.get("absent", [])
                     for was, odd, how in [erased.get(name, ("", "", ""))] if name not in sums and (d := wanted.get(name) if odd else wanted.pop(name, None)))
    for name in sorted({n for n, _ in sums.items() ^ wanted.items() if n in wanted or not fault}):
        tell("added" if name not in wanted else "edited" if name in sums else "missing", name, "its digest is not the one signed for it")
    return found

def read(path):  # the digests of an archive's files, and the text of some
    sums, texts, size = {}, {}, path.stat().st_size
    with contextlib.suppress(tarfile.TarError, EOFError), tarfile.open(path, "r:") as t:  # what can't be read is missing
        for m in itertools.takewhile(lambda m: m.issparse() or 0 <= m.size <= size, t):
            if m.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or m.issparse() or m.name in sums:
                tell("repeated" if m.name in sums and m.isreg() else "added", m.name, "it is there twice, or no plain file")
                continue
            f, keep = t.extractfile(m), m.name in ("contents.json", "receipts.json", "key.pub")
            h = hashlib.sha256(texts.setdefault(m.name, f.read()) if keep else b"")
            while chunk := f.read(1 << 20):
                h.update(chunk)
            sums[m.name] = h.hexdigest()
    return sums, texts

def tell(kind, where, what):
    told.append((kind, where))
    len(told) > 100 or print(kind, ascii(f"{where}: {what}")[1:-1])  # a name can have anything in it

def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    [args.add_argument(name, type=pathlib.Path) for name in ("file", "--key")]
    args, found = args.parse_args(), {}
    try:
        sums, texts = ({}, {}) if (plain := args.file.open("rb").read(1) == b"{") else read(args.file)
        open_ends.extend([] if args.key else ["that the key is the installation's: it came with the bundle. Get another for --key"])
        key = Key(args.key.read_text() if args.key else texts["key.pub"].decode())
        found = receipts(key, json.loads(args.file.read_bytes()))[0] if plain else bundle(key, sums, texts)
    except (ValueError, LookupError, TypeError, AttributeError, OSError) as e:
        tell("edited", args.file, f"it can't be read: {e!r}")
    for line in [f"{at} {s['predicate']['key']}" for at, s in sorted(found.items())] + ["not shown: " + o for o in open_ends]:
        print(ascii(line)[1:-1])
    sys.exit(f"FAILED: {len(told)} problems" if told else print(f"verified: {len(found)} receipts, key {key.id}"))

if __name__ == "__main__":
    main()
