# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Compiles one claim of the inventory to the `devices` of a ResourceClaim: requests, constraints and configuration.

Preference lists. `align: [pcie_root, numa_node, any]` must try all devices for the first level before the second. The
scheduler's allocator processes the requests in order, depth first, and takes the first device that fits. When it
backtracks, it changes the latest request first. So the level is chosen by `firstAvailable` subrequests of the group's
other devices, the carriers, which come before the group's first device, the anchor: for one level of the carrier,
every carrier device and every anchor device are tried before the carrier continues with the next level. If the anchor
came first, the search would go to a farther level for the first anchor that fits, even if another anchor had a nearer
partner. All requests of a repetition come before those of the next one. A constraint for each level ties the anchor to
the subrequests of that level only.

A constraint requires that the anchor has the attribute, even if another level is chosen. So a preference list that
begins with `pcie_root` fails on machines whose GPUs have no pcieRoot (Hyper-V, VMD), whatever follows in the list.
"""

from __future__ import annotations

import json
import re
import typing as t
from dataclasses import dataclass, field

from ..config import interface_config
from ..kube import limits
from ..kube.objects import Object
from ..kube.reader import Reader, child
from ..vendors.knowledge import PCI_BUS_ID, DriverKnowledge
from .class_policy import ClassTerms
from .common_attributes import CommonAttributes
from .inventory import ANY, INDEX, Claim, Device, Distinct, Group, request_name
from .nearest import NearestPlanner, Plan, add_pairs
from .request_origins import request_origins

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")


@dataclass
class Resolved:
    """The class, driver, selectors and capacities of a device of the inventory.

    `driver` is None if the class does not belong to the site and the inventory does not name its driver.
    """

    device: Device
    class_name: str
    kind: str
    driver: DriverKnowledge | None
    selectors: list[tuple[str, str]]
    capacity: dict[str, str]
    #: What its class sets and lets claims set; None if the class does not belong to the site.
    terms: ClassTerms | None = None


@dataclass
class Compiled:
    """The `devices` of a claim, and the origin in the inventory of each path in it; the longest prefix counts."""

    devices: Object
    origins: dict[str, str] = field(default_factory=dict)


def level_name(level: str) -> str:
    """A level as a DNS label: `pcie-root`, or the words of an attribute's identifier."""
    words = _WORDS.findall(level.rpartition("/")[2])
    return "-".join(words).lower()[: limits.DNS_LABEL_BYTES].strip("-") or "level"


class ClaimCompiler:
    """Compiles one claim; errors go to `reader`."""

    def __init__(
        self, reader: Reader, resolve: t.Callable[[Device], Resolved | None], lists: bool, nearest: NearestPlanner
    ) -> None:
        self.reader = reader
        self.resolve = resolve
        self.lists = lists
        self.nearest = nearest

    def compile(self, claim: Claim) -> list[tuple[Claim, Compiled]]:
        """The compiled claim, or one for each kind of board; empty if the claim has errors, which are reported."""
        before = len(self.reader.problems)
        known: dict[int, Resolved] = {}
        whole = True
        for group in claim.groups:
            for device in group.devices:
                for choice in device.choices():
                    found = self.resolve(choice)
                    if found:
                        known[id(choice)] = found
                        self._check_use(claim, choice, found)
                    else:
                        whole = False  # the error has been reported, perhaps for its class or driver
        made: list[tuple[Claim, Compiled]] = []
        for suffix, plans in self.nearest.plans(claim, known) if whole else ():
            body = _ClaimBuilder(self.reader, claim, known, self.lists, plans)
            body.build()
            compiled = body.compiled() if len(self.reader.problems) == before else None
            if compiled:
                made.append((self.nearest.named(claim, suffix), compiled))
        return made

    def _check_use(self, claim: Claim, device: Device, found: Resolved) -> None:
        """Report each namespace of the claim that may not use the class of a device."""
        if found.terms is None or device.admin:
            return
        for namespace in claim.namespaces:
            if reason := found.terms.unusable(namespace):
                self.reader.problem(child(device.path, "class"), reason, "tenancy", "use another class")


class _ClaimBuilder:
    def __init__(
        self, reader: Reader, claim: Claim, known: dict[int, Resolved], lists: bool, plans: t.Mapping[int, Plan]
    ) -> None:
        self.plans = plans
        self.reader = reader
        self.claim = claim
        self.known = known
        self._attributes = CommonAttributes(reader, known, lists)
        self.required = self._attributes.required
        self.requests: list[tuple[Object, Device]] = []
        self.constraints: list[tuple[Object, str]] = []
        self.configs: dict[str, tuple[Object, str, list[str]]] = {}
        self.origins: dict[str, str] = {}

    def build(self) -> None:
        for group in self.claim.groups:
            self._group(group)
        if self.claim.align:
            everything = [device for group in self.claim.groups for device in group.devices]
            path = child(self.claim.path, "align")
            if sum(_size(device) * group.count for group in self.claim.groups for device in group.devices) < 2:
                self.reader.problem(path, "there is only one device, so there is nothing to align", "contradiction")
            for attribute, devices in self.required(everything, self.claim.align, path):
                constraint: Object = {"matchAttribute": attribute}
                if len(devices) < len(everything):
                    constraint = {"requests": self._requests_of(devices), **constraint}
                self.constraints.append((constraint, path))
        for rule in self.claim.distinct:
            self._distinct(rule)
        self._distinct_nics()

    def compiled(self) -> Compiled | None:
        claim = self.claim
        devices: Object = {"requests": [request for request, _device in self.requests]}
        origins = self.origins
        for index, (request, device) in enumerate(self.requests):
            request_origins(origins, f"requests[{index}]", request, device, self.known)
        if self.constraints:
            devices["constraints"] = [constraint for constraint, _path in self.constraints]
            for index, (_constraint, path) in enumerate(self.constraints):
                origins[f"constraints[{index}]"] = path
        configs = self._configs()
        if configs:
            devices["config"] = [config for config, _path in configs]
            for index, (_config, path) in enumerate(configs):
                origins[f"config[{index}]"] = path
        for what, most in (("constraints", limits.CONSTRAINTS), ("config", limits.CONFIGS)):
            if len(devices.get(what, ())) > most:
                number = len(devices[what])
                self.reader.problem(
                    claim.path,
                    f"compiles to {number} entries of {what}; the limit of a claim is {most}",
                    "too-many",
                    "split it",
                )
                return None
        return Compiled(devices, origins)

    # requests

    def _group(self, group: Group) -> None:
        plan = self.plans.get(id(group))
        if plan and plan.pairing:
            add_pairs(self, group, plan)
            return
        levels = plan.levels if plan else group.align if group.align != (ANY,) else ()
        if levels and sum(_size(device) for device in group.devices) < 2:
            self.reader.problem(
                group.align_path,
                "there is only one device in each repetition, so there is nothing to align",
                "contradiction",
            )
            return
        if len(levels) > 1:
            self._preferred(group, levels)
            return
        tied = self.required(group.devices, levels[0], group.align_path) if levels else []
        for index in range(group.count):
            for device in group.devices:
                self._add(device, group, index, [])
            for attribute, devices in tied:
                names = [request_name(device, group, index) for device in devices]
                self.constraints.append(({"requests": names, "matchAttribute": attribute}, group.align_path))

    def _preferred(self, group: Group, levels: tuple[str, ...]) -> None:  # noqa: C901
        anchor, carriers = group.devices[0], group.devices[1:] or group.devices
        before = len(self.reader.problems)
        for device in carriers:
            subrequests = len(levels) * len(device.choices())
            if subrequests > limits.FIRST_AVAILABLE:
                self.reader.problem(
                    device.path,
                    f"{len(device.choices())} alternatives at {len(levels)} levels are {subrequests} subrequests; "
                    f"the limit is {limits.FIRST_AVAILABLE}",
                    "too-many",
                    "shorten one of the lists",
                )
            if device.admin:
                self.reader.problem(
                    child(device.path, "admin"),
                    "admin access cannot be combined with a preference list",
                    "contradiction",
                    "align by one level",
                )
        for device in group.devices:
            if any(choice.all for choice in device.choices()):
                self.reader.problem(
                    child(device.path, "all"),
                    "all cannot be combined with a preference list: if one of all devices does not match, the "
                    "scheduler fails and never tries the next level",
                    "contradiction",
                    "give a count, or align by one level",
                )
        tied: list[list[tuple[str, list[Device]]]] = []
        for level in levels:
            ties: dict[str, list[Device]] = {}
            for device in carriers if level != ANY else ():
                pair = [anchor] if device is anchor else [anchor, device]
                for attribute, _devices in self.required(pair, level, group.align_path, pairs=False):
                    ties.setdefault(attribute, []).append(device)
            tied.append(list(ties.items()))
        if len(self.reader.problems) > before:
            return
        names = _level_names(levels)
        for index in range(group.count):
            for device in carriers:
                self._add(device, group, index, names)
            if anchor not in carriers:
                self._add(anchor, group, index, [])
            for name, ties_of_level in zip(names, tied):
                for attribute, devices in ties_of_level:
                    requests = [request_name(anchor, group, index)] if anchor not in carriers else []
                    for device in devices:
                        request = request_name(device, group, index)
                        requests += [f"{request}/{sub}" for sub in _subrequests(device, [name])]
                    self.constraints.append(({"requests": requests, "matchAttribute": attribute}, group.align_path))

    def _add(self, device: Device, group: Group, index: int, levels: list[str]) -> None:
        name = request_name(device, group, index)
        request: Object = {"name": name}
        choices = device.choices()
        if levels or device.alternatives:
            request["firstAvailable"] = [
                {"name": sub, **self.body_of(choice)}
                for level in (levels or [""])
                for choice, sub in zip(choices, _subrequests(device, [level]))
            ]
        else:
            request["exactly"] = self.body_of(device)
        self.requests.append((request, device))
        for choice in choices:
            for position, config in enumerate(choice.configs):
                self.add_config(config, choice, position, group, index, self._names(name, device, choice, levels))
        if device.alternatives:
            for position, config in enumerate(device.configs):
                self.add_config(config, device, position, group, index, [name])

    def _names(self, name: str, device: Device, choice: Device, levels: list[str]) -> list[str]:
        if not device.alternatives:
            return [name]
        position = next(i for i, other in enumerate(device.alternatives) if other is choice)
        return [f"{name}/{_subrequests(device, [level])[position]}" for level in (levels or [""])]

    def body_of(self, device: Device) -> Object:
        known = self.known[id(device)]
        body: Object = {"deviceClassName": known.class_name}
        if known.selectors:
            body["selectors"] = [{"cel": {"expression": text}} for text, _path in known.selectors]
        body["allocationMode"] = "All" if device.all else "ExactCount"
        if not device.all:
            body["count"] = device.count
        if device.admin:
            body["adminAccess"] = True
        if device.tolerations:
            body["tolerations"] = device.tolerations
        if known.capacity:
            body["capacity"] = {"requests": known.capacity}
        return body

    # configuration

    def add_config(
        self, config: Object, device: Device, position: int, group: Group, index: int, requests: list[str]
    ) -> None:
        own = config["driver"] == interface_config.DRIVER
        parameters = config["parameters"]
        path = child(device.path, "interface" if own else "config")
        drivers = {found.driver.name for found in map(self._driver_of, device.choices()) if found.driver}
        unknown = any(self._driver_of(choice).driver is None for choice in device.choices())
        if drivers and not unknown and config["driver"] not in drivers:
            if index == 0:
                self.reader.problem(
                    path,
                    f"is for driver {config['driver']}, but the device comes from {' or '.join(sorted(drivers))}",
                    "config-driver",
                )
            return
        if own:
            if index == 0:
                self._check_class(parameters, path, device)
            name = str(parameters.get("name", ""))
            many = max((_size(choice) for choice in device.choices()), default=1)
            for key in ("name", "addresses", "mac"):
                alike = key in parameters and (many > 1 or (group.count > 1 and not (key == "name" and INDEX in name)))
                if alike and index == 0:
                    ask = "" if key != "name" else f"; with count at the group, write {INDEX} in the name"
                    self.reader.problem(
                        child(path, key),
                        "would be the same for several devices of a pod",
                        "contradiction",
                        f"ask for them one by one{ask}",
                    )
            if INDEX in name:
                parameters = {**parameters, "name": name.replace(INDEX, str(index))}
            if index in (0, group.count - 1):
                self.reader.problems += interface_config.validate(parameters, path)
        opaque = {"driver": config["driver"], "parameters": parameters}
        key = json.dumps([id(device), position, opaque], sort_keys=True)
        self.configs.setdefault(key, ({"opaque": opaque}, path, []))[2].extend(requests)

    def _check_class(self, parameters: Object, path: str, device: Device) -> None:
        known = [self._driver_of(choice).terms for choice in device.choices()]
        for namespace in self.claim.namespaces:
            self.reader.problems += [p for one in known if one for p in one.refused(namespace, parameters, path)]

    def _driver_of(self, device: Device) -> Resolved:
        return self.known[id(device)]

    def _configs(self) -> list[tuple[Object, str]]:
        """One entry for all requests with the same configuration, split by the limit of requests in an entry."""
        found = []
        for config, path, requests in self.configs.values():
            for start in range(0, len(requests), limits.REQUESTS):
                found.append(({"requests": requests[start : start + limits.REQUESTS], **config}, path))
        return found

    # constraints

    def _requests_of(self, devices: list[Device]) -> list[str]:
        wanted = {id(device) for device in devices}
        return [request["name"] for request, device in self.requests if id(device) in wanted]

    def _distinct(self, rule: Distinct) -> None:
        found: list[tuple[Device, list[str]]] = []
        size = 0
        for group in self.claim.groups:
            for device in group.devices:
                if rule.devices and device.name not in rule.devices:
                    continue
                attributes = self._attributes.distinct(device, rule.by)
                if attributes:
                    found.append((device, attributes))
                    size += _size(device) * group.count
                elif rule.devices:
                    self.reader.problem(
                        rule.path, f"the driver of device {device.name!r} publishes no {rule.by}", "no-attribute"
                    )
                    return
        names = [name for name in found[0][1] if all(name in names for _device, names in found)] if found else []
        if not found:
            self.reader.problem(rule.path, f"no device of the claim publishes {rule.by}", "no-attribute")
        elif not names:
            different = ", ".join(sorted({names[0] for _device, names in found}))
            self.reader.problem(
                rule.path, f"the devices publish {rule.by} under different names: {different}", "no-common-attribute"
            )
        elif size < 2:
            self.reader.problem(rule.path, "there is only one device, so there is nothing to differ", "contradiction")
        else:
            requests = self._requests_of([device for device, _attributes in found])
            self.constraints.append(({"requests": requests, "distinctAttribute": names[0]}, rule.path))

    def _distinct_nics(self) -> None:
        """Require different NICs for the shares of NICs in a claim, unless the claim aligns them on the NIC itself."""
        if self.claim.align == PCI_BUS_ID:
            return
        together = {id(device) for group in self.claim.groups if PCI_BUS_ID in group.align for device in group.devices}
        names: list[str] = []
        size, path = 0, ""
        for request, device in self.requests:
            choices = device.choices()
            shares = [choice for choice in choices if choice.divided]
            if id(device) in together or not shares:
                continue
            subs = request.get("firstAvailable") or ()
            some = [sub["name"] for index, sub in enumerate(subs) if choices[index % len(choices)].divided]
            whole = not subs or len(some) == len(subs)
            names += [request["name"]] if whole else [f"{request['name']}/{sub}" for sub in some]
            size += _size(device)
            path = path or child(shares[0].path, "share")
        if size > 1:
            self.constraints.append(({"requests": names, "distinctAttribute": PCI_BUS_ID}, path))


def _level_names(levels: tuple[str, ...]) -> list[str]:
    """A name for each level; attributes of several domains with one identifier get a number."""
    names: list[str] = []
    for level in levels:
        name, number = level_name(level), 2
        while name in names:
            name, number = f"{level_name(level)[: limits.DNS_LABEL_BYTES - 3]}-{number}", number + 1
        names.append(name)
    return names


def _size(device: Device) -> int:
    """The largest number of devices that an entry of the inventory requests; `all` counts as two."""
    return max(2 if choice.all else choice.count for choice in device.choices())


def _subrequests(device: Device, levels: list[str]) -> list[str]:
    """Names of subrequests: the level, the alternative, or both, with the level first."""
    if not device.alternatives:
        return levels
    return [f"{level}-{choice.name}" if level else choice.name for level in levels for choice in device.alternatives]
