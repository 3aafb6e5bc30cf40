# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How release 1.0.0 read a report's folder: copies of its functions, never to be changed. The folder `1.0.0` is
what it wrote for two nodes and one that it could not reach, without the pages."""

from __future__ import annotations

import json
import pathlib
import typing as t

_SPLIT = b'\n"facts": '


def read_store(path: pathlib.Path) -> tuple[str, str, str]:
    raw = path.read_bytes()
    head, found, tail = raw.partition(_SPLIT)
    known = json.loads(head.rstrip(b",") + b"}")
    host, changed = known["host"], known["facts_changed"]
    if not found or not tail.endswith(b"}\n}\n"):
        raise ValueError
    return host, str(changed), tail[:-3].decode("ascii")


def site_file(folder: pathlib.Path) -> dict[str, t.Any]:
    try:
        known = json.loads((folder / "site.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def stored_facts(report: str) -> dict[str, dict[str, t.Any]]:
    folder = pathlib.Path(report)
    (folder / "site.json").stat()
    found: dict[str, dict[str, t.Any]] = {}
    for path in sorted((folder / "nodes").glob("*.json")):
        node = json.loads(path.read_bytes())
        found[node["host"]] = node["facts"]
    return found
