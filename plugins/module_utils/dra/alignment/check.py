# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Checks whether the devices of allocated claims are aligned as the claims require.

A scheduler reads slices once, when it allocates. They may have been wrong, or have changed since. So every promise is
compared with what the drivers publish now, and with what the node's kernel reports for the same PCI functions. If
the two disagree, or one lacks a value, the verdict is `unknown`, with the reason and what to do. An unknown promise
never counts as kept.
"""

from __future__ import annotations

import re
import typing as t

from ..kube.objects import Object
from ..scheduler.published import v1
from .claim_report import ClaimReport
from .cluster import Cluster, results, title
from .devices import Facts
from .verdicts import KEPT, WORST_FIRST

_POD_UID = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")
_CONTAINER = re.compile(r"([0-9a-f]{64})")

#: The cgroup of a container's monitor, which CRI-O creates beside that of the container (`conmon_cgroup = "pod"`).
_MONITOR = re.compile(r"conmon-[0-9a-f]{64}")


def cgroup_cpusets(text: str) -> dict[str, dict[str, str]]:
    """The CPUs that each container may run on, by pod UID and container ID.

    `text` consists of lines `PATH:CPUS`, as `grep -H . cpuset.cpus.effective` prints them in a cgroup v2 tree. Lines
    for anything but a pod's container, such as CRI-O's monitor conmon of a container, are ignored.
    """
    cpusets: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        path, _colon, cpus = line.rpartition(":")
        pod, containers = _POD_UID.search(path), _CONTAINER.findall(path)
        if pod and containers and cpus.strip() and not _MONITOR.search(path):
            cpusets.setdefault(pod.group(1).replace("_", "-"), {})[containers[-1]] = cpus.strip()
    return cpusets


class Check(Cluster):
    """Compares allocated claims with a cluster."""

    def run(self, claims: t.Iterable[Facts], is_checked: t.Callable[[Facts], bool] = lambda claim: True) -> Object:
        """A report for each allocated claim for which `is_checked` returns true, and a summary.

        RETURN of the module lanewise.dra.alignment_check describes them. `claims` are all claims of the cluster, which
        are needed to find out which devices are free.
        """
        converted = [v1(claim, "ResourceClaim") for claim in claims]
        for claim in converted:
            for result in results(claim):
                if not result.get("adminAccess"):
                    identity = (result["driver"], result["pool"], result["device"])
                    self.holders[identity] = title(claim)
                    self.consumed.setdefault(identity, []).append(result.get("consumedCapacity") or {})
        self.taken = self.pools.taken(self.holders)
        converted = [claim for claim in converted if is_checked(claim)]
        reports = [ClaimReport(self, claim).report() for claim in converted if results(claim)]
        counts = {name: sum(report["verdict"] == name for report in reports) for name in WORST_FIRST}
        unproven = sum(report["verdict"] == KEPT and not report["proven"] for report in reports)
        summary = {**counts, "claims": len(reports), "pending": len(converted) - len(reports), "unproven": unproven}
        return {"claims": reports, "summary": summary, "unusable_facts": self.unusable}
