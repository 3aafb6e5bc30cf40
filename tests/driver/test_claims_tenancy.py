# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The driver enforces what classes let claims set, even without any admission policy on the API server. The server has
accepted the claims, the scheduler has allocated them, and kubelet calls by gRPC, so this is a separate file (see
test_claims_log.py)."""

from __future__ import annotations

import dataclasses
import tempfile
import typing as t
from pathlib import Path

from ansible_collections.lanewise.dra.plugins.module_utils.dra.config.interface_config import parameters
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.driver.answers import attach
from ansible_collections.lanewise.dra.tests.driver.claims_world import NAMESPACE, WIRES, Sandbox, World
from ansible_collections.lanewise.dra.tests.driver.kubelet import Kubelet
from lanewise_driver.base.metrics import Metrics
from lanewise_driver.kubelet import protocol
from lanewise_driver.kubelet.plugin import Plugin

_WIRES = ['device.driver == "lanewise.dev" && has(device.attributes["lanewise.dev"].ifName)']


def _class(name: str, **more: t.Any) -> Object:
    return {"name": name, "driver": "lanewise.dev", "cel": _WIRES, **more}


#: `plain` has the site's default.
INVENTORY: Object = {
    "dra_claims_drivers": {"lanewise.dev": {"version": "1.0.0"}},
    "dra_claims_tenants": [{"allow": {"name": True, "mtu": {"most": 1450}}}],
    "dra_claims_classes": [
        _class(
            "team",
            interface={"mtu": 1400},
            tenants=[{"namespaces": [NAMESPACE], "allow": {"addresses": {"within": ["198.51.100.0/24"]}}}],
        ),
        _class("others", tenants=[{"namespaces": ["others"], "allow": {}}]),
        _class("plain"),
    ],
}
#: By the name of a claim: its class, what it sets, and words of the refusal.
REFUSED: dict[str, tuple[str, Object, str]] = {
    "wide": (
        "team",
        {"addresses": ["192.0.2.7/24"]},
        "limits what claims may set as addresses: within 198.51.100.0/24",
    ),
    "changed": ("team", {"mtu": 1300}, "sets mtu, which a claim cannot change or extend"),
    "unlisted": (
        "team",
        {"routes": [{"destination": "192.0.2.0/24", "gateway": "198.51.100.1"}]},
        "does not let claims set routes",
    ),
    "foreign": ("others", {}, f"is not for claims of namespace {NAMESPACE}"),
    "addressed": ("plain", {"addresses": ["198.51.100.9/24"]}, "does not let claims set addresses"),
    "long": ("plain", {"mtu": 1460}, "limits what claims may set as mtu: at most 1450"),
}
#: What the classes let a claim set.
ACCEPTED = {"right": ("team", {"addresses": ["198.51.100.7/24"], "mtu": 1400}), "named": ("plain", {"name": "net1"})}


def test_claims_are_checked_against_their_classes_without_an_admission_policy(clean: World, sandbox: Sandbox) -> None:
    policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    assert clean.plane.expect("GET", policies)["items"] == []
    claims = {**{name: one[:2] for name, one in REFUSED.items()}, **ACCEPTED}
    for wire, (name, (class_name, fields)) in zip(WIRES, claims.items()):
        _allocate(clean, name, class_name, wire, fields)
    service = clean.service()
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # the path of a socket is short
        sockets = dataclasses.replace(clean.paths, plugin_dir=Path(folder), registry_dir=Path(folder))
        plugin = Plugin(sockets, service, Metrics())
        plugin.start()
        try:
            with Kubelet(plugin.service_socket, protocol.pool) as kubelet:
                reported = _call(kubelet, "NodePrepareResources", clean, REFUSED)
                for name, (_class_name, _fields, words) in REFUSED.items():
                    assert words in reported[name], reported
                assert clean.files() == []  # nothing is recorded, and no container would find its devices
                assert not any(_call(kubelet, "NodePrepareResources", clean, ACCEPTED).values())
                attach(service, clean.request("right", sandbox.path))
                (link,) = (one for one in sandbox.links().values() if one["ifname"] != "lo")
                assert link["mtu"] == 1400 and "198.51.100.7" in {one["local"] for one in link["addr_info"]}
                assert not any(_call(kubelet, "NodeUnprepareResources", clean, claims).values())
        finally:
            plugin.stop()


def _allocate(world: World, name: str, class_name: str, wire: str, fields: Object) -> None:
    """Create a claim for one interface, as a tenant writes it, and its pod. The scheduler allocates it."""
    selector = {"cel": {"expression": f'device.attributes["lanewise.dev"].ifName == "{wire}"'}}
    request = {"name": "nic", "exactly": {"deviceClassName": class_name, "selectors": [selector]}}
    devices: Object = {"requests": [request]}
    if fields:
        devices["config"] = [{"opaque": {"driver": "lanewise.dev", "parameters": parameters(fields)}}]
    metadata = {"name": name, "namespace": NAMESPACE}
    head = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}
    world.apply({**head, "metadata": metadata, "spec": {"devices": devices}})


def _call(kubelet: Kubelet, method: str, world: World, names: t.Iterable[str]) -> dict[str, str]:
    """The error of each claim, by its name."""
    refs = [world.claims[name] for name in names]
    asked = [{"namespace": one.namespace, "name": one.name, "uid": one.uid} for one in refs]
    answer = kubelet.call(protocol.DRA["v1"], method, claims=asked)
    return {one.name: answer.claims[one.uid].error for one in refs}
