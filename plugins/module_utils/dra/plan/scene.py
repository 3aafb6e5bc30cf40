# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Pods placed one after the other on a fleet, as the scheduler would place them."""

from __future__ import annotations

import typing as t
from dataclasses import replace

from ..cel.engine import Engine
from ..kube.objects import ObjectView
from ..scheduler.answers import Refusal, Result
from ..scheduler.node_memory import NodeMemory
from . import pods, spread
from .fleet import Fleet, Held, Node, Placed, Workload
from .states import States, placed


class Scene:
    """A fleet that changes as pods are placed. `workloads` are those that may be placed, with different names.

    Which of the suitable nodes the scheduler chooses depends on scores, which are not modelled.
    """

    def __init__(self, fleet: Fleet, workloads: t.Sequence[Workload], engine: Engine) -> None:
        self.nodes = dict(fleet.nodes)
        self._fleet = fleet
        self._states = States(fleet, workloads, engine)
        self._asked = {one.name: pods.requests(one.pod) for one in workloads}
        self._changed: set[str] = set()

    def put(self, node: Node) -> None:
        """Replace a node."""
        self.nodes[node.name] = node
        self._changed.add(node.name)

    def place(self, workload: Workload, name: str, owner: str) -> tuple[Result, ...] | None:
        """Place a pod of a workload on a node, for the claims of `owner`; None where it does not fit."""
        node = self.nodes[name]
        asked = self._asked[workload.name]
        if pods.refuses(node, workload.pod) or pods.room(node, asked)[0] == 0 or not self._spread(workload, node):
            return None
        if name not in self._changed and not self._states.of(node, workload).upto(1):
            return None
        held = [one.result for one in node.held]
        answer = placed(self._fleet, workload, NodeMemory(node.offers, self._states.memory), held, node.unclear)
        if isinstance(answer, Refusal):
            return None
        mine = tuple(Held(result, owner) for result in answer.results)
        pod = Placed(workload.namespace, owner, workload.labels, asked, (owner,))
        self.put(replace(node, held=(*node.held, *mine), pods=(*node.pods, pod)))
        return answer.results

    def _spread(self, workload: Workload, node: Node) -> bool:
        """Whether the spread constraints let one more pod onto a node."""
        rules: list[ObjectView] = spread.constraints(workload)
        if not rules:
            return True
        fleet = replace(self._fleet, nodes=self.nodes)
        return all(sum(spread.limit(rule, workload, fleet, {node.name: 1}).values()) > 0 for rule in rules)
