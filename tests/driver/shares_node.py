# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A node with a NIC that is divided into shares: a veth as the NIC, processes in network namespaces as pods, and claims
as the scheduler allocates them.

The tests call the driver as kubelet and the hook do. A FakeCluster answers its requests to an API server.
"""

from __future__ import annotations

import dataclasses
import subprocess
import typing as t
from pathlib import Path

from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.driver import folders, ipv6
from ansible_collections.lanewise.dra.tests.driver.claims_node import Sandbox, ip
from ansible_collections.lanewise.dra.tests.driver.fake_cluster import (
    NODE,
    FakeCluster,
    attach_with_retries,
    sandbox_annotations,
    start_service,
)
from ansible_collections.lanewise.dra.tests.driver.plan_claims import OPEN, config
from lanewise_driver.api.events import Reporter
from lanewise_driver.base import files
from lanewise_driver.base.calls import AttachRequest, ClaimRef
from lanewise_driver.base.settings import Settings, read
from lanewise_driver.claims import service as claims
from lanewise_driver.kernel import htb, links
from lanewise_driver.kernel.htb import Class
from lanewise_driver.kernel.netlink import Netlink

NAMESPACE, NIC = "team-a", "card0"
SHARE = f"net-{NIC}-share"
MEGA = 10**6
#: The settings' rule that divides 1 Gbit/s of the NIC, a veth of 10 Gbit/s.
RULE: dict[str, t.Any] = {
    "select": {"interface": NIC},
    "mechanism": "macvlan",
    "namespace": NAMESPACE,
    "bandwidth": "1G",
    "step": "1M",
}


class SharesNode:
    """The node and the driver's folders. A test may replace `settings` at any time."""

    def __init__(self, folder: Path) -> None:
        ip("link", "add", NIC, "type", "veth", "peer", "name", "far")
        ip("link", "set", "far", "up")
        ip("link", "set", NIC, "up")
        ipv6.wait(lambda words: ip(*words.split()))
        self.paths = folders.flat(folder)
        self.cluster = FakeCluster()
        self._reporters: dict[int, Reporter] = {}
        self.settings = self.with_rule()

    @staticmethod
    def with_rule(**more: t.Any) -> Settings:
        """Settings with RULE, changed by `more`. A key of `more` that is None removes the key."""
        rule = {key: value for key, value in {**RULE, **more}.items() if value is not None}
        return read({"node_name": NODE, "virtual_interfaces": [NIC], "shares": [rule]})

    def service(self) -> claims.Service:
        """The service of a driver that has just started on this node's folders."""
        return start_service(self.paths, lambda: self.settings, self.cluster, reporter=self._reporter())

    def _reporter(self) -> Reporter:
        """One reporter for all drivers: the thread of each reporter never ends, and the driver looks for interfaces in
        the namespaces of all threads."""
        if self._reporters.get(id(self.cluster)) is None:
            self._reporters[id(self.cluster)] = Reporter(self.cluster)
            self._reporters[id(self.cluster)].start()
        return self._reporters[id(self.cluster)]

    def allocate(self, name: str, bandwidth: str, device: str = SHARE, **more: t.Any) -> ClaimRef:
        """Create a claim as the scheduler allocates it. `more` has the claim's namespace and the fields of its
        InterfaceConfig. `bandwidth` counts only if the device is a share."""
        namespace = more.pop("namespace", NAMESPACE)
        result: Object = {"request": "nic", "driver": "lanewise.dev", "pool": NODE, "device": device}
        if device.endswith("-share"):
            result.update(shareID=f"share-{name}", consumedCapacity={"bandwidth": bandwidth})
        fields = {"name": "net1", **more}
        return self.cluster.allocate(namespace, name, [result], [OPEN, config(fields)])

    @staticmethod
    def request(claim: ClaimRef, sandbox: Sandbox) -> AttachRequest:
        return AttachRequest(claim.uid, sandbox.path, 0, "c", sandbox_annotations(claim))

    def attach(self, service: claims.Service, claim: ClaimRef, sandbox: Sandbox) -> None:
        """Prepare a claim and attach it to a pod."""
        service.prepare(claim)
        attach_with_retries(service, self.request(claim, sandbox))

    def files(self) -> list[str]:
        """Files of claims on disk, except unfinished files of killed writers, which the driver removes later, and those
        that the next publication removes."""
        roots = (self.paths.plugin_dir, self.paths.run_dir, self.paths.cdi_dir)
        found = [path for root in roots for path in root.rglob("*") if not path.is_dir()]
        kept = [path for path in found if not path.name.endswith(files.UNFINISHED) and path != self.paths.share_factors]
        return sorted(str(path) for path in kept if path.parent != self.paths.pending_status_dir)


def classes() -> dict[str, Class]:
    """The HTB classes of the NIC, by the MAC address of their traffic."""
    with Netlink() as connection:
        link = links.get(connection, name=NIC)
        assert link
        return {htb_class.mac: htb_class for htb_class in htb.read(connection, link.index).values()}


def class_rates() -> list[tuple[float, float]]:
    """The rate and the ceiling of each class in Mbit/s, sorted."""
    return sorted((htb_class.rate / MEGA, htb_class.ceiling / MEGA) for htb_class in classes().values())


def root_qdiscs() -> list[str]:
    """The kind and handle of each qdisc of the NIC, as `tc` shows them."""
    lines = tc("qdisc", "show", "dev", NIC).splitlines()
    return [" ".join(line.split()[:4]) for line in lines]


def tc(*words: str) -> str:
    return subprocess.run(["tc", *words], check=True, text=True, stdout=subprocess.PIPE).stdout


def without_shares(settings: Settings) -> Settings:
    """Settings that divide nothing."""
    return dataclasses.replace(settings, shares=())
