# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""What a check of alignment finds, and its words for people."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ..kube.objects import Object
from ..scheduler.published import Published

KEPT, BROKEN, UNKNOWN, NONE = "kept", "broken", "unknown", "none"


#: Of several verdicts the first of these that occurs is the verdict of all.
WORST = (BROKEN, UNKNOWN, KEPT, NONE)


SEVERITIES = ("error", "warning", "note")


@dataclass
class Reason:
    """Why something is unknown, and how to fix it."""

    reason: str
    fix: str = ""


@dataclass
class Device:
    """A device that a claim has. `state` is current, stale (only an older generation of its pool has it), gone,
    incomplete (slices of its pool are missing, and it is in none that is there) or no-pool. `namesake` says that the
    claim also has a device of the same driver and name from another pool."""

    request: str
    driver: str
    pool: str
    device: str
    node: str | None = None
    kind: str = "other"
    address: str | None = None
    numa_node: int | None = None
    state: str = "current"
    admin: bool = False
    published: Published | None = None
    namesake: bool = False

    @property
    def shown(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}" if self.namesake else f"{self.driver}/{self.device}"

    def as_dict(self) -> Object:
        names = ("request", "driver", "pool", "device", "node", "kind", "address", "numa_node", "state", "admin")
        return {name: getattr(self, name) for name in names}


@dataclass
class Promise:
    """What a claim was promised of its devices: a constraint (`match` or `distinct` of an attribute), a selector, or
    a class that is gone, so that what it asks for is unknown.

    `values` are what the drivers publish, `kernel` what the kernel reports, by device. `proven` says that the kernel
    confirms a promise of locality; promises that the kernel knows nothing about rest on the driver's slices alone.
    """

    rule: str
    subject: str
    requests: list[str]
    verdict: str
    values: Object = field(default_factory=dict)
    kernel: Object = field(default_factory=dict)
    proven: bool = False
    reason: str = ""
    fix: str = ""


@dataclass
class Finding:
    severity: str
    id: str
    summary: str
    fix: str = ""


def worst(verdicts: t.Iterable[str]) -> str:
    """The verdict of several: broken before unknown before kept."""
    found = set(verdicts)
    return next((one for one in WORST if one in found), NONE)


def failures(reports: t.Iterable[Object], require_proof: bool = False) -> list[str]:
    """What a run has to fail for, a line each: broken promises and, where proof is required, all that lacks it."""
    found = []
    for report in reports:
        lacking = report["verdict"] == UNKNOWN or (report["verdict"] == KEPT and not report["proven"])
        if report["verdict"] == BROKEN or (require_proof and lacking):
            serious = [one for one in report["findings"] if one["severity"] != "note"]
            why = "; ".join(one["summary"] for one in serious) or "no probe of its node confirms it"
            word = "not proven" if report["verdict"] == KEPT else report["verdict"]
            found.append(f"{report['claim']} is {word}: {why}")
    return found


def lines(reports: t.Iterable[Object]) -> list[str]:
    """For a person: each claim with its verdict, and what was found of it."""
    words = {KEPT: "aligned as promised", BROKEN: "BROKEN", UNKNOWN: "unknown", NONE: "nothing was promised"}
    found = []
    for report in reports:
        proof = "" if report["verdict"] != KEPT or report["proven"] else ", confirmed by the drivers' slices only"
        found.append(f"{report['claim']} on {report['node'] or 'several nodes'}: {words[report['verdict']]}{proof}")
        for one in report["findings"]:
            found.append(f"  {one['severity']}: {one['summary']}" + (f" -> {one['fix']}" if one["fix"] else ""))
    return found
