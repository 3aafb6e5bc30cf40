# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The parsed variables `queues_*` of a site: the data between `language` and `compiler`."""

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

    `name` is its name in Kueue. Devices are those of `classes`; without classes it is a resource of pods, of which the
    site gives the `total`. `driver` and `selector` say where Kueue reads a capacity or counter.
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


@dataclass
class Team:
    """A team: its namespaces, guarantees, and limits on borrowing and lending.

    `borrow` and `lend` have an amount only if the team sets a limit.
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

    def line(self, forms: t.Callable[[str, Fraction], str]) -> str:
        """The loan in one line; `forms` formats an amount of a resource."""
        amounts = ", ".join(forms(name, amount) for name, amount in self.devices.items())
        why = f" ({self.reason})" if self.reason else ""
        until = self.until.strftime("%Y-%m-%dT%H:%M:%SZ")
        return f"{self.lender} lends {self.borrower} {amounts} until {until}{why}"


@dataclass
class TemplateChoice:
    """Which alternatives of a claim template its variant for queues takes."""

    path: str
    namespace: str
    template: str
    take: dict[str, str] = field(default_factory=dict)


@dataclass
class Queues:
    """All variables, parsed. `binary` are resources whose amounts the site writes with binary suffixes."""

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
    #: The path of each amount in the variables, by its owner (a team, `` for the pool, a loan) and resource.
    places: dict[tuple[str, str], str] = field(default_factory=dict)
