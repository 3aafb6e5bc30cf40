# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Claims, devices and pods for tests of the plan of a claim, and helpers that make and check plans."""

from __future__ import annotations

import re
import typing as t

import pytest
from ansible_collections.lanewise.dra.tests.common.open_class import OPEN_CLASS_CONFIG
from lanewise_driver.base.errors import DriverError, Refused
from lanewise_driver.base.objects import Object
from lanewise_driver.claims.plan import check_pod, plan
from lanewise_driver.claims.records import Record
from lanewise_driver.dra.config import interface_config, tenancy
from lanewise_driver.publish.inventory import Device

NODE = "node-1"
UID = "claim-uid-1"
POD_UID = "pod-uid-1"
#: Device names: a PF, its VF, another PF, an InfiniBand device and an RDMA device without an interface.
PF, VF, OTHER, INFINIBAND, RDMA_ONLY = (f"pci-0000-8a-0{number}-0" for number in range(5))


def device(name: str, interface: str | None, **more: t.Any) -> Device:
    return Device(
        name=name, device={"name": name}, address=f"0000:{name[9:11]}:{name[12:14]}.0", interface=interface, **more
    )


#: The devices of the node.
KNOWN = {
    known.name: known
    for known in (
        device(PF, "eth1"),
        device(VF, "eth1v0", pf="0000:8a:00.0", vf=0),
        device(OTHER, "eth2"),
        device(INFINIBAND, "ib0", link_layer="infiniband"),
        device(RDMA_ONLY, None, rdma_devices=("mlx5_3",)),
    )
}


def result(request: str, name: str, **more: t.Any) -> Object:
    return {"request": request, "driver": "lanewise.dev", "pool": NODE, "device": name, **more}


def config(fields: t.Any, *requests: str, source: str = "FromClaim", driver: str = "lanewise.dev") -> Object:
    """An entry of an allocation's `config`. `fields` is an InterfaceConfig, or else any opaque parameters."""
    parameters = interface_config.parameters(fields) if isinstance(fields, dict) else fields
    entry: Object = {"source": source, "opaque": {"driver": driver, "parameters": parameters}}
    return {**entry, "requests": list(requests)} if requests else entry


def policy(*tenants: Object) -> Object:
    """The InterfacePolicy of a class."""
    entry = config(None, source="FromClass")
    entry["opaque"]["parameters"] = tenancy.parameters(tenants)
    return entry


#: The policy of a class that lets claims set everything.
OPEN: Object = {"source": "FromClass", **OPEN_CLASS_CONFIG}


def claim(results: list[Object], configs: t.Sequence[Object] = (), **metadata: str) -> Object:
    """An allocated claim that is reserved for a pod."""
    own_configs = [
        {key: value for key, value in entry.items() if key != "source"}
        for entry in configs
        if entry["source"] == "FromClaim"
    ]
    return {
        "metadata": {"name": "claim", "namespace": "ns", "uid": UID, **metadata},
        "spec": {"devices": {"config": own_configs}},
        "status": {
            "allocation": {"devices": {"results": results, "config": list(configs)}},
            "reservedFor": [{"resource": "pods", "name": "pod", "uid": POD_UID}],
        },
    }


def pod(**spec: t.Any) -> Object:
    return {"metadata": {"name": "pod", "namespace": "ns", "uid": POD_UID}, "spec": {"nodeName": NODE, **spec}}


def planned(allocated: t.Any, claim_pod: t.Any = None, records: t.Sequence[Record] = (), **more: t.Any) -> Record:
    """The record that the driver makes for an allocated claim and its pod."""
    defaults = {"uid": UID, "node": NODE, "known": KNOWN, "boot": "boot", **more}
    record = plan(allocated, records=records, **defaults)
    if record.pod:
        check_pod(claim_pod or pod(), record.pod, NODE)
    return record


def refused(allocated: t.Any, *words: str, kind: type[DriverError] = Refused, **more: t.Any) -> str:
    """Check that a claim is refused with a message that has these words and names a field. Returns the message."""
    with pytest.raises(kind) as caught:
        planned(allocated, **more)
    message = caught.value.message
    assert all(word in message for word in words), message
    assert names_a_field(message), message
    return message


def names_a_field(message: str) -> bool:
    """Whether a message starts with the path of a field of the claim or its pod."""
    path = r"(?:\.?[A-Za-z_]\w*|\[\d+\]|\['[^']*'\]|\[\"[^\"]*\"\])+"
    return (
        re.match(
            rf"(?:metadata|spec|status|claim|pod){path}?:|(?:metadata|spec|status|claim|pod)(?:{path})?: ", message
        )
        is not None
    )
