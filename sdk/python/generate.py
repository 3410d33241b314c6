"""Makes pando/_sync of pando/_async: the same without asyncio. With --check it only
says whether that was done."""

import io
import os
import sys
import tokenize

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pando")
HEAD = "# Made by generate.py of ../_async. Do not edit.\n"

DROPPED = {"async", "await"}
NAMES = {
    "_aio_net": "_net", "__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__", "AsyncIterator": "Iterator",
}


def waiting(source: str) -> str:
    """The same source for those who wait."""
    lines = source.splitlines(keepends=True)
    edits = []
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    for i, t in enumerate(tokens):
        if t.type == tokenize.NAME and t.string in DROPPED:
            edits.append((t.start, tokens[i + 1].start, ""))  # with the space behind it
        elif t.type == tokenize.NAME and t.string in NAMES:
            edits.append((t.start, t.end, NAMES[t.string]))
        elif t.type == tokenize.NAME and t.string == "Awaitable" and tokens[i + 1].string == "[":  # Awaitable[T] is a T
            edits.append((t.start, tokens[i + 1].end, ""))
            depth, j = 1, i + 2
            while depth:
                depth += {"[": 1, "]": -1}.get(tokens[j].string, 0)
                j += 1
            edits.append((tokens[j - 1].start, tokens[j - 1].end, ""))
        elif tokenize.tok_name[t.type] in ("STRING", "FSTRING_MIDDLE") and t.start[0] == t.end[0] and "pando.aio." in t.string:
            edits.append((t.start, t.end, t.string.replace("pando.aio.", "pando.")))
    for (row, start), (_, end), text in sorted(edits, reverse=True):
        line = lines[row - 1]
        lines[row - 1] = line[:start] + text + line[end:]
    return HEAD + "".join(lines).replace("Awaitable, ", "")


def main() -> None:
    old = []
    for name in sorted(os.listdir(os.path.join(HERE, "_async"))):
        if not name.endswith(".py") or name == "__init__.py":
            continue
        with open(os.path.join(HERE, "_async", name), encoding="utf-8") as f:
            made = waiting(f.read())
        path = os.path.join(HERE, "_sync", name)
        try:
            with open(path, encoding="utf-8") as f:
                is_old = f.read() != made
        except FileNotFoundError:
            is_old = True
        if is_old:
            old.append(name)
            if "--check" not in sys.argv:
                with open(path, "w", encoding="utf-8") as f:
                    f.write(made)
    if old and "--check" in sys.argv:
        sys.exit("out of date: " + ", ".join(old) + " of pando/_sync: python3 sdk/python/generate.py")


if __name__ == "__main__":
    main()
