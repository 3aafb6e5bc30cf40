# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Files and links of a machine, in memory."""

from __future__ import annotations

import typing as t

from .description import Plan, digest


def cpu_list(cpus: t.Iterable[int]) -> str:
    """CPU or node numbers as the kernel lists them: 0-3,8."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and ranges[-1][1] == cpu - 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def cpu_mask(cpus: t.Iterable[int], bits: int) -> str:
    """A mask of `bits` bits as the kernel writes it: words of 32 bits with commas, the first one possibly shorter."""
    digits = f"{sum(1 << cpu for cpu in cpus):0{-(-bits // 4)}x}"
    words = []
    while digits:
        digits, words = digits[:-8], [digits[-8:], *words]
    return ",".join(words)


class Files:
    """Collects files and links. Methods whose name begins with `put` take paths below sys/, or put_proc below proc/."""

    def __init__(self, planned: Plan) -> None:
        self.plan = planned
        self.machine = planned.machine
        self.system: dict[str, t.Any] = self.machine.get("system") or {}
        self.files: dict[str, bytes] = {}
        self.links: dict[str, str] = {}
        self.node_cpus: dict[int, list[int]] = {}  # CPUs by NUMA node
        self.cpu_count = 1
        self.ifindex = 1
        self.interface_paths: dict[str, str] = {}
        self.macs: dict[str, str] = {}
        self.counters: dict[str, int] = {}

    def put(self, path: str, *values: t.Any) -> None:
        self.files[f"sys/{path}"] = "".join(f"{v}\n" for v in values).encode()

    def put_proc(self, path: str, text: str) -> None:
        self.files[f"proc/{path}"] = text.encode()

    def put_attributes(self, path: str, values: dict[str, t.Any]) -> None:
        for name, value in values.items():
            if value is not None:
                self.put(f"{path}/{name}", value)

    def put_link(self, path: str, target: str) -> None:
        """Add a link at `path`, relative as the kernel's kernfs_get_target_path writes it.

        The common base is always above the target, never the target itself.
        """
        source_parts, target_parts = path.split("/")[:-1], target.split("/")
        common = 0
        while common < min(len(source_parts), len(target_parts) - 1) and source_parts[common] == target_parts[common]:
            common += 1
        self.links[f"sys/{path}"] = "/".join([".."] * (len(source_parts) - common) + target_parts[common:])

    def put_class_device(self, subsystem: str, path: str, parent: str | None) -> None:
        """Add the links of a device of a class."""
        name = path.rsplit("/", 1)[1]
        self.put_link(f"class/{subsystem}/{name}", path)
        self.put_link(f"{path}/subsystem", f"class/{subsystem}")
        if parent:
            self.put_link(f"{path}/device", parent)

    def next_number(self, counter: str) -> int:
        self.counters[counter] = self.counters.get(counter, -1) + 1
        return self.counters[counter]

    def made_up_number(self, *words: t.Any) -> int:
        """A 128-bit number for a MAC address, GUID or serial number, the same in each build of the machine."""
        return digest(self.machine.get("name"), *words)
