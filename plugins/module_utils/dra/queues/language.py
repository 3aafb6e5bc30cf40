# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Parses the variables `queues_*`. Parsing continues after an error, so that all errors are reported together."""

from __future__ import annotations

import typing as t
from datetime import datetime
from fractions import Fraction

from ..holds.times import parse_user_time
from ..kube import limits, quantity
from ..kube.objects import Object, ObjectView
from ..kube.reader import Reader, child, nearest
from .inventory import (
    DOMAIN,
    POD_RESOURCES,
    PREFIX,
    Amounts,
    Loan,
    Priority,
    Queues,
    Resource,
    Team,
    TemplateChoice,
    counted_separately,
)

_VARIABLES = (
    *("cohort", "flavor", "resources", "bundles", "teams", "pool", "priorities", "loans", "templates"),
    "uncounted",
)
#: Variables that control the role, and are not part of the queues' description.
_ROLE = (
    *("dest", "dest_prune", "apply", "prune", "applyset", "applyset_namespace", "force_conflicts"),
    *("create_namespaces", "kueue_namespace", "configuration", "configure", "restart", "deployment"),
    *("rendered", "applied"),
)
#: Kueue's limits (apis/config/v1beta2 and apis/kueue/v1beta2 of 0.19.2): the number of device class mappings, of
#: classes in a mapping, and of resources in a ClusterQueue.
MAX_MAPPINGS, MAX_CLASSES, MAX_RESOURCES = 16, 8, 64
_INT32 = 2**31 - 1
_RECLAIM = {"any": "Any", "lower_priority": "LowerPriority", "never": "Never"}
_PREEMPT = {"lower_priority": "LowerPriority", "newer": "LowerOrNewerEqualPriority", "never": "Never"}
#: The maximum length of a description or reason, in characters.
_MAX_DESCRIPTION = 2048
_T = t.TypeVar("_T")


def parse(variables: ObjectView, reader: Reader, site: str) -> Queues:
    """Parse the variables of a site. Errors are reported to `reader`; invalid input raises no exception."""
    known = [PREFIX + name for name in _VARIABLES]
    values: Object = {}
    for key, value in variables.items():
        name = str(key)
        if name in known:
            values[name[len(PREFIX) :]] = value
        elif name.startswith(PREFIX) and name[len(PREFIX) :] not in _ROLE:
            fix = nearest(name, known) or f"known: {', '.join(known)}"
            reader.problem(name, "is not a variable of queues", "unknown-key", fix)
    return _Parser(reader, values).queues(site)


class _Parser:
    def __init__(self, reader: Reader, values: Object) -> None:
        self.reader = reader
        self.values = values
        self.binary: set[str] = set()
        self.amount_paths: dict[tuple[str, str], str] = {}
        self.known: dict[str, Resource] = {}
        self.bundles: dict[str, Amounts] = {}

    def queues(self, site: str) -> Queues:
        reader, values = self.reader, self.values
        resources = self._read("resources", self._resource)
        self._unique([(resource.path, resource.name) for resource in resources], "resource")
        self._check_classes(resources)
        self.known = {resource.name: resource for resource in resources}
        self._bundles()
        teams = self._read("teams", self._team)
        self._unique([(team.path, team.name) for team in teams], "team")
        self._check_namespaces(teams)
        priorities = self._read("priorities", self._priority)
        self._unique([(priority.path, priority.name) for priority in priorities], "priority")
        names = [team.name for team in teams]
        loans = self._read("loans", lambda item, path: self._loan(item, path, names))
        choices = self._read("templates", self._choice)
        self._unique(
            [(choice.path, f"{choice.namespace}/{choice.template}") for choice in choices],
            "choice for template",
            "template",
        )
        pool: Amounts = self._amounts(values["pool"], PREFIX + "pool", "") if values.get("pool") is not None else {}
        cohort = reader.name(values.get("cohort") or site, PREFIX + "cohort", limits.dns_subdomain) or site
        flavor = reader.name(values.get("flavor") or f"{site}-devices", PREFIX + "flavor", limits.dns_subdomain)
        if not teams and any(values.get(name) for name in _VARIABLES):
            reader.problem(PREFIX + "teams", "has no team", "missing", "give each team a name and namespaces")
        return Queues(
            cohort, flavor or site, resources, teams, pool, priorities, loans, choices, self._uncounted(resources),
            self.binary, self.amount_paths,
        )  # fmt: skip

    def _list(self, variable: str) -> list[tuple[t.Any, str]]:
        value = self.values.get(variable)
        return [] if value is None else self.reader.items(value, PREFIX + variable)

    def _read(self, variable: str, read: t.Callable[[t.Any, str], _T | None]) -> list[_T]:
        """The entries of a variable, without those that cannot be read."""
        entries = [read(item, path) for item, path in self._list(variable)]
        return [entry for entry in entries if entry is not None]

    def _unique(self, named: list[tuple[str, str]], kind: str, key: str = "name") -> None:
        """Report names that several entries of a kind have.

        `named` has the path and the name of each entry, and `key` is the entry's key of the name.
        """
        first: dict[str, str] = {}
        for path, name in named:
            if name and name in first:
                message = f"{kind} {name!r} is already defined by {first[name]}"
                self.reader.problem(child(path, key), message, "duplicate-name")
            first.setdefault(name, path)

    # resources

    def _resource(self, value: object, path: str) -> Resource | None:
        reader, before = self.reader, len(self.reader.problems)
        keys = ("name", "classes", "capacity", "counter", "driver", "selector", "total")
        item = reader.mapping(value, path, keys, "a resource")
        if item is None:
            return None
        resource = Resource(path, self._resource_name(item, path))
        classes = child(path, "classes")
        for number, name in enumerate(reader.strings(item["classes"], classes) if "classes" in item else ()):
            error = limits.dns_subdomain(name) or limits.label_key(name)
            if error:
                reader.problem(child(classes, number), f"{name!r} {error}", "bad-name")
            elif name in resource.classes:
                reader.problem(child(classes, number), f"{name!r} is listed twice", "duplicate-name")
            else:
                resource.classes.append(name)
        if len(resource.classes) > MAX_CLASSES:
            reader.problem(
                classes, f"has {len(resource.classes)} classes; Kueue accepts at most {MAX_CLASSES}", "too-many"
            )
        for key, check in (("capacity", limits.qualified_name), ("counter", limits.dns_label)):
            if key in item:
                setattr(resource, key, reader.name(item[key], child(path, key), check) or "")
        if "driver" in item:
            resource.driver = reader.name(item["driver"], child(path, "driver"), limits.driver_name) or ""
        if "selector" in item:
            resource.selector = reader.string(item["selector"], child(path, "selector")) or ""
        self._check_contradictions(item, path, resource)
        resource.broken = len(reader.problems) > before
        return resource if resource.name else None

    def _check_contradictions(self, item: Object, path: str, resource: Resource) -> None:
        reader = self.reader
        if "capacity" in item and "counter" in item:
            message = "cannot be combined with capacity"
            reader.problem(child(path, "counter"), message, "contradiction", "set one of them")
        for key in ("driver", "selector"):
            if key in item and not ("capacity" in item or "counter" in item):
                reader.problem(child(path, key), "needs capacity or counter", "contradiction", "leave it out")
        if "classes" not in item:
            for key in ("capacity", "counter"):
                if key in item:
                    message = f"is missing: the {key} needs the classes of its devices"
                    reader.problem(child(path, "classes"), message, "missing")
            if not resource.capacity and not resource.counter and resource.name not in POD_RESOURCES:
                fix = f"give the classes of its devices, or name one of {', '.join(POD_RESOURCES)}"
                reader.problem(child(path, "classes"), "is missing", "missing", fix)
        elif resource.name in POD_RESOURCES:
            reader.problem(
                child(path, "name"), f"{resource.name} is a resource of pods", "reserved", "use another name"
            )
        if "total" in item:
            if "classes" in item:
                message = "must not be set with classes: their devices are counted from the fleet"
                reader.problem(child(path, "total"), message, "contradiction", "leave it out")
            else:
                resource.total = self._amount(item["total"], child(path, "total"), resource)

    def _resource_name(self, item: Object, path: str) -> str:
        if "name" not in item:
            self.reader.problem(child(path, "name"), "is missing", "missing")
            return ""
        text = self.reader.string(item["name"], child(path, "name"))
        if text is None:
            return ""
        name = self._full_name(text)
        error = limits.label_key(name)
        if error:
            self.reader.problem(child(path, "name"), f"{text!r} {error}", "bad-name")
            return ""
        return name

    @staticmethod
    def _full_name(name: str) -> str:
        """The name of a resource in Kueue."""
        return name if "/" in name or name in POD_RESOURCES else DOMAIN + name

    def _check_classes(self, resources: list[Resource]) -> None:
        """Report classes in several resources: their devices would be counted twice, and Kueue would not start."""
        first: dict[str, Resource] = {}
        for resource in resources:
            for number, name in enumerate(resource.classes):
                other = first.setdefault(name, resource)
                if other is not resource and not counted_separately(resource.counter, other.counter):
                    message = f"the devices of class {name!r} are already counted as {other.short}"
                    self.reader.problem(child(child(resource.path, "classes"), number), message, "counted-twice")
        mappings = [resource for resource in resources if resource.classes]
        if len(mappings) > MAX_MAPPINGS:
            message = f"has {len(mappings)} resources with classes; Kueue accepts at most {MAX_MAPPINGS}"
            self.reader.problem(PREFIX + "resources", message, "too-many")
        if len(resources) > MAX_RESOURCES:
            message = f"has {len(resources)} resources; a ClusterQueue accepts at most {MAX_RESOURCES}"
            self.reader.problem(PREFIX + "resources", message, "too-many")

    def _bundles(self) -> None:
        value = self.values.get("bundles")
        path = PREFIX + "bundles"
        for name, parts in (self.reader.any_mapping(value, path) if value is not None else {}).items():
            item_path = child(path, name)
            if self._full_name(name) in self.known:
                self.reader.problem(item_path, f"{name!r} is already the name of a resource", "duplicate-name")
                continue
            self.bundles[name] = self._amounts(parts, item_path, None, bundles=False)

    def _uncounted(self, resources: list[Resource]) -> list[str]:
        value = self.values.get("uncounted")
        counted = {resource.name for resource in resources}
        if value is None:
            return [name for name in POD_RESOURCES if name not in counted and name != "pods"]
        path = PREFIX + "uncounted"
        prefixes = []
        for number, name in enumerate(self.reader.strings(value, path)):
            matching = next((full_name for full_name in sorted(counted) if full_name.startswith(name)), None)
            if matching:
                message = f"{name!r} also leaves out {matching}, which is in {PREFIX}resources"
                self.reader.problem(child(path, number), message, "contradiction")
            else:
                prefixes.append(name)
        return prefixes

    # amounts

    def _amounts(self, value: object, path: str, owner: str | None, bundles: bool = True) -> Amounts:
        """The amounts by resource. With `bundles`, those of bundles are expanded.

        `owner` is the team or loan that the amounts belong to, empty for the pool, and None for limits and bundles.
        """
        amounts: Amounts = {}
        for name, number in self.reader.any_mapping(value, path).items():
            item_path = child(path, name)
            if bundles and name in self.bundles:
                count = self.reader.integer(number, item_path, 0, _INT32)
                bundle = self.bundles[name]
                parts = {part: amount * count for part, amount in bundle.items()} if count is not None else {}
            else:
                resource = self.known.get(self._full_name(name))
                if resource is None:
                    known = [resource.short for resource in self.known.values()] + (
                        list(self.bundles) if bundles else []
                    )
                    fix = nearest(name, known) or f"known: {', '.join(known) or 'none'}"
                    self.reader.problem(item_path, f"there is no resource {name!r}", "unknown-resource", fix)
                    continue
                amount = self._amount(number, item_path, resource)
                parts = {resource.name: amount} if amount is not None else {}
            for part, amount in parts.items():
                amounts[part] = amounts.get(part, Fraction()) + amount
                if owner is not None:
                    self.amount_paths.setdefault((owner, part), item_path)
        return amounts

    def _amount(self, value: object, path: str, resource: Resource) -> Fraction | None:
        """A non-negative amount of a resource: a number of devices, or a quantity. None if the value is invalid."""
        if resource.whole_devices:
            whole = self.reader.integer(value, path, 0, limits.INT64_MAX)
            return None if whole is None else Fraction(whole)
        if _is_zero(value):
            return Fraction()
        text = self.reader.amount(value, path)
        if text is None:
            return None
        number = quantity.parse(text)
        if (number * (1000 if resource.name == "cpu" else 1)).denominator != 1 or number > limits.INT64_MAX:
            self.reader.problem(path, f"must be a whole number of at most 2^63-1, not {text}", "out-of-range")
            return None
        if quantity.suffix_form(text) == quantity.BINARY_SI:
            self.binary.add(resource.name)
        return number

    # teams

    def _team(self, value: object, path: str) -> Team | None:
        reader, before = self.reader, len(self.reader.problems)
        keys = ("name", "namespaces", "queue", "guaranteed", "borrow", "lend", "weight", "reclaim", "preempt")
        item = reader.mapping(value, path, keys, "a team")
        if item is None:
            return None
        name = self._name(item, path, limits.dns_subdomain)
        namespaces = []
        if "namespaces" not in item:
            reader.problem(child(path, "namespaces"), "is missing", "missing", "name those that the team works in")
        else:
            item_path = child(path, "namespaces")
            for number, text in enumerate(reader.strings(item["namespaces"], item_path)):
                if reader.name(text, child(item_path, number), limits.dns_label):
                    namespaces.append(text)
            if not namespaces and item["namespaces"] in ([], ()):
                reader.problem(item_path, "must not be empty", "empty")
        queue = reader.name(item.get("queue", name or "team"), child(path, "queue"), limits.dns_subdomain) or name
        team = Team(path, name, namespaces, queue)
        for key in ("guaranteed", "borrow", "lend"):
            if key in item:
                owner = name if key == "guaranteed" else None
                setattr(team, key, self._amounts(item[key], child(path, key), owner, key == "guaranteed"))
        if "weight" in item:
            team.weight = self._weight(item["weight"], child(path, "weight"))
        for key, policies in (("reclaim", _RECLAIM), ("preempt", _PREEMPT)):
            if key in item:
                chosen = reader.choice(item[key], child(path, key), tuple(policies))
                if chosen:
                    setattr(team, key, policies[chosen])
        self._check_lend_limits(team)
        team.broken = len(reader.problems) > before
        return team

    def _check_lend_limits(self, team: Team) -> None:
        """Report a team whose lending limit exceeds its guarantee: Kueue refuses such a queue."""
        for name, amount in team.lend.items():
            guaranteed = team.guaranteed.get(name, Fraction())
            if amount > guaranteed:
                item_path = child(child(team.path, "lend"), self.known[name].short)
                message = (
                    f"lends {quantity.canonical(amount)}, but the team is guaranteed {quantity.canonical(guaranteed)}"
                )
                self.reader.problem(item_path, message, "lends-too-much", "lend no more than that")

    def _weight(self, value: object, path: str) -> Fraction | None:
        if isinstance(value, float):
            value = str(value)
        if _is_zero(value):
            return Fraction()
        text = self.reader.amount(value, path)
        number = quantity.parse(text) if text is not None else None
        if number is not None and number <= Fraction(1, 10**9):
            self.reader.problem(path, f"must be 0 or more than 1n, not {text}", "out-of-range")
            return None
        return number

    def _name(self, item: Object, path: str, check: t.Callable[[str], str]) -> str:
        if "name" not in item:
            self.reader.problem(child(path, "name"), "is missing", "missing")
            return ""
        return self.reader.name(item["name"], child(path, "name"), check) or ""

    def _check_namespaces(self, teams: list[Team]) -> None:
        """Report namespaces that several teams list: jobs there could choose which team is charged."""
        first: dict[str, Team] = {}
        for team in teams:
            for number, name in enumerate(team.namespaces):
                other = first.setdefault(name, team)
                if other is not team or team.namespaces.index(name) != number:
                    item_path = child(child(team.path, "namespaces"), number)
                    self.reader.problem(
                        item_path, f"namespace {name!r} already belongs to {other.name}", "duplicate-name"
                    )

    # priorities, loans, templates

    def _priority(self, value: object, path: str) -> Priority | None:
        item = self.reader.mapping(value, path, ("name", "value", "description"), "a priority")
        if item is None:
            return None
        name = self._name(item, path, limits.dns_subdomain)
        number = None
        if "value" not in item:
            self.reader.problem(child(path, "value"), "is missing", "missing")
        else:
            number = self.reader.integer(item["value"], child(path, "value"), -_INT32 - 1, _INT32)
        text = self.reader.string(item["description"], child(path, "description")) if "description" in item else ""
        if text and len(text) > _MAX_DESCRIPTION:
            message = f"has {len(text)} characters; Kueue accepts at most {_MAX_DESCRIPTION}"
            self.reader.problem(child(path, "description"), message, "too-long")
        return Priority(path, name, number or 0, text or "") if name else None

    def _loan(self, value: object, path: str, teams: list[str]) -> Loan | None:
        reader, before = self.reader, len(self.reader.problems)
        keys = ("from", "to", "devices", "until")
        item = reader.mapping(value, path, (*keys, "reason"), "a loan")
        if item is None:
            return None
        for key in keys:
            if key not in item:
                reader.problem(child(path, key), "is missing", "missing")
        names = []
        for key in ("from", "to"):
            name = reader.string(item[key], child(path, key)) if key in item else None
            if name is not None and name not in teams:
                fix = nearest(name, teams) or f"teams: {', '.join(teams) or 'none'}"
                reader.problem(child(path, key), f"there is no team {name!r}", "unknown-team", fix)
            names.append(name or "")
        if names[0] and names[0] == names[1]:
            reader.problem(child(path, "to"), "is the team that lends", "contradiction")
        devices: Amounts = {}
        if "devices" in item:
            devices = self._amounts(item["devices"], child(path, "devices"), f"loan {path}")
            if not devices and len(reader.problems) == before:
                reader.problem(child(path, "devices"), "lends nothing", "empty")
        until = self._time(item["until"], child(path, "until")) if "until" in item else None
        reason = reader.string(item["reason"], child(path, "reason")) if "reason" in item else ""
        if reason and (len(reason) > _MAX_DESCRIPTION or "\n" in reason):
            message = f"must be one line of at most {_MAX_DESCRIPTION} characters"
            reader.problem(child(path, "reason"), message, "too-long")
        if len(reader.problems) > before or until is None:
            return None
        return Loan(path, names[0], names[1], devices, until, reason or "")

    def _time(self, value: object, path: str) -> datetime | None:
        try:
            return parse_user_time(value)
        except ValueError:
            fix = "write 2026-12-01T08:00:00Z or 2026-12-01, in UTC"
            self.reader.problem(path, f"{value!r} is not a time", "wrong-type", fix)
            return None

    def _choice(self, value: object, path: str) -> TemplateChoice | None:
        reader, before = self.reader, len(self.reader.problems)
        item = reader.mapping(value, path, ("template", "namespace", "take"), "a template")
        if item is None:
            return None
        names = []
        for key, check in (("namespace", limits.dns_label), ("template", limits.dns_subdomain)):
            if key not in item:
                reader.problem(child(path, key), "is missing", "missing")
            names.append((reader.name(item[key], child(path, key), check) if key in item else None) or "")
        take: dict[str, str] = {}
        if "take" in item:
            item_path = child(path, "take")
            for name, chosen in reader.any_mapping(item["take"], item_path).items():
                text = reader.string(chosen, child(item_path, name))
                if text is not None:
                    take[name] = text
        return TemplateChoice(path, names[0], names[1], take) if len(reader.problems) == before else None


def _is_zero(value: object) -> bool:
    """Whether a value is a zero quantity, such as 0 or 0G."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return False
    try:
        return quantity.parse(value) == 0
    except quantity.QuantityError:
        return False
