# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The results of an alignment check, and their text."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ..kube.objects import Object
from ..scheduler.published import Published

KEPT, BROKEN, UNKNOWN, NONE = "kept", "broken", "unknown", "none"
#: All verdicts, the worst first.
WORST_FIRST = (BROKEN, UNKNOWN, KEPT, NONE)
SEVERITIES = ("error", "warning", "note")


@dataclass
class Reason:
    """Why something is unknown, and how to fix it."""

    reason: str
    fix: str = ""


@dataclass
class Device:
    """A device of a claim.

    `state` is current, stale (only in an older generation of its pool), gone, incomplete (slices of its pool are
    missing, and the others do not contain it) or no-pool. `name_is_ambiguous` says that the claim also has a device of
    the same driver and name from another pool.
    """

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
    name_is_ambiguous: bool = False

    @property
    def shown(self) -> str:
        """The device's name in messages."""
        return f"{self.driver}/{self.pool}/{self.device}" if self.name_is_ambiguous else f"{self.driver}/{self.device}"

    def as_dict(self) -> Object:
        """The device as in reports."""
        names = ("request", "driver", "pool", "device", "node", "kind", "address", "numa_node", "state", "admin")
        return {name: getattr(self, name) for name in names}


@dataclass
class Promise:
    """A promise of a claim about its devices: a constraint (`match` or `distinct` of an attribute), a selector, or a
    class that no longer exists, so that its selectors are unknown.

    `values` are what the drivers publish, `kernel` what the kernel reports, by device. `proven` says that the kernel
    confirms a promise of locality; promises about anything else rely on the driver's slices alone.
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
    """A finding about a claim. `severity` is one of SEVERITIES."""

    severity: str
    id: str
    summary: str
    fix: str = ""


def worst(verdicts: t.Iterable[str]) -> str:
    """The worst of the verdicts; NONE if there are none."""
    present = set(verdicts)
    return next((verdict for verdict in WORST_FIRST if verdict in present), NONE)


def failures(reports: t.Iterable[Object], require_proof: bool = False) -> list[str]:
    """The reasons why a run fails, one line each: broken promises and, if proof is required, every claim without
    proof."""
    reasons = []
    for report in reports:
        unproven = report["verdict"] == UNKNOWN or (report["verdict"] == KEPT and not report["proven"])
        if report["verdict"] == BROKEN or (require_proof and unproven):
            findings = [finding for finding in report["findings"] if finding["severity"] != "note"]
            reason = "; ".join(finding["summary"] for finding in findings) or "no probe of its node confirms it"
            verdict = "not proven" if report["verdict"] == KEPT else report["verdict"]
            reasons.append(f"{report['claim']} is {verdict}: {reason}")
    return reasons


def lines(reports: t.Iterable[Object]) -> list[str]:
    """The text of the reports: each claim with its verdict and findings."""
    texts = {KEPT: "aligned as promised", BROKEN: "BROKEN", UNKNOWN: "unknown", NONE: "nothing was promised"}
    text_lines = []
    for report in reports:
        proof = "" if report["verdict"] != KEPT or report["proven"] else ", confirmed by the drivers' slices only"
        text_lines.append(
            f"{report['claim']} on {report['node'] or 'several or unknown nodes'}: {texts[report['verdict']]}{proof}"
        )
        for finding in report["findings"]:
            text_lines.append(
                f"  {finding['severity']}: {finding['summary']}" + (f" -> {finding['fix']}" if finding["fix"] else "")
            )
    return text_lines
