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
    return (b - a) * (d - c) % P, (d + c) * (b + a) % P, (d - c) * (d + c) % P, (b - a) * (b + a) % P

def times(n, p):
    half = times(n >> 1, add(p, p)) if n else (0, 1, 1, 0)
    return add(half, p) if n & 1 else half

def point(data):
    sign, y = divmod(int.from_bytes(data, "little"), 1 << 255)
    square = (y * y - 1) * pow(D * y * y + 1, P - 2, P) % P
    x = pow(square, (P + 3) // 8, P)
    x = x * pow(2, (P - 1) // 4, P) % P if (x * x - square) % P else x
    bad, x = y >= P or (x * x - square) % P or x == 0 and sign, P - x if x & 1 != sign else x
    return None if bad else (x, y, 1, x * y % P)

def signed(key, message, signature):
    a, r, s = point(key), point(signature[:32]), int.from_bytes(signature[32:], "little")
    if len(signature) != 64 or a is None or r is None or s >= ORDER:
        return False
    h = int.from_bytes(hashlib.sha512(signature[:32] + key + message).digest(), "little") % ORDER
    left, right = times(s, point((4 * pow(5, P - 2, P) % P).to_bytes(32, "little"))), add(r, times(h, a))
    return all((left[i] * right[2] - right[i] * left[2]) % P == 0 for i in (0, 1))

sha256, un64 = lambda data: hashlib.sha256(data).digest(), lambda text: base64.b64decode(text, validate=True)
to64, node = lambda data: base64.b64encode(data).decode(), lambda left, right: sha256(b"\x01" + left + right)
enveloped = lambda r: json.dumps(r["envelope"], separators=(",", ":")).encode()
TYPE, STATEMENT, ED25519 = "application/vnd.in-toto+json", "https://in-toto.io/Statement/v1", bytes.fromhex("302a300506032b6570032100")  # PKIX
ODD = (ValueError, LookupError, TypeError, AttributeError)  # what wrong forms lead to
told, open_ends = [], ["that no newer receipts were cut off: compare the head with one that you know"]

class Key:
    def __init__(self, text):  # PEM, or "ed25519:" and base64
        pem = re.search(r"-----BEGIN PUBLIC KEY-----(.*)-----END PUBLIC KEY-----", text, re.S)
        der = un64(re.sub(r"\s", "", pem.group(1))) if pem else ED25519 + un64(text.split("ed25519:")[1])
        if der[:-32] != ED25519:
            raise ValueError("the key is not an Ed25519 key")
        self.raw, self.id, self.text = der[-32:], "sha256:" + sha256(der).hex(), "ed25519:" + to64(der[-32:])

class Keys:  # of a ledger, as its changes say: links are (index of the change, its digest, the key from there on)
    def __init__(self, pinned, changes):
        self.links, self.revoked, self.texts, self.bad = [(-1, "", pinned)], {}, [enveloped(c) for c in changes], ""
        with contextlib.suppress(*ODD):
            first = Key(json.loads(un64(changes[0]["envelope"]["payload"]))["predicate"]["by"])
            self.links = [(-1, "", first)] if changes[0]["envelope"]["signatures"][0]["keyid"] == first.id else self.links
        self.origin = "pando.dev/ledger/" + self.links[0][2].id[7:23]
        for c, text in zip(changes, self.texts):
            self.bad = self.bad or self.change(c["index"], text)
        self.newest = self.links[-1][2]
        self.bad = self.bad or ("" if pinned.id in [key.id for _, _, key in self.links] else "wrong-key")
        if self.bad:
            tell(self.bad, "keys", "the history of keys is not right, or not of this key")

    def change(self, at, text):  # takes in a change, or says what is wrong with it
        (before, last, old), known = self.links[-1], [key.id for _, _, key in self.links]
        s, fault = statement(lambda _: old, text, "key")
        if fault:
            return "wrong-key" if fault == "foreign" else "edited"
        with contextlib.suppress(*ODD):
            p, next, gone = s["predicate"], s["predicate"].get("next"), s["predicate"].get("revoked")
            if p.get("previous", "") != last or p["ledger"]["index"] != at or at <= before:
                return "dropped" if p.get("previous", "") != last else "reordered"
            key = Key(next["key"]) if next else old
            claim = f"pando ledger key 1\n{self.origin}\n{at}\n{p['ledger']['root']}\n{old.id}\n{key.id}\n"
            if next and (key.id in known or not signed(key.raw, claim.encode(), un64(next["proof"]))):
                return "wrong-key"
            sound = gone["key"] in known and 0 <= gone["since"] <= at and (gone["key"] == old.id) == bool(next) if gone else next
            if sound and p["by"] == old.text and p["act"] == ("revoke" if gone else "rotate"):
                self.links.append((at, "sha256:" + sha256(text).hex(), key))
                return self.revoked.update({gone["key"]: min(gone["since"], self.revoked.get(gone["key"], at))} if gone else {}) or ""
        return "edited"

    def at(self, says):  # the key that signs the receipt which says so
        return [key for index, _, key in self.links if index < max(says["predicate"]["ledger"]["index"], 0)][-1]

def statement(signer, envelope, *types):  # what it says, and what is wrong with it: "unreadable", "unsigned", "foreign" or ""
    try:
        e = json.loads(envelope)
        payload, keyid, sig = un64(e["payload"]), e["signatures"][0]["keyid"], un64(e["signatures"][0]["sig"])
        form = '{"payload":"%s","payloadType":"%s","signatures":[{"keyid":"%s","sig":"%s"}]}'
        says, written = json.loads(payload), (form % (to64(payload), TYPE, keyid, to64(sig))).encode()
        odd = written != envelope or (says["_type"], says["predicateType"]) not in [(STATEMENT, f"https://pando.dev/{t}/v1") for t in types]
        key = signer(says)
    except ODD:
        return None, "unreadable"
    good = not odd and signed(key.raw, b"DSSEv1 %d %s %d " % (len(TYPE), TYPE.encode(), len(payload)) + payload, sig)
    return (None, "unreadable") if odd else (says, "" if good and keyid == key.id else "foreign" if not good and keyid != key.id else "unsigned")

def signed_off(origin, act):  # whether an approver signed what the receipt of that says, of this cell and these changes, here
    with contextlib.suppress(*ODD):
        said = act["sign_off"]
        s, fault = statement(lambda _: Key(said["key"]), said["envelope"].encode(), "sign-off")
        digest = "sha256:" + sha256("pando changes 1\n{base}\n{after}\n".format(**(p := s["predicate"])).encode()).hex()
        here = [act["act"], act["cell"], act["digest"], said["digest"], origin, [{"name": "changes", "digest": {"sha256": digest[7:]}}]]
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

def head(keys, note):  # size and root (C2SP tlog-checkpoint), and what is wrong; signatures of other keys do not count
    try:
        text, signatures = note.split("\n\n", 1)
        origin, size, root, *change = text.split("\n")
        link = [(at, key) for at, (_, id, key) in enumerate(keys.links) if change == ([f"keys {id}"] if id else [])]
        at, key = link[0] if link else (-1, keys.newest)
        size, root, mine = int(size), un64(root), sha256(keys.origin.encode() + b"\n\x01" + key.raw)[:4]
        lines = (un64(line.split(" ")[2]) for line in signatures.splitlines() if line.startswith(f"\u2014 {keys.origin} "))
        own = [line[4:] for line in lines if line[:4] == mine]
    except (ValueError, LookupError):
        return -1, b"", "edited"
    good = bool(own) and signed(key.raw, (text + "\n").encode(), own[0])
    bad = "wrong-key" if not own or origin != keys.origin else "" if good else "edited"
    return size, root, bad or ("dropped" if at < 0 else "" if at + 1 == len(keys.links) else "wrong-key")

def receipts(keys, b):  # of an export: its genuine statements by index, all indexes, and the digests of all envelopes
    (size, root, bad), every, found, last, any_fits, strange = head(keys, b["head"]), b.get("all"), {}, -1, False, False
    envelopes = [enveloped(r) for r in b["receipts"]]
    roots = list(trees([sha256(b"\0" + e) for e in envelopes])) if every else []
    whole = every and len(envelopes) == size and roots[-1] == root
    for n, (r, e) in enumerate(zip(b["receipts"], envelopes)):
        at, (s, fault) = r["index"], statement(keys.at, e, "run", "verdict", "fork", "key")
        if not fault and s["predicateType"].endswith("/key/v1"):
            fault = "" if e in keys.texts else "forked"
        elif not fault and s["predicate"]["ledger"]["index"] >= keys.revoked.get(keys.at(s).id, 1 << 63):
            fault = "revoked"
        fits = whole if every else at < size and proven(at, size, sha256(b"\0" + e), r.get("proof", [])) == root
        kind = ("wrong-key" if fault == "foreign" else fault if fault in ("revoked", "forked") else "recomputed" if fault and fits else "edited" if fault
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
    for (at, _, _), e, r in zip(keys.links[1:], keys.texts, b.get("keys", [])):
        if not bad and at < size and not (told or e == envelopes[at] if every else proven(at, size, sha256(b"\0" + e), r.get("proof", [])) == root):
            tell("not-included", f"receipt {at}", "this change of keys is not shown to be in the ledger")
    return {at: s for at, s in found.items() if s}, set(found), {"sha256:" + sha256(e).hex() for e in envelopes}

def bundle(pinned, sums, texts):
    if "contents.json" not in sums:
        return tell("truncated", "contents.json", "the bundle ends before it, and it is the last file") or {}
    b, keys = None, Keys(pinned, [])
    with contextlib.suppress(*ODD):
        keys = Keys(pinned, (b := json.loads(texts["receipts.json"])).get("keys", []))
    if keys.bad:
        return {}
    s, fault = statement(lambda _: keys.newest, texts["contents.json"].rstrip(b"\n"), "bundle")
    wanted, says, found = {f["name"]: f["digest"]["sha256"] for f in s["subject"]} if s else {}, s["predicate"] if s else {}, {}
    if fault:
        tell("wrong-key" if fault == "foreign" else "recomputed" if wanted and wanted.items() <= sums.items() else "edited", "contents.json", "this key did not sign it")
        wanted, says = {}, {}
    try:
        found, there, ids = receipts(keys, b or json.loads(texts["receipts.json"]))
        odd, seen = there ^ set(says.get("receipts", there) if not b.get("all") else there), {where for _, where in told}
        for at in sorted(at for at in odd if f"receipt {at}" not in seen):
            tell("added" if at in there else "dropped", f"receipt {at}", "the bundle was made otherwise")
    except (ValueError, TypeError, KeyError):
        tell("edited" if "receipts.json" in sums else "missing", "receipts.json", "it is not an export")
    for name in ("contents.json", "receipts.json") if told else ("contents.json",):
        sums.pop(name, None), wanted.pop(name, None)
    for at, p in sorted((at, s["predicate"]) for at, s in found.items()):
        if (p.get("act") in ("approve", "reject") or "sign_off" in p) and not signed_off(keys.origin, p):
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
        keys = Keys(key, (b := json.loads(args.file.read_bytes())).get("keys", [])) if plain else None
        found = bundle(key, sums, texts) if not plain else {} if keys.bad else receipts(keys, b)[0]
    except (*ODD, OSError) as e:
        tell("edited", args.file, f"it can't be read: {e!r}")
    for line in [f"{at} {s['predicate']['key']}" for at, s in sorted(found.items())] + ["not shown: " + o for o in open_ends]:
        print(ascii(line)[1:-1])
    sys.exit(f"FAILED: {len(told)} problems" if told else print(f"verified: {len(found)} receipts, key {key.id}"))

if __name__ == "__main__":
    main()
