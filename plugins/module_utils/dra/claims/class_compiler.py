# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Compiles the DeviceClasses of a site: those in its inventory, and those that its claims need."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass

from ..apiserver import features
from ..cel.engine import Engine
from ..cel.errors import EngineMissing
from ..config import interface_config, tenancy
from ..kube import versions
from ..kube.objects import Object
from ..kube.problems import Problems
from ..kube.reader import Reader, child, nearest
from ..vendors.drivers import DRIVERS, REFUSES, knowledge
from ..vendors.knowledge import DriverKnowledge
from . import selectors
from .claim_compiler import Compiled
from .class_policy import ClassTerms, terms
from .filter_selectors import filter_selector, kind_selectors, raw_selectors
from .inventory import INDEX, PREFIX, Claim, Class, Device, Inventory
from .language_filters import read_where
from .shares import Share

ADMIN_LABEL = "resource.kubernetes.io/admin-access"


V1 = "resource.k8s.io/v1"


@dataclass
class CompiledObject:
    """An object, and the origin of its parts: inventory paths by object path."""

    object: Object
    origins: dict[str, str]

    def origin(self, path: str) -> tuple[str, bool]:
        """The inventory path of an object path, and whether it is exact; otherwise it is that of a parent."""
        place = path
        while place and place not in self.origins:
            cut = max(place.rfind("."), place.rfind("["))
            place = place[:cut] if cut > 0 else ""
        return self.origins[place], place == path


class ClassCompiler:
    """Compiles classes; `made` has the objects that are created with them."""

    def __init__(self, inventory: Inventory, reader: Reader, kubernetes: str, gates: dict[str, bool]) -> None:
        self.inventory = inventory
        self.reader = reader
        self.kubernetes = kubernetes
        self.minor = versions.minor_of(kubernetes)
        self.gates = gates
        self.lists = features.enabled("DRAListTypeAttributes", self.minor, gates)
        self.made: list[CompiledObject] = []
        self.warnings: list[str] = []
        self.classes: dict[str, Object] = {}
        self.claims: list[tuple[Claim, Compiled]] = []
        self.foreign: set[str] = set()
        self.drivers: dict[str, DriverKnowledge] = {}
        self.shares: dict[int, Share] = {}
        self.engine: Engine | None = None
        try:
            capacity = features.enabled("DRAConsumableCapacity", self.minor, gates)
            self.engine = Engine(consumable_capacity=capacity, list_attributes=self.lists)
        except EngineMissing as error:
            self.warnings.append(f"{error}; expressions in cel were not checked, and claims were not tried on nodes")
        self._named = {item.name: item for item in inventory.classes}
        self._extended: dict[str, str] = {}

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
                self.warnings += filter(None, [self.drivers[name].version_warning()])
            except Problems as error:
                self.reader.problems += error.problems

    def _driver(self, kind: str, name: str, path: str) -> DriverKnowledge | None:
        """The driver that serves a kind: the named one, or the only one of the site."""
        site_drivers = self.inventory.drivers
        serving = [driver for driver in self.drivers.values() if kind in driver.kinds]
        where = child(path, "driver" if name else "kind")
        if name and name not in site_drivers:
            fix = nearest(name, site_drivers) or f"add it to {PREFIX}drivers"
            self.reader.problem(where, f"driver {name!r} does not run on this site", "unknown-driver", fix)
        elif name and name not in self.drivers:
            pass  # its errors were already reported
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
        elif len(site_drivers) == len(self.drivers):
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
            parts += kind_selectors(driver, driver.terms(item.kind, item.filter_names()), child(item.path, "kind"))
            parts += self._filters(driver, item.kind, item.where, item.path)
        elif item.driver:
            parts.append((selectors.driver_is(item.driver), child(item.path, "driver")))
        parts += raw_selectors(item.cel, item.path)
        of_driver = driver.name if driver else item.driver
        for config in item.configs:
            own = config["driver"] == interface_config.DRIVER
            ours = "tenants" if tenancy.is_policy(config["parameters"]) else "interface"
            place = child(item.path, ours if own else "config")
            if of_driver and config["driver"] != of_driver:
                self.reader.problem(
                    place,
                    f"is for driver {config['driver']}, but the devices come from {of_driver}",
                    "config-driver",
                )
            elif own and "share" in config["parameters"] and not item.share:
                message = "needs a class of shares, but this class is for whole devices"
                self.reader.problem(child(place, "share"), message, "contradiction", "set share: true in the class")
            elif own and INDEX in str(config["parameters"].get("name", "")):
                self.reader.problem(
                    child(place, "name"),
                    f"{INDEX} has no meaning in a class, which is not repeated",
                    "contradiction",
                    "set the name in the claim that requests the device",
                )
        taken = driver.extended_resources.get(item.extended_resource) if driver else None
        if driver and taken and driver.has(taken):
            self.warnings.append(
                f"{child(item.path, 'extended_resource')}: the chart of {driver.title} creates a class with "
                f"{item.extended_resource} from {taken} on, and the scheduler uses only one of them; use another name"
            )
        self._refused(item.configs, item.path)
        if len(self.reader.problems) == before:
            self._extended[item.name] = item.extended_resource
            self._make_class(item.name, parts, item.path, of_driver, item)

    def _refused(self, configs: list[Object], path: str) -> None:
        """Report what drivers of the site refuse in opaque configurations. InterfaceConfigs are checked when read."""
        foreign = [config for config in configs if config["driver"] != interface_config.DRIVER]
        for index, config in enumerate(foreign):
            refuses, driver = REFUSES.get(config["driver"]), self.drivers.get(config["driver"])
            if refuses and driver:
                place = child(f"{child(path, 'config')}[{index}]", "parameters")
                self.reader.problems += refuses(config["parameters"], place, driver)

    def _make_class(
        self,
        name: str,
        parts: list[tuple[selectors.Selector, str]],
        path: str,
        driver: str,
        item: Class | None = None,
    ) -> None:
        """Add a class for devices of a driver; an empty `driver` means any."""
        try:
            spec: Object = {"selectors": selectors.device_selectors([part for part, _path in parts])}
        except ValueError as error:
            self.reader.problem(path, f"cannot be written as selectors: {error}", "bad-value")
            return
        origins = {"": path}
        for index, (_part, place) in enumerate(parts):
            origins[f"spec.selectors[{index}]"] = place
        configs = item.configs if item else []
        if driver in ("", interface_config.DRIVER) and not terms(name, configs).policy:
            configs = [*configs, *self.inventory.tenants]
        if configs:
            spec["config"] = [{"opaque": config} for config in configs]
            origins["spec.config"] = child(path, "config")
        if item and item.extended_resource:
            spec["extendedResourceName"] = item.extended_resource
            origins["spec.extendedResourceName"] = child(path, "extended_resource")
        metadata = self._metadata(
            name, labels=item.labels if item else None, annotations=item.annotations if item else None
        )
        made = {"apiVersion": V1, "kind": "DeviceClass", "metadata": metadata, "spec": spec}
        self.classes[name] = made
        self.made.append(CompiledObject(made, origins))

    def _class_for(self, device: Device, driver: DriverKnowledge) -> str:
        """The class of a kind: a class of the inventory that selects exactly this kind, or a new one."""
        wanted = driver.terms(device.kind, device.filter_names())
        special = next((name for name in device.filter_names() if name in driver.kinds[device.kind].instead), "")
        several = sum(device.kind in other.kinds for other in self.drivers.values()) > 1
        name = device.kind
        if several:
            name += f"-{short_name(driver.name, device.kind, self.drivers)}"
        if special:
            name += f"-{special}"
        for item in self.inventory.classes:
            if item.kind != device.kind or item.broken:
                continue
            serves = item.driver or driver.name
            same = serves == driver.name and driver.terms(item.kind, item.filter_names()) == wanted
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
                name,
                kind_selectors(driver, wanted, child(device.path, "kind")),
                child(device.path, "kind"),
                driver.name,
            )
        return name

    def _terms(self, class_name: str) -> ClassTerms | None:
        """What a class of the site sets and allows; None for a class that does not belong to the site."""
        if class_name in self.foreign:
            return None
        made = self.classes.get(class_name)
        return terms(class_name, [one["opaque"] for one in made["spec"].get("config", ())] if made else ())

    def _checked_where(self, device: Device, kind: str) -> Object | None:
        """The filters of a device that names a class of the site. They are read late because the class has the kind."""
        before = len(self.reader.problems)
        found = read_where(self.reader, device.where, child(device.path, "where"), kind)
        return found if len(self.reader.problems) == before else None

    def _filters(
        self, driver: DriverKnowledge, kind: str, where: Object, path: str
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
                    driver.hint(name) or f"it supports {answered}",
                )
                continue
            try:
                found.append((filter_selector(way, value), place))
            except ValueError as error:
                self.reader.problem(place, str(error), "bad-value")
        return found


def short_name(driver: str, kind: str, drivers: t.Iterable[str]) -> str:
    """A short name that is unique among the drivers: `nvidia` for `gpu.nvidia.com`."""

    def short(name: str) -> str:
        parts = [part for part in name.split(".")[:-1] if part != kind]
        return "-".join(parts) if parts and parts != ["dra"] else name.replace(".", "-")

    mine = short(driver)
    alike = [name for name in drivers if short(name) == mine]
    return mine if len(alike) == 1 else driver.replace(".", "-")
