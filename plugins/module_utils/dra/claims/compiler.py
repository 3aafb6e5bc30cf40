# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""A site's inventory to Kubernetes objects.

What makes a device one of its kind stands in the DeviceClass; what a claim asks for stands in its request. Objects are
in C(resource.k8s.io/v1), whatever the cluster serves, but for DeviceTaintRule, which v1 has only from 1.37 on.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ..cel.engine import Engine
from ..cel.errors import EngineMissing
from ..config import interface_config
from ..kube import limits, quantity, validate, versions
from ..kube.problems import Problem, Problems
from ..kube.reader import Reader, child, nearest
from ..vendors.drivers import DRIVERS, knowledge
from ..vendors.knowledge import DriverKnowledge, Filter, Term
from ..vendors.server import Server
from . import advice, interface_policy, selectors
from .claim_compiler import ClaimCompiler, Compiled, Resolved
from .inventory import INDEX, PREFIX, Claim, Class, Device, Inventory, Quota
from .language import parse
from .language_claims import read_where
from .reach import Reach, reach

Object = dict[str, t.Any]
ADMIN_LABEL = "resource.kubernetes.io/admin-access"
_V1 = "resource.k8s.io/v1"
_DEVICES = ".deviceclass.resource.k8s.io/devices"
_IMPLICIT = "requests.deviceclass.resource.kubernetes.io/"
_TAINT_RULE = {34: "v1alpha3", 36: "v1beta2", 37: "v1"}


@dataclass
class Site:
    """What a site's inventory becomes. C(reach) is empty where no node is known."""

    objects: list[Object]
    reach: list[Reach] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def compile_site(
    variables: t.Mapping[str, t.Any],
    nodes: t.Mapping[str, t.Any] | None = None,
    kubernetes: str = "1.37",
    gates: t.Mapping[str, bool] | None = None,
) -> Site:
    """Compile the C(dra_claims_*) variables of a site, for a release of Kubernetes and its feature gates.

    C(nodes) maps a node's name to its facts as M(lanewise.dra.topology_info) returns them; with them, each claim is
    tried on each node. Raises Problems, with every mistake found and the path of its variable.
    """
    reader = Reader()
    inventory = parse(variables, reader)
    # what is wrong with the release does not hide what is wrong elsewhere
    try:
        versions.minor_of(kubernetes)
    except ValueError as error:
        reader.problem(f"{PREFIX}kubernetes_version", str(error), "version")
        kubernetes = "1.37"
    try:
        versions.check_gates(gates)
    except ValueError as error:
        reader.problem(f"{PREFIX}feature_gates", str(error), "wrong-type")
        gates = {}
    compiler = _Compiler(inventory, reader, kubernetes, dict(gates or {}))
    compiler.compile()
    found: list[Reach] = []
    if nodes and compiler.engine:
        found = compiler.reach(nodes)
    if reader.problems:
        raise Problems(_once(reader.problems))
    return Site([made.object for made in compiler.made], found, compiler.warnings)


def _once(problems: list[Problem]) -> list[Problem]:
    return list(dict.fromkeys(problems))


@dataclass
class _Made:
    """An object, and where its parts were written: object paths to inventory paths."""

    object: Object
    origins: dict[str, str]

    def origin(self, path: str) -> tuple[str, bool]:
        """The inventory path of an object path, and whether it is as exact as the object path is."""
        place = path
        while place and place not in self.origins:
            cut = max(place.rfind("."), place.rfind("["))
            place = place[:cut] if cut > 0 else ""
        return self.origins[place], place == path


class _Compiler:
    def __init__(self, inventory: Inventory, reader: Reader, kubernetes: str, gates: dict[str, bool]) -> None:
        self.inventory = inventory
        self.reader = reader
        self.kubernetes = kubernetes
        self.minor = versions.minor_of(kubernetes)
        self.gates = gates
        self.lists = versions.enabled("DRAListTypeAttributes", self.minor, gates)
        self.made: list[_Made] = []
        self.warnings: list[str] = []
        self.classes: dict[str, Object] = {}
        self.claims: list[tuple[Claim, Compiled]] = []
        self.foreign: set[str] = set()
        self.drivers: dict[str, DriverKnowledge] = {}
        self.engine: Engine | None = None
        try:
            capacity = versions.enabled("DRAConsumableCapacity", self.minor, gates)
            self.engine = Engine(consumable_capacity=capacity, list_attributes=self.lists)
        except EngineMissing as error:
            self.warnings.append(f"{error}; what is written in cel was not checked, and no claim was tried on a node")
        self._named = {item.name: item for item in inventory.classes}
        self._extended: dict[str, str] = {}

    def compile(self) -> None:  # noqa: C901
        inventory = self.inventory
        self._knowledge()
        for item in inventory.classes:
            self._class(item)
        compiler = ClaimCompiler(self.reader, self._resolve, self.lists)
        admin = set(inventory.admin_namespaces)
        made: list[_Made] = []
        for claim in inventory.claims:
            if claim.broken:
                self._glance(claim)
                continue
            compiled = compiler.compile(claim)
            self._admin(claim, admin)
            if compiled:
                made += self._claim(claim, compiled)
                self.claims.append((claim, compiled))
        classes, self.made = self.made, []
        for index, name in enumerate(inventory.admin_namespaces):
            labels = {**self._labels(), ADMIN_LABEL: "true"}
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
            self.made.append(_Made(namespace, {"": f"{PREFIX}admin_namespaces[{index}]"}))
        self.made += sorted(classes, key=lambda item: str(item.object["metadata"]["name"]))
        self.made += made
        for quota in inventory.quotas:
            if not quota.broken:
                self._quota(quota)
        for taint in inventory.taints:
            if not taint.broken:
                version = limits.at(_TAINT_RULE, self.minor)
                spec = {"deviceSelector": taint.selector, "taint": taint.taint}
                head = {"apiVersion": f"resource.k8s.io/{version}", "kind": "DeviceTaintRule"}
                made_taint = {**head, "metadata": self._metadata(taint.name), "spec": spec}
                self.made.append(_Made(made_taint, {"": taint.path}))
        if inventory.policy:
            for policy in interface_policy.objects(self._labels()):
                self.made.append(_Made(policy, {"": f"{PREFIX}policy"}))
        for path, raw in inventory.raw:
            self.made.append(_Made(raw, {"": path}))
        self._unique()
        self._check()

    def reach(self, nodes: t.Mapping[str, t.Any]) -> list[Reach]:
        """Where the claims can run. What only the site's own taint rules keep from everywhere is worth a warning: they
        are meant to keep claims away, and must not be held up by that."""
        site = self.inventory
        taints = [made for made in self.made if made.object["kind"] == "DeviceTaintRule"]
        rules = [made.object for made in taints if self._sound(made.origins[""])]
        drivers = {name: options for name, options in site.drivers.items() if name in self.drivers}
        claims = [(claim, compiled) for claim, compiled in self.claims if self._sound(claim.path)]

        def tried(rules: list[Object]) -> tuple[list[Reach], list[Problem]]:
            server = Server(self.kubernetes, self.gates, rules)
            engine = t.cast("Engine", self.engine)
            return reach(drivers, claims, self.classes, nodes, engine, site.allow_unreachable, server)

        found, unreachable = tried(rules)
        lasting = tried([])[1] if unreachable and rules else unreachable
        paths = {problem.path for problem in lasting}
        self.warnings += [str(problem) for problem in unreachable if problem.path not in paths]
        self.reader.problems += lasting
        return found

    def _sound(self, path: str) -> bool:
        """Whether nothing is known to be wrong with what stands at a path."""
        inside = (path, f"{path}.", f"{path}[")
        return not any(problem.path == path or problem.path.startswith(inside[1:]) for problem in self.reader.problems)

    def _glance(self, claim: Claim) -> None:
        """Look at those devices of a claim with mistakes that have none themselves, for all to be told at once."""
        devices = [device for group in claim.groups for device in group.devices]
        for choice in [choice for device in devices for choice in device.choices()]:
            if self._sound(choice.path):
                self._resolve(choice)

    # what everything is made with

    def _labels(self) -> dict[str, str]:
        return {"app.kubernetes.io/managed-by": "lanewise.dra", "lanewise.dev/site": self.inventory.site}

    def _metadata(
        self,
        name: str,
        namespace: str = "",
        labels: dict[str, str] | None = None,
        annotations: dict[str, str] | None = None,
    ) -> Object:
        metadata: Object = {"name": name, "labels": {**(labels or {}), **self._labels()}}
        if namespace:
            metadata["namespace"] = namespace
        if annotations:
            metadata["annotations"] = dict(annotations)
        return metadata

    def _knowledge(self) -> None:
        for name, options in self.inventory.drivers.items():
            try:
                self.drivers[name] = knowledge(name, options)
                self.warnings += filter(None, [self.drivers[name].beyond()])
            except Problems as error:
                self.reader.problems += error.problems

    def _unique(self) -> None:
        """Raw objects must not be what is made here as well: the last to be applied would win, at every run anew."""
        first: dict[tuple[str, ...], str] = {}
        for made in self.made:
            item, metadata = made.object, made.object["metadata"]
            name = "/".join(filter(None, [metadata.get("namespace"), metadata["name"]]))
            group = item["apiVersion"].rpartition("/")[0].partition("/")[0]
            other = first.setdefault((group, item["kind"], name), made.origins[""])
            if other != made.origins[""]:
                message = f"{item['kind']} {name} is already made by {other}"
                self.reader.problem(made.origins[""], message, "duplicate-name")

    def _check(self) -> None:
        """What this server would drop, and, as a last look at our own work, what the API would refuse.

        Objects of one origin that differ in their namespace only are alike, and looked at once.
        """
        seen: set[tuple[str, str]] = set()
        for made in self.made:
            item = made.object
            kind = str(item.get("kind"))
            if (made.origins[""], kind) in seen or not str(item.get("apiVersion")).startswith("resource.k8s.io/"):
                continue
            seen.add((made.origins[""], kind))
            lost = versions.unsupported(item, self.kubernetes, self.gates)
            wrong = [] if lost else validate.validate(item, self.kubernetes, self.gates, self.engine)
            for problem in lost + wrong:
                path, exact = made.origin(problem.path)
                raw = path.startswith(f"{PREFIX}raw[")
                message = problem.message if exact else f"{kind} {problem.path}: {problem.message}"
                self.reader.problem(
                    f"{path}.{problem.path}" if raw else path,
                    problem.message if raw else message,
                    problem.rule,
                    problem.fix,
                )

    # classes

    def _driver(self, kind: str, name: str, path: str) -> DriverKnowledge | None:
        """The driver that serves a kind: the one that is named, or the site's only one."""
        given = self.inventory.drivers
        serving = [driver for driver in self.drivers.values() if kind in driver.kinds]
        where = child(path, "driver" if name else "kind")
        if name and name not in given:
            fix = nearest(name, given) or f"add it to {PREFIX}drivers"
            self.reader.problem(where, f"driver {name!r} does not run on this site", "unknown-driver", fix)
        elif name and name not in self.drivers:
            pass  # what is wrong with it stands among the problems
        elif name and kind not in self.drivers[name].kinds:
            serves = ", ".join(self.drivers[name].kinds)
            self.reader.problem(
                where, f"driver {name} has no devices of kind {kind}", "unserved-kind", f"it has {serves}"
            )
        elif name:
            return self.drivers[name]
        elif len(serving) == 1:
            return serving[0]
        elif serving:
            names = ", ".join(driver.name for driver in serving)
            self.reader.problem(
                where, f"several drivers of this site serve kind {kind}: {names}", "ambiguous", "name the driver"
            )
        elif len(given) == len(self.drivers):
            known = ", ".join(driver.name for driver in DRIVERS.values() if kind in driver.kinds)
            self.reader.problem(
                where,
                f"no driver of this site serves kind {kind}",
                "unserved-kind",
                f"{PREFIX}drivers can have {known}",
            )
        return None

    def _class(self, item: Class) -> None:
        driver = self._driver(item.kind, item.driver, item.path) if item.kind else None
        if item.broken or (item.kind and driver is None):
            item.broken = True
            return
        before = len(self.reader.problems)
        parts: list[tuple[selectors.Selector, str]] = []
        if driver:
            parts += _kind_selectors(driver, driver.terms(item.kind, item.where), child(item.path, "kind"))
            parts += self._filters(driver, item.kind, item.where, item.path)
        elif item.driver:
            parts.append((selectors.driver_is(item.driver), child(item.path, "driver")))
        parts += _raw_selectors(item.cel, item.path)
        of_driver = driver.name if driver else item.driver
        for config in item.configs:
            own = config["driver"] == interface_config.DRIVER
            place = child(item.path, "interface" if own else "config")
            if of_driver and config["driver"] != of_driver:
                self.reader.problem(
                    place,
                    f"is for driver {config['driver']}, but the devices come from {of_driver}",
                    "config-driver",
                )
            elif own and INDEX in str(config["parameters"].get("name", "")):
                self.reader.problem(
                    child(place, "name"),
                    f"{INDEX} has no meaning in a class, which knows of no repetition",
                    "contradiction",
                    "name the interface where a claim asks for the device",
                )
        if len(self.reader.problems) == before:
            self._extended[item.name] = item.extended_resource
            self._make_class(item.name, parts, item.path, item)

    def _make_class(
        self, name: str, parts: list[tuple[selectors.Selector, str]], path: str, item: Class | None = None
    ) -> None:
        try:
            spec: Object = {"selectors": selectors.device_selectors([part for part, _path in parts])}
        except ValueError as error:
            self.reader.problem(path, f"cannot be written as selectors: {error}", "bad-value")
            return
        origins = {"": path}
        for index, (_part, place) in enumerate(parts):
            origins[f"spec.selectors[{index}]"] = place
        if item and item.configs:
            spec["config"] = [{"opaque": config} for config in item.configs]
            origins["spec.config"] = child(path, "config")
        if item and item.extended_resource:
            spec["extendedResourceName"] = item.extended_resource
            origins["spec.extendedResourceName"] = child(path, "extended_resource")
        metadata = self._metadata(
            name, labels=item.labels if item else None, annotations=item.annotations if item else None
        )
        made = {"apiVersion": _V1, "kind": "DeviceClass", "metadata": metadata, "spec": spec}
        self.classes[name] = made
        self.made.append(_Made(made, origins))

    def _class_for(self, device: Device, driver: DriverKnowledge) -> str:
        """The class of a kind: one that the site names itself and that adds nothing to it, or one made here."""
        terms = driver.terms(device.kind, device.where)
        special = next((name for name in device.where if name in driver.kinds[device.kind].instead), "")
        several = sum(device.kind in other.kinds for other in self.drivers.values()) > 1
        name = device.kind
        if several:
            name += f"-{_short(driver.name, device.kind, self.drivers)}"
        if special:
            name += f"-{special}"
        for item in self.inventory.classes:
            if item.kind != device.kind or item.broken:
                continue
            serves = item.driver or driver.name
            same = serves == driver.name and driver.terms(item.kind, item.where) == terms
            if same and (item.name == name or not (item.where or item.cel or item.configs or item.extended_resource)):
                return item.name
        if name in self._named:
            item = self._named[name]
            if not item.broken:
                self.reader.problem(
                    child(item.path, "name"),
                    f"{name!r} is the name of the class for kind {device.kind} of {driver.name}, "
                    f"which {device.path} needs",
                    "duplicate-name",
                    "give this class another name",
                )
        elif name not in self.classes:
            self._make_class(
                name, _kind_selectors(driver, terms, child(device.path, "kind")), child(device.path, "kind")
            )
        return name

    # devices

    def _resolve(self, device: Device) -> Resolved | None:  # noqa: C901
        before = len(self.reader.problems)
        kind, driver, class_name = device.kind, None, device.class_name
        if device.class_name in self._named:
            item = self._named[device.class_name]
            if item.broken:
                return None
            if device.driver:
                self.reader.problem(
                    child(device.path, "driver"), "the class has its driver", "contradiction", "leave it out"
                )
            if device.where and not item.kind:
                self.reader.problem(
                    child(device.path, "where"),
                    f"class {item.name!r} has no kind, so its filters are not known",
                    "contradiction",
                    "give the class a kind, or use cel",
                )
            kind = item.kind
            driver = self._driver(item.kind, item.driver, item.path) if item.kind else None
            own = driver.kinds[kind].instead if driver else {}
            for name in device.where:
                if name in own and name not in item.where:
                    self.reader.problem(
                        child(child(device.path, "where"), name),
                        f"class {item.name!r} has no devices with a {name}",
                        "contradiction",
                        f"ask for kind {kind}, or give the class a {name}",
                    )
        elif device.class_name:
            self.foreign.add(device.class_name)
            if device.where:
                self.reader.problem(
                    child(device.path, "where"),
                    f"class {device.class_name!r} is not of this site, so its devices are not known",
                    "contradiction",
                    nearest(device.class_name, self._named) or f"use cel, or describe the class in {PREFIX}classes",
                )
            if device.driver:
                driver = self.drivers.get(device.driver)
                if device.driver not in self.inventory.drivers:
                    fix = nearest(device.driver, self.inventory.drivers) or f"add it to {PREFIX}drivers"
                    message = f"driver {device.driver!r} does not run on this site"
                    self.reader.problem(child(device.path, "driver"), message, "unknown-driver", fix)
        else:
            driver = self._driver(device.kind, device.driver, device.path)
            if driver is None:
                return None
            class_name = self._class_for(device, driver)
        parts: list[tuple[selectors.Selector, str]] = []
        if driver and device.where:
            where = device.where
            if device.class_name:
                checked = self._checked_where(device, kind)
                where = {} if checked is None else checked
            parts += self._filters(driver, kind, where, device.path)
        parts += _raw_selectors(device.cel, device.path)
        if len(parts) > limits.SELECTORS:
            self.reader.problem(device.path, f"has more than {limits.SELECTORS} filters", "too-many")
        # the server wants the key as the driver publishes it, letter by letter
        keys = driver.kinds[kind].capacities if driver and kind else {}
        capacity = {keys.get(name, name): amount for name, amount in device.capacity.items()}
        if device.bandwidth:
            key = driver.kinds[kind].capacities.get("bandwidth") if driver and kind else "bandwidth"
            if key is None and driver:
                self.reader.problem(
                    child(device.path, "bandwidth"),
                    f"{driver.name} publishes no bandwidth",
                    "no-capacity",
                    "leave it out"
                    + (", or let lanewise.dev serve the device" if kind in ("nic", "rdma", "vf") else ""),
                )
            elif key:
                capacity[key] = device.bandwidth
        if len(self.reader.problems) > before:
            return None
        self.warnings += advice.of_capacity(device, driver, capacity)
        texts = [(part.text, path) for part, path in parts]
        return Resolved(device, class_name, kind, driver, texts, capacity, self._settings(class_name))

    def _settings(self, class_name: str) -> Object:
        """The fields of an InterfaceConfig that a class of the site sets."""
        configs = self._named[class_name].configs if class_name in self._named else ()
        own = [config["parameters"] for config in configs if config["driver"] == interface_config.DRIVER]
        return {name: value for parameters in own for name, value in parameters.items()}

    def _checked_where(self, device: Device, kind: str) -> dict[str, t.Any] | None:
        """The filters of a device that names a class of the site, read now that the kind is known."""
        before = len(self.reader.problems)
        found = read_where(self.reader, device.where, child(device.path, "where"), kind)
        return found if len(self.reader.problems) == before else None

    def _filters(
        self, driver: DriverKnowledge, kind: str, where: dict[str, t.Any], path: str
    ) -> list[tuple[selectors.Selector, str]]:
        found = []
        for name, value in where.items():
            place = child(child(path, "where"), name)
            way = driver.filter(kind, name)
            if way is None:
                answered = ", ".join(driver.kinds[kind].filters)
                self.reader.problem(
                    place,
                    f"{driver.name} {driver.version} does not publish what {name} of kind {kind} asks for",
                    "unanswered-filter",
                    driver.hint(name) or f"it answers {answered}",
                )
                continue
            try:
                found.append((_select(way, value), place))
            except ValueError as error:
                self.reader.problem(place, str(error), "bad-value")
        return found

    # claims

    def _admin(self, claim: Claim, admin: set[str]) -> None:
        path = next((d.path for group in claim.groups for d in group.devices if d.admin), "")
        for namespace in claim.namespaces if path else ():
            if namespace not in admin:
                fix = f"add it to {PREFIX}admin_namespaces"
                message = f"namespace {namespace!r} may not ask for admin access"
                self.reader.problem(child(path, "admin"), message, "no-admin-namespace", fix)

    def _claim(self, claim: Claim, compiled: Compiled) -> list[_Made]:
        prefix = "spec.spec.devices." if claim.template else "spec.devices."
        origins = {prefix + place: path for place, path in compiled.origins.items()}
        origins.update({"": claim.path, "metadata.name": child(claim.path, "name")})
        spec: Object = {"devices": compiled.devices}
        made = []
        for namespace in claim.namespaces:
            metadata = self._metadata(claim.name, namespace, claim.labels, claim.annotations)
            item = {
                "apiVersion": _V1,
                "kind": "ResourceClaimTemplate" if claim.template else "ResourceClaim",
                "metadata": metadata,
                # the claims that a template makes have its labels, so that they are found by them, too
                "spec": {"metadata": {"labels": metadata["labels"]}, "spec": spec} if claim.template else spec,
            }
            made.append(_Made(item, origins))
        return made

    def _quota(self, quota: Quota) -> None:
        hard: dict[str, str] = {}
        known = {*self.classes, *self.foreign}
        for name, number in quota.devices.items():
            if name in self._named and self._named[name].broken:
                continue
            if name not in known:
                fix = nearest(name, known) or f"classes are {', '.join(sorted(known)) or 'none'}"
                place = child(child(quota.path, "devices"), name)
                self.reader.problem(place, f"there is no class {name!r}", "unknown-class", fix)
                continue
            hard[name + _DEVICES] = str(number)
            if self._extended.get(name):
                # pods that ask by the extended resource are refused at once, not when the scheduler makes their claim
                hard[f"requests.{self._extended[name]}"] = str(number)
                if not limits.label_key(_IMPLICIT + name):
                    hard[_IMPLICIT + name] = str(number)
        if quota.claims is not None:
            hard["count/resourceclaims.resource.k8s.io"] = str(quota.claims)
        metadata = self._metadata(quota.name, quota.namespace)
        made = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard}}
        self.made.append(_Made(made, {"": quota.path}))


def _kind_selectors(
    driver: DriverKnowledge, terms: t.Iterable[Term], path: str
) -> list[tuple[selectors.Selector, str]]:
    found = [(selectors.driver_is(driver.name), path)]
    for term in terms:
        part = selectors.equals(term.name, term.value)
        found.append((selectors.negate(part) if term.compare == "not_equals" else part, path))
    return found


def _raw_selectors(expressions: list[str], path: str) -> list[tuple[selectors.Selector, str]]:
    return [(selectors.Selector(text), child(child(path, "cel"), index)) for index, text in enumerate(expressions)]


def _select(way: Filter, value: t.Any) -> selectors.Selector:
    """A filter's selector. Raises ValueError where the value does not fit what the driver publishes."""
    value = way.values.get(value, value) if isinstance(value, str) else value
    if way.unit == "semver":
        at_least = selectors.version_at_least if way.type == "version" else selectors.text_version_at_least
        return at_least(way.name, value)
    if way.unit == "mbps":
        return selectors.at_least(way.name, mbps(value))
    if way.type == "quantity":
        return selectors.capacity_at_least(way.name, value)
    if way.type == "int" and not isinstance(value, int):
        raise ValueError(f"must be a whole number, not {value!r}")
    if way.compare == "at_least":
        return selectors.at_least(way.name, value)
    if way.compare == "contains":
        return selectors.contains(way.name, value)
    part = selectors.equals(way.name, value)
    return selectors.negate(part) if way.compare == "not_equals" else part


def mbps(rate: str) -> int:
    """Whole Mbit/s of a rate in bit/s such as C(400G). Raises ValueError where it is none."""
    number = quantity.parse(rate) / 1_000_000
    if number.denominator != 1:
        raise ValueError(f"{rate!r} is no whole number of Mbit/s; write a rate in bit/s, such as 400G")
    return number.numerator


def _short(driver: str, kind: str, drivers: t.Iterable[str]) -> str:
    """The word by which people tell a driver from others of the kind: C(nvidia) of C(gpu.nvidia.com)."""

    def short(name: str) -> str:
        parts = [part for part in name.split(".")[:-1] if part != kind]
        return "-".join(parts) if parts and parts != ["dra"] else name.replace(".", "-")

    mine = short(driver)
    alike = [name for name in drivers if short(name) == mine]
    return mine if len(alike) == 1 else driver.replace(".", "-")
