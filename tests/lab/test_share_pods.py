# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Pods have shares of a card by its VFs, with a real scheduler, kubelet and containerd. The card is igb, which has no
minimum rates, so the guarantee is set as the maximum."""

from __future__ import annotations

import json
import typing as t

from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.cluster import gpu_claims
from ansible_collections.lanewise.dra.tests.cluster.driver import API
from ansible_collections.lanewise.dra.tests.lab.cluster import TIMEOUT, host_state
from ansible_collections.lanewise.dra.tests.lab.test_pods import (
    PODS,
    VFS,
    Site,
    _site,
    assert_unchanged,
    name_of,
    refused,
)

__all__ = ["_site"]

MEGABITS = {"big": 700, "small": 200}
#: Seconds for the end of a pod, as two pods end at once on one emulated CPU.
END_TIMEOUT = 3 * TIMEOUT


def rates(site: Site) -> list[tuple[int, int]]:
    """The minimum and maximum rates of each VF in Mbit/s, from the PF's interface."""
    (link,) = json.loads(site.machine.ssh(f"ip -json -details link show {site.pf}"))
    return [(vf["rate"]["min_tx"], vf["rate"]["max_tx"]) for vf in link["vfinfo_list"]]


def share_in_status(site: Site, pod: str) -> Object:
    status = site.plane.expect("GET", f"{PODS}/{pod}")["status"]
    path = f"{API}/namespaces/default/resourceclaims/{status['resourceClaimStatuses'][0]['resourceClaimName']}"

    def found() -> Object | None:
        devices = site.plane.expect("GET", path)["status"].get("devices") or [{}]
        share: Object = devices[0].get("data", {}).get("share", {})
        return share if "inForce" in share else None

    return t.cast(Object, site.plane.wait_for(found, f"the share of {pod} in its claim's status", TIMEOUT))


def test_pods_get_shares_of_a_card_by_virtual_functions(site: Site) -> None:
    """From publishing to detach."""
    card = name_of(site.nics[0].address)
    before = [host_state(site.machine, site.vf(index)[1], site.pf) for index in range(VFS)]
    site.driver.write_settings(shares=[{"select": {"type": "pf"}, "bandwidth": "1G", "step": "1M"}])
    site.driver.kill()

    def published() -> Object | None:
        return site.driver.devices().get(f"{card}-share")

    share = t.cast(Object, site.plane.wait_for(published, "the device for shares", TIMEOUT))
    assert share["capacity"]["bandwidth"]["value"] == "1G" and share["capacity"]["vfs"]["value"] == str(VFS)
    assert not [
        name for name in site.driver.devices() if name in {name_of(site.vf(number)[0]) for number in range(VFS)}
    ]
    wanted = [*MEGABITS.items(), ("late", 200)]
    devices = {name: {"name": "nic", "kind": "nic", "share": {"bandwidth": f"{rate}M"}} for name, rate in wanted}
    templates = [{"name": name, "namespace": "default", "devices": [device]} for name, device in devices.items()]
    drivers = {"lanewise.dev": {"version": "1.0.0"}}
    gpu_claims.apply(site.node, {"dra_claims_drivers": drivers, "dra_claims_templates": templates})
    functions = {site.vf(index)[0]: index for index in range(VFS)}
    held: dict[str, int] = {}
    for name, rate in MEGABITS.items():
        site.node.run_pod(site.node.pod(name, resourceClaims=[{"name": "net", "resourceClaimTemplateName": name}]))
        (address,) = [link["parentdev"] for link in site.links(name).values() if link.get("parentdev") in functions]
        held[name] = functions[address]
        shown = share_in_status(site, name)
        assert (shown["mechanism"], shown["bandwidth"]) == ("vfs", f"{rate}M")
        assert shown["inForce"] == {"bandwidth": f"{rate}M", "ceiling": f"{rate}M"}
    assert {name: rates(site)[index] for name, index in held.items()} == {"big": (0, 700), "small": (0, 200)}
    late = site.node.pod("late", resourceClaims=[{"name": "net", "resourceClaimTemplateName": "late"}])
    site.plane.expect("POST", PODS, late)
    site.plane.wait_for(lambda: refused(site, "late"), "the scheduler to refuse a third share", TIMEOUT)
    for name in ("late", *MEGABITS):
        site.node.delete_pod(name, END_TIMEOUT)
    site.driver.wait_released(END_TIMEOUT)
    assert rates(site) == [(0, 0)] * VFS
    for index in range(VFS):
        assert_unchanged(before[index], host_state(site.machine, site.vf(index)[1], site.pf))
