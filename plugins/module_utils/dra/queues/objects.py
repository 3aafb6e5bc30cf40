# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Queues as objects of Kueue (kueue.x-k8s.io/v1beta2, which 0.19.2 stores)."""

from __future__ import annotations

import typing as t
from fractions import Fraction

from ..kube.objects import Object
from .inventory import Amounts, Queues, Team
from .sums import Quotas, amount_text

API_VERSION = "kueue.x-k8s.io/v1beta2"
#: The kinds of rendered objects, as in an ApplySet's annotation.
KINDS = ("ClusterQueue", "Cohort", "LocalQueue", "ResourceFlavor", "WorkloadPriorityClass")
#: The annotation of a ClusterQueue whose quota is changed by loans: one line for each loan.
LOANS = "lanewise.dev/loans"
_NAME_LABEL = "kubernetes.io/metadata.name"


def objects(queues: Queues, quotas: Quotas, labels: t.Mapping[str, str]) -> list[Object]:
    """The flavor, the cohort, a ClusterQueue for each team, its LocalQueues, and the priorities.

    Every queue lists every resource, because Kueue lends a queue only resources that the queue lists.
    """
    items = []
    if queues.resources and queues.teams:
        items.append(_object("ResourceFlavor", queues.flavor, labels, {}))
        items.append(_object("Cohort", queues.cohort, labels, _cohort_spec(queues)))
        for team in queues.teams:
            items.append(_object("ClusterQueue", team.name, labels, _queue_spec(team, queues, quotas)))
        for team in queues.teams:
            for namespace in team.namespaces:
                local = _object("LocalQueue", team.queue, labels, {"clusterQueue": team.name})
                local["metadata"]["namespace"] = namespace
                items.append(local)
    for priority in queues.priorities:
        item: Object = {"apiVersion": API_VERSION, "kind": "WorkloadPriorityClass"}
        item["metadata"] = {"name": priority.name, "labels": dict(labels)}
        item["value"] = priority.value
        if priority.description:
            item["description"] = priority.description
        items.append(item)
    return items


def _object(kind: str, name: str, labels: t.Mapping[str, str], spec: Object) -> Object:
    metadata = {"name": name, "labels": dict(labels)}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}


def _cohort_spec(queues: Queues) -> Object:
    """The spec of the Cohort: quota that belongs to no team, which all teams can borrow."""
    pool: Amounts = {name: amount for name, amount in queues.pool.items() if amount}
    if not pool:
        # with an empty spec, server-side apply would remove the spec itself, which the API server refuses
        return {"resourceGroups": []}
    entries = [
        {"name": resource.name, "nominalQuota": amount_text(pool[resource.name], resource.name in queues.binary)}
        for resource in queues.resources
        if resource.name in pool
    ]
    return {"resourceGroups": [_group(queues.flavor, entries)]}


def _queue_spec(team: Team, queues: Queues, quotas: Quotas) -> Object:
    """The spec of a team's ClusterQueue."""
    entries = []
    for resource in queues.resources:
        quota, binary = quotas[team.name, resource.name], resource.name in queues.binary
        entry: Object = {"name": resource.name, "nominalQuota": amount_text(quota.nominal, binary)}
        if quota.borrow is not None:
            entry["borrowingLimit"] = amount_text(quota.borrow, binary)
        if quota.lend is not None:
            entry["lendingLimit"] = amount_text(quota.lend, binary)
        entries.append(entry)
    spec: Object = {
        "cohortName": queues.cohort,
        "namespaceSelector": {
            "matchExpressions": [{"key": _NAME_LABEL, "operator": "In", "values": list(team.namespaces)}]
        },
        "preemption": {"reclaimWithinCohort": team.reclaim, "withinClusterQueue": team.preempt},
        "resourceGroups": [_group(queues.flavor, entries)],
    }
    if team.weight is not None:
        spec["fairSharing"] = {"weight": _weight(team.weight)}
    return spec


def _group(flavor: str, entries: list[Object]) -> Object:
    covered = [entry["name"] for entry in entries]
    return {"coveredResources": covered, "flavors": [{"name": flavor, "resources": entries}]}


def _weight(weight: Fraction) -> str:
    return amount_text(weight)
