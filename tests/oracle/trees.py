# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The nodes that are compared with the oracles: recorded trees, machines of tests/machines, and this machine.

`LANEWISE_TOPOLOGIES` names folders, separated by colons, in which every tar archive and every directory with a
`sys` directory is a node. The default is `../shared/topologies`. Unpacked and built trees are kept in `.cache/oracle`
(ignored by git) to make the next run faster.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
import typing as t
from pathlib import Path

from ansible_collections.lanewise.dra.tests.machines import builder, description

REPOSITORY = Path(__file__).resolve().parents[2]
CACHE = REPOSITORY / ".cache" / "oracle"
_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")


def _folders() -> list[Path]:
    configured = os.environ.get("LANEWISE_TOPOLOGIES")
    if configured:
        return [Path(part).resolve() for part in configured.split(os.pathsep) if part]
    return [REPOSITORY.parent / "shared" / "topologies"]


def _nodes(folder: Path, depth: int) -> t.Iterator[Path]:
    """The archives, and the directories with a `sys` directory, below `folder`. Their own contents are not searched."""
    if (folder / "sys").is_dir():
        yield folder
        return
    if depth == 0 or not folder.is_dir():
        return
    for entry in sorted(folder.iterdir()):
        if entry.is_dir():
            yield from _nodes(entry, depth - 1)
        elif entry.name.endswith(_ARCHIVES):
            yield entry


def _recorded() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for folder in _folders():
        for path in _nodes(folder, 4):
            name = path.name.partition(".tar")[0]
            while name in found:  # two folders may have a node of the same name
                name += "+"
            found[name] = path
    return found


RECORDED = _recorded()
MACHINES = description.names()
ALL = [*(f"recorded:{name}" for name in RECORDED), *(f"machine:{name}" for name in MACHINES), "live"]


def root_of(name: str) -> Path:
    """The root directory of the node `name` of `ALL`. It is unpacked or built first if necessary."""
    kind, _colon, rest = name.partition(":")
    if kind == "live":
        return Path("/")
    if kind == "machine":
        return builder.build(rest, CACHE / "machines" / rest)
    path = RECORDED[rest]
    return path if path.is_dir() else _unpack(rest, path)


def _unpack(name: str, archive: Path) -> Path:
    state = archive.stat()
    key = hashlib.sha256(f"{archive} {state.st_size} {state.st_mtime_ns}".encode()).hexdigest()[:12]
    out = CACHE / "trees" / f"{name}-{key}"
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".unpack-", dir=out.parent))
        try:
            with tarfile.open(archive) as tar:
                tar.extraction_filter = getattr(tarfile, "tar_filter", None)  # Python 3.11 has it from 3.11.4 on
                tar.extractall(work)
            os.rename(work, out)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    roots = list(_nodes(out, 4))
    if len(roots) != 1:
        raise ValueError(f"{archive} contains {len(roots)} nodes, not 1")
    return roots[0]


#: Files that neither the probe nor an oracle reads: without them a variant is written faster.
_UNREAD = {
    "resource",
    "enable",
    "irq",
    "driver_override",
    "ari_enabled",
    "broadcast",
    "addr_len",
    "iflink",
    "flags",
    "dormant",
    "dev_id",
    "link_mode",
    "tx_queue_len",
    "netdev_group",
    "name_assign_type",
    "duplex",
    "abi_version",
    "hca_type",
    "hw_rev",
    "node_desc",
    "sm_sl",
    "cap_mask",
    "cpuaffinity",
    "cpulistaffinity",
    "die_id",
    "reserved_regions",
}


class Tree:
    """A machine's files and links by path, in memory. Variants change them before they are written."""

    def __init__(self, machine: dict[str, t.Any]) -> None:
        files, self.links = builder.compose(machine)
        self.files = {path: data for path, data in files.items() if path.rpartition("/")[2] not in _UNREAD}

    def matching(self, pattern: str) -> list[str]:
        """The paths of files and links that match a shell pattern, in which `*` also matches `/`."""
        import fnmatch

        return [path for path in (*self.files, *self.links) if fnmatch.fnmatchcase(path, pattern)]

    def drop(self, pattern: str) -> None:
        """Remove the files and links that match a shell pattern. Raises ValueError if there are none."""
        paths = self.matching(pattern)
        if not paths:
            raise ValueError(f"nothing matches {pattern}")
        for path in paths:
            self.files.pop(path, None)
            self.links.pop(path, None)

    def put(self, path: str, text: str) -> None:
        """Add or replace a file. A newline is appended to the text."""
        self.files[path] = text.encode() + b"\n"

    def functions(self) -> list[str]:
        """Device directories of all PCI functions, like `sys/devices/pci0000:00/0000:00:00.0`."""
        links = [path for path in self.links if path.startswith("sys/bus/pci/devices/")]
        return sorted(os.path.normpath(os.path.join(os.path.dirname(path), self.links[path])) for path in links)

    def write(self, out: Path) -> Path:
        """Write the files and links below `out`, and return `out`."""
        for path, data in self.files.items():
            target = out / path
            if path.endswith("/"):  # an empty directory
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        for path, link in self.links.items():
            target = out / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(link)
        return out
