# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Random changes to a fleet, in the syntax of a plan's option `what_if`, and how to make them in the cluster."""

from __future__ import annotations

import typing as t

from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.cluster.fleets import MERGE, NAMESPACE, RESOURCE, RULES, TAINT, Site

_KINDS = ("cordon", "remove", "lose", "replace", "add", "release", "uncordon", "degrade", "drain")
#: The attribute of a link that is too slow for some claims.
_SLOW = {"linkSpeedMbps": 100_000}


def steps(site: Site, number: int) -> t.Iterator[Object]:
    """Changes to different nodes, so that each can be made alone. Four fleets with consecutive numbers have changes of
    all kinds, if there is something to change."""
    nodes = site.rng.sample(site.nodes, len(site.nodes))
    count = site.rng.randint(3, 5)
    for index in range(count):
        kind = _KINDS[(number * 3 + index) % len(_KINDS)]
        node = nodes[index % len(nodes)]
        if index >= len(nodes) and kind != "add":
            continue
        yield from _step(site, kind, node, nodes[count:])


def _step(site: Site, kind: str, node: str, untouched: t.Sequence[str]) -> t.Iterator[Object]:
    nics = [offer.device["name"] for offer in site.offers(node, {"lanewise.dev": {}})]
    claims = site.pods_on(node)
    if kind == "add":
        yield {"add": {"like": untouched[0] if untouched else node, "count": 2}}
    elif kind == "release":
        if claims:
            yield {"release": {"claims": [f"{NAMESPACE}/{claims[0]}"]}}
    elif kind == "remove":
        if len(site.nodes) > 1:
            yield {"remove": {"nodes": [node]}}
    elif kind in ("lose", "replace"):
        yield {kind: {"node": node, "devices": site.rng.sample(nics, min(2, len(nics)))}}
    elif kind == "degrade":
        degradation: Object = {"attributes": _SLOW} if site.rng.random() < 0.5 else {"taint": TAINT}
        if site.kind == "nics":
            nics = [name for name in nics if name.endswith("-share")]
            degradation = {"capacity": {"bandwidth": "100G"}}
        yield {"degrade": {"node": node, "devices": nics[:3], **degradation}}
    else:
        yield {kind: {"nodes": [node]}}


def make(site: Site, step: Object) -> None:
    """Make a change in the cluster."""
    ((kind, value),) = step.items()
    if kind in ("cordon", "uncordon", "drain"):
        (node,) = value["nodes"]
        change = {"spec": {"unschedulable": None if kind == "uncordon" else True}}
        site.plane.expect("PATCH", f"/api/v1/nodes/{node}", change, MERGE)
        site.delete_pods(site.pods_on(node) if kind == "drain" else ())
    elif kind == "remove":
        site.remove(value["nodes"][0])
    elif kind == "add":
        for number in range(value["count"]):
            site.add(f"{value['like']}-new-{number}", value["like"])
    elif kind == "release":
        site.delete_pods([claim.partition("/")[2] for claim in value["claims"]])
    else:
        if kind == "replace":  # a replacement first deletes the device's pods, and then its taint rule
            site.delete_pods(site.holders(value["node"], value["devices"]))
            status, rule = site.plane.request("GET", f"{RULES}/{site.name}-{value['node']}")
            if status == 200 and rule["spec"]["deviceSelector"]["device"] in value["devices"]:
                site.plane.expect("DELETE", f"{RULES}/{site.name}-{value['node']}")
        _publish(site, kind, value)


def _publish(site: Site, kind: str, value: Object) -> None:
    """Publish some devices of a node in their changed form, or without them if they are lost."""
    listed = site.plane.expect("GET", f"{RESOURCE}/resourceslices?fieldSelector=spec.nodeName%3D{value['node']}")
    for item in listed["items"]:
        devices = item["spec"].get("devices") or []
        if not any(device["name"] in value["devices"] for device in devices):
            continue
        item["spec"]["devices"] = [
            device if device["name"] not in value["devices"] else _degraded(device, value)
            for device in devices
            if kind != "lose" or device["name"] not in value["devices"]
        ]
        site.plane.expect("PUT", f"{RESOURCE}/resourceslices/{item['metadata']['name']}", item)


def _degraded(device: Object, value: Object) -> Object:
    result = {**device, "attributes": {**device["attributes"]}}
    for name, number in (value.get("attributes") or {}).items():
        result["attributes"][name] = {"int": number}
    for name, amount in (value.get("capacity") or {}).items():
        result["capacity"] = {**result["capacity"], name: {**result["capacity"][name], "value": amount}}
    if value.get("taint"):
        result["taints"] = [*result.get("taints", ()), value["taint"]]
    return result
