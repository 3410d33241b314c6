"""Files of cells, as tar archives."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from typing import IO, Optional, Tuple

from . import errors

def packed(name: str, data: bytes, mode: int) -> bytes:
    b = io.BytesIO()
    with tarfile.open(fileobj=b, mode="w", format=tarfile.PAX_FORMAT) as t:
        h = tarfile.TarInfo(name)
        h.size, h.mode = len(data), mode
        t.addfile(h, io.BytesIO(data))
    return b.getvalue()


def place(path: str) -> Tuple[str, str]:
    """Splits the path of a file into its directory and name."""
    directory, name = os.path.split(path)
    if name in ("", ".", "..") or "\0" in path:  # an archive would cut the name there
        raise errors.Invalid(f"cannot write {path!r}: it is no path of a file", "give the path of a file")
    return directory or ".", name


def unpacked(path: str, archive: bytes) -> bytes:
    """The one file of an archive."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as t:
        h = t.next()
        if h is None:
            raise errors.NotFound(f"cannot read {path}: nothing was sent")
        f = t.extractfile(h) if h.isreg() else None
        if f is None:
            what = "a directory" if h.isdir() else f"a symlink to {h.linkname}" if h.issym() else "no file"
            raise errors.Invalid(f"cannot read {path}: it is {what}", "use download for directories, and read what a symlink leads to")
        return f.read()


def pack(source: str, name: str, f: IO[bytes]) -> None:
    """Writes a file or directory to an archive, as name."""
    with tarfile.open(fileobj=f, mode="w", format=tarfile.PAX_FORMAT) as t:
        t.add(source, name, filter=_plain)


def _plain(h: tarfile.TarInfo) -> Optional[tarfile.TarInfo]:
    """Only files, directories and symlinks can be copied. A second name of a file
    becomes a file of its own."""
    return h if h.isreg() or h.isdir() or h.issym() else None


def extract(source: IO[bytes], to: str) -> None:
    """Extracts what a cell sends. It is the cell's word: no name in it may lead out
    of the destination, and no symlink is followed."""
    top = os.path.abspath(to)
    with tarfile.open(fileobj=source, mode="r|") as t:
        for h in t:
            parts = [p for p in h.name.split("/") if p not in ("", ".")][1:]
            if ".." in parts:
                raise errors.Denied(f"cannot copy {h.name!r}: it leads out of the destination")
            at = top
            for p in parts[:-1]:
                at = os.path.join(at, p)
                if os.path.islink(at) or not os.path.isdir(at):
                    raise errors.Denied(f"cannot copy {h.name!r}: it leads through what is no directory")
            if parts:
                at = os.path.join(at, parts[-1])
            if h.isdir():
                if os.path.islink(at) or not os.path.isdir(at):
                    _away(at)
                    os.mkdir(at)
                continue
            _away(at)
            if h.issym():
                os.symlink(h.linkname, at)
            elif h.isreg():
                f = t.extractfile(h)
                assert f is not None
                with open(os.open(at, os.O_WRONLY | os.O_CREAT | os.O_EXCL, h.mode & 0o777), "wb") as out:
                    shutil.copyfileobj(f, out)


def _away(path: str) -> None:
    """Removes what is no directory."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
