# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Claims in the language of the inventory: groups, devices and their options."""

from __future__ import annotations

import string
from dataclasses import replace

from ..config import interface_config
from ..kube import limits
from ..kube.objects import Object
from ..kube.reader import child, nearest
from ..vendors.knowledge import KINDS
from .inventory import (
    ANY,
    AT_LEAST,
    LEVELS,
    NEAREST,
    Claim,
    Device,
    Distinct,
    Group,
    request_name,
)
from .language_parts import PartParser
from .language_share import read_share

#: The maximum number of devices of a request.
_MAX_COUNT = limits.ALLOCATION_RESULTS
_DEVICE_KEYS = (
    "name",
    "kind",
    "class",
    "driver",
    "count",
    "all",
    "where",
    "cel",
    "first_of",
    "admin",
    "capacity",
    "bandwidth",
    "tolerations",
    "interface",
    "config",
    "share",
)
#: The keys that can be combined with first_of.
_FIRST_OF_KEYS = ("name", "first_of", "interface", "config")
_CLAIM_KEYS = (
    *("name", "namespace", "namespaces", "labels", "annotations"),
    *("groups", "devices", "align", "at_least", "distinct", "tier"),
)
_GROUP_KEYS = ("name", "count", "align", "at_least", "devices")


class ClaimParser(PartParser):
    """Reads templates and claims."""

    def claim(self, value: object, path: str, template: bool) -> Claim | None:
        """A template or claim, `broken` if it has errors; None if it is not a mapping."""
        problems_before = len(self.reader.problems)
        reader = self.reader
        item = reader.mapping(value, path, _CLAIM_KEYS, "a template" if template else "a claim")
        if item is None:
            return None
        name = self.name(item, path, limits.dns_subdomain)
        namespaces = self._namespaces(item, path)
        groups: list[Group] = []
        align = self.option(item, "align", path, self._levels) or ()
        if "groups" in item and "devices" in item:
            reader.problem(
                path,
                "has both groups and devices",
                "contradiction",
                "use only groups: devices is a short form for one group",
            )
        elif "groups" in item:
            for group, place in reader.items(item["groups"], child(path, "groups")):
                parsed = self._group(group, place)
                if parsed:
                    groups.append(parsed)
        elif "devices" in item:
            # in the short form `devices`, align may be a preference list, as in a group
            groups.append(self._aligned(Group(path, "", 1, tuple(align), [], child(path, "align")), item))
            align = ()
        if "groups" in item and "at_least" in item:
            reader.problem(
                child(path, "at_least"),
                "belongs to a group",
                "contradiction",
                "set it in the group with align: nearest",
            )
        if align and align[0] == NEAREST:
            fix = "write align: nearest at the group of a GPU and its NICs"
            reader.problem(child(path, "align"), "nearest cannot apply to all groups", "contradiction", fix)
        if not groups and len(reader.problems) == problems_before:
            reader.problem(path, "requests no devices", "missing", "set devices or groups")
        if len(align) > 1:
            reader.problem(
                child(path, "align"),
                "must be one level if it is for all groups; a preference list is for a single group",
                "contradiction",
            )
        claim = Claim(
            path=path,
            name=name,
            template=template,
            namespaces=namespaces,
            labels=self.labels(item, path, "labels"),
            annotations=self.labels(item, path, "annotations"),
            groups=groups,
            align="" if not align or align[0] == ANY else align[0],
            distinct=self._distinct(item, path),
            tier=self.option(item, "tier", path, reader.string) or "",
        )
        self._check_requests(claim)
        claim.broken = len(reader.problems) > problems_before
        return claim

    def _namespaces(self, item: Object, path: str) -> list[str]:
        """The valid namespaces of a claim, from `namespace` or `namespaces`."""
        reader = self.reader
        if "namespace" in item and "namespaces" in item:
            reader.problem(path, "has both namespace and namespaces", "contradiction")
            return []
        if "namespace" in item:
            name = reader.name(item["namespace"], child(path, "namespace"), limits.dns_label)
            return [name] if name else []
        if "namespaces" not in item:
            reader.problem(child(path, "namespace"), "is missing", "missing")
            return []
        place = child(path, "namespaces")
        namespaces: list[str] = []
        for value, entry_path in reader.items(item["namespaces"], place):
            name = reader.name(value, entry_path, limits.dns_label)
            if name in namespaces:
                reader.problem(entry_path, f"namespace {name!r} is listed twice", "duplicate-name")
            elif name:
                namespaces.append(name)
        if item["namespaces"] == []:
            reader.problem(place, "lists no namespace", "missing")
        return namespaces

    def _levels(self, value: object, path: str) -> list[str]:
        """One level or a preference list of levels, the best first."""
        reader = self.reader
        levels: list[str] = []
        entries = [(value, path)] if isinstance(value, str) else reader.items(value, path)
        for entry, place in entries:
            level = reader.string(entry, place)
            if level is None:
                continue
            # a level can be any qualified attribute, such as one that only a site's driver publishes
            wrong = limits.fully_qualified_name(level) if "/" in level else ""
            if wrong:
                reader.problem(place, f"{level!r} {wrong}", "bad-name")
            elif "/" not in level and level not in LEVELS:
                reader.problem(
                    place, f"{level!r} is not one of {', '.join(LEVELS)}", "unknown-value", nearest(level, LEVELS)
                )
            elif level in levels:
                reader.problem(place, f"{level!r} is listed twice", "duplicate-name")
            elif ANY in levels:
                reader.problem(place, f"{level!r} comes after 'any' and is never tried", "contradiction")
            else:
                levels.append(level)
        if len(levels) > limits.FIRST_AVAILABLE:
            reader.problem(path, f"has more than {limits.FIRST_AVAILABLE} levels", "too-many")
        return levels

    def _group(self, value: object, path: str) -> Group | None:
        item = self.reader.mapping(value, path, _GROUP_KEYS, "a group")
        if item is None:
            return None
        if "devices" not in item:
            self.reader.problem(child(path, "devices"), "is missing", "missing")
        name = self.option(item, "name", path, lambda v, p: self.reader.name(v, p, limits.dns_label)) or ""
        count = self.option(item, "count", path, lambda v, p: self.reader.integer(v, p, 1, limits.REQUESTS))
        align = self.option(item, "align", path, self._levels) or ()
        return self._aligned(Group(path, name, count or 1, tuple(align), [], child(path, "align")), item)

    def _aligned(self, group: Group, item: Object) -> Group:
        """The group with its devices. With `nearest`, each NIC becomes a separate request."""
        reader, path = self.reader, group.path
        group.devices = self._devices(item, path)
        at_least = self.option(item, "at_least", path, lambda v, p: reader.choice(v, p, AT_LEAST))
        if "at_least" in item and NEAREST not in group.align:
            fix = "write align: nearest, or leave it out"
            reader.problem(child(path, "at_least"), "can only be used with align: nearest", "contradiction", fix)
        group.at_least = at_least or ""
        if NEAREST in group.align:
            group.devices = [part for device in group.devices for part in self._split(device)]
        return group

    def _split(self, device: Device) -> list[Device]:
        """A device with a `count` above 1 as that many devices: `nic-a`, `nic-b`."""
        if device.count == 1 or device.all or device.alternatives or device.kind == "gpu":
            return [device]
        for config in device.configs:
            is_interface = config["driver"] == interface_config.DRIVER
            for key in ("name", "addresses", "mac") if is_interface else ():
                if key in config["parameters"]:
                    place = child(child(device.path, "interface"), key)
                    message = "would be the same for several devices of a pod"
                    self.reader.problem(place, message, "contradiction", "request the devices one by one")
        letters = string.ascii_lowercase[: device.count]
        if len(letters) < device.count:
            message = f"must be at most {len(letters)} with align: nearest, not {device.count}"
            self.reader.problem(
                child(device.path, "count"), message, "too-many", "use several devices with other names"
            )
        return [replace(device, name=f"{device.name}-{letter}", count=1) for letter in letters]

    def _devices(self, item: Object, path: str) -> list[Device]:
        if "devices" not in item:
            return []
        place = child(path, "devices")
        entries = self.reader.items(item["devices"], place)
        if item["devices"] == []:
            self.reader.problem(place, "is empty", "missing")
        return [device for device in (self._device(value, entry_path) for value, entry_path in entries) if device]

    def _device(self, value: object, path: str, alternative: bool = False) -> Device | None:
        """A device or an alternative; None if it is not a mapping."""
        reader = self.reader
        known = [key for key in _DEVICE_KEYS if not (alternative and key in ("first_of", "admin"))]
        item = reader.mapping(value, path, known, "an alternative" if alternative else "a device")
        if item is None:
            return None
        name = self.option(item, "name", path, lambda v, p: reader.name(v, p, limits.dns_label))
        device = Device(path, name or "")
        device.configs = self.configs(item, path)
        if "first_of" in item:
            self._alternatives(device, item)
        else:
            self._exact(device, item)
        if not device.name and "name" not in item:
            # unlike the name of a class, the name of a request cannot contain dots
            device.name = (
                device.kind or device.class_name.replace(".", "-")[: limits.DNS_LABEL_BYTES].strip("-") or "device"
            )
        return device

    def _alternatives(self, device: Device, item: Object) -> None:
        """Add the alternatives in `first_of` to a device."""
        reader, place = self.reader, child(device.path, "first_of")
        for key in item:
            if key not in _FIRST_OF_KEYS:
                reader.problem(
                    child(device.path, key),
                    "cannot be combined with first_of",
                    "contradiction",
                    "admin access cannot have alternatives" if key == "admin" else "move it into each alternative",
                )
        entries = reader.items(item["first_of"], place)
        if item["first_of"] == []:
            reader.problem(place, "is empty", "missing")
        if len(entries) > limits.FIRST_AVAILABLE:
            reader.problem(place, f"has {len(entries)} alternatives; the limit is {limits.FIRST_AVAILABLE}", "too-many")
        names: set[str] = set()
        for value, path in entries:
            alternative = self._device(value, path, alternative=True)
            if alternative is None:
                continue
            if alternative.name in names:
                reader.problem(
                    child(path, "name"),
                    f"alternative {alternative.name!r} is already defined",
                    "duplicate-name",
                    "give each alternative a different name",
                )
            names.add(alternative.name)
            device.alternatives.append(alternative)

    def _exact(self, device: Device, item: Object) -> None:
        """Read the keys of a device without alternatives."""
        reader, path = self.reader, device.path
        device.kind = self.option(item, "kind", path, lambda v, p: reader.choice(v, p, KINDS)) or ""
        device.class_name = self.option(item, "class", path, lambda v, p: reader.name(v, p, limits.dns_subdomain)) or ""
        device.driver = self.option(item, "driver", path, lambda v, p: reader.name(v, p, limits.driver_name)) or ""
        if "kind" in item and "class" in item:
            reader.problem(path, "has both kind and class", "contradiction", "leave out kind: the class has one")
        elif "kind" not in item and "class" not in item:
            reader.problem(child(path, "kind"), "is missing", "missing", f"one of {', '.join(KINDS)}, or a class")
        count = self.option(item, "count", path, lambda v, p: reader.integer(v, p, 1, _MAX_COUNT))
        device.count = count or 1
        device.all = bool(self.option(item, "all", path, reader.boolean))
        if device.all and "count" in item:
            reader.problem(path, "has both count and all", "contradiction")
        device.where = self.where(item, path, device.kind)
        device.cel = self.cel(item, path)
        device.share = read_share(reader, item["share"], child(path, "share")) if "share" in item else {}
        device.admin = bool(self.option(item, "admin", path, reader.boolean))
        device.bandwidth = self.option(item, "bandwidth", path, reader.amount) or ""
        for name, value in (
            reader.any_mapping(item["capacity"], child(path, "capacity")).items() if "capacity" in item else ()
        ):
            place = child(child(path, "capacity"), name)
            wrong = limits.qualified_name(name)
            if wrong:
                reader.problem(place, wrong, "bad-name")
            device.capacity[name] = reader.amount(value, place) or ""
        if device.bandwidth and "bandwidth" in device.capacity:
            reader.problem(child(path, "bandwidth"), "is also in capacity", "contradiction")
        if "tolerations" in item:
            entries = reader.items(item["tolerations"], child(path, "tolerations"))
            if len(entries) > limits.TOLERATIONS:
                reader.problem(
                    child(path, "tolerations"),
                    f"has {len(entries)} entries; the limit is {limits.TOLERATIONS}",
                    "too-many",
                )
            device.tolerations = [self._toleration(value, place) for value, place in entries]

    def _toleration(self, value: object, path: str) -> Object:
        """A toleration as in the API; empty if it is not a mapping."""
        reader = self.reader
        item = reader.mapping(value, path, ("key", "operator", "value", "effect", "toleration_seconds"), "a toleration")
        toleration: Object = {}
        if item is None:
            return toleration
        toleration["key"] = self.option(item, "key", path, lambda v, p: reader.name(v, p, limits.label_key))
        operator = self.option(item, "operator", path, lambda v, p: reader.choice(v, p, ("Exists", "Equal")))
        operator = operator or ("Equal" if "value" in item else "Exists")
        toleration["operator"] = operator
        toleration["value"] = self.option(item, "value", path, lambda v, p: reader.name(v, p, limits.label_value))
        effects = ("NoSchedule", "NoExecute")
        toleration["effect"] = self.option(item, "effect", path, lambda v, p: reader.choice(v, p, effects))
        toleration["tolerationSeconds"] = self.option(
            item, "toleration_seconds", path, lambda v, p: reader.integer(v, p, 0, limits.INT64_MAX)
        )
        if operator == "Exists" and "value" in item:
            reader.problem(child(path, "value"), "cannot be combined with operator Exists", "contradiction")
        if operator == "Equal" and "key" not in item:
            reader.problem(
                child(path, "key"), "is missing", "missing", "without a key only operator Exists is possible"
            )
        if "toleration_seconds" in item and toleration["effect"] != "NoExecute":
            reader.problem(child(path, "toleration_seconds"), "needs effect NoExecute", "contradiction")
        return {key: item for key, item in toleration.items() if item is not None}

    def _distinct(self, item: Object, path: str) -> list[Distinct]:
        """The `distinct` rules of a claim that name an attribute."""
        rules = []
        place = child(path, "distinct")
        for value, entry_path in self.reader.items(item["distinct"], place) if "distinct" in item else []:
            if isinstance(value, str):
                value = {"by": value}
            rule = self.reader.mapping(value, entry_path, ("by", "devices"), "a distinct rule")
            if rule is None:
                continue
            if "by" not in rule:
                self.reader.problem(child(entry_path, "by"), "is missing", "missing")
                continue
            by = self.reader.string(rule["by"], child(entry_path, "by"))
            known = ("rail", "numa_node", "pcie_root")
            if by and "/" in by:
                wrong = limits.fully_qualified_name(by)
                if wrong:
                    self.reader.problem(child(entry_path, "by"), f"{by!r} {wrong}", "bad-name")
            elif by and by not in known:
                self.reader.problem(
                    child(entry_path, "by"),
                    f"{by!r} is not one of {', '.join(known)}, nor a qualified attribute",
                    "unknown-value",
                    nearest(by, known),
                )
            devices = self.option(rule, "devices", entry_path, self.reader.strings) or []
            if by:
                rules.append(Distinct(entry_path, by, devices))
        return rules

    def _check_requests(self, claim: Claim) -> None:
        """Check the names and the number of requests, with all repetitions, and the number of devices."""
        taken: dict[str, str] = {}
        total = 0
        for group in claim.groups:
            for device in group.devices:
                total += group.count
                last_name = request_name(device, group, group.count - 1)
                wrong = limits.dns_label(last_name) if device.name else ""
                if wrong and not limits.dns_label(device.name):
                    self.reader.problem(
                        child(device.path, "name"),
                        f"is repeated as {last_name!r}, which {wrong}",
                        "bad-name",
                        "shorten the name",
                    )
                for index in range(group.count):
                    name = request_name(device, group, index)
                    if name in taken:
                        self.reader.problem(
                            child(device.path, "name"),
                            f"request {name!r} is already defined by {taken[name]}",
                            "duplicate-name",
                            "give the devices of a claim different names",
                        )
                        break
                for index in range(group.count):
                    taken.setdefault(request_name(device, group, index), device.path)
        if total > limits.REQUESTS:
            self.reader.problem(
                claim.path,
                f"compiles to {total} requests; the limit of a claim is {limits.REQUESTS}",
                "too-many",
                "use count for identical devices, or split the claim",
            )
        # the API accepts a claim for more devices, but the scheduler never allocates it
        min_devices = sum(
            min(choice.count for choice in device.choices()) * group.count
            for group in claim.groups
            for device in group.devices
        )
        if min_devices > limits.ALLOCATION_RESULTS >= total:
            self.reader.problem(
                claim.path,
                f"requests {min_devices} devices; a claim can get at most {limits.ALLOCATION_RESULTS}",
                "too-many",
                "split the claim",
            )
        names = {device.name for group in claim.groups for device in group.devices}
        for rule in claim.distinct:
            for name in rule.devices:
                if name not in names:
                    fix = nearest(name, names) or f"known: {', '.join(sorted(names))}"
                    self.reader.problem(
                        child(rule.path, "devices"), f"the claim has no device {name!r}", "unknown-value", fix
                    )
