# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# Note: this file is private to the collection.

"""The folder of a site report: facts of nodes as files, and pages and tables beside them.

``nodes/NAME.json`` has a node's facts and the time at which they last changed. Other files are generated from these.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import os
import pathlib
import re
import typing as t

from .report_formats import FORMATS, Unusable, check_facts_version, read_stored, version_in
from .values import Json

_SPLIT = b'\n"facts": '
_SAFE_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,98}[a-z0-9])?")


def file_name(host: str) -> str:
    """A unique file name stem for a host, which is its name if all characters are safe on every file system.

    Other names, including those with capital letters, get a part of their SHA-256.
    """
    if _SAFE_NAME.fullmatch(host) and ".." not in host:
        return host
    plain = re.sub(r"[^a-z0-9_-]+", "-", host.lower()).strip("-_")[:60]
    digest = hashlib.sha256(host.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{plain or 'node'}-{digest}"


_MAX_DEPTH = 40


def _plain(value: object, depth: int = 0) -> object:
    """A value in which null replaces everything that JSON cannot express."""
    if depth > _MAX_DEPTH or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, dict):
        return {str(key): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, depth + 1) for item in value]
    return value if value is None or isinstance(value, (str, int, float, bool)) else None


def facts_text(facts: Json) -> str:
    """Facts as JSON with one line for each function, interface, GPU and so on, so that diffs are short."""
    encode = functools.partial(json.dumps, sort_keys=True, allow_nan=False)
    try:
        encode(facts)
    except (TypeError, ValueError, RecursionError):
        facts = t.cast(Json, _plain(facts))
    sections = []
    for name in sorted(facts):
        value = facts[name]
        if isinstance(value, dict) and value:
            body = ",\n  ".join(f"{encode(str(key))}: {encode(value[key])}" for key in sorted(value))
            text = "{\n  " + body + "\n }"
        elif isinstance(value, list) and value:
            text = "[\n  " + ",\n  ".join(encode(item) for item in value) + "\n ]"
        else:
            text = encode(value)
        sections.append(f" {encode(str(name))}: {text}")
    return "{\n" + ",\n".join(sections) + "\n}"


class Stored(t.NamedTuple):
    """A node in the store."""

    host: str
    changed: str  #: when its facts last changed, in UTC
    facts: str  #: as `facts_text` writes them


class Store:
    """A report folder. If it is `dry`, nothing is written, and `changed` says whether something would be."""

    def __init__(self, folder: str, dry: bool = False) -> None:
        self.folder = pathlib.Path(folder)
        self.dry = dry
        self.changed = False
        self.warnings: list[str] = []

    def path(self, name: str) -> pathlib.Path:
        return self.folder / name

    def check(self) -> None:
        """Raises FileExistsError if the folder has an index page that does not belong to a report."""
        if self.path("index.html").exists() and not self.path("site.json").exists():
            raise FileExistsError(
                f"{self.folder} has an index.html that does not belong to a report; choose another folder"
            )

    def node(self, host: str) -> Stored | None:
        """A host's stored facts. Raises Unusable if only a newer release can read them."""
        return self._read(self.path(f"nodes/{file_name(host)}.json"))

    def _read(self, path: pathlib.Path, replaced: bool = False) -> Stored | None:
        """A stored node, or None with a warning for a damaged or foreign file, which this run may have `replaced`.

        Raises Unusable as `node` does.
        """
        try:
            raw = path.read_bytes()
        except OSError:
            return None
        head, separator, tail = raw.partition(_SPLIT)
        try:
            known = read_stored(json.loads(head.rstrip(b",") + b"}"), path)
            host, changed = known["host"], known["facts_changed"]
            if not separator or file_name(host) != path.stem or not tail.endswith(b"}\n}\n"):
                raise ValueError
            return Stored(host, str(changed), tail[:-3].decode("ascii"))
        except Unusable:
            raise
        except (ValueError, KeyError, TypeError, AttributeError):
            effect = "this run's facts replace it" if replaced else "it was left unchanged"
            self.warnings.append(f"{path}: not a stored node, so {effect}")
            return None

    def hosts(self, probed: t.Collection[str] = ()) -> dict[str, str]:
        """The stored hosts, each with the time at which its facts last changed.

        Raises Unusable for facts of a newer release, except those of hosts that were `probed` again.
        """
        hosts = {}
        written = {f"{file_name(host)}.json" for host in probed}
        for path in sorted(self.path("nodes").glob("*.json")):
            known = self._read(path, path.name in written)
            if known and known.host not in probed:
                check_facts_version(version_in(known.facts), f"{known.host} ({path})")
            if known:
                hosts[known.host] = known.changed
        return hosts

    def site(self) -> Json:
        """The content of ``site.json``; empty if it does not exist. Raises Unusable if it cannot be read."""
        path = self.path("site.json")
        try:
            return read_stored(json.loads(path.read_bytes()), path)
        except FileNotFoundError:
            return {}
        except Unusable:
            raise
        except (ValueError, RecursionError) as error:
            raise Unusable(
                f"{path} is damaged: {error}. It records which inventory each node belongs to. Restore it, or remove "
                "it and index.html. Both are then written again from the folder nodes, without nodes of other "
                "inventories."
            ) from None

    def write(self, name: str, content: bytes) -> None:
        """Replace a file atomically if its content differs, so that an interrupted run leaves the old file intact."""
        path = self.path(name)
        with contextlib.suppress(OSError):
            if path.read_bytes() == content:
                return
        self.changed = True
        if self.dry:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".tmp")
        temporary.unlink(missing_ok=True)
        with open(temporary, "xb") as stream:
            stream.write(content)
        os.replace(temporary, path)

    def write_node(self, node: Stored) -> None:
        head = json.dumps(FORMATS.write({"host": node.host, "facts_changed": node.changed}))
        text = head[:-1].encode() + b"," + _SPLIT + node.facts.encode() + b"\n}\n"
        self.write(f"nodes/{file_name(node.host)}.json", text)

    def remove_node(self, host: str) -> None:
        """Remove a node's facts and page."""
        for ending in ("html", "json"):
            path = self.path(f"nodes/{file_name(host)}.{ending}")
            if path.exists():
                self.changed = True
                if not self.dry:
                    path.unlink()
