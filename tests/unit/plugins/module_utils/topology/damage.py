# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Ways in which the files of a recorded tree can be broken."""

from __future__ import annotations

import os
import shutil


def entries_below(root):
    found = []
    for folder, folders, files in os.walk(root):
        found += [os.path.relpath(os.path.join(folder, name), root) for name in folders + files]
    return sorted(found)


def _flipped(content, junk):
    at = len(junk) % max(len(content), 1)
    changed = bytes(one ^ 1 << len(junk) % 7 for one in content[at : at + 1])
    return content[:at] + changed + content[at + 1 :]


#: The content of a damaged file, by kind of damage.
_CONTENTS = {
    "cut": lambda content, junk: content[: len(junk) % max(len(content), 1)],
    "empty": lambda content, junk: b"",
    "junk": lambda content, junk: junk,
    "flip": _flipped,
    "zeroes": lambda content, junk: content[: len(junk) % max(len(content), 1)].ljust(len(content), b"\0"),
    "odd": lambda content, junk: junk + b"\n",
}
#: What replaces a file or folder; `gone` only removes it.
_ENTRIES = {
    "folder": os.mkdir,
    "fifo": os.mkfifo,
    "loop": lambda path: path.symlink_to(path.name),
    "dangling": lambda path: path.symlink_to("../gone/away"),
}


class Damage:
    """Changes below a root that are undone at the end, the last one first."""

    def __init__(self, root):
        self._root = root
        self._aside = root.parent / "aside"
        self._undo = []

    def __enter__(self):
        self._aside.mkdir()
        (self._aside / "outside/node0").mkdir(parents=True)
        for name, text in (("numa_node", "1\n"), ("cpulist", "0-99\n"), ("node0/cpulist", "0-99\n")):
            (self._aside / "outside" / name).write_text(text, encoding="utf-8")
        return self

    def __exit__(self, *error):
        for undo, arguments in reversed(self._undo):
            undo(*arguments)
        shutil.rmtree(self._aside)

    def apply(self, kind, entry, junk=b"", other=None):
        """Damage `entry`. `junk` gives bytes, and its length a position; `another` puts a copy of `other` there."""
        path = self._root / entry
        if not os.path.lexists(path) or not os.path.realpath(path.parent).startswith(f"{self._root}/"):
            return  # an earlier change removed it
        if kind == "renamed":
            other = path.with_name(f"{path.name}~{len(self._undo)}")
            path.rename(other)
            self._undo.append((other.rename, (path,)))
            return
        if kind == "not-utf-8":
            name = os.fsencode(path.parent) + b"/\xff%d" % len(self._undo)
            os.mkdir(name)
            self._undo.append((os.rmdir, (name,)))
            return
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        kept = self._aside / str(len(self._undo))
        path.rename(kept)
        self._undo.append((self._restore, (path, kept)))
        if kind in _CONTENTS:
            path.write_bytes(_CONTENTS[kind](content, junk))
        elif kind in _ENTRIES:
            _ENTRIES[kind](path)
        elif kind == "another":
            self._copy(path, kept if other == entry else self._root / other, moved=other == entry)
        elif kind == "outside":
            path.symlink_to(self._aside / "outside" / ("numa_node" if kept.is_file() else ""))

    @staticmethod
    def _copy(path, source, moved):
        if source.is_symlink():
            home = os.readlink(source) if moved else os.path.realpath(source)
            path.symlink_to(os.path.relpath(home, os.path.realpath(path.parent)))
        else:
            path.write_bytes(source.read_bytes() if source.is_file() else b"")

    @staticmethod
    def _restore(path, kept):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif os.path.lexists(path):
            path.unlink()
        kept.rename(path)
