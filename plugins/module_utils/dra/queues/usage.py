# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Computes each team's usage of its own and others' quota over time.

The usage is computed from samples of Kueue's charges and the scheduler's allocations. Each sample counts until the next
one. If the next one is too late, the interval is a gap, which is not counted.
"""

from __future__ import annotations

import math
import typing as t
from dataclasses import asdict, dataclass, field
from datetime import datetime

from ..holds.hold import format_time, parse_time
from ..kube import quantity
from ..kube.objects import Object, ObjectView
from .objects import LOANS

#: What Kueue has charged, by queue and resource.
Charges = t.Mapping[tuple[str, str], float]
_NAMESPACE = "kubernetes.io/metadata.name"
#: The maximum seconds between two samples; a longer interval is a gap.
GAP_SECONDS = 900.0
#: The lender of quota that belongs to no team.
POOL = "the pool"


@dataclass
class Share:
    """A team's quota of a resource at one time, what Kueue charges the team, and the limit of what the team lends.

    `lends` is None if the team lends all of its quota.
    """

    quota: float
    charged: float
    lends: float | None = None

    @property
    def borrowed(self) -> float:
        """What the team is charged above its quota."""
        return max(0.0, self.charged - self.quota)

    @property
    def spare(self) -> float:
        """The unused quota that other teams can borrow."""
        idle = max(0.0, self.quota - self.charged)
        return idle if self.lends is None else min(idle, self.lends)


@dataclass
class Sample:
    """The state at one time.

    `shares` are by resource and team, `pool` is the pool's quota by resource, and `allocated` the number of allocated
    devices by team and driver. `source` is where the charges come from: `metrics` or `status`.
    """

    time: datetime
    shares: dict[str, dict[str, Share]] = field(default_factory=dict)
    pool: dict[str, float] = field(default_factory=dict)
    allocated: dict[str, dict[str, int]] = field(default_factory=dict)
    loans: list[str] = field(default_factory=list)
    source: str = "status"

    def as_dict(self) -> Object:
        return {**asdict(self), "time": format_time(self.time)}


def sample_from_dict(value: ObjectView) -> Sample:
    """A sample that `as_dict` wrote. Raises KeyError, TypeError, ValueError or AttributeError for anything else."""
    shares = {
        str(name): {str(team): _share_from_dict(share) for team, share in by_team.items()}
        for name, by_team in value["shares"].items()
    }
    pool = {str(name): _finite(amount) for name, amount in value["pool"].items()}
    allocated = {
        str(team): {str(driver): int(_finite(count)) for driver, count in by_driver.items()}
        for team, by_driver in value["allocated"].items()
    }
    loans = [str(loan) for loan in value["loans"]]
    return Sample(parse_time(value["time"]), shares, pool, allocated, loans, str(value["source"]))


def _share_from_dict(share: ObjectView) -> Share:
    lends = share["lends"]
    return Share(_finite(share["quota"]), _finite(share["charged"]), None if lends is None else _finite(lends))


def _finite(value: t.Any) -> float:
    """A number of a file. Raises TypeError, and ValueError unless it is finite."""
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError("a number is not finite")
    return number


def sample(objects: t.Iterable[ObjectView], now: datetime, metrics: Charges | None = None) -> Sample:
    """The current state of a cluster's queues and claims.

    `metrics` are the charges from Kueue's metrics. Without them, the charges are those in the status of the queues.
    Raises QuantityError for quantities that cannot be read.
    """
    state = Sample(now.replace(microsecond=0), source="status" if metrics is None else "metrics")
    owners: dict[str, str] = {}
    claims = []
    for item in objects:
        if item["kind"] == "ClusterQueue":
            _add_queue(state, item, _charges_of_status(item) if metrics is None else metrics)
            for namespace in _namespaces(item):
                owners[namespace] = str(item["metadata"]["name"])
            lines = str((item["metadata"].get("annotations") or {}).get(LOANS) or "").splitlines()
            state.loans += [line for line in lines if line not in state.loans]
        elif item["kind"] == "Cohort":
            for name, _lends, amount in _quotas(item):
                state.pool[name] = state.pool.get(name, 0.0) + amount
        elif item["kind"] == "ResourceClaim":
            claims.append(item)
    for item in claims:
        team = owners.get(str(item["metadata"].get("namespace")))
        results = (((item.get("status") or {}).get("allocation") or {}).get("devices") or {}).get("results") or ()
        for result in results if team else ():
            counts = state.allocated.setdefault(str(team), {})
            counts[str(result["driver"])] = counts.get(str(result["driver"]), 0) + 1
    return state


def _add_queue(state: Sample, queue: ObjectView, charged: Charges) -> None:
    """Add the shares of a ClusterQueue to a sample. The quotas of several flavors are added up."""
    name = str(queue["metadata"]["name"])
    for resource, lends, amount in _quotas(queue):
        shares = state.shares.setdefault(resource, {})
        before = shares.get(name) or Share(0.0, charged.get((name, resource), 0.0), 0.0)
        total_lends = None if lends is None or before.lends is None else before.lends + lends
        shares[name] = Share(before.quota + amount, before.charged, total_lends)


def _quotas(item: ObjectView) -> t.Iterator[tuple[str, float | None, float]]:
    """The resource, the lending limit and the nominal quota of each entry of a ClusterQueue or Cohort."""
    for group in (item.get("spec") or {}).get("resourceGroups") or ():
        for flavor in group["flavors"]:
            for entry in flavor["resources"]:
                lends = entry.get("lendingLimit")
                amount = float(quantity.parse(entry["nominalQuota"]))
                yield str(entry["name"]), None if lends is None else float(quantity.parse(lends)), amount


def _charges_of_status(queue: ObjectView) -> dict[tuple[str, str], float]:
    """The charges in the status of a ClusterQueue, by queue and resource."""
    charged: dict[tuple[str, str], float] = {}
    for flavor in (queue.get("status") or {}).get("flavorsReservation") or ():
        for entry in flavor.get("resources") or ():
            key = (str(queue["metadata"]["name"]), str(entry["name"]))
            charged[key] = charged.get(key, 0.0) + float(quantity.parse(entry.get("total", "0")))
    return charged


def _namespaces(queue: ObjectView) -> list[str]:
    """The names of the namespaces that a ClusterQueue selects."""
    rules = ((queue.get("spec") or {}).get("namespaceSelector") or {}).get("matchExpressions") or ()
    return [str(name) for rule in rules if rule.get("key") == _NAMESPACE for name in rule.get("values") or ()]


@dataclass
class Usage:
    """The usage of all teams over time, in hours of one unit of a resource.

    `hours` has `guaranteed`, `charged`, `borrowed` and `lent` by resource and team. `allocated` has device-hours by
    team and driver. `debts` has hours by resource, lender and borrower. `gaps` are the intervals without samples, and
    `known_hours` is the time without gaps.
    """

    begin: datetime | None = None
    end: datetime | None = None
    samples: int = 0
    known_hours: float = 0.0
    hours: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    allocated: dict[str, dict[str, float]] = field(default_factory=dict)
    debts: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    gaps: list[tuple[datetime, datetime]] = field(default_factory=list)

    def as_dict(self) -> Object:
        fields = asdict(self)
        fields["begin"], fields["end"] = (time and format_time(time) for time in (self.begin, self.end))
        fields["gaps"] = [[format_time(start), format_time(end)] for start, end in self.gaps]
        return fields


def totals(samples: t.Iterable[Sample], gap: float = GAP_SECONDS) -> Usage:
    """The usage over all samples. An interval of more than `gap` seconds between samples is a gap.

    Kueue does not report from which team quota is borrowed. Each hour that a team is charged above its quota is owed to
    the teams (and the pool) with unused quota at that time, in proportion to what others can borrow from each.
    """
    ordered = sorted(samples, key=lambda sample: sample.time)
    usage = Usage(samples=len(ordered))
    if ordered:
        usage.begin, usage.end = ordered[0].time, ordered[-1].time
    for current, following in zip(ordered, ordered[1:]):
        seconds = (following.time - current.time).total_seconds()
        if seconds > gap:
            usage.gaps.append((current.time, following.time))
            continue
        usage.known_hours += seconds / 3600
        for resource, teams in current.shares.items():
            _add_interval(usage, resource, teams, current.pool.get(resource, 0.0), seconds / 3600)
        for team, drivers in current.allocated.items():
            for driver, count in drivers.items():
                hours = usage.allocated.setdefault(team, {})
                hours[driver] = hours.get(driver, 0.0) + count * seconds / 3600
    return usage


def _add_interval(usage: Usage, resource: str, teams: t.Mapping[str, Share], pool: float, hours: float) -> None:
    """Add an interval of `hours` hours with constant shares to the usage. `pool` is the pool's quota."""
    spare = {POOL: pool, **{name: share.spare for name, share in teams.items()}}
    spare = {name: amount for name, amount in spare.items() if amount}
    for name, share in teams.items():
        team_hours = usage.hours.setdefault(resource, {}).setdefault(
            name, {"guaranteed": 0.0, "charged": 0.0, "borrowed": 0.0, "lent": 0.0}
        )
        team_hours["guaranteed"] += share.quota * hours
        team_hours["charged"] += share.charged * hours
        team_hours["borrowed"] += share.borrowed * hours
    total_spare = sum(spare.values())
    for borrower, share in teams.items():
        for lender, amount in spare.items() if share.borrowed else ():
            owed = share.borrowed * amount / total_spare * hours
            debts = usage.debts.setdefault(resource, {}).setdefault(lender, {})
            debts[borrower] = debts.get(borrower, 0.0) + owed
            if lender != POOL:
                usage.hours[resource][lender]["lent"] += owed


def lines(usage: Usage, loans: t.Sequence[str] = ()) -> list[str]:
    """The usage and the loans as lines of text."""
    if usage.begin is None or usage.end is None:
        return ["no sample yet"]
    report = [
        f"{usage.samples} sample(s) from {format_time(usage.begin)} to {format_time(usage.end)}; "
        f"{usage.known_hours:.2f} hour(s) are known"
    ]
    for resource, teams in sorted(usage.hours.items()):
        report.append(f"{resource}, in hours")
        for team, team_hours in sorted(teams.items()):
            amounts = ", ".join(f"{name} {amount:.2f}" for name, amount in team_hours.items())
            report.append(f"  {team}: {amounts}")
        for lender, debts in sorted(usage.debts.get(resource, {}).items()):
            report += [f"  {borrower} owes {lender} {amount:.2f}" for borrower, amount in sorted(debts.items())]
    for team, drivers in sorted(usage.allocated.items()):
        report += [
            f"allocated to {team}: {amount:.2f} device-hours of {driver}" for driver, amount in sorted(drivers.items())
        ]
    report += [f"loan: {loan}" for loan in loans]
    for start, end in usage.gaps:
        hours = (end - start).total_seconds() / 3600
        span = f"from {format_time(start)} to {format_time(end)}"
        report.append(f"gap: nothing is known {span} ({hours:.2f} h)")
    return report
