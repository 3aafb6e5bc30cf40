# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Compiles a site's inventory to Kubernetes objects.

A DeviceClass selects the devices of a kind; the request of a claim selects among them. Objects are written in
`resource.k8s.io/v1`, whatever the cluster serves. The exception is DeviceTaintRule, which is in v1 only from 1.37 on.
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

_DEVICES = ".deviceclass.resource.k8s.io/devices"


_IMPLICIT = "requests.deviceclass.resource.kubernetes.io/"


@dataclass
class Site:
    """The result of compiling a site's inventory. `reach` is empty if no node is known, `boards` if no claim requests
    nearest devices."""

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
    (`scheduler.published`); with them, each claim is tried on each node. Raises Problems, with every error found and
    the path of its variable.
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
    found: list[Reach] = []
    if nodes and compiler.engine:
        found = compiler.reach(nodes)
    if reader.problems:
        raise Problems(_once(reader.problems))
    return Site([made.object for made in compiler.made], found, compiler.warnings, compiler.nearest.uses)


def _once(problems: list[Problem]) -> list[Problem]:
    return list(dict.fromkeys(problems))


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
        inventory = self.inventory
        self._knowledge()
        for item in inventory.classes:
            self._class(item)
        compiler = ClaimCompiler(self.reader, self._resolve, self.lists, self.nearest)
        admin = set(inventory.admin_namespaces)
        made: list[CompiledObject] = []
        for claim in inventory.claims:
            for device in (device for group in claim.groups for device in group.devices):
                for given in (device, *device.alternatives):
                    self._refused(given.configs, given.path)
            if claim.broken:
                self._resolve_valid(claim)
                continue
            parts = split_by_namespace(claim)
            for one, compiled in [item for part in parts for item in compiler.compile(part)]:
                made += self._claim(one, compiled)
                self.claims.append((one, compiled))
            self._admin(claim, admin)
            self.warnings += warnings_of(parts[0], self.shares)
        classes, self.made = self.made, []
        for index, name in enumerate(inventory.admin_namespaces):
            labels = {**self._labels(), ADMIN_LABEL: "true"}
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
            self.made.append(CompiledObject(namespace, {"": f"{PREFIX}admin_namespaces[{index}]"}))
        self.made += sorted(classes, key=lambda item: str(item.object["metadata"]["name"]))
        self.made += made
        for quota in inventory.quotas:
            if not quota.broken:
                self._quota(quota)
        for taint in inventory.taints:
            if not taint.broken:
                version = versions.choose(versions.PREFERENCE, "DeviceTaintRule", self.kubernetes)
                spec = {"deviceSelector": taint.selector, "taint": taint.taint}
                head = {"apiVersion": version, "kind": "DeviceTaintRule"}
                made_taint = {**head, "metadata": self._metadata(taint.name), "spec": spec}
                self.made.append(CompiledObject(made_taint, {"": taint.path}))
        if inventory.policy:
            for policy in interface_policy.objects(self._labels()) + tenancy_policy.objects(self._labels()):
                self.made.append(CompiledObject(policy, {"": f"{PREFIX}policy"}))
        for path, raw in inventory.raw:
            self.made.append(CompiledObject(raw, {"": path}))
        self._unique()
        self._check()

    def reach(self, nodes: Nodes) -> list[Reach]:
        """Which nodes can satisfy the claims.

        If only the taint rules of the site keep a claim from every node, this is a warning and not an error, because
        keeping claims away is the purpose of these rules.
        """
        site = self.inventory
        taints = [made for made in self.made if made.object["kind"] == "DeviceTaintRule"]
        rules = [made.object for made in taints if self._sound(made.origins[""])]
        drivers = {name: options for name, options in site.drivers.items() if name in self.drivers}
        claims = [(claim, compiled) for claim, compiled in self.claims if self._sound(claim.path)]

        def tried(rules: list[Object]) -> tuple[list[Reach], list[Problem]]:
            server = Server(self.kubernetes, self.gates, rules)
            engine = t.cast(Engine, self.engine)
            return reach(drivers, claims, self.classes, nodes, engine, site.allow_unreachable, server)

        found, unreachable = tried(rules)
        lasting = tried([])[1] if unreachable and rules else unreachable
        paths = {problem.path for problem in lasting}
        self.warnings += [str(problem) for problem in unreachable if problem.path not in paths]
        self.reader.problems += lasting
        return found

    def _sound(self, path: str) -> bool:
        """Whether no error was reported at a path or below it."""
        inside = (path, f"{path}.", f"{path}[")
        return not any(problem.path == path or problem.path.startswith(inside[1:]) for problem in self.reader.problems)

    def _resolve_valid(self, claim: Claim) -> None:
        """Resolve the valid devices of a claim that has errors, so that all errors are reported together."""
        devices = [device for group in claim.groups for device in group.devices]
        for choice in [choice for device in devices for choice in device.choices()]:
            if self._sound(choice.path):
                self._resolve(choice)

    def _unique(self) -> None:
        """Report objects with the same name, such as a raw object that is also compiled: the last one applied wins."""
        first: dict[tuple[str, ...], str] = {}
        for made in self.made:
            item, metadata = made.object, made.object["metadata"]
            name = "/".join(filter(None, [metadata.get("namespace"), metadata["name"]]))
            group = item["apiVersion"].rpartition("/")[0].partition("/")[0]
            other = first.setdefault((group, item["kind"], name), made.origins[""])
            if other != made.origins[""]:
                message = f"{item['kind']} {name} is already defined by {other}"
                self.reader.problem(made.origins[""], message, "duplicate-name")

    def _check(self) -> None:
        """Report fields that this server would drop, and errors for which the API would refuse an object.

        Objects of one origin differ only in their namespace, so only the first one is checked.
        """
        seen: set[tuple[str, str]] = set()
        for made in self.made:
            item = made.object
            kind = str(item.get("kind"))
            if (made.origins[""], kind) in seen or not str(item.get("apiVersion")).startswith("resource.k8s.io/"):
                continue
            seen.add((made.origins[""], kind))
            lost = features.unsupported(item, self.kubernetes, self.gates)
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
        self._check_raw()

    def _check_raw(self) -> None:
        """Report what the classes of the site refuse of raw objects that are otherwise valid."""
        dra = [made for made in self.made if is_dra(made.object) and self._sound(made.origins[""])]
        for made, wrong in zip(dra, class_policy.check([made.object for made in dra])):
            place = made.origins[""]
            if place.startswith(f"{PREFIX}raw["):
                for one in wrong:
                    self.reader.problem(f"{place}.{one.path}", one.message, one.rule, one.fix)

    def _admin(self, claim: Claim, admin: set[str]) -> None:
        path = next((d.path for group in claim.groups for d in group.devices if d.admin), "")
        for namespace in claim.namespaces if path else ():
            if namespace not in admin:
                fix = f"add it to {PREFIX}admin_namespaces"
                message = f"namespace {namespace!r} may not ask for admin access"
                self.reader.problem(child(path, "admin"), message, "no-admin-namespace", fix)

    def _claim(self, claim: Claim, compiled: Compiled) -> list[CompiledObject]:
        prefix = "spec.spec.devices." if claim.template else "spec.devices."
        origins = {prefix + place: path for place, path in compiled.origins.items()}
        origins.update({"": claim.path, "metadata.name": child(claim.path, "name")})
        spec: Object = {"devices": compiled.devices}
        made = []
        notes = {**claim.annotations, **share_notes(claim, self.shares)}
        for namespace in claim.namespaces:
            metadata = self._metadata(claim.name, namespace, claim.labels, notes)
            item = {
                "apiVersion": V1,
                "kind": "ResourceClaimTemplate" if claim.template else "ResourceClaim",
                "metadata": metadata,
                # claims that are created from a template get its labels, so that they can be selected by them
                "spec": {"metadata": {"labels": metadata["labels"]}, "spec": spec} if claim.template else spec,
            }
            made.append(CompiledObject(item, origins))
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
                # pods that request the extended resource are refused at creation, not when their claim is created
                hard[f"requests.{self._extended[name]}"] = str(number)
                if not limits.label_key(_IMPLICIT + name):
                    hard[_IMPLICIT + name] = str(number)
        if quota.claims is not None:
            hard["count/resourceclaims.resource.k8s.io"] = str(quota.claims)
        metadata = self._metadata(quota.name, quota.namespace)
        made = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard}}
        self.made.append(CompiledObject(made, {"": quota.path}))
