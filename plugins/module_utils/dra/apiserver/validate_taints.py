# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The rules for DeviceTaintRules, and for taints of devices."""

from __future__ import annotations

from ..kube import limits
from ..kube.objects import Object
from . import schema
from .validate_base import NameCheck
from .validate_metadata import MetadataRules


class TaintRules(MetadataRules):
    """Rules for taints and device selectors."""

    def taint_rule(self, spec: Object, path: str) -> None:
        """Check the spec of a DeviceTaintRule."""
        selector, selector_path = spec.get("deviceSelector", {}), f"{path}.deviceSelector"
        checks: dict[str, NameCheck] = {
            "driver": limits.driver_name,
            "pool": limits.pool_name,
            "device": limits.dns_label,
            "deviceClassName": limits.dns_subdomain,
        }
        for name, check in checks.items():
            if name in selector:
                self._name(selector[name], check, f"{selector_path}.{name}")
        self._selectors(selector.get("selectors", []), f"{selector_path}.selectors")
        self._taint(spec.get("taint", {}), f"{path}.taint")

    def _taint(self, taint: Object, path: str) -> None:
        self._name(taint.get("key", ""), limits.label_key, f"{path}.key")
        wrong = limits.label_value(taint.get("value", ""))
        if wrong:
            self._add(f"{path}.value", wrong, "label")
        self._one_of(taint.get("effect", ""), limits.at(schema.EFFECTS, self._minor), f"{path}.effect")
