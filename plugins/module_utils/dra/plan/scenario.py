# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""A sequence of changes to a fleet, its server, drivers and workloads."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, field, replace

from ..apiserver import features
from ..kube import quantity, versions
from ..kube.objects import ObjectView
from ..kube.problems import Problem, Problems
from ..scheduler.search_devices import identify
from ..vendors.drivers import DRIVERS, knowledge
from ..vendors.offer import Offer
from ..vendors.offers import offers
from ..vendors.server import Server
from . import what_if
from .fleet import Fleet, Node, Workload
from .pods import units

#: The steps that `what_if` does not have or that this module extends, and what each means.
STEPS = {
    "add": "new empty nodes like an existing or a probed one, with these labels",
    "server": "another version of Kubernetes, or other feature gates",
    "driver": "another version of a driver, on nodes that were probed",
    "workload": "another claim template, or another pod, of a workload",
}


@dataclass(frozen=True)
class Scenario:
    """A fleet and the workloads to place on it. `facts` are the topology facts of probed nodes, by node.

    `drivers` are those of the site with their options, as in `dra_claims_drivers`. `workload` creates a workload from
    the arguments of a step `workload`, and raises ValueError if they are wrong.
    """

    fleet: Fleet
    workloads: tuple[Workload, ...]
    facts: t.Mapping[str, t.Any] = field(default_factory=dict)
    workload: t.Callable[[ObjectView], Workload] | None = None
    drivers: t.Mapping[str, t.Any] = field(default_factory=dict)


def after(start: Scenario, steps: t.Sequence[ObjectView], path: str = "what_if") -> list[Scenario]:
    """The scenario after each step. A step is one of `what_if.after`, or a mapping of one of STEPS to its arguments.

    `add` takes the arguments of `add` in `what_if.after`. Its `like` may also be a machine that has facts but is not a
    node; `allocatable` then says what the new nodes have. `server` takes `version` and `feature_gates`, `driver` takes
    `name` and the options of the driver as in `dra_claims_drivers`, `workload` takes the options of a workload.

    Raises Problems with all errors of the first invalid step.
    """
    scenarios = [start]
    for number, step in enumerate(steps):
        name = next(iter(step), None) if isinstance(step, dict) and len(step) == 1 else None
        scenario = scenarios[-1]
        step_path = f"{path}[{number}]"
        if name in STEPS:
            value = step[str(name)]
            if not isinstance(value, dict):
                fix = "see the documentation of the step"
                raise Problems([Problem(f"{step_path}.{name}", "is not a mapping", "wrong-type", fix)])
            scenarios.append(_APPLY[str(name)](scenario, value, f"{step_path}.{name}"))
        elif isinstance(step, dict) and len(step) == 1 and name in what_if.STEPS:
            scenarios.append(replace(scenario, fleet=what_if.apply_step(scenario.fleet, step, step_path)))
        else:
            known = ", ".join(dict.fromkeys([*what_if.STEPS, *STEPS]))
            raise Problems([Problem(step_path, "is not a mapping with one step", "bad-step", f"give one of {known}")])
    return scenarios[1:]


def _add(scenario: Scenario, value: ObjectView, path: str) -> Scenario:
    like, allocatable, step_path = value.get("like"), value.get("allocatable"), path.rpartition(".")[0]
    step = {"add": {key: argument for key, argument in value.items() if key != "allocatable"}}
    if not isinstance(like, str) or like in scenario.fleet.nodes or like not in scenario.facts:
        if allocatable is not None:
            message = "is only allowed for a machine that has facts and is not a node"
            raise Problems([Problem(f"{path}.allocatable", message, "bad-step", "leave it out")])
        fleet = what_if.apply_step(scenario.fleet, step, step_path)
        return _with_facts(scenario, replace(scenario, fleet=fleet), like)
    name = str(like)
    known = {driver: knowledge(driver, options) for driver, options in scenario.drivers.items()}
    devices = tuple(offers(name, scenario.facts[name], scenario.drivers, known, scenario.fleet.server))
    if not devices:
        drivers = ", ".join(scenario.drivers) or "none"
        message = f"{name}: no driver publishes a device of this machine; drivers: {drivers}"
        raise Problems([Problem(f"{path}.like", message, "bad-step", "give the drivers of the site")])
    if allocatable is not None and not isinstance(allocatable, dict):
        raise Problems([Problem(f"{path}.allocatable", "is not a mapping", "wrong-type", "such as cpu: '128'")])
    try:
        model = Node(name, allocatable=units(allocatable) if allocatable else None, offers=devices)
    except quantity.QuantityError as error:
        raise Problems([Problem(f"{path}.allocatable", str(error), "wrong-type", "such as cpu: '128'")]) from error
    notes = list(scenario.fleet.notes)
    if not allocatable:
        notes.append(f"what_if: add has no allocatable, so nodes like {name} have room for any number of pods")
    with_model = replace(scenario.fleet, nodes={**scenario.fleet.nodes, name: model}, notes=tuple(notes))
    nodes = dict(what_if.apply_step(with_model, step, step_path).nodes)
    del nodes[name]
    return _with_facts(scenario, replace(scenario, fleet=replace(with_model, nodes=nodes)), like)


def _with_facts(before: Scenario, after_step: Scenario, like: t.Any) -> Scenario:
    """Give the nodes that a step has added the facts of `like`, if it was probed."""
    if like not in before.facts:
        return after_step
    new = {name: before.facts[like] for name in after_step.fleet.nodes if name not in before.fleet.nodes}
    return replace(after_step, facts={**before.facts, **new})


def _server(scenario: Scenario, value: ObjectView, path: str) -> Scenario:
    if set(value) - {"version", "feature_gates"} or not value:
        raise Problems([Problem(path, "must have version or feature_gates, and nothing else", "bad-step", "")])
    old = scenario.fleet.server
    gates = value.get("feature_gates", old.gates)
    if gates is not None and not isinstance(gates, dict):
        fix = "such as DRADeviceTaints: true"
        raise Problems([Problem(f"{path}.feature_gates", "is not a mapping", "wrong-type", fix)])
    try:
        features.check_gates(gates)
    except ValueError as error:
        raise Problems([Problem(f"{path}.feature_gates", str(error), "wrong-type")]) from error
    try:
        server = Server(str(value.get("version", f"1.{old.minor}")), gates, [{"spec": rule} for rule in old.rules])
    except ValueError as error:
        raise Problems([Problem(path, str(error), "bad-step", f"1.{versions.OLDEST} and later are known")]) from error
    notes = list(scenario.fleet.notes)
    newly_stored = sorted(old.dropped - server.dropped)
    if newly_stored:
        notes.append(
            f"what_if: a server of 1.{server.minor} stores {', '.join(newly_stored)} of devices, which the current "
            "server has dropped: what drivers would publish there is unknown"
        )
    nodes = {name: _served(node, old, server) for name, node in scenario.fleet.nodes.items()}
    return replace(scenario, fleet=replace(scenario.fleet, nodes=nodes, server=server, notes=tuple(notes)))


def _served(node: Node, old: Server, server: Server) -> Node:
    """The node with its devices as another server stores them. The server may drop fields and taint rules."""
    return _with_offers(node, [server.stored_from(offer, old) for offer in node.offers])


def _with_offers(node: Node, new_offers: t.Sequence[Offer]) -> Node:
    """The node with other devices. Claims keep the devices that still exist."""
    by_id = {identify(offer): offer for offer in new_offers}
    held = tuple(
        replace(device, result=replace(device.result, offer=by_id[device.result.id]))
        for device in node.held
        if device.result.id in by_id
    )
    return replace(node, offers=tuple(new_offers), held=held)


def _driver(scenario: Scenario, value: ObjectView, path: str) -> Scenario:
    """Nodes with facts get the devices that the driver would publish. On other nodes its devices are unclear."""
    name = str(value.get("name"))
    if name not in DRIVERS:
        message = f"{name!r} is not a driver whose devices a probe can predict"
        raise Problems([Problem(f"{path}.name", message, "bad-step", f"give one of {', '.join(DRIVERS)}")])
    options = {name: {key: option for key, option in value.items() if key != "name"}}
    known = {name: knowledge(name, options[name])}
    fleet, notes = scenario.fleet, list(scenario.fleet.notes)
    nodes: dict[str, Node] = {}
    for node in fleet.nodes.values():
        if not any(offer.driver == name for offer in node.offers):
            nodes[node.name] = node
            continue
        others = [offer for offer in node.offers if offer.driver != name]
        if node.name not in scenario.facts:
            reason = f"the node was not probed, so what another version of {name} publishes on it is unknown"
            nodes[node.name] = replace(_with_offers(node, others), unclear={**node.unclear, name: reason})
            continue
        published = offers(node.name, scenario.facts[node.name], options, known, fleet.server)
        nodes[node.name] = _with_offers(
            node, sorted([*others, *published], key=lambda offer: (offer.driver, offer.pool))
        )
        removed = len(node.held) - len(nodes[node.name].held)
        if removed:
            notes.append(f"what_if: {removed} allocated device(s) on node {node.name} would no longer be published")
    unknown = sorted(
        name for name, node in nodes.items() if name not in scenario.facts and node is not fleet.nodes[name]
    )
    if unknown:
        notes.append(f"what_if: {len(unknown)} node(s) with {value['name']} were not probed: their devices are unknown")
    return replace(scenario, fleet=replace(fleet, nodes=nodes, notes=tuple(notes)))


def _workload(scenario: Scenario, value: ObjectView, path: str) -> Scenario:
    name = value.get("name")
    names = [workload.name for workload in scenario.workloads]
    if name not in names or scenario.workload is None:
        message = f"there is no workload {name!r}"
        raise Problems([Problem(f"{path}.name", message, "bad-step", f"name one of {', '.join(names)}")])
    try:
        new = scenario.workload(value)
    except ValueError as error:
        raise Problems([Problem(path, str(error), "bad-step", "")]) from error
    return replace(
        scenario, workloads=tuple(new if workload.name == name else workload for workload in scenario.workloads)
    )


_APPLY: dict[str, t.Callable[[Scenario, ObjectView, str], Scenario]] = {
    "add": _add,
    "server": _server,
    "driver": _driver,
    "workload": _workload,
}
