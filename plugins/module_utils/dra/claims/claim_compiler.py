# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Compiles one claim of the inventory to the `devices` of a ResourceClaim: requests, constraints and configuration.

Preference lists: for `align: [pcie_root, numa_node, any]`, all devices must be tried at the first level before the
second. The scheduler's allocator processes the requests in order, depth first, and takes the first device that fits.
When it backtracks, it changes the latest request first.

So the `firstAvailable` subrequests of a partner choose the level. The anchor is the first device of a group, and its
partners are the other devices. Requests of partners come before the request of the anchor. For each level of a partner,
all devices of the partner and of the anchor are tried before the next level. If the anchor came first, the search would
go to a farther level for the first anchor that fits, even if another anchor had a nearer partner. All requests of a
repetition come before those of the next one.

For each level, a constraint aligns the anchor with the subrequests of this level. A constraint requires that the anchor
has the attribute, even if another level is chosen. So a preference list with `pcie_root` fails on machines whose GPUs
have no pcieRoot (Hyper-V, VMD).
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
from ..vendors.knowledge import PCI_BUS_ID
from .common_attributes import CommonAttributes
from .inventory import ANY, INDEX, Claim, Device, Distinct, Group, request_name
from .nearest import NearestPlanner, Plan, add_pairs
from .request_origins import request_origins
from .resolved_device import ResolvedDevice

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")


@dataclass
class Compiled:
    """The `devices` of a claim. `origins` maps paths in it to paths in the inventory; the longest prefix applies."""

    devices: Object
    origins: dict[str, str] = field(default_factory=dict)


def level_name(level: str) -> str:
    """A level as a DNS label, such as `pcie-root`. For an attribute, it is made of the words of its identifier."""
    words = _WORDS.findall(level.rpartition("/")[2])
    return "-".join(words).lower()[: limits.DNS_LABEL_BYTES].strip("-") or "level"


class ClaimCompiler:
    """Compiles claims. Errors are recorded in `reader`.

    `resolve` returns what a device of the inventory is on this site, or None after recording its errors. With `lists`,
    the cluster can compare attributes that are lists.
    """

    def __init__(
        self, reader: Reader, resolve: t.Callable[[Device], ResolvedDevice | None], lists: bool, nearest: NearestPlanner
    ) -> None:
        self.reader = reader
        self.resolve = resolve
        self.lists = lists
        self.nearest = nearest

    def compile(self, claim: Claim) -> list[tuple[Claim, Compiled]]:
        """The compiled claim, or one for each kind of board; empty if the claim has errors, which are recorded."""
        problems_before = len(self.reader.problems)
        resolved: dict[int, ResolvedDevice] = {}
        complete = True
        for group in claim.groups:
            for device in group.devices:
                for choice in device.choices():
                    resolved_device = self.resolve(choice)
                    if resolved_device:
                        resolved[id(choice)] = resolved_device
                        self._check_namespaces(claim, choice, resolved_device)
                    else:
                        complete = False  # the error has been recorded, perhaps for its class or driver
        objects: list[tuple[Claim, Compiled]] = []
        for suffix, plans in self.nearest.plans(claim, resolved) if complete else ():
            builder = _ClaimBuilder(self.reader, claim, resolved, self.lists, plans)
            builder.build()
            compiled = builder.compiled() if len(self.reader.problems) == problems_before else None
            if compiled:
                objects.append((self.nearest.named(claim, suffix), compiled))
        return objects

    def _check_namespaces(self, claim: Claim, device: Device, resolved: ResolvedDevice) -> None:
        """Record a problem for each namespace of the claim that may not use the class of a device."""
        if resolved.terms is None or device.admin:
            return
        for namespace in claim.namespaces:
            if reason := resolved.terms.why_unusable(namespace):
                self.reader.problem(child(device.path, "class"), reason, "tenancy", "use another class")


class _ClaimBuilder:
    """Builds the `devices` of one claim. `resolved` and `plans` are by the id() of the device or group."""

    def __init__(
        self,
        reader: Reader,
        claim: Claim,
        resolved: dict[int, ResolvedDevice],
        lists: bool,
        plans: t.Mapping[int, Plan],
    ) -> None:
        self.plans = plans
        self.reader = reader
        self.claim = claim
        self.resolved = resolved
        self._attributes = CommonAttributes(reader, resolved, lists)
        self.required = self._attributes.required
        self.requests: list[tuple[Object, Device]] = []
        self.constraints: list[tuple[Object, str]] = []
        self.configs: dict[str, tuple[Object, str, list[str]]] = {}
        self.origins: dict[str, str] = {}

    def build(self) -> None:
        """Add the requests, constraints and configurations of the claim."""
        for group in self.claim.groups:
            self._group(group)
        if self.claim.align:
            all_devices = [device for group in self.claim.groups for device in group.devices]
            path = child(self.claim.path, "align")
            if sum(_size(device) * group.count for group in self.claim.groups for device in group.devices) < 2:
                self.reader.problem(path, "there is only one device, so there is nothing to align", "contradiction")
            for attribute, devices in self.required(all_devices, self.claim.align, path):
                constraint: Object = {"matchAttribute": attribute}
                if len(devices) < len(all_devices):
                    constraint = {"requests": self._requests_of(devices), **constraint}
                self.constraints.append((constraint, path))
        for rule in self.claim.distinct:
            self._distinct(rule)
        self._distinct_nics()

    def compiled(self) -> Compiled | None:
        """The result of `build`, or None after recording that it exceeds a limit."""
        claim = self.claim
        devices: Object = {"requests": [request for request, _device in self.requests]}
        origins = self.origins
        for index, (request, device) in enumerate(self.requests):
            request_origins(origins, f"requests[{index}]", request, device, self.resolved)
        if self.constraints:
            devices["constraints"] = [constraint for constraint, _path in self.constraints]
            for index, (_constraint, path) in enumerate(self.constraints):
                origins[f"constraints[{index}]"] = path
        configs = self._configs()
        if configs:
            devices["config"] = [config for config, _path in configs]
            for index, (_config, path) in enumerate(configs):
                origins[f"config[{index}]"] = path
        for field_name, maximum in (("constraints", limits.CONSTRAINTS), ("config", limits.CONFIGS)):
            number = len(devices.get(field_name, ()))
            if number > maximum:
                self.reader.problem(
                    claim.path,
                    f"compiles to {number} entries of {field_name}; the limit of a claim is {maximum}",
                    "too-many",
                    "split the claim",
                )
                return None
        return Compiled(devices, origins)

    # requests

    def _group(self, group: Group) -> None:
        """Add the requests and constraints of a group."""
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
            self._add_preference_list(group, levels)
            return
        aligned = self.required(group.devices, levels[0], group.align_path) if levels else []
        for index in range(group.count):
            for device in group.devices:
                self._add(device, group, index, [])
            for attribute, devices in aligned:
                names = [request_name(device, group, index) for device in devices]
                self.constraints.append(({"requests": names, "matchAttribute": attribute}, group.align_path))

    def _add_preference_list(self, group: Group, levels: tuple[str, ...]) -> None:  # noqa: C901
        """Add the requests and constraints of a group that is aligned by a preference list (see the module)."""
        anchor, partners = group.devices[0], group.devices[1:] or group.devices
        problems_before = len(self.reader.problems)
        for device in partners:
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
                    "align on one level",
                )
        for device in group.devices:
            if any(choice.all for choice in device.choices()):
                self.reader.problem(
                    child(device.path, "all"),
                    "all cannot be combined with a preference list: if any of the devices does not match, the "
                    "scheduler fails and never tries the next level",
                    "contradiction",
                    "set a count, or align on one level",
                )
        aligned: list[list[tuple[str, list[Device]]]] = []  # for each level: attributes, each with partners
        for level in levels:
            by_attribute: dict[str, list[Device]] = {}
            for device in partners if level != ANY else ():
                pair = [anchor] if device is anchor else [anchor, device]
                for attribute, _devices in self.required(pair, level, group.align_path, pairs=False):
                    by_attribute.setdefault(attribute, []).append(device)
            aligned.append(list(by_attribute.items()))
        if len(self.reader.problems) > problems_before:
            return
        names = _level_names(levels)
        for index in range(group.count):
            for device in partners:
                self._add(device, group, index, names)
            if anchor not in partners:
                self._add(anchor, group, index, [])
            for name, attributes in zip(names, aligned):
                for attribute, devices in attributes:
                    requests = [request_name(anchor, group, index)] if anchor not in partners else []
                    for device in devices:
                        request = request_name(device, group, index)
                        requests += [f"{request}/{sub}" for sub in _subrequest_names(device, [name])]
                    self.constraints.append(({"requests": requests, "matchAttribute": attribute}, group.align_path))

    def _add(self, device: Device, group: Group, index: int, levels: list[str]) -> None:
        """Add the request of a device and its configurations. `levels` are the names of a preference list's levels."""
        name = request_name(device, group, index)
        request: Object = {"name": name}
        choices = device.choices()
        if levels or device.alternatives:
            request["firstAvailable"] = [
                {"name": sub, **self.body_of(choice)}
                for level in (levels or [""])
                for choice, sub in zip(choices, _subrequest_names(device, [level]))
            ]
        else:
            request["exactly"] = self.body_of(device)
        self.requests.append((request, device))
        for choice in choices:
            for position, config in enumerate(choice.configs):
                requests = self._references(name, device, choice, levels)
                self.add_config(config, choice, position, group, index, requests)
        if device.alternatives:
            for position, config in enumerate(device.configs):
                self.add_config(config, device, position, group, index, [name])

    def _references(self, name: str, device: Device, choice: Device, levels: list[str]) -> list[str]:
        """The names by which a configuration of `choice` refers to its request or subrequests."""
        if not device.alternatives:
            return [name]
        position = next(index for index, alternative in enumerate(device.alternatives) if alternative is choice)
        return [f"{name}/{_subrequest_names(device, [level])[position]}" for level in (levels or [""])]

    def body_of(self, device: Device) -> Object:
        """The v1 ExactDeviceRequest or DeviceSubRequest for a device, without its name."""
        resolved = self.resolved[id(device)]
        body: Object = {"deviceClassName": resolved.class_name}
        if resolved.selectors:
            body["selectors"] = [{"cel": {"expression": text}} for text, _path in resolved.selectors]
        body["allocationMode"] = "All" if device.all else "ExactCount"
        if not device.all:
            body["count"] = device.count
        if device.admin:
            body["adminAccess"] = True
        if device.tolerations:
            body["tolerations"] = device.tolerations
        if resolved.capacity:
            body["capacity"] = {"requests": resolved.capacity}
        return body

    # configuration

    def add_config(
        self, config: Object, device: Device, position: int, group: Group, index: int, requests: list[str]
    ) -> None:
        """Add a configuration of `device` for these requests.

        `position` is its number among the configurations of the device, `index` the repetition of the group. Errors are
        recorded for only one repetition.
        """
        is_interface = config["driver"] == interface_config.DRIVER
        parameters = config["parameters"]
        path = child(device.path, "interface" if is_interface else "config")
        known_drivers = [self.resolved[id(choice)].driver for choice in device.choices()]
        drivers = {driver.name for driver in known_drivers if driver}
        unknown = None in known_drivers
        if drivers and not unknown and config["driver"] not in drivers:
            if index == 0:
                self.reader.problem(
                    path,
                    f"is for driver {config['driver']}, but the device comes from {' or '.join(sorted(drivers))}",
                    "config-driver",
                )
            return
        if is_interface:
            if index == 0:
                self._check_class_policies(parameters, path, device)
            name = str(parameters.get("name", ""))
            number = max((_size(choice) for choice in device.choices()), default=1)
            for key in ("name", "addresses", "mac"):
                repeated = group.count > 1 and not (key == "name" and INDEX in name)
                if key in parameters and (number > 1 or repeated) and index == 0:
                    hint = "" if key != "name" else f"; with count at the group, write {INDEX} in the name"
                    self.reader.problem(
                        child(path, key),
                        "would be the same for several devices of a pod",
                        "contradiction",
                        f"request the devices one by one{hint}",
                    )
            if INDEX in name:
                parameters = {**parameters, "name": name.replace(INDEX, str(index))}
            if index in (0, group.count - 1):
                self.reader.problems += interface_config.validate(parameters, path)
        opaque = {"driver": config["driver"], "parameters": parameters}
        key = json.dumps([id(device), position, opaque], sort_keys=True)
        self.configs.setdefault(key, ({"opaque": opaque}, path, []))[2].extend(requests)

    def _check_class_policies(self, parameters: Object, path: str, device: Device) -> None:
        """Record what the classes of a device do not let claims of these namespaces set."""
        all_terms = [self.resolved[id(choice)].terms for choice in device.choices()]
        for namespace in self.claim.namespaces:
            for terms in all_terms:
                self.reader.problems += terms.refused_settings(namespace, parameters, path) if terms else []

    def _configs(self) -> list[tuple[Object, str]]:
        """An entry for all requests with the same configuration, or several if there are too many requests for one."""
        entries = []
        for config, path, requests in self.configs.values():
            for start in range(0, len(requests), limits.REQUESTS):
                entries.append(({"requests": requests[start : start + limits.REQUESTS], **config}, path))
        return entries

    # constraints

    def _requests_of(self, devices: list[Device]) -> list[str]:
        ids = {id(device) for device in devices}
        return [request["name"] for request, device in self.requests if id(device) in ids]

    def _distinct(self, rule: Distinct) -> None:
        """Add the constraint of a `distinct` rule, or record why it is impossible."""
        covered: list[tuple[Device, list[str]]] = []
        size = 0
        for group in self.claim.groups:
            for device in group.devices:
                if rule.devices and device.name not in rule.devices:
                    continue
                attributes = self._attributes.distinct(device, rule.by)
                if attributes:
                    covered.append((device, attributes))
                    size += _size(device) * group.count
                elif rule.devices:
                    self.reader.problem(
                        rule.path, f"the driver of device {device.name!r} publishes no {rule.by}", "no-attribute"
                    )
                    return
        names = (
            [name for name in covered[0][1] if all(name in attributes for _device, attributes in covered)]
            if covered
            else []
        )
        if not covered:
            self.reader.problem(rule.path, f"no device of the claim publishes {rule.by}", "no-attribute")
        elif not names:
            attribute_names = ", ".join(sorted({attributes[0] for _device, attributes in covered}))
            self.reader.problem(
                rule.path,
                f"the devices publish {rule.by} under different names: {attribute_names}",
                "no-common-attribute",
            )
        elif size < 2:
            self.reader.problem(rule.path, "there is only one device, so the rule has no effect", "contradiction")
        else:
            requests = self._requests_of([device for device, _attributes in covered])
            self.constraints.append(({"requests": requests, "distinctAttribute": names[0]}, rule.path))

    def _distinct_nics(self) -> None:
        """Require different NICs for the shares of NICs in a claim, unless the claim aligns them on the NIC itself."""
        if self.claim.align == PCI_BUS_ID:
            return
        on_one_nic = {
            id(device) for group in self.claim.groups if PCI_BUS_ID in group.align for device in group.devices
        }
        names: list[str] = []
        size, path = 0, ""
        for request, device in self.requests:
            choices = device.choices()
            shares = [choice for choice in choices if choice.divided]
            if id(device) in on_one_nic or not shares:
                continue
            subrequests = request.get("firstAvailable") or ()
            shared = [sub["name"] for index, sub in enumerate(subrequests) if choices[index % len(choices)].divided]
            all_shared = not subrequests or len(shared) == len(subrequests)
            names += [request["name"]] if all_shared else [f"{request['name']}/{sub}" for sub in shared]
            size += _size(device)
            path = path or child(shares[0].path, "share")
        if size > 1:
            self.constraints.append(({"requests": names, "distinctAttribute": PCI_BUS_ID}, path))


def _level_names(levels: tuple[str, ...]) -> list[str]:
    """A different name for each level. Attributes of several domains with the same identifier get a number."""
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


def _subrequest_names(device: Device, levels: list[str]) -> list[str]:
    """The names of subrequests: the level, the alternative, or both, with the level first."""
    if not device.alternatives:
        return levels
    return [f"{level}-{choice.name}" if level else choice.name for level in levels for choice in device.alternatives]
