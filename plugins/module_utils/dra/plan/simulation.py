# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Simulates the placement of pods, one after the other, on a fleet."""

from __future__ import annotations

import typing as t
from dataclasses import replace

from ..cel.engine import Engine
from ..kube.objects import ObjectView
from ..scheduler.answers import Refusal, Result
from ..scheduler.node_cache import NodeCache
from . import pods, spread
from .fleet import Fleet, HeldDevice, Node, PlacedPod, Workload
from .states import States, allocate_pod


class PlacementSimulation:
    """A copy of a fleet that changes as pods are placed. `workloads` are those that may be placed; names are unique.

    The caller chooses the node. The scores with which the scheduler chooses among suitable nodes are not modelled.
    """

    def __init__(self, fleet: Fleet, workloads: t.Sequence[Workload], engine: Engine) -> None:
        self.nodes = dict(fleet.nodes)
        self._fleet = fleet
        self._states = States(fleet, workloads, engine)
        self._requests = {workload.name: pods.requests(workload.pod) for workload in workloads}
        self._changed: set[str] = set()

    def replace_node(self, node: Node) -> None:
        """Replace the node of the same name."""
        self.nodes[node.name] = node
        self._changed.add(node.name)

    def place(self, workload: Workload, name: str, owner: str) -> tuple[Result, ...] | None:
        """Place a pod of a workload on the node `name`, with a claim named `owner`.

        Returns the devices of the pod; None if the pod does not fit.
        """
        node = self.nodes[name]
        requests = self._requests[workload.name]
        if pods.refuses(node, workload.pod) or pods.room(node, requests)[0] == 0:
            return None
        if not self._spread_allows(workload, node):
            return None
        if name not in self._changed and not self._states.state_of(node, workload).count_up_to(1):
            return None
        held = [device.result for device in node.held]
        answer = allocate_pod(self._fleet, workload, NodeCache(node.offers, self._states.cache), held, node.unclear)
        if isinstance(answer, Refusal):
            return None
        devices = tuple(HeldDevice(result, owner) for result in answer.results)
        pod = PlacedPod(workload.namespace, owner, workload.labels, requests, (owner,))
        self.replace_node(replace(node, held=(*node.held, *devices), pods=(*node.pods, pod)))
        return answer.results

    def _spread_allows(self, workload: Workload, node: Node) -> bool:
        """Whether the spread constraints of a workload allow one more of its pods on a node."""
        constraints: list[ObjectView] = spread.constraints(workload)
        if not constraints:
            return True
        fleet = replace(self._fleet, nodes=self.nodes)
        return all(
            sum(spread.limit(constraint, workload, fleet, {node.name: 1}).values()) > 0 for constraint in constraints
        )
