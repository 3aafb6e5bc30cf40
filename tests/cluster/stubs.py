# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The collection with some of its files replaced by stubs."""

from __future__ import annotations

import typing as t
from pathlib import Path

from ansible_collections.lanewise.dra.tests.common.places import COLLECTIONS


def stubbed(folder: Path, files: t.Mapping[str, str]) -> Path:
    """Create a collections folder with a copy of lanewise.dra, in which `files` are replaced. Returns `folder`."""
    collection = Path("ansible_collections", "lanewise", "dra")
    _mirror(COLLECTIONS / collection, folder / collection, {Path(name): content for name, content in files.items()})
    return folder


def _mirror(source: Path, stub: Path, files: t.Mapping[Path, str]) -> None:
    """Create the folder `stub` with symbolic links to the contents of `source`, except for `files`, which get the given
    contents."""
    stub.mkdir(parents=True)
    inner = {Path(path.parts[0]) for path in files}
    for entry in source.iterdir():
        name = Path(entry.name)
        if name in inner and name not in files:
            below = {path.relative_to(name): content for path, content in files.items() if path.parts[0] == entry.name}
            _mirror(entry, stub / name, below)
        elif name not in inner and not entry.name.startswith("."):
            (stub / name).symlink_to(entry)
    for path, content in files.items():
        if len(path.parts) == 1:
            (stub / path).write_text(content)
