# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Damages files of a recorded tree, and undoes the damage afterwards."""

from __future__ import annotations

import os
import shutil


def entries_below(root):
    found = []
    for folder, folders, files in os.walk(root):
        found += [os.path.relpath(os.path.join(folder, name), root) for name in folders + files]
    return sorted(found)


def _with_inverted_bit(content, junk):
    """The content with one inverted bit."""
    position = len(junk) % max(len(content), 1)
    changed = bytes(byte ^ 1 << len(junk) % 7 for byte in content[position : position + 1])
    return content[:position] + changed + content[position + 1 :]


#: The new content of a file, by kind of damage.
_CONTENTS = {
    "cut": lambda content, junk: content[: len(junk) % max(len(content), 1)],
    "empty": lambda content, junk: b"",
    "junk": lambda content, junk: junk,
    "flip": _with_inverted_bit,
    "zeroes": lambda content, junk: content[: len(junk) % max(len(content), 1)].ljust(len(content), b"\0"),
    "odd": lambda content, junk: junk + b"\n",
}
#: What replaces an entry that was removed, by kind of damage.
_ENTRIES = {
    "folder": os.mkdir,
    "fifo": os.mkfifo,
    "loop": lambda path: path.symlink_to(path.name),
    "dangling": lambda path: path.symlink_to("../missing/target"),
}


class Damage:
    """Damages files below a root. On exit, all changes are undone, the last first."""

    def __init__(self, root):
        self._root = root
        self._outside_root = root.parent / "outside-root"
        self._undo = []

    def __enter__(self):
        self._outside_root.mkdir()
        (self._outside_root / "outside/node0").mkdir(parents=True)
        for name, text in (("numa_node", "1\n"), ("cpulist", "0-99\n"), ("node0/cpulist", "0-99\n")):
            (self._outside_root / "outside" / name).write_text(text, encoding="utf-8")
        return self

    def __exit__(self, *error):
        for undo, arguments in reversed(self._undo):
            undo(*arguments)
        shutil.rmtree(self._outside_root)

    def apply(self, kind, entry, junk=b"", other=None):
        """Damage a file, folder or link.

        kind: a key of `_CONTENTS` or `_ENTRIES`, or `gone` (removed), `renamed`, `not-utf-8` (a folder beside it whose
            name is not UTF-8), `another` (replaced by a copy of `other`) or `outside` (by a link out of the root).
        junk: the bytes for some contents. Its length determines the position in others.
        """
        path = self._root / entry
        if not os.path.lexists(path) or not os.path.realpath(path.parent).startswith(f"{self._root}/"):
            return  # an earlier change removed it
        if kind == "renamed":
            renamed = path.with_name(f"{path.name}~{len(self._undo)}")
            path.rename(renamed)
            self._undo.append((renamed.rename, (path,)))
            return
        if kind == "not-utf-8":
            name = os.fsencode(path.parent) + b"/\xff%d" % len(self._undo)
            os.mkdir(name)
            self._undo.append((os.rmdir, (name,)))
            return
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        kept = self._outside_root / str(len(self._undo))
        path.rename(kept)
        self._undo.append((self._restore, (path, kept)))
        if kind in _CONTENTS:
            path.write_bytes(_CONTENTS[kind](content, junk))
        elif kind in _ENTRIES:
            _ENTRIES[kind](path)
        elif kind == "another":
            self._copy(path, kept if other == entry else self._root / other, moved=other == entry)
        elif kind == "outside":
            path.symlink_to(self._outside_root / "outside" / ("numa_node" if kept.is_file() else ""))

    @staticmethod
    def _copy(path, source, moved):
        if source.is_symlink():
            target = os.readlink(source) if moved else os.path.realpath(source)
            path.symlink_to(os.path.relpath(target, os.path.realpath(path.parent)))
        else:
            path.write_bytes(source.read_bytes() if source.is_file() else b"")

    @staticmethod
    def _restore(path, kept):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif os.path.lexists(path):
            path.unlink()
        kept.rename(path)
