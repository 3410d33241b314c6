# Values as cell.Value says: JSON where it is exact, one-key objects for what JSON
# has no word for; nothing where there is no exact form, but its text in what holds it.

import binascii
import collections

EXACT_INT = 1 << 53
MAX_JSON = 1 << 20  # bytes
MAX_DEPTH = 200  # which is how cycles end, too
MAX_OPAQUE = 1000  # characters of what is in something else and has no form
MAX_INT_BITS = 400000  # beyond, writing the digits takes too long


class Inexact(Exception):
    """A value has no form in JSON."""


class TooMuch(Inexact):
    """What holds it would be too long or too deep."""


def base64(data):
    return binascii.b2a_base64(data, newline=False).decode()


def spend(left, n):
    left[0] -= n
    if left[0] < 0:
        raise TooMuch


def plain_str(v, left):
    spend(left, len(v) + 2)
    if v.isascii():
        return v
    try:
        v.encode()
        return v
    except UnicodeEncodeError:
        return {"$str": base64(v.encode("utf-8", "surrogatepass"))}


def plain_int(v, left):
    if -EXACT_INT <= v <= EXACT_INT:
        spend(left, 2)
        return int(v)
    if v.bit_length() > MAX_INT_BITS:
        raise Inexact
    spend(left, v.bit_length() // 3)
    return {"$int": digits(v)}


def digits(v):
    """str(v), also where Python refuses because it may take long."""
    try:
        return str(int(v))
    except ValueError:
        limit = sys.get_int_max_str_digits()
        sys.set_int_max_str_digits(0)
        try:
            return str(int(v))
        finally:
            sys.set_int_max_str_digits(limit)


def plain_float(v, left):
    spend(left, 3)
    if v != v:
        return {"$float": "NaN"}
    if v in (float("inf"), float("-inf")):
        return {"$float": "Infinity" if v > 0 else "-Infinity"}
    return float(v)


def plain_list(v, left, depth):
    spend(left, 2 + len(v))
    return [part(x, left, depth + 1) for x in v]


def part(v, left, depth):
    """plain of what is in something else, whose form it is not to cost it."""
    try:
        return plain(v, left, depth)
    except TooMuch:
        raise
    except Inexact:
        name, (text, _) = type_name(type(v)), repr_of(v, MAX_OPAQUE)
        spend(left, len(name) + len(text))
        return {"$opaque": {"type": name, "repr": text if utf8(text) else ascii(text)}}


def plain_dict(v, left, depth):
    spend(left, 2 + len(v))
    if all(type(k) is str and not k.startswith("$") and (k.isascii() or utf8(k)) for k in v):
        return {plain_str(k, left): part(x, left, depth + 1) for k, x in v.items()}
    return {"$dict": [[part(k, left, depth + 1), part(x, left, depth + 1)] for k, x in v.items()]}


def utf8(s):
    try:
        s.encode()
        return True
    except UnicodeEncodeError:
        return False


def plain_set(v, left, depth):
    items = plain_list(v, left, depth)
    return {"$set": sorted(items, key=to_json)}  # the order of a set means nothing


def plain_bytes(v, left):
    spend(left, len(v) * 4 // 3)
    return {"$bytes": base64(v)}


LISTS = []  # types whose values are lists with other methods
DICTS = (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)


def plain(v, left, depth=0):
    """v in words of JSON, or Inexact. left is the budget of bytes, about."""
    t = type(v)
    if t is str:
        return plain_str(v, left)
    if v is None or t is bool:
        spend(left, 4)
        return v
    if t is int:
        return plain_int(v, left)
    if t is float:
        return plain_float(v, left)
    if depth > MAX_DEPTH:
        raise TooMuch
    if t is list:
        return plain_list(v, left, depth)
    if t in DICTS:
        return plain_dict(v, left, depth)
    if t is tuple or (issubclass(t, tuple) and hasattr(t, "_fields") and t.__iter__ is tuple.__iter__):
        return {"$tuple": plain_list(v, left, depth)}
    if t is bytes or t is bytearray:
        return plain_bytes(v, left)
    if t is set or t is frozenset:
        return plain_set(v, left, depth)
    if t in LISTS:
        return plain_list(v, left, depth)
    return plain_numpy(v, t, left, depth)


def plain_numpy(v, t, left, depth):
    """Arrays and scalars of numpy, which is not imported for it."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        raise Inexact
    array_type, scalar = getattr(numpy, "ndarray", None), getattr(numpy, "generic", None)
    if t is not array_type and not (isinstance(scalar, type) and issubclass(t, scalar)):
        raise Inexact
    kind = v.dtype.kind
    if kind not in "biufSUO" or (kind == "f" and v.dtype.itemsize > 8):
        raise Inexact
    spend(left, v.size * 2)
    left[0] += v.size * 2  # its elements pay for themselves
    return plain(v.tolist(), left, depth)


def json_of(v):
    """The text of v's JSON, "" where there is none, and whether that is for its length."""
    t = type(v)
    if t is int and -EXACT_INT <= v <= EXACT_INT:
        return str(v), False
    if t is str and len(v) < 1000 and v.isascii():
        return quote(v), False
    try:
        text = to_json(plain(v, [MAX_JSON]), ensure_ascii=False, separators=(",", ":"))
    except (TooMuch, RecursionError):
        return "", True
    except Inexact:
        return "", False
    if len(text) > MAX_JSON or (not text.isascii() and len(text.encode()) > MAX_JSON):
        return "", True
    return text, False


def type_name(t):
    module, name = getattr(t, "__module__", ""), getattr(t, "__qualname__", "?")
    if not isinstance(module, str) or not isinstance(name, str):
        return "?"
    return (name if module in ("", "builtins") else module + "." + name)[:1000]


def repr_of(v, limit):
    """repr(v) and how many characters of it were left out; never an exception."""
    try:
        r = repr(v)
        if not isinstance(r, str):
            raise TypeError("it is no str")
    except Exception as e:
        if type(v) is int:
            r = hex(v)  # more digits than Python is willing to write
        else:
            r = "<%s: its repr failed: %s>" % (type_name(type(v)), describe(e))
    return r[:limit], max(0, len(r) - limit)


def describe(e):
    try:
        return "%s: %s" % (type(e).__name__, e)
    except Exception:
        return type(e).__name__
