# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Compiles the devices of claims: the class, selectors and capacities of each."""

from __future__ import annotations

from ..apiserver import features
from ..kube import limits
from ..kube.objects import Object
from ..kube.reader import child, nearest
from ..scheduler.published import Nodes
from ..vendors.knowledge import DriverKnowledge
from ..vendors.server import SHARES_SINCE
from . import advice, selectors
from .class_compiler import ClassCompiler
from .filter_selectors import raw_selectors
from .inventory import DEFAULT, PREFIX, Class, Device
from .nic_shares import BandwidthCap, SiteNics, nic_share, nics_of, rounding_warnings
from .resolved_device import ResolvedDevice
from .shares import Share, share_of, unshared_warnings

#: The feature gates of the API server that devices for shares of NICs need.
_SHARE_GATES = ("DRAConsumableCapacity", "DRAPartitionableDevices")


class DeviceCompiler(ClassCompiler):
    """Compiles the devices of claims."""

    nodes: Nodes
    _site_nics: SiteNics | None = None

    def _resolve(self, device: Device) -> ResolvedDevice | None:
        """What a device is compiled to, or None after recording its errors."""
        problems_before = len(self.reader.problems)
        kind, class_name = device.kind, device.class_name
        if class_name in self._named:
            item = self._named[class_name]
            if item.broken:
                return None
            kind, driver = item.kind, self._driver_of_class(device, item)
            if item.share and not device.share:
                device.share = {"bandwidth": DEFAULT}
        elif class_name:
            driver = self._driver_of_foreign_class(device)
        else:
            driver = self._driver_for(kind, device.driver, device.path)
            if driver is None:
                return None
        if device.share and not self._apply_share(device, driver, kind):
            return None
        if not device.class_name and driver:
            class_name = self._class_for(device, driver)
        parts = self._selectors(device, driver, kind)
        if len(parts) > limits.SELECTORS:
            self.reader.problem(device.path, f"has more than {limits.SELECTORS} filters", "too-many")
        capacity = self._capacity(device, driver, kind)
        if len(self.reader.problems) > problems_before:
            return None
        if device.divided:
            warnings = rounding_warnings(device, capacity, self._nics())
            self.warnings += [warning for warning in warnings if warning not in self.warnings]
        else:
            self.warnings += advice.capacity_warnings(device, driver, capacity)
        if driver:
            self.warnings += unshared_warnings(device, driver, self.inventory.drivers.get(driver.name) or {})
        texts = [(part.text, path) for part, path in parts]
        return ResolvedDevice(device, class_name, kind, driver, texts, capacity, self._class_terms(class_name))

    def _apply_share(self, device: Device, driver: DriverKnowledge | None, kind: str) -> bool:
        """Compile a device's share, once, and add the result to the filters, amounts and configurations of the device.

        Returns False after recording errors of the share.
        """
        if id(device) in self.shares:
            return True
        share = self._nic_share(device, driver, kind) if device.divided else self._gpu_share(device, driver, kind)
        if share is None:
            return False
        device.where = {**device.where, **({} if device.class_name else share.where)}
        device.capacity = {**device.capacity, **share.capacity}
        device.configs = share.configs
        self.shares[id(device)] = share
        return True

    def _gpu_share(self, device: Device, driver: DriverKnowledge | None, kind: str) -> Share | None:
        """What a share of a GPU is compiled to, or None after recording its errors."""
        if driver is None or kind != "gpu":
            fix = "request kind gpu, or a class of this site with that kind"
            self.reader.problem(child(device.path, "share"), "is only for GPUs", "contradiction", fix)
            return None
        share = share_of(device, driver, self.inventory.drivers.get(driver.name) or {}, self.reader)
        if share is None:
            return None
        item = self._named.get(device.class_name)
        if share.where and device.class_name and not (item and share.where.items() <= item.where.items()):
            message = f"class {device.class_name!r} has no devices with this partition"
            fix = "request kind gpu, or add the partition to the class"
            self.reader.problem(child(child(device.path, "share"), "partition"), message, "contradiction", fix)
            return None
        return share

    def _nic_share(self, device: Device, driver: DriverKnowledge | None, kind: str) -> Share | None:
        """What a share of a NIC is compiled to, or None after recording its errors."""
        path, item = child(device.path, "share"), self._named.get(device.class_name)
        if driver is None or not kind:
            fix = "request kind nic or rdma, or a class of this site with that kind"
            self.reader.problem(path, "is only for NICs", "contradiction", fix)
            return None
        if item and not item.share:
            fix = "set share: true in the class, or request the kind"
            self.reader.problem(path, f"class {item.name!r} is for whole devices", "contradiction", fix)
            return None
        if kind in driver.kinds and "share" not in driver.kinds[kind].terms_by_filter and kind != "vf":
            fix = "let the driver lanewise.dev serve the device"
            message = f"{driver.name} does not support shares of {'NICs' if kind != 'gpu' else 'bandwidth'}"
            self.reader.problem(path, message, "no-capacity", fix if kind != "gpu" else "request kind nic")
            return None
        off = [name for name in _SHARE_GATES if not features.enabled(name, self.minor, self.gates)]
        if off or self.minor < SHARES_SINCE:
            too_old = self.minor < SHARES_SINCE
            reason = "this release is too old" if too_old else f"the feature gate {off[0]} is off"
            message = f"with Kubernetes 1.{self.minor} the driver publishes no shares of NICs: {reason}"
            fix = f"use 1.{SHARES_SINCE} or later with {' and '.join(_SHARE_GATES)}, or request a whole NIC"
            self.reader.problem(path, message, "dropped", fix)
            return None
        terms = self._class_terms(device.class_name) if device.class_name else None
        cap = BandwidthCap(device.class_name, terms.settings.get("share", {}).get("burst", "")) if terms else None
        return nic_share(device, kind, self._nics(), self.reader, self.inventory.allow_unreachable, cap)

    def _nics(self) -> SiteNics:
        """The divided NICs of the known nodes. They are read once, and only for claims that request shares of NICs."""
        if self._site_nics is None:
            self._site_nics = nics_of(self.nodes)
        return self._site_nics

    def _driver_of_class(self, device: Device, item: Class) -> DriverKnowledge | None:
        """The driver of a class of the site that a device uses."""
        if device.driver:
            self.reader.problem(child(device.path, "driver"), "is set by the class", "contradiction", "leave it out")
        if device.where and not item.kind:
            self.reader.problem(
                child(device.path, "where"),
                f"class {item.name!r} has no kind, so its filters are unknown",
                "contradiction",
                "set a kind in the class, or use cel",
            )
        driver = self._driver_for(item.kind, item.driver, item.path) if item.kind else None
        terms_by_filter = driver.kinds[item.kind].terms_by_filter if driver else {}
        for name in device.where:
            if name in terms_by_filter and name not in item.where:
                self.reader.problem(
                    child(child(device.path, "where"), name),
                    f"class {item.name!r} has no devices with a {name}",
                    "contradiction",
                    f"request kind {item.kind}, or add a {name} to the class",
                )
        return driver

    def _driver_of_foreign_class(self, device: Device) -> DriverKnowledge | None:
        """The driver that is set for a device whose class does not belong to the site; None if it is not set or
        unknown."""
        self.foreign_classes.add(device.class_name)
        if device.where:
            self.reader.problem(
                child(device.path, "where"),
                f"class {device.class_name!r} does not belong to this site, so its devices are unknown",
                "contradiction",
                nearest(device.class_name, self._named) or f"use cel, or describe the class in {PREFIX}classes",
            )
        if device.driver and device.driver not in self.inventory.drivers:
            fix = nearest(device.driver, self.inventory.drivers) or f"add it to {PREFIX}drivers"
            message = f"driver {device.driver!r} does not run on this site"
            self.reader.problem(child(device.path, "driver"), message, "unknown-driver", fix)
        return self.drivers.get(device.driver) if device.driver else None

    def _selectors(
        self, device: Device, driver: DriverKnowledge | None, kind: str
    ) -> list[tuple[selectors.Selector, str]]:
        """The selectors of a device's filters and expressions, each with its path in the inventory."""
        parts: list[tuple[selectors.Selector, str]] = []
        if driver and device.where:
            where: Object | None = device.where
            if device.class_name:
                where = self._where_of_class(device, kind)
            parts += self._filters(driver, kind, where or {}, device.path)
        if id(device) in self.shares:
            parts += self.shares[id(device)].selectors
        return parts + raw_selectors(device.cel, device.path)

    def _capacity(self, device: Device, driver: DriverKnowledge | None, kind: str) -> dict[str, str]:
        """The amounts that a device requests, by the names that the driver publishes."""
        keys = driver.kinds[kind].capacities if driver and kind else {}
        capacity = {keys.get(name, name): amount for name, amount in device.capacity.items()}
        if device.bandwidth:
            key = keys.get("bandwidth") if driver and kind else "bandwidth"
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
        return capacity
