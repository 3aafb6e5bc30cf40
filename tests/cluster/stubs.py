# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The collection with other plugins in place of some of its own."""

from __future__ import annotations

import typing as t
from pathlib import Path

from ansible_collections.lanewise.dra.tests.common.places import COLLECTIONS


def stubbed(folder: Path, files: t.Mapping[str, str]) -> Path:
    """Make a folder of collections with lanewise.dra, in which some files have other contents. Returns the folder."""
    place = Path("ansible_collections", "lanewise", "dra")
    _mirror(COLLECTIONS / place, folder / place, {Path(name): content for name, content in files.items()})
    return folder


def _mirror(own: Path, stub: Path, files: t.Mapping[Path, str]) -> None:
    """Make a folder of links to all that another one has, except for these files."""
    stub.mkdir(parents=True)
    inner = {Path(path.parts[0]) for path in files}
    for one in own.iterdir():
        name = Path(one.name)
        if name in inner and name not in files:
            below = {path.relative_to(name): content for path, content in files.items() if path.parts[0] == one.name}
            _mirror(one, stub / name, below)
        elif name not in inner and not one.name.startswith("."):
            (stub / name).symlink_to(one)
    for path, content in files.items():
        if len(path.parts) == 1:
            (stub / path).write_text(content)
