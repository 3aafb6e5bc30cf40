# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Shares that a real scheduler has allocated: the rates in force on the node follow from `consumedCapacity`.

The compiler writes the claims, and the driver publishes the slices. With LANEWISE_SLOW, 1,000 random mixes of shares
are tested, one after the other.
"""

from __future__ import annotations

import os
import random
import typing as t
from fractions import Fraction

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.config.interface_config import parameters
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube import quantity
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.tests.cluster.client import APPLY_PATCH
from ansible_collections.lanewise.dra.tests.cluster.controlplane import ControlPlane
from ansible_collections.lanewise.dra.tests.common.open_class import OPEN_CLASS_CONFIG
from ansible_collections.lanewise.dra.tests.driver.claims_node import Sandbox
from ansible_collections.lanewise.dra.tests.driver.fake_cluster import attach_with_retries
from ansible_collections.lanewise.dra.tests.driver.shares_node import (
    MEGA,
    NAMESPACE,
    NODE,
    SHARE,
    SharesNode,
    class_rates,
    classes,
)
from environment import Missing
from lanewise_driver.api.access import from_kubeconfig
from lanewise_driver.api.cluster import Cluster
from lanewise_driver.base.calls import AttachRequest, ClaimRef
from lanewise_driver.publish.publisher import Publisher

pytestmark = [pytest.mark.namespaces, pytest.mark.control_plane]

#: How many mixes of shares the random test checks.
MIXES = 1000 if os.environ.get("LANEWISE_SLOW") else 40
#: The bandwidth of the NIC that is divided, in bit/s.
NIC_RATE = 1000 * MEGA
MAX_PODS = 10
RESOURCE = "/apis/resource.k8s.io/v1"
CLAIMS = f"{RESOURCE}/namespaces/{NAMESPACE}/resourceclaims"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
#: The path of each kind below its API group.
PATHS = {"DeviceClass": "deviceclasses", "ResourceClaim": f"namespaces/{NAMESPACE}/resourceclaims"}


class Site:
    """A control plane, and the driver of its only node, whose NIC is divided.

    `free` are sandboxes without a claim, `used` those of attached claims by name.
    """

    def __init__(self, plane: ControlPlane, node: SharesNode) -> None:
        self.plane, self.node = plane, node
        plane.add_node(NODE)
        plane.add_namespace(NAMESPACE)
        node.cluster = t.cast(t.Any, Cluster(lambda: from_kubeconfig(plane.kubeconfig), "lanewise.dev", NODE))
        self.service = node.service()
        self.publisher = Publisher(
            t.cast(Cluster, node.cluster),
            t.cast(t.Any, self.service.inventory),
            published=lambda _publication: self.refreshed.append(self.service.shares.refresh()),
        )
        self.refreshed: list[bool] = []
        self.free = [Sandbox() for _each in range(MAX_PODS)]
        self.used: dict[str, Sandbox] = {}
        self.number = 0

    def change_rule(self, **rule: t.Any) -> None:
        """Change the rule in the node's settings, and publish, as when the driver reads its settings again."""
        self.node.settings = self.node.with_rule(**rule)
        self.publisher.publish("the settings have changed")
        assert self.refreshed.pop()

    def capacity(self) -> int:
        """The published bandwidth of the device for shares."""
        for resource_slice in self.plane.expect("GET", f"{RESOURCE}/resourceslices")["items"]:
            for device in resource_slice["spec"].get("devices", ()):
                if device["name"] == SHARE:
                    return int(quantity.parse(device["capacity"]["bandwidth"]["value"]))
        raise AssertionError("no device for shares is published")

    def request_share(self, device_class: Object | None = None, **share: t.Any) -> str:
        """Create a claim for a share, of this class if it is given, and a pod with it. Returns the name of both."""
        self.number += 1
        name = f"claim-{self.number}"
        claim = {"name": name, "namespace": NAMESPACE}
        kind_or_class = {"class": device_class["name"]} if device_class else {"kind": "nic"}
        device = {"name": "nic", "share": share, "interface": {"name": "net1"}, **kind_or_class}
        variables = {
            "dra_claims_drivers": {"lanewise.dev": {"version": "1.0.0"}},
            "dra_claims_classes": [device_class] if device_class else [],
            "dra_claims_claims": [{**claim, "devices": [device]}],
        }
        self._create(name, compile_site(variables).objects)
        return name

    def request_whole_nic(self) -> str:
        """Like `request_share`, for the whole NIC."""
        self.number += 1
        name = f"claim-{self.number}"
        expression = 'device.driver == "lanewise.dev" && device.attributes["lanewise.dev"].type != "share"'
        selectors = [{"cel": {"expression": expression}}]
        header = {"apiVersion": "resource.k8s.io/v1", "metadata": {"name": name}}
        devices: Object = {
            "requests": [{"name": "nic", "exactly": {"deviceClassName": name}}],
            "config": [{"opaque": {"driver": "lanewise.dev", "parameters": parameters({"name": "net1"})}}],
        }
        spec = {"selectors": selectors, "config": [OPEN_CLASS_CONFIG]}
        device_class = {**header, "kind": "DeviceClass", "spec": spec}
        self._create(name, [device_class, {**header, "kind": "ResourceClaim", "spec": {"devices": devices}}])
        return name

    def _create(self, name: str, objects: t.Iterable[Object]) -> None:
        """Create the objects, and a pod with the claim of this name."""
        for manifest in objects:
            path = f"/apis/{manifest['apiVersion']}/{PATHS[manifest['kind']]}/{manifest['metadata']['name']}"
            self.plane.expect("PATCH", f"{path}?fieldManager=lanewise", manifest, APPLY_PATCH)
        container = {"name": "c", "image": "none.example.com/none", "resources": {"claims": [{"name": "d"}]}}
        spec = {"containers": [container], "resourceClaims": [{"name": "d", "resourceClaimName": name}]}
        spec["terminationGracePeriodSeconds"] = 0
        self.plane.expect("POST", PODS, {"metadata": {"name": name}, "spec": spec})

    def claim(self, name: str) -> Object:
        return t.cast(Object, self.plane.expect("GET", f"{CLAIMS}/{name}"))

    def pod(self, name: str) -> Object:
        return t.cast(Object, self.plane.expect("GET", f"{PODS}/{name}"))

    def is_bound(self, name: str) -> bool:
        return bool(self.pod(name)["spec"].get("nodeName"))

    def is_unschedulable(self, name: str) -> bool:
        conditions = self.pod(name)["status"].get("conditions", ())
        return any(
            condition["type"] == "PodScheduled" and condition["reason"] == "Unschedulable" for condition in conditions
        )

    def start(self, name: str) -> None:
        """Wait until the pod is bound. Then prepare and attach its claim, as kubelet and the hook do."""
        self.plane.wait_for(lambda: self.is_bound(name), f"the scheduler to bind {name}")
        metadata, sandbox = self.pod(name)["metadata"], self.free.pop()
        self.used[name] = sandbox
        self.service.prepare(self.claim_ref(name))
        values = {"uid": metadata["uid"], "name": name, "namespace": NAMESPACE}
        annotations = {f"io.kubernetes.cri.sandbox-{key}": value for key, value in values.items()}
        attach_with_retries(self.service, AttachRequest(self.claim_ref(name).uid, sandbox.path, 0, "c", annotations))

    def claim_ref(self, name: str) -> ClaimRef:
        return ClaimRef(NAMESPACE, name, self.claim(name)["metadata"]["uid"])

    def end(self, name: str) -> None:
        """Delete a pod and its claim, whether the pod is bound or not."""
        if name in self.used:
            self.service.unprepare(self.claim_ref(name))
            self.free.append(self.used.pop(name))
        self.plane.expect("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
        self.plane.expect("DELETE", f"{CLAIMS}/{name}")

    def check(self) -> None:
        """Check that the rates in force for each pod follow from the `consumedCapacity` of all claims."""
        requested, hard, burst = {}, {}, {}
        for name in self.used:
            allocation = self.claim(name)["status"]["allocation"]["devices"]
            (result,) = allocation["results"]
            parameters = [config["opaque"]["parameters"] for config in allocation.get("config", ())]
            share: Object = next((fields["share"] for fields in parameters if "share" in fields), {})
            burst[name] = int(quantity.parse(share.get("burst", "1G")))
            # the scheduler rounds up to the next step, which may be more than the burst
            requested[name] = min(int(quantity.parse(result["consumedCapacity"]["bandwidth"])), burst[name])
            if share.get("hard"):
                hard[name] = requested[name] = int(quantity.parse(share["guarantee"]))
        soft = sum(rate for name, rate in requested.items() if name not in hard)
        ratio = min(Fraction(1), Fraction(NIC_RATE - sum(hard.values()), soft)) if soft else Fraction(1)
        by_mac = classes()
        assert len(by_mac) == len(requested)
        for name, rate in requested.items():
            record = self.service.store.load(self.claim_ref(name).uid)
            assert record and record.devices[0].share
            htb_class = by_mac[record.devices[0].share.mac]
            expected = int(rate * (1 if name in hard else ratio))
            assert 0 <= expected - htb_class.rate < 8, (name, requested, hard)  # the kernel counts whole bytes
            assert 0 <= max(expected, min(burst[name], NIC_RATE)) - htb_class.ceiling < 8, (name, requested, hard)


@pytest.fixture(scope="module", name="shared_site")
def _shared_site(tmp_path_factory: pytest.TempPathFactory) -> t.Iterator[Site]:
    try:
        plane = ControlPlane()
    except Missing as missing:
        pytest.skip(str(missing))
    with plane:
        shared_site = Site(plane, SharesNode(tmp_path_factory.mktemp("node")))
        yield shared_site
        for sandbox in [*shared_site.free, *shared_site.used.values()]:
            sandbox.end()


@pytest.fixture(name="site")
def _site(shared_site: Site) -> t.Iterator[Site]:
    """The site without claims and with the default rule."""
    shared_site.change_rule()
    yield shared_site
    for name in list(shared_site.used):
        shared_site.end(name)
    assert classes() == {}


def test_a_raised_factor_lets_pending_pods_start_and_a_lowered_factor_evicts_none(site: Site) -> None:
    first = site.request_share(bandwidth="700M")
    site.start(first)
    second = site.request_share(bandwidth="600M")
    site.plane.wait_for(lambda: site.is_unschedulable(second), "the scheduler to refuse the second pod")
    site.change_rule(factor=1.5)
    site.start(second)
    site.check()
    site.change_rule(factor=1)
    assert site.is_bound(first) and site.is_bound(second)
    (nic,) = site.service.shares.nics()
    assert nic.totals.debt == 300 * MEGA
    site.check()
    third = site.request_share(bandwidth="1M")
    site.plane.wait_for(lambda: site.is_unschedulable(third), "the scheduler to refuse the third pod")
    site.end(second)  # so no debt is left
    site.change_rule(factor=1)
    site.start(third)
    site.check()


def test_a_nic_is_allocated_in_shares_or_as_a_whole(site: Site) -> None:
    share = site.request_share(bandwidth="100M")
    site.start(share)
    whole = site.request_whole_nic()
    site.plane.wait_for(lambda: site.is_unschedulable(whole), "the scheduler to refuse a NIC with shares as a whole")
    site.end(share)
    site.start(whole)
    late = site.request_share(bandwidth="100M")
    site.plane.wait_for(lambda: site.is_unschedulable(late), "the scheduler to refuse a share of a NIC that a pod has")
    site.end(whole)
    site.start(late)
    assert class_rates() == [(100, 1000)]


def test_the_burst_of_a_class_limits_the_ceilings_of_its_claims(site: Site) -> None:
    """The limit applies to soft and hard shares. A claim may request less."""
    capped = {"name": "capped", "kind": "nic", "share": True, "interface": {"share": {"burst": "400M"}}}
    expected = {
        site.request_share(capped, bandwidth="100M"): (100, 400),
        site.request_share(capped, bandwidth="200M", burst="300M"): (200, 300),
        site.request_share(capped, bandwidth="250M", hard=True, factor=1): (250, 400),
        site.request_share(bandwidth="150M"): (150, 1000),
    }
    for name in expected:
        site.start(name)
    assert class_rates() == sorted(expected.values())
    config = site.claim(next(iter(expected)))["status"]["allocation"]["devices"]["config"]
    assert {entry["source"] for entry in config if "share" in entry["opaque"]["parameters"]} == {"FromClass"}


def test_rates_follow_from_consumed_capacity_in_random_mixes(site: Site) -> None:
    seed = int(os.environ.get("LANEWISE_SEED", random.randrange(2**32)))
    print(f"LANEWISE_SEED={seed}")
    generator, factor, mixes, refused = random.Random(seed), "1", 0, 0
    while mixes < MIXES:
        if generator.random() < 0.08:
            factor = generator.choice(["1", "1.25", "1.5", "2", "4"])
            site.change_rule(factor=float(factor), step=generator.choice(["1M", "1M", "10M"]))
        elif site.used and (len(site.used) == MAX_PODS or generator.random() < 0.45):
            site.end(generator.choice(sorted(site.used)))
            site.publisher.publish("a share has ended")
            site.refreshed.clear()
        else:
            refused += not _start_random_pod(site, generator, factor)
        site.check()
        mixes += bool(site.used)
    print(f"{mixes} mixes, {refused} claims that the scheduler refused as predicted")


def _start_random_pod(site: Site, generator: random.Random, factor: str) -> bool:
    """Request a random share for another pod. Returns whether the pod got it, and checks that this is as predicted."""
    amount = generator.choice([generator.randint(1, 100), generator.randint(1, 600)])
    share: Object = {"bandwidth": f"{amount}M"}
    if generator.random() < 0.3:
        share.update(hard=True, factor=float(factor))
    if generator.random() < 0.3:
        share["burst"] = f"{generator.randint(amount, 1000)}M"
    allocated = 0
    for name in site.used:
        (result,) = site.claim(name)["status"]["allocation"]["devices"]["results"]
        allocated += int(quantity.parse(result["consumedCapacity"]["bandwidth"]))
    offer = site.service.inventory.offer(SHARE)
    assert offer
    step = offer.rule.step
    requested = int(Fraction(amount) * MEGA * (Fraction(factor) if share.get("hard") else 1))
    rounded = max(step, -(-requested // step) * step)  # the scheduler rounds up to a multiple of the step
    name = site.request_share(**share)
    if allocated + rounded <= site.capacity():
        site.start(name)
        return True
    site.plane.wait_for(lambda: site.is_unschedulable(name), f"the scheduler to refuse {name}")
    site.end(name)
    return False
