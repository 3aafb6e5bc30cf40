# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The parsed variables `queues_*` of a site. `language` creates these objects, and `compiler` reads them.

`path` is always the path of an entry in the variables, for messages.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field
from datetime import datetime
from fractions import Fraction

PREFIX = "queues_"
#: The domain of resources that the site names without one.
DOMAIN = "lanewise.dev/"
#: Resources of pods other than devices.
POD_RESOURCES = ("cpu", "memory", "ephemeral-storage", "pods")

#: Amounts by the name of the resource in Kueue.
Amounts = dict[str, Fraction]


@dataclass
class Resource:
    """What a quota counts: devices, one of their capacities or counters, or a resource of pods.

    `name` is the name in Kueue. The devices are those of `classes`. Without classes this is a resource of pods, and
    `total` is the amount that the site states. `driver` and `selector` say from which devices Kueue reads a capacity or
    counter. `broken` says whether the entry has errors.
    """

    path: str
    name: str
    classes: list[str] = field(default_factory=list)
    capacity: str = ""
    counter: str = ""
    driver: str = ""
    selector: str = ""
    total: Fraction | None = None
    broken: bool = False

    @property
    def whole_devices(self) -> bool:
        """Whether one unit is one device."""
        return bool(self.classes) and not self.capacity and not self.counter

    @property
    def short(self) -> str:
        """The name as the site writes it."""
        return self.name[len(DOMAIN) :] if self.name.startswith(DOMAIN) else self.name


def counted_separately(first: str, second: str) -> bool:
    """Whether two resources with these counters may have the same device class. Kueue accepts that only if both count a
    counter, and not the same one (pkg/config/validation.go of 0.19.2)."""
    return bool(first and second and first != second)


@dataclass
class Team:
    """A team: its namespaces, guarantees, and limits on borrowing and lending.

    `borrow` and `lend` have an amount only if the team sets a limit. `broken` says whether the entry has errors.
    """

    path: str
    name: str
    namespaces: list[str]
    queue: str
    guaranteed: Amounts = field(default_factory=dict)
    borrow: Amounts = field(default_factory=dict)
    lend: Amounts = field(default_factory=dict)
    weight: Fraction | None = None
    reclaim: str = "Any"
    preempt: str = "LowerPriority"
    broken: bool = False


@dataclass
class Priority:
    path: str
    name: str
    value: int
    description: str = ""


@dataclass
class Loan:
    """Quota for devices that one team lends another until a time in UTC."""

    path: str
    lender: str
    borrower: str
    devices: Amounts
    until: datetime
    reason: str = ""

    def line(self, format_amount: t.Callable[[str, Fraction], str]) -> str:
        """The loan in one line. `format_amount` formats an amount of a resource."""
        amounts = ", ".join(format_amount(name, amount) for name, amount in self.devices.items())
        reason = f" ({self.reason})" if self.reason else ""
        until = self.until.strftime("%Y-%m-%dT%H:%M:%SZ")
        return f"{self.lender} lends {self.borrower} {amounts} until {until}{reason}"


@dataclass
class TemplateChoice:
    """Which alternatives of a claim template its variant for queues requests: `take` has the alternative by request."""

    path: str
    namespace: str
    template: str
    take: dict[str, str] = field(default_factory=dict)


@dataclass
class Queues:
    """All variables, parsed. `binary` are the names of resources whose amounts the site writes with binary suffixes.

    `uncounted` are prefixes of resources that Kueue ignores.
    """

    cohort: str
    flavor: str
    resources: list[Resource]
    teams: list[Team]
    pool: Amounts
    priorities: list[Priority]
    loans: list[Loan]
    choices: list[TemplateChoice]
    uncounted: list[str]
    binary: set[str] = field(default_factory=set)
    #: The path of each amount in the variables, by owner (a team, a loan, or '' for the pool) and resource.
    amount_paths: dict[tuple[str, str], str] = field(default_factory=dict)
