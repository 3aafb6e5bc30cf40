# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Files and links of a machine, in memory."""

from __future__ import annotations

import typing as t

from .description import Plan, digest


def cpu_list(cpus: t.Iterable[int]) -> str:
    """A kernel list string ("0-3,8") of CPU or node numbers."""
    spans: list[list[int]] = []
    for cpu in sorted(cpus):
        if spans and spans[-1][1] == cpu - 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def cpu_mask(cpus: t.Iterable[int], bits: int) -> str:
    """A kernel mask string of `bits` bits: comma separated words of 32 bits, the first one possibly shorter."""
    digits = f"{sum(1 << c for c in cpus):0{-(-bits // 4)}x}"
    words = []
    while digits:
        digits, words = digits[:-8], [digits[-8:], *words]
    return ",".join(words)


class Files:
    """Collects files and links. Paths below sys/ are given without that prefix to put() and link()."""

    def __init__(self, planned: Plan) -> None:
        self.plan = planned
        self.machine = planned.machine
        self.system: dict[str, t.Any] = self.machine.get("system") or {}
        self.files: dict[str, bytes] = {}
        self.links: dict[str, str] = {}
        self.nodes: dict[int, list[int]] = {}
        self.cpus = 1
        self.ifindex = 1
        self.net_paths: dict[str, str] = {}
        self.macs: dict[str, str] = {}
        self.counters: dict[str, int] = {}

    def put(self, path: str, *values: t.Any) -> None:
        self.files[f"sys/{path}"] = "".join(f"{v}\n" for v in values).encode()

    def proc(self, path: str, text: str) -> None:
        self.files[f"proc/{path}"] = text.encode()

    def attributes(self, path: str, values: dict[str, t.Any]) -> None:
        for name, value in values.items():
            if value is not None:
                self.put(f"{path}/{name}", value)

    def link(self, path: str, target: str) -> None:
        """A link at sys/`path` to sys/`target`, relative as kernfs_get_target_path writes it: the common base
        is always above the target, never the target itself."""
        here, there = path.split("/")[:-1], target.split("/")
        common = 0
        while common < min(len(here), len(there) - 1) and here[common] == there[common]:
            common += 1
        self.links[f"sys/{path}"] = "/".join([".."] * (len(here) - common) + there[common:])

    def class_device(self, subsystem: str, path: str, parent: str | None) -> None:
        name = path.rsplit("/", 1)[1]
        self.link(f"class/{subsystem}/{name}", path)
        self.link(f"{path}/subsystem", f"class/{subsystem}")
        if parent:
            self.link(f"{path}/device", parent)

    def count(self, what: str) -> int:
        self.counters[what] = self.counters.get(what, -1) + 1
        return self.counters[what]

    def made_up(self, *words: t.Any) -> int:
        return digest(self.machine.get("name"), *words)
