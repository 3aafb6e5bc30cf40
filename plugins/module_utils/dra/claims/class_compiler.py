# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Compiles the DeviceClasses of a site: those of its inventory, and others that its claims need."""

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
from ..vendors.drivers import CONFIG_CHECKS, DRIVERS, knowledge
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
    """An object. `origins` maps paths of its parts to paths in the inventory."""

    object: Object
    origins: dict[str, str]

    def origin(self, path: str) -> tuple[str, bool]:
        """The inventory path of an object path, and whether it is exact. Otherwise it is that of the nearest parent."""
        known = path
        while known and known not in self.origins:
            cut = max(known.rfind("."), known.rfind("["))
            known = known[:cut] if cut > 0 else ""
        return self.origins[known], known == path


class ClassCompiler:
    """Compiles DeviceClasses. `compiled_objects` are the objects of the site so far; errors are recorded in
    `reader`."""

    def __init__(self, inventory: Inventory, reader: Reader, kubernetes: str, gates: dict[str, bool]) -> None:
        self.inventory = inventory
        self.reader = reader
        self.kubernetes = kubernetes
        self.minor = versions.minor_of(kubernetes)
        self.gates = gates
        self.lists = features.enabled("DRAListTypeAttributes", self.minor, gates)
        self.compiled_objects: list[CompiledObject] = []
        self.warnings: list[str] = []
        self.classes: dict[str, Object] = {}
        self.claims: list[tuple[Claim, Compiled]] = []
        #: Names of classes that claims use, but that do not belong to the site.
        self.foreign_classes: set[str] = set()
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

    def _read_drivers(self) -> None:
        """Read the knowledge of the site's drivers."""
        for name, options in self.inventory.drivers.items():
            try:
                self.drivers[name] = knowledge(name, options)
                self.warnings += filter(None, [self.drivers[name].version_warning()])
            except Problems as error:
                self.reader.problems += error.problems

    def _driver_for(self, kind: str, name: str, path: str) -> DriverKnowledge | None:
        """The driver `name`, or if that is empty, the only driver of the site that serves a kind.

        Returns None after recording a problem.
        """
        site_drivers = self.inventory.drivers
        serving = [driver for driver in self.drivers.values() if kind in driver.kinds]
        problem_path = child(path, "driver" if name else "kind")
        if name and name not in site_drivers:
            fix = nearest(name, site_drivers) or f"add it to {PREFIX}drivers"
            self.reader.problem(problem_path, f"driver {name!r} does not run on this site", "unknown-driver", fix)
        elif name and name not in self.drivers:
            pass  # its errors were already reported
        elif name and kind not in self.drivers[name].kinds:
            fix = f"kinds of this driver: {', '.join(self.drivers[name].kinds)}"
            self.reader.problem(problem_path, f"driver {name} has no devices of kind {kind}", "unserved-kind", fix)
        elif name:
            return self.drivers[name]
        elif len(serving) == 1:
            return serving[0]
        elif serving:
            names = ", ".join(driver.name for driver in serving)
            message = f"several drivers of this site serve kind {kind}: {names}"
            self.reader.problem(problem_path, message, "ambiguous", "set the driver")
        elif len(site_drivers) == len(self.drivers):
            known = ", ".join(driver.name for driver in DRIVERS.values() if kind in driver.kinds)
            self.reader.problem(
                problem_path,
                f"no driver of this site serves kind {kind}",
                "unserved-kind",
                f"add one of these to {PREFIX}drivers: {known}",
            )
        return None

    def _compile_class(self, item: Class) -> None:
        """Add the DeviceClass for a class of the inventory, or record its errors."""
        driver = self._driver_for(item.kind, item.driver, item.path) if item.kind else None
        if item.broken or (item.kind and driver is None):
            item.broken = True
            return
        problems_before = len(self.reader.problems)
        parts: list[tuple[selectors.Selector, str]] = []
        if driver:
            parts += kind_selectors(driver, driver.terms(item.kind, item.filter_names()), child(item.path, "kind"))
            parts += self._filters(driver, item.kind, item.where, item.path)
        elif item.driver:
            parts.append((selectors.driver_is(item.driver), child(item.path, "driver")))
        parts += raw_selectors(item.cel, item.path)
        driver_name = driver.name if driver else item.driver
        for config in item.configs:
            is_lanewise = config["driver"] == interface_config.DRIVER
            lanewise_key = "tenants" if tenancy.is_policy(config["parameters"]) else "interface"
            path = child(item.path, lanewise_key if is_lanewise else "config")
            if driver_name and config["driver"] != driver_name:
                self.reader.problem(
                    path,
                    f"is for driver {config['driver']}, but the devices come from {driver_name}",
                    "config-driver",
                )
            elif is_lanewise and "share" in config["parameters"] and not item.share:
                message = "needs a class of shares, but this class is for whole devices"
                self.reader.problem(child(path, "share"), message, "contradiction", "set share: true in the class")
            elif is_lanewise and INDEX in str(config["parameters"].get("name", "")):
                self.reader.problem(
                    child(path, "name"),
                    f"{INDEX} has no meaning in a class, which is not repeated",
                    "contradiction",
                    "set the name in the claim that requests the device",
                )
        since = driver.extended_resources.get(item.extended_resource) if driver else None
        if driver and since and driver.version_in_range(since):
            self.warnings.append(
                f"{child(item.path, 'extended_resource')}: the chart of {driver.title} creates a class with "
                f"{item.extended_resource} from {since} on, and the scheduler uses only one of the two classes; "
                "use another name"
            )
        self._check_configs(item.configs, item.path)
        if len(self.reader.problems) == problems_before:
            self._extended[item.name] = item.extended_resource
            self._add_class(item.name, parts, item.path, driver_name, item)

    def _check_configs(self, configs: list[Object], path: str) -> None:
        """Record what other drivers would refuse in opaque configurations. InterfaceConfigs are checked when read."""
        foreign = [config for config in configs if config["driver"] != interface_config.DRIVER]
        for index, config in enumerate(foreign):
            check, driver = CONFIG_CHECKS.get(config["driver"]), self.drivers.get(config["driver"])
            if check and driver:
                parameters_path = child(f"{child(path, 'config')}[{index}]", "parameters")
                self.reader.problems += check(config["parameters"], parameters_path, driver)

    def _add_class(
        self,
        name: str,
        parts: list[tuple[selectors.Selector, str]],
        path: str,
        driver: str,
        item: Class | None = None,
    ) -> None:
        """Add a class for devices of a driver, or of any driver if `driver` is empty.

        `parts` are its selectors, each with its inventory path. `item` is the class in the inventory, if it has one.
        """
        try:
            spec: Object = {"selectors": selectors.device_selectors([part for part, _path in parts])}
        except ValueError as error:
            self.reader.problem(path, f"cannot be written as selectors: {error}", "bad-value")
            return
        origins = {"": path}
        for index, (_part, part_path) in enumerate(parts):
            origins[f"spec.selectors[{index}]"] = part_path
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
        device_class = {"apiVersion": V1, "kind": "DeviceClass", "metadata": metadata, "spec": spec}
        self.classes[name] = device_class
        self.compiled_objects.append(CompiledObject(device_class, origins))

    def _class_for(self, device: Device, driver: DriverKnowledge) -> str:
        """The name of the class for a device without a class.

        It is a class of the inventory for this kind: one with the name that a new class would get, whatever else it
        sets, or one without filters, expressions, configurations and an extended resource. Otherwise it is a new one.
        """
        terms_of_kind = driver.terms(device.kind, device.filter_names())
        special = next(
            (name for name in device.filter_names() if name in driver.kinds[device.kind].terms_by_filter), ""
        )
        several = sum(device.kind in site_driver.kinds for site_driver in self.drivers.values()) > 1
        name = device.kind
        if several:
            name += f"-{short_name(driver.name, device.kind, self.drivers)}"
        if special:
            name += f"-{special}"
        for item in self.inventory.classes:
            if item.kind != device.kind or item.broken:
                continue
            same_driver = item.driver in ("", driver.name)
            same = same_driver and driver.terms(item.kind, item.filter_names()) == terms_of_kind
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
            self._add_class(
                name,
                kind_selectors(driver, terms_of_kind, child(device.path, "kind")),
                child(device.path, "kind"),
                driver.name,
            )
        return name

    def _class_terms(self, class_name: str) -> ClassTerms | None:
        """What a class of the site sets and allows; None for a class that does not belong to the site."""
        if class_name in self.foreign_classes:
            return None
        device_class = self.classes.get(class_name)
        configs = device_class["spec"].get("config", ()) if device_class else ()
        return terms(class_name, [config["opaque"] for config in configs])

    def _where_of_class(self, device: Device, kind: str) -> Object | None:
        """The filters of a device that names a class of the site. They are read only here, because the class has the
        kind. Returns None after recording a problem."""
        problems_before = len(self.reader.problems)
        where = read_where(self.reader, device.where, child(device.path, "where"), kind)
        return where if len(self.reader.problems) == problems_before else None

    def _filters(
        self, driver: DriverKnowledge, kind: str, where: Object, path: str
    ) -> list[tuple[selectors.Selector, str]]:
        """The selectors of the filters in `where`, each with its inventory path."""
        parts = []
        for name, value in where.items():
            filter_path = child(child(path, "where"), name)
            test = driver.filter(kind, name)
            if test is None:
                supported = ", ".join(driver.kinds[kind].filters)
                self.reader.problem(
                    filter_path,
                    f"{driver.name} {driver.version} does not support {name} of kind {kind}",
                    "unanswered-filter",
                    driver.hint(name) or f"supported: {supported}",
                )
                continue
            try:
                parts.append((filter_selector(test, value), filter_path))
            except ValueError as error:
                self.reader.problem(filter_path, str(error), "bad-value")
        return parts


def short_name(driver: str, kind: str, drivers: t.Iterable[str]) -> str:
    """A short name that is unique among the drivers: `nvidia` for `gpu.nvidia.com`."""

    def short(full: str) -> str:
        parts = [part for part in full.split(".")[:-1] if part != kind]
        return "-".join(parts) if parts and parts != ["dra"] else full.replace(".", "-")

    name = short(driver)
    same = [full_name for full_name in drivers if short(full_name) == name]
    return name if len(same) == 1 else driver.replace(".", "-")
