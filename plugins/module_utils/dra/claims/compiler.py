# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Compiles a site's inventory to Kubernetes objects.

A DeviceClass selects the devices of a kind, and the request of a claim selects among them. Objects are written in
`resource.k8s.io/v1`, even if the cluster does not serve it. The exception is DeviceTaintRule, which is in v1 only from
1.37 on.
"""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field

from ..apiserver import features, validate
from ..cel.engine import Engine
from ..kube import limits, versions
from ..kube.objects import Object, ObjectView
from ..kube.problems import Problem, Problems
from ..kube.reader import Reader, child, nearest
from ..kube.versions import is_dra
from ..scheduler.published import Nodes, PublishedNode
from ..vendors.server import Server
from . import class_policy, interface_policy, tenancy_policy
from .boards import Boards
from .claim_compiler import ClaimCompiler, Compiled
from .class_compiler import ADMIN_LABEL, V1, CompiledObject
from .device_compiler import DeviceCompiler
from .inventory import PREFIX, Claim, Inventory, Quota
from .language import parse
from .nearest import BoardUse, NearestPlanner
from .nic_shares import split_by_namespace, without_unreadable_shares
from .reach import Reach, reach
from .shares import share_notes, warnings_of

#: The suffix of the resource for the devices of a class in a ResourceQuota.
_DEVICES = ".deviceclass.resource.k8s.io/devices"


#: The prefix of the implicit extended resource of a class in a ResourceQuota.
_IMPLICIT = "requests.deviceclass.resource.kubernetes.io/"


@dataclass
class Site:
    """The result of compiling a site's inventory.

    `reach` is empty if no node is known. `boards` is empty if no claim requests nearest devices.
    """

    objects: list[Object]
    reach: list[Reach] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    boards: list[BoardUse] = field(default_factory=list)


def compile_site(
    variables: ObjectView,
    nodes: Nodes | None = None,
    kubernetes: str = "1.37",
    gates: t.Mapping[str, bool] | None = None,
) -> Site:
    """Compile the `dra_claims_*` variables of a site, for a release of Kubernetes and its feature gates.

    `nodes` maps a node's name to its facts as `lanewise.dra.topology_info` returns them, or to what its drivers publish
    (`scheduler.published`). If there are nodes, each claim is tried on each node. Raises Problems with all errors, each
    with the path of its variable.
    """
    reader = Reader()
    inventory = parse(variables, reader)
    # an unknown release is replaced, so that the errors of the inventory are reported too
    try:
        versions.minor_of(kubernetes)
    except ValueError as error:
        reader.problem(f"{PREFIX}kubernetes_version", str(error), "version")
        kubernetes = "1.37"
    try:
        features.check_gates(gates)
    except ValueError as error:
        reader.problem(f"{PREFIX}feature_gates", str(error), "wrong-type")
        gates = {}
    nodes = without_unreadable_shares(nodes or {}, reader)
    compiler = _Compiler(inventory, reader, kubernetes, dict(gates or {}), nodes)
    compiler.compile()
    reaches: list[Reach] = []
    if nodes and compiler.engine:
        reaches = compiler.reach(nodes)
    if reader.problems:
        raise Problems(list(dict.fromkeys(reader.problems)))
    return Site(
        [compiled.object for compiled in compiler.compiled_objects], reaches, compiler.warnings, compiler.nearest.uses
    )


class _Compiler(DeviceCompiler):
    """Compiles a site."""

    def __init__(
        self,
        inventory: Inventory,
        reader: Reader,
        kubernetes: str,
        gates: dict[str, bool],
        nodes: Nodes,
    ) -> None:
        super().__init__(inventory, reader, kubernetes, gates)
        self.nodes = nodes
        self.nearest = NearestPlanner(reader, self.classes, self._boards, self.lists)
        self._known_boards: Boards | None = None

    def _boards(self) -> Boards | None:
        """The boards of the probed nodes. They are read once, and only for claims that request nearest devices."""
        probed = any(not isinstance(node, PublishedNode) for node in self.nodes.values())
        if self._known_boards is None and probed and self.engine:
            drivers = {name: options for name, options in self.inventory.drivers.items() if name in self.drivers}
            server = Server(self.kubernetes, self.gates)
            self._known_boards = Boards(self.nodes, drivers, self.drivers, server, self.engine)
        return self._known_boards

    def compile(self) -> None:  # noqa: C901
        """Fill `compiled_objects` from the inventory. Errors are recorded in `reader`."""
        inventory = self.inventory
        self._read_drivers()
        for item in inventory.classes:
            self._compile_class(item)
        compiler = ClaimCompiler(self.reader, self._resolve, self.lists, self.nearest)
        admin = set(inventory.admin_namespaces)
        claim_objects: list[CompiledObject] = []
        for claim in inventory.claims:
            for device in (device for group in claim.groups for device in group.devices):
                for choice in (device, *device.alternatives):
                    self._check_configs(choice.configs, choice.path)
            if claim.broken:
                self._resolve_valid_devices(claim)
                continue
            parts = split_by_namespace(claim)
            for compiled_claim, compiled in [item for part in parts for item in compiler.compile(part)]:
                claim_objects += self._objects_of(compiled_claim, compiled)
                self.claims.append((compiled_claim, compiled))
            self._check_admin(claim, admin)
            self.warnings += warnings_of(parts[0], self.shares)
        classes, self.compiled_objects = self.compiled_objects, []
        for index, name in enumerate(inventory.admin_namespaces):
            labels = {**self._labels(), ADMIN_LABEL: "true"}
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
            self.compiled_objects.append(CompiledObject(namespace, {"": f"{PREFIX}admin_namespaces[{index}]"}))
        self.compiled_objects += sorted(classes, key=lambda item: str(item.object["metadata"]["name"]))
        self.compiled_objects += claim_objects
        for quota in inventory.quotas:
            if not quota.broken:
                self._add_quota(quota)
        for taint in inventory.taints:
            if not taint.broken:
                version = versions.choose(versions.PREFERENCE, "DeviceTaintRule", self.kubernetes)
                spec = {"deviceSelector": taint.selector, "taint": taint.taint}
                metadata = self._metadata(taint.name)
                rule = {"apiVersion": version, "kind": "DeviceTaintRule", "metadata": metadata, "spec": spec}
                self.compiled_objects.append(CompiledObject(rule, {"": taint.path}))
        if inventory.policy:
            for policy in interface_policy.objects(self._labels()) + tenancy_policy.objects(self._labels()):
                self.compiled_objects.append(CompiledObject(policy, {"": f"{PREFIX}policy"}))
        for path, raw in inventory.raw:
            self.compiled_objects.append(CompiledObject(raw, {"": path}))
        self._check_unique_names()
        self._check_objects()

    def reach(self, nodes: Nodes) -> list[Reach]:
        """Which nodes can satisfy the claims. Records a problem for each valid claim that no node can satisfy.

        If only the taint rules of the site keep a claim from every node, that is a warning instead, because it is the
        purpose of these rules to keep claims away.
        """
        site = self.inventory
        taints = [compiled for compiled in self.compiled_objects if compiled.object["kind"] == "DeviceTaintRule"]
        rules = [compiled.object for compiled in taints if self._is_valid(compiled.origins[""])]
        drivers = {name: options for name, options in site.drivers.items() if name in self.drivers}
        claims = [(claim, compiled) for claim, compiled in self.claims if self._is_valid(claim.path)]

        def try_claims(rules: list[Object]) -> tuple[list[Reach], list[Problem]]:
            server = Server(self.kubernetes, self.gates, rules)
            engine = t.cast(Engine, self.engine)
            return reach(drivers, claims, self.classes, nodes, engine, site.allow_unreachable, server)

        reaches, unreachable = try_claims(rules)
        without_rules = try_claims([])[1] if unreachable and rules else unreachable
        paths = {problem.path for problem in without_rules}
        self.warnings += [str(problem) for problem in unreachable if problem.path not in paths]
        self.reader.problems += without_rules
        return reaches

    def _is_valid(self, path: str) -> bool:
        """Whether no error was recorded at a path or below it."""
        below = (f"{path}.", f"{path}[")
        return not any(problem.path == path or problem.path.startswith(below) for problem in self.reader.problems)

    def _resolve_valid_devices(self, claim: Claim) -> None:
        """Resolve the valid devices of a claim with errors, so that all errors are reported together."""
        devices = [device for group in claim.groups for device in group.devices]
        for choice in [choice for device in devices for choice in device.choices()]:
            if self._is_valid(choice.path):
                self._resolve(choice)

    def _check_unique_names(self) -> None:
        """Record objects with the same name, such as a raw object and a compiled one. One would overwrite the other."""
        origins: dict[tuple[str, ...], str] = {}
        for compiled in self.compiled_objects:
            item, metadata = compiled.object, compiled.object["metadata"]
            name = "/".join(filter(None, [metadata.get("namespace"), metadata["name"]]))
            group = item["apiVersion"].rpartition("/")[0].partition("/")[0]
            first_origin = origins.setdefault((group, item["kind"], name), compiled.origins[""])
            if first_origin != compiled.origins[""]:
                message = f"{item['kind']} {name} is already defined by {first_origin}"
                self.reader.problem(compiled.origins[""], message, "duplicate-name")

    def _check_objects(self) -> None:
        """Record fields that the API server would drop, and errors for which it would refuse an object.

        Objects of one origin differ only in their namespace, so only the first one is checked.
        """
        seen: set[tuple[str, str]] = set()
        for compiled in self.compiled_objects:
            item = compiled.object
            kind = str(item.get("kind"))
            if (compiled.origins[""], kind) in seen or not str(item.get("apiVersion")).startswith("resource.k8s.io/"):
                continue
            seen.add((compiled.origins[""], kind))
            dropped = features.unsupported(item, self.kubernetes, self.gates)
            errors = [] if dropped else validate.validate(item, self.kubernetes, self.gates, self.engine)
            for problem in dropped + errors:
                path, exact = compiled.origin(problem.path)
                raw = path.startswith(f"{PREFIX}raw[")
                message = problem.message if exact else f"{kind} {problem.path}: {problem.message}"
                self.reader.problem(
                    f"{path}.{problem.path}" if raw else path,
                    problem.message if raw else message,
                    problem.rule,
                    problem.fix,
                )
        self._check_raw()

    def _check_raw(self) -> None:
        """Record what the classes of the site refuse in raw objects that are otherwise valid."""
        dra = [
            compiled
            for compiled in self.compiled_objects
            if is_dra(compiled.object) and self._is_valid(compiled.origins[""])
        ]
        for compiled, problems in zip(dra, class_policy.check([compiled.object for compiled in dra])):
            path = compiled.origins[""]
            if path.startswith(f"{PREFIX}raw["):
                for problem in problems:
                    self.reader.problem(f"{path}.{problem.path}", problem.message, problem.rule, problem.fix)

    def _check_admin(self, claim: Claim, admin_namespaces: set[str]) -> None:
        """Record the namespaces of a claim with admin access that may not request it."""
        path = next((device.path for group in claim.groups for device in group.devices if device.admin), "")
        for namespace in claim.namespaces if path else ():
            if namespace not in admin_namespaces:
                fix = f"add it to {PREFIX}admin_namespaces"
                message = f"namespace {namespace!r} may not request admin access"
                self.reader.problem(child(path, "admin"), message, "no-admin-namespace", fix)

    def _objects_of(self, claim: Claim, compiled: Compiled) -> list[CompiledObject]:
        """The object of a claim in each of its namespaces."""
        prefix = "spec.spec.devices." if claim.template else "spec.devices."
        origins = {prefix + object_path: path for object_path, path in compiled.origins.items()}
        origins.update({"": claim.path, "metadata.name": child(claim.path, "name")})
        spec: Object = {"devices": compiled.devices}
        objects = []
        annotations = {**claim.annotations, **share_notes(claim, self.shares)}
        for namespace in claim.namespaces:
            metadata = self._metadata(claim.name, namespace, claim.labels, annotations)
            item = {
                "apiVersion": V1,
                "kind": "ResourceClaimTemplate" if claim.template else "ResourceClaim",
                "metadata": metadata,
                # claims that are created from a template get its labels, so that they can be selected
                "spec": {"metadata": {"labels": metadata["labels"]}, "spec": spec} if claim.template else spec,
            }
            objects.append(CompiledObject(item, origins))
        return objects

    def _add_quota(self, quota: Quota) -> None:
        """Add the ResourceQuota for a quota. Unknown classes are recorded as errors."""
        hard: dict[str, str] = {}
        known = {*self.classes, *self.foreign_classes}
        for name, number in quota.devices.items():
            if name in self._named and self._named[name].broken:
                continue
            if name not in known:
                fix = nearest(name, known) or f"known classes: {', '.join(sorted(known)) or 'none'}"
                path = child(child(quota.path, "devices"), name)
                self.reader.problem(path, f"there is no class {name!r}", "unknown-class", fix)
                continue
            hard[name + _DEVICES] = str(number)
            if self._extended.get(name):
                # this already refuses pods with the extended resource, not only the claims that are created for them
                hard[f"requests.{self._extended[name]}"] = str(number)
                if not limits.label_key(_IMPLICIT + name):
                    hard[_IMPLICIT + name] = str(number)
        if quota.claims is not None:
            hard["count/resourceclaims.resource.k8s.io"] = str(quota.claims)
        metadata = self._metadata(quota.name, quota.namespace)
        item = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard}}
        self.compiled_objects.append(CompiledObject(item, {"": quota.path}))
