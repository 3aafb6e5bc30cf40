# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Reads the `dra_claims_*` variables, in which a site's inventory describes what its workloads need, to dataclasses.

Reading never stops at an error. Errors of the inventory itself are reported here; errors that depend on the drivers,
the nodes or the Kubernetes version of the site are reported by `compiler`. An entry with an error is marked `broken`
and its name stays defined, so that one error does not cause others.
"""

from __future__ import annotations

import dataclasses
import typing as t

from ..config import interface_config, tenancy
from ..kube import limits
from ..kube.objects import Object, ObjectView
from ..kube.reader import Reader, child, nearest
from ..vendors.knowledge import KINDS
from .inventory import PREFIX, SHARED_NICS, Class, Inventory, Quota, Taint
from .language_claims import ClaimParser
from .language_parts import PartParser
from .language_tiers import add_tolerations, read_tiers

#: Variables of the role that configure its run. They are not part of the language and are not read.
_ROLE_VARIABLES = (
    "kubeconfig",
    "context",
    "kubernetes_version",
    "feature_gates",
    "dest",
    "dest_prune",
    "report",
    "nodes_from",
    "slices",
    "template_dir",
    "apply",
    "create_namespaces",
    "force_conflicts",
    "prune",
    "applyset",
    "applyset_namespace",
    "applied",
    "rendered",
)
_CLASS_SUFFIX = ".deviceclass.resource.k8s.io/devices"
_VARIABLES = (
    "site",
    "drivers",
    "classes",
    "templates",
    "claims",
    "quotas",
    "admin_namespaces",
    "taints",
    "tenants",
    "tiers",
    "policy",
    "raw",
    "workloads",
    "allow_unreachable",
)


def parse(variables: ObjectView, reader: Reader) -> Inventory:
    """Read the variables of a site. Errors are recorded in `reader`; no value raises an exception."""
    known = [PREFIX + name for name in _VARIABLES]
    by_name: Object = {}  # without the prefix
    for key, value in variables.items():
        name = str(key)
        if name in known:
            by_name[name[len(PREFIX) :]] = value
        elif name.startswith(PREFIX) and name[len(PREFIX) :] in _ROLE_VARIABLES:
            continue
        else:
            fix = nearest(name, known) or f"known: {', '.join(known)}"
            reader.problem(name, "is not a variable of the claims language", "unknown-key", fix)
    return _Parser(reader, by_name).inventory()


class _Parser(PartParser):
    def __init__(self, reader: Reader, variables: Object) -> None:
        super().__init__(reader)
        self.variables = variables

    def inventory(self) -> Inventory:
        variables, reader = self.variables, self.reader
        claim_parser = ClaimParser(reader)
        drivers = self._drivers(variables.get("drivers"))
        classes = [self._class(item, path) for item, path in self._list("classes")]
        claims = [claim_parser.claim(item, path, True) for item, path in self._list("templates")]
        claims += [claim_parser.claim(item, path, False) for item, path in self._list("claims")]
        tiers = read_tiers(reader, self._list("tiers"))
        add_tolerations(reader, [item for item in claims if item], tiers)
        quotas = [self._quota(item, path) for item, path in self._list("quotas")]
        taints = [self._taint(item, path) for item, path in self._list("taints")]
        raw = [(path, item) for item, path in self._list("raw") if self._raw(item, path)]
        admin_namespaces = []
        for item, path in self._list("admin_namespaces"):
            name = reader.name(item, path, limits.dns_label)
            if name in admin_namespaces:
                reader.problem(path, f"namespace {name!r} is listed twice", "duplicate-name")
            elif name:
                admin_namespaces.append(name)
        site = variables.get("site")
        inventory = Inventory(
            site="default" if site is None else reader.name(site, PREFIX + "site", _site_name) or "default",
            drivers=drivers,
            classes=[item for item in classes if item],
            claims=[item for item in claims if item],
            quotas=[item for item in quotas if item],
            admin_namespaces=admin_namespaces,
            taints=[item for item in taints if item],
            policy=self._flag("policy"),
            raw=raw,
            tenants=self._site_tenants(),
            allow_unreachable=self._flag("allow_unreachable"),
        )
        self._check_unique([(item.path, item.name) for item in inventory.classes], "class")
        # if several classes have the same extended resource, Kubernetes uses only the newest class
        named = [(item.path, item.extended_resource) for item in inventory.classes]
        self._check_unique(named, "extended resource", "extended_resource")
        self._check_unique([(item.path, item.name) for item in inventory.taints], "taint")
        self._check_unique([(item.path, item.name) for item in tiers], "tier")
        self._check_unique([(item.path, f"{item.namespace}/{item.name}") for item in inventory.quotas], "quota")
        for template, what in ((True, "template"), (False, "claim")):
            named = [
                (item.path, f"{namespace}/{item.name}")
                for item in inventory.claims
                if item.template is template
                for namespace in item.namespaces
            ]
            self._check_unique(named, what)
        return inventory

    def _list(self, variable: str) -> list[tuple[t.Any, str]]:
        value = self.variables.get(variable)
        return [] if value is None else self.reader.items(value, PREFIX + variable)

    def _flag(self, variable: str) -> bool:
        value = self.variables.get(variable)
        return bool(value is not None and self.reader.boolean(value, PREFIX + variable))

    def _check_unique(self, named: list[tuple[str, str]], what: str, key: str = "name") -> None:
        """Record names that are defined twice. `named` are paths and names; `what` is the noun for messages."""
        first: dict[str, str] = {}
        for path, name in named:
            shown = name.strip("/")
            if name in first:
                self.reader.problem(
                    child(path, key), f"{what} {shown!r} is already defined by {first[name]}", "duplicate-name"
                )
            elif not name.endswith("/") and name:
                first[name] = path

    def _drivers(self, value: object) -> dict[str, Object]:
        drivers: dict[str, Object] = {}
        if value is None:
            return drivers
        path = PREFIX + "drivers"
        for name, options in self.reader.any_mapping(value, path).items():
            place = f"{path}.{name}"
            if self.reader.name(name, place, limits.driver_name) is None:
                continue
            if not isinstance(options, dict):
                self.reader.wrong_type(options, place, "a mapping", "write {version: ...}")
                continue
            drivers[name] = options
        return drivers

    def _class(self, value: object, path: str) -> Class | None:
        """A class, `broken` if it has errors; None if it is not a mapping."""
        problems_before = len(self.reader.problems)
        known = (
            "name",
            "kind",
            "driver",
            "where",
            "cel",
            "interface",
            "config",
            "tenants",
            "share",
            "extended_resource",
            "labels",
            "annotations",
        )
        item = self.reader.mapping(value, path, known, "a class")
        if item is None:
            return None
        name = self.name(item, path, _class_name)
        kind = self.option(item, "kind", path, lambda v, p: self.reader.choice(v, p, KINDS)) or ""
        driver = self.option(item, "driver", path, lambda v, p: self.reader.name(v, p, limits.driver_name)) or ""
        extended = self.option(
            item,
            "extended_resource",
            path,
            lambda v, p: self.reader.name(v, p, limits.extended_resource_name),
        )
        cel = self.cel(item, path)
        if not kind and "kind" not in item:
            if not cel:
                self.reader.problem(
                    child(path, "kind"), "is missing", "missing", "set a kind, or select devices with cel"
                )
            if "where" in item:
                self.reader.problem(child(path, "where"), "filters need a kind", "contradiction")
        share = bool(self.option(item, "share", path, self.reader.boolean))
        if share and kind not in SHARED_NICS:
            fix = f"set kind {' or '.join(SHARED_NICS)}"
            self.reader.problem(child(path, "share"), "is only for classes of NICs", "contradiction", fix)
        device_class = Class(
            path=path,
            name=name,
            kind=kind,
            driver=driver,
            where=self.where(item, path, kind),
            cel=cel,
            configs=[*self.configs(item, path), *self._tenants(item, path)],
            extended_resource=extended or "",
            labels=self.labels(item, path, "labels"),
            annotations=self.labels(item, path, "annotations"),
            share=share,
        )
        device_class.broken = len(self.reader.problems) > problems_before
        return device_class

    def _tenants(self, item: Object, path: str) -> list[Object]:
        """The InterfacePolicy of a class, as a configuration; empty if the class has none."""
        if "tenants" not in item:
            return []
        tenants = self.reader.items(item["tenants"], child(path, "tenants"))
        return self._policy(tenants, f"{path}.")

    def _site_tenants(self) -> list[Object]:
        """The InterfacePolicy for classes without one; empty if the site sets none."""
        tenants = self._list("tenants")
        return self._policy(tenants, PREFIX) if isinstance(self.variables.get("tenants"), list) else []

    def _policy(self, tenants: list[tuple[t.Any, str]], prefix: str) -> list[Object]:
        policy = tenancy.parameters([tenant for tenant, _path in tenants])
        problems = tenancy.validate(policy, "")
        self.reader.problems += [dataclasses.replace(problem, path=prefix + problem.path) for problem in problems]
        return [] if problems else [{"driver": interface_config.DRIVER, "parameters": policy}]

    def _quota(self, value: object, path: str) -> Quota | None:
        """A quota, `broken` if it has errors; None if it is not a mapping."""
        problems_before = len(self.reader.problems)
        reader = self.reader
        item = reader.mapping(value, path, ("name", "namespace", "devices", "claims"), "a quota")
        if item is None:
            return None
        devices: dict[str, int] = {}
        place = child(path, "devices")
        for name, number in reader.any_mapping(item["devices"], place).items() if "devices" in item else ():
            limit = reader.integer(number, child(place, name), 0, limits.INT64_MAX)
            if limit is not None:
                devices[name] = limit
        claims = self.option(item, "claims", path, lambda v, p: reader.integer(v, p, 0, limits.INT64_MAX))
        if "namespace" not in item:
            reader.problem(child(path, "namespace"), "is missing", "missing")
        if "devices" not in item and "claims" not in item:
            reader.problem(path, "limits nothing", "missing", "set devices or claims")
        namespace = self.option(item, "namespace", path, lambda v, p: reader.name(v, p, limits.dns_label))
        name = self.option(item, "name", path, lambda v, p: reader.name(v, p, limits.dns_subdomain))
        quota = Quota(path, name or "dra", namespace or "", devices, claims)
        quota.broken = len(reader.problems) > problems_before
        return quota

    def _taint(self, value: object, path: str) -> Taint | None:
        """A taint rule, `broken` if it has errors; None if it is not a mapping."""
        problems_before = len(self.reader.problems)
        reader = self.reader
        known = ("name", "driver", "pool", "device", "key", "value", "effect")
        item = reader.mapping(value, path, known, "a taint")
        if item is None:
            return None
        checks = {"driver": limits.driver_name, "pool": limits.pool_name, "device": limits.dns_label}
        selector = {}
        for key, check in checks.items():
            selected = reader.name(item[key], child(path, key), check) if key in item else None
            if selected:
                selector[key] = selected
        if not any(key in item for key in checks):
            reader.problem(path, "would taint every device of the cluster", "missing", "set a driver, pool or device")
        taint = {
            "key": self.option(item, "key", path, lambda v, p: reader.name(v, p, limits.label_key)),
            "value": self.option(item, "value", path, lambda v, p: reader.name(v, p, limits.label_value)),
            "effect": self.option(
                item, "effect", path, lambda v, p: reader.choice(v, p, ("NoSchedule", "NoExecute", "None"))
            ),
        }
        for key in ("key", "effect"):
            if key not in item:
                reader.problem(child(path, key), "is missing", "missing")
        taint_rule = Taint(
            path,
            self.name(item, path, limits.dns_subdomain),
            selector,
            {key: entry for key, entry in taint.items() if entry},
        )
        taint_rule.broken = len(reader.problems) > problems_before
        return taint_rule

    def _raw(self, value: object, path: str) -> bool:
        """Whether a raw object has its identifying fields. `compiler` checks the other fields."""
        problems_before = len(self.reader.problems)
        item = self.reader.any_mapping(value, path)
        parts: dict[str, t.Callable[[object, str], object]] = {
            "apiVersion": self.reader.string,
            "kind": lambda v, p: self.reader.name(v, p, _kind_name),
            "metadata": self._raw_metadata,
        }
        for key, read in parts.items() if isinstance(value, dict) else ():
            if key in item:
                read(item[key], child(path, key))
            else:
                self.reader.problem(child(path, key), "is missing", "missing")
        return len(self.reader.problems) == problems_before

    def _raw_metadata(self, value: object, path: str) -> None:
        item = self.reader.any_mapping(value, path)
        if isinstance(value, dict):
            self.name(item, path, lambda _name: "")
            self.option(item, "namespace", path, lambda v, p: self.reader.name(v, p, limits.dns_label))


def _site_name(name: str) -> str:
    return limits.label_value(name)


def _kind_name(name: str) -> str:
    return "" if name.isascii() and name.isalnum() else "is not a kind of object"


def _class_name(name: str) -> str:
    """The error in the name of a class, or an empty string.

    A class name must be shorter than other subdomains, because quotas append a suffix to it.
    """
    error = limits.dns_subdomain(name)
    max_bytes = limits.DNS_SUBDOMAIN_BYTES - _CLASS_SUFFIX.index("/")
    return error or (f"must be no more than {max_bytes} bytes, for quotas" if len(name) > max_bytes else "")
