#!/usr/bin/env python3
"""Checks receipts of pando without pando's code: nothing but docs/format.md and Python.
    verify.py FILE                    what `pando receipt export` wrote: a bundle or JSON
    verify.py FILE --key pando.pub    with the key of `pando receipt key`, got another way
"""
import argparse, base64, contextlib, functools, hashlib, itertools, json, pathlib, sys, tarfile
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
    roots = [pow(square, (P + 3) // 8, P) * unit % P for unit in (1, pow(2, (P - 1) // 4, P))]
    xs = [x for r in roots for x in (r, P - r) if (x * x - square) % P == 0 and x & 1 == sign and x < P]
    return (xs[0], y, 1, xs[0] * y % P) if xs and y < P else None
def signed(key, message, signature):
    a, r, s = point(key), point(signature[:32]), int.from_bytes(signature[32:], "little")
    if len(signature) != 64 or a is None or r is None or s >= ORDER: return False
    h = int.from_bytes(hashlib.sha512(signature[:32] + key + message).digest(), "little") % ORDER
    left, right = times(s, point((4 * pow(5, P - 2, P) % P).to_bytes(32, "little"))), add(r, times(h, a))
    return all((left[i] * right[2] - right[i] * left[2]) % P == 0 for i in (0, 1))
sha256, un64 = lambda data: hashlib.sha256(data).digest(), lambda text: base64.b64decode(text, validate=True)
to64, node = lambda data: base64.b64encode(data).decode(), lambda left, right: sha256(b"\x01" + left + right)
named, leaf = lambda data: "sha256:" + sha256(data).hex(), lambda envelope: sha256(b"\0" + envelope)
enveloped = lambda r: json.dumps(r["envelope"], separators=(",", ":")).encode()
TYPE, ED25519 = "application/vnd.in-toto+json", bytes.fromhex("302a300506032b6570032100")  # the latter of PKIX
FORM = '{"payload":"%s","payloadType":"%s","signatures":[{"keyid":"%s","sig":"%s"}]}'
ODD = (ValueError, LookupError, TypeError, AttributeError)  # what wrong forms lead to
told, open_ends = [], ["that no newer receipts were cut off: compare the head with one that you know"]
class Key:
    def __init__(self, text):  # PEM, or "ed25519:" and base64
        pem = text.partition("-----BEGIN PUBLIC KEY-----")[2].partition("-----END PUBLIC KEY-----")[0]
        der = un64("".join(pem.split())) if pem else ED25519 + un64(text.split("ed25519:")[1])
        if der[:-32] != ED25519: raise ValueError("the key is not an Ed25519 key")
        self.raw, self.id, self.text, self.at = der[-32:], named(der), "ed25519:" + to64(der[-32:]), lambda says: self
class Keys:  # of an export; links are (index of a change, its digest, the key from there on, what it revokes)
    def __init__(self, pinned, text):
        self.export, self.links, self.texts, changes = {}, [(-1, "", pinned, {})], [], []
        with contextlib.suppress(*ODD):
            self.export = json.loads(text)
            changes = self.export.get("keys", [])
            self.texts, e = [enveloped(c) for c in changes], changes[0]["envelope"]
            first = Key(json.loads(un64(e["payload"]))["predicate"]["by"])
            self.links = [(-1, "", first if e["signatures"][0]["keyid"] == first.id else pinned, {})]
        self.origin = "pando.dev/ledger/" + self.links[0][2].id[7:23]
        self.bad = next(filter(None, map(self.change, changes, self.texts)), "")
        self.bad = self.bad or ("" if pinned.id in [link[2].id for link in self.links] else "wrong-key")
        tell(self.bad, "keys", "the history of keys is not right, or not of this key")
    def at(self, says):  # the key that signs the receipt which says so
        return [key for index, _, key, _ in self.links if index < max(says["predicate"]["ledger"]["index"], 0)][-1]
    def change(self, c, text):  # takes in a change, or says what is wrong with it
        (before, last, old, _), known = self.links[-1], [link[2].id for link in self.links]
        s, fault = statement(old, text, "key")
        with contextlib.suppress(*ODD):
            at, p, gone = c["index"], s["predicate"], s["predicate"].get("revoked") or {}
            key = Key(p["next"]["key"]) if p.get("next") else old
            claim = f"pando ledger key 1\n{self.origin}\n{at}\n{p['ledger']['root']}\n{old.id}\n{key.id}\n".encode()
            proof = key is old or key.id not in known and signed(key.raw, claim, un64(p["next"]["proof"]))
            sound = gone["key"] in known and 0 <= gone["since"] <= at and (gone["key"] == old.id) == (key is not old) if gone else key is not old
            fault = fault or ("dropped" if p.get("previous", "") != last else "reordered" if p["ledger"]["index"] != at
                              or at <= before else "wrong-key" if not proof
                              else "" if sound and (p["by"], p["act"]) == (old.text, "revoke" if gone else "rotate") else "edited")
            self.links += [] if fault else [(at, named(text), key, gone)]
            return fault
        return fault or "edited"
def statement(signer, envelope, *types):  # what it says if it has the form, and what is wrong: "edited", "wrong-key" or ""
    try:
        e = json.loads(envelope)
        payload, keyid, sig = un64(e["payload"]), e["signatures"][0]["keyid"], un64(e["signatures"][0]["sig"])
        says, written = json.loads(payload), (FORM % (to64(payload), TYPE, keyid, to64(sig))).encode()
        key, kinds = signer.at(says), [("https://in-toto.io/Statement/v1", f"https://pando.dev/{t}/v1") for t in types]
        if written != envelope or (says["_type"], says["predicateType"]) not in kinds: return None, "edited"
    except ODD: return None, "edited"
    good = signed(key.raw, b"DSSEv1 %d %s %d " % (len(TYPE), TYPE.encode(), len(payload)) + payload, sig)
    return says, "" if good and keyid == key.id else "edited" if good or keyid == key.id else "wrong-key"
def signed_off(origin, act):  # whether an approver signed what the receipt says, of this cell and these changes, here
    with contextlib.suppress(*ODD):
        said, same = act["sign_off"], ("approver", "decision", "commit", "runs", "message", "at")
        s, fault = statement(Key(said["key"]), said["envelope"].encode(), "sign-off")
        digest = named("pando changes 1\n{base}\n{after}\n".format(**(p := s["predicate"])).encode())
        here = [act["act"], act["cell"], act["digest"], said["digest"], origin, s["subject"]]
        there = [p["decision"], p["cell"], digest, digest, p["ledger"], [{"name": "changes", "digest": {"sha256": digest[7:]}}]]
        return not fault and act["act"] in ("approve", "reject") and here == there and all(p.get(k) == said.get(k) for k in same)
def trees(leaves):  # RFC 6962: the root of those before each leaf, and at last that of all
    peaks = []
    for at, leaf in enumerate([*leaves, b""]):
        yield functools.reduce(lambda right, left: node(left, right), peaks[::-1] or [sha256(b"")])
        peaks.append(leaf)
        while at & 1: peaks[-2:], at = [node(*peaks[-2:])], at >> 1
def proven(at, size, hash, proof):  # the root, as in RFC 9162, 2.1.3.2; above `inner` all that is added is on the left
    inner = (at ^ size - 1).bit_length()
    for level, other in enumerate(bytes.fromhex(digest[7:]) for digest in proof):
        hash = node(other, hash) if level >= inner or at >> level & 1 else node(hash, other)
    return hash if len(proof) == inner + bin(at >> inner).count("1") else None
def head(keys, note):  # size and root (C2SP tlog-checkpoint), and what is wrong; signatures of other keys do not count
    try:
        text, signatures = note.split("\n\n", 1)
        origin, size, root, *change = text.split("\n")
        heads = [[f"keys {id}"] if id else [] for _, id, _, _ in keys.links]
        at = heads.index(change) if change in heads else -1
        size, root, key, start = int(size), un64(root), keys.links[at][2], f"\u2014 {keys.origin} "
        lines = [un64(line.split(" ")[2]) for line in signatures.splitlines() if line.startswith(start)]
        own = [line[4:] for line in lines if line[:4] == sha256(keys.origin.encode() + b"\n\x01" + key.raw)[:4]]
    except (ValueError, LookupError): return -1, b"", "edited"
    bad = "wrong-key" if not own or origin != keys.origin else "" if signed(key.raw, f"{text}\n".encode(), own[0]) else "edited"
    return size, root, bad or ("dropped" if at < 0 else "" if at + 1 == len(keys.links) else "wrong-key")
def receipts(keys):  # the genuine statements of an export, by index
    (size, root, bad), every, found, last = head(keys, keys.export["head"]), keys.export.get("all"), {}, -1
    envelopes = [enveloped(r) for r in keys.export["receipts"]]
    roots = list(trees(map(leaf, envelopes))) if every else []
    whole = every and len(envelopes) == size and roots[-1] == root
    shown = lambda r, e, at: at < size and proven(at, size, leaf(e), r.get("proof", [])) == root
    fits = [whole if every else shown(r, e, r["index"]) for r, e in zip(keys.export["receipts"], envelopes)]
    for r, e, fit in zip(keys.export["receipts"], envelopes, fits):
        at, (s, fault) = r["index"], statement(keys, e, "run", "verdict", "fork", "key")
        index, key = (s["predicate"]["ledger"]["index"], keys.at(s).id) if s else (at, "")
        revoked = any(gone and gone["key"] == key and index >= gone["since"] for *_, gone in keys.links)
        fault = ("recomputed" if fault == "edited" and fit else fault) or ("" if e in keys.texts else
                 "forked" if s["predicateType"].endswith("/key/v1") else "revoked" if revoked else "")
        kind = fault or ("reordered" if index != at else "repeated" if at in found else "reordered" if at < last
                         else "" if bad else "truncated" if at >= size else "" if fit or every else "not-included")
        tell(kind, f"receipt {at}", "it is not what was written there")
        found[at], last = None if fault else s, max(last, at)
    good = [at for at, s in found.items() if s and at < size]  # the others say nothing of what is missing
    gap = range(0 if every else min(good, default=0), 0 if keys.export.get("chosen") else max(good, default=0))
    missing = (f"receipt {at}" for at in gap if at not in found) if every or envelopes else ["receipts"]
    for where in itertools.islice(missing, 100): tell("dropped", where, "it is missing")
    tell("recomputed" if bad == "edited" and any(fits) else bad, "head", "this key did not sign it")
    tell(every and not bad and last + 1 < size and "truncated", f"receipt {last + 1}", f"the head signs {size} receipts")
    same = whole and not told and all(s["predicate"]["ledger"]["root"][7:] == r.hex() for s, r in zip(found.values(), roots))
    tell(every and not told and not same and "forked", "head", "these are not the receipts that it signs")
    for r, e, (at, *_) in [] if bad else zip(keys.export.get("keys", []), keys.texts, keys.links[1:]):
        tell(at < size and not (told or e == envelopes[at] if every else shown(r, e, at)) and "not-included", f"receipt {at}", "this change of keys is not shown to be in the ledger")
    return {at: s for at, s in found.items() if s}
def bundle(pinned, sums, texts):  # the genuine statements of a bundle, by index
    keys, found, there, erased = Keys(pinned, texts.get("receipts.json", "") if "contents.json" in sums else ""), {}, {}, {}
    tell("contents.json" not in sums and "truncated", "contents.json", "the bundle ends before it, and it is the last file")
    if keys.bad or "contents.json" not in sums: return {}
    s, fault = statement(keys.links[-1][2], texts["contents.json"].rstrip(b"\n"), "bundle")
    wanted = {f["name"]: f["digest"]["sha256"] for f in s["subject"]} if s else {}
    tell("recomputed" if fault == "edited" and wanted and wanted.items() <= sums.items() else fault, "contents.json", "this key did not sign it")
    wanted, says = ({}, {}) if fault else (wanted, s["predicate"])
    try:
        found, there = receipts(keys), {r["index"]: named(enveloped(r)) for r in keys.export["receipts"]}
        odd, seen = set() if keys.export.get("all") else there.keys() ^ set(says.get("receipts", there)), set(told)
        for at in sorted(at for at in odd if f"receipt {at}" not in seen):
            tell("added" if at in there else "dropped", f"receipt {at}", "the bundle was made otherwise")
    except ODD: tell("edited" if "receipts.json" in sums else "missing", "receipts.json", "it is not an export")
    judged = ("contents.json", "receipts.json") if told else ("contents.json",)
    for at, p in sorted((at, s["predicate"]) for at, s in found.items()):
        odd = (p.get("act") in ("approve", "reject") or "sign_off" in p) and not signed_off(keys.origin, p)
        tell(odd and "edited", f"receipt {at}", "it is not what its approver signed")
        open_ends.extend(f"what receipt {at} comes from, {id}" for id in set(p.get("parents", [])) - set(there.values()))
        wanted.update({f"runs/{p['run']}/{name}": digest[7:] for name, digest in p.get("files", {}).items()})
        for e in p["erased"] if p.get("act") == "erase" else []:
            how = e["digest"][7:], e.get("found"), f"erased on {p['at'][:10]} by {p['by']}, for: {p['reason']}"
            erased[f"runs/{e['run']}/{e['file']}"] = how
    for name in (name for name in says.get("absent", []) if name not in sums):
        digest, odd, how = erased.get(name, ("", "", ""))
        was = wanted.get(name) if odd else wanted.pop(name, None)
        open_ends.append(was and f"what {name} said: it was {how if was == digest else 'gone when the bundle was made'}")
    for name in sorted({n for n, _ in sums.items() ^ wanted.items() if n not in judged and (n in wanted or not fault)}):
        tell("added" if name not in wanted else "edited" if name in sums else "missing", name, "its digest is not the one signed for it")
    return found
def read(path):  # the digests of an archive's files, and the text of some
    sums, texts, size = {}, {}, path.stat().st_size
    with contextlib.suppress(tarfile.TarError, EOFError), tarfile.open(path, "r:") as t:  # what can't be read is missing
        for m in itertools.takewhile(lambda m: m.issparse() or 0 <= m.size <= size, t):
            twice, plain = m.name in sums, m.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not m.issparse()
            kind = "repeated" if twice and m.isreg() else "added" if twice or not plain else ""
            tell(kind, m.name, "it is there twice, or no plain file")
            if not kind:
                f, keep = t.extractfile(m), m.name in ("contents.json", "receipts.json", "key.pub")
                h = hashlib.sha256(texts.setdefault(m.name, f.read()) if keep else b"")
                while chunk := f.read(1 << 20): h.update(chunk)
                sums[m.name] = h.hexdigest()
    return sums, texts
def tell(kind, where, what):  # what is wrong; nothing if there is no kind
    told.extend([where] if kind else [])
    if kind and len(told) <= 100: print(kind, ascii(f"{where}: {what}")[1:-1])  # a name can have anything in it
args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
[args.add_argument(name, type=pathlib.Path) for name in ("file", "--key")]
args, found = args.parse_args(), {}
try:
    sums, texts = ({}, {}) if (plain := args.file.open("rb").read(1) == b"{") else read(args.file)
    open_ends.append(not args.key and "that the key is the installation's: it came with the bundle. Get another for --key")
    key = Key(args.key.read_text() if args.key else texts["key.pub"].decode())
    keys = Keys(key, args.file.read_bytes()) if plain else None
    found = bundle(key, sums, texts) if not plain else {} if keys.bad else receipts(keys)
except (*ODD, OSError) as e: tell("edited", args.file, f"it can't be read: {e!r}")
for line in [f"{at} {s['predicate']['key']}" for at, s in sorted(found.items())] + [f"not shown: {o}" for o in filter(None, open_ends)]:
    print(ascii(line)[1:-1])
sys.exit(f"FAILED: {len(told)} problems" if told else print(f"verified: {len(found)} receipts, key {key.id}"))
