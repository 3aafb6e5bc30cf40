# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Shares of a NIC by macvlan, from prepare to unprepare, and when the driver is killed.

This file has more than 500 lines because all tests use the same node with a divided NIC.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import threading
import typing as t
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.tests.common.waiting import until
from ansible_collections.lanewise.dra.tests.driver import driver_changes, folders, shares_world
from ansible_collections.lanewise.dra.tests.driver.answers import NODE, Cluster
from ansible_collections.lanewise.dra.tests.driver.claims_world import Sandbox, differences, host_state, ip
from ansible_collections.lanewise.dra.tests.driver.killed import killed_at
from ansible_collections.lanewise.dra.tests.driver.plan_claims import config
from ansible_collections.lanewise.dra.tests.driver.shares_world import (
    NIC,
    RULE,
    SHARE,
    Object,
    SharesWorld,
    class_rates,
    classes,
    root_qdiscs,
    without_shares,
)
from ansible_collections.lanewise.dra.tests.machines.builder import build
from lanewise_driver import daemon
from lanewise_driver.base.calls import ClaimRef
from lanewise_driver.base.errors import Busy, KernelError, Refused
from lanewise_driver.base.settings import read
from lanewise_driver.claims import share_plan, share_report, unclean
from lanewise_driver.claims.claim_status import Writer
from lanewise_driver.claims.ledger import Ledger
from lanewise_driver.claims.records import ATTACHED, PREPARED, DeviceRecord, Record
from lanewise_driver.claims.share_metrics import ShareMetrics
from lanewise_driver.dra.config.share_rates import EffectiveRate
from lanewise_driver.interface import take_back
from lanewise_driver.interface.identity import Identity
from lanewise_driver.kernel import htb
from lanewise_driver.publish.device import Device
from lanewise_driver.publish.inventory import Inventory
from lanewise_driver.shares import by_class, by_vf
from lanewise_driver.shares.share import ShareRecord
from lanewise_driver.topology.publish import device_name
from lanewise_driver.topology.publish_shares import MACVLAN, VFS
from prometheus_client import CollectorRegistry, generate_latest

pytestmark = pytest.mark.namespaces

#: The kernel adds no route from an address that the pod does not have.
NO_ROUTE = {"destination": "203.0.113.0/24", "gateway": "198.51.100.1", "source": "198.51.100.77"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> SharesWorld:
    return SharesWorld(tmp_path_factory.mktemp("node"))


@pytest.fixture
def shares(node: SharesWorld) -> t.Iterator[SharesWorld]:
    """The node. Checks that a test leaves nothing on it."""
    before, qdiscs = host_state(), root_qdiscs()
    node.settings = node.with_rule()
    yield node
    node.cluster.claims.clear()
    assert (root_qdiscs(), classes()) == (qdiscs, {})
    # the kernel ends the namespaces of pods a while after their last process
    until(lambda: host_state() == before, why=lambda: differences(before, host_state()))
    assert node.files() == []


@pytest.fixture
def pods() -> t.Iterator[list[Sandbox]]:
    made = [Sandbox() for _each in range(2)]
    yield made
    for one in made:
        one.end()


def test_two_shares_are_attached_and_returned(shares: SharesWorld, pods: list[Sandbox]) -> None:
    service = shares.service()
    big, small = shares.allocate("big", "700M"), shares.allocate("small", "200M", share={"burst": "500M"})
    shares.attach(service, big, pods[0])
    assert class_rates() == [(700, 1000)] and root_qdiscs()[0] == "qdisc htb 6c77: root"
    shares.attach(service, small, pods[1])
    assert class_rates() == [(200, 500), (700, 1000)]
    inside = pods[0].links()["net1"]
    assert inside["address"] in classes() and inside["linkinfo"]["info_data"]["mode"] == "private"
    status = shares.cluster.statuses  # written by a thread, which is not started here
    assert status == {}
    (nic,) = service.shares.nics()
    assert (nic.name, nic.totals.requested, nic.totals.current) == (f"net-{NIC}", 900 * 10**6, 900 * 10**6)
    assert service.held() == [] and set(service.shares.held()) == {SHARE}
    # again as kubelet does it after a restart, also when the settings are others now
    shares.settings = shares.with_rule(mode="vepa", namespace="team-b")
    service.prepare(big)
    shares.settings = without_shares(shares.settings)
    service.prepare(big)
    record = service.store.load(big.uid)
    assert record and record.phase == ATTACHED and class_rates() == [(200, 500), (700, 1000)]
    service.unprepare(big)
    assert set(pods[0].links()) == {"lo"} and class_rates() == [(200, 500)]
    service.unprepare(small)


def test_a_claim_may_have_two_shares_of_a_nic(shares: SharesWorld, pods: list[Sandbox]) -> None:
    service = shares.service()
    claim = claim_with_two_shares(shares, {}, {})
    shares.attach(service, claim, pods[0])
    assert class_rates() == [(200, 1000), (700, 1000)]
    assert {pods[0].links()[name]["address"] for name in ("net1", "net2")} == set(classes())
    (nic,) = service.shares.nics()
    assert nic.totals.requested == 900 * 10**6
    with pytest.raises(Busy, match="would be promised more than 1 times its"):
        service.prepare(shares.allocate("late", "200M"))
    service.prepare(claim)
    service.unprepare(claim)
    assert set(pods[0].links()) == {"lo"}


def claim_with_two_shares(shares: SharesWorld, first: Object, second: Object) -> ClaimRef:
    """A claim with two shares of the NIC, net1 and net2 in the pod, with these fields in their configurations."""
    claim = shares.allocate("both", "700M")
    devices = shares.cluster.claims["both"]["status"]["allocation"]["devices"]
    (result,) = devices["results"]
    more = {"request": "more", "shareID": "share-more", "consumedCapacity": {"bandwidth": "200M"}}
    devices["results"].append({**result, **more})
    devices["config"][1:] = [config({"name": "net1", **first}, "nic"), config({"name": "net2", **second}, "more")]
    return claim


@contextlib.contextmanager
def dhcp_server(folder: Path) -> t.Iterator[Path]:
    """Run a DHCPv4 server at the other end of the NIC. Yields its log."""
    if not shutil.which("dnsmasq"):
        pytest.skip("needs dnsmasq")
    ip("address", "add", "10.8.0.1/24", "dev", "far")
    log = folder / "dnsmasq.log"
    options = "--no-daemon --port=0 --no-ping --interface=far --bind-dynamic --conf-file=/dev/null --leasefile-ro"
    command = ["dnsmasq", *options.split(), "--user=root", "--dhcp-range=10.8.0.50,10.8.0.60,2m", "--log-dhcp"]
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        until(lambda: "DHCP" in log.read_text())
        yield log
    finally:
        server.terminate()
        server.wait()
        ip("address", "del", "10.8.0.1/24", "dev", "far")


def test_a_lease_is_released_if_the_claims_other_device_gets_none(
    shares: SharesWorld, pods: list[Sandbox], tmp_path: Path
) -> None:
    service = shares.service()
    claim = claim_with_two_shares(shares, {"dhcp": ["ipv4"]}, {"dhcp": ["ipv6"]})
    with dhcp_server(tmp_path) as log:
        with pytest.raises(KernelError, match="no DHCPv6 server answered in time"):
            shares.attach(service, claim, pods[0])
        (given,) = re.findall(r"DHCPACK\(far\) (\S+)", log.read_text())
        until(lambda: f"DHCPRELEASE(far) {given}" in log.read_text())
        assert set(pods[0].links()) == {"lo"}
        service.unprepare(claim)
        assert log.read_text().count("DHCPRELEASE") == 1
    service.close()


def test_two_shares_of_a_claim_keep_a_lease_each(shares: SharesWorld, pods: list[Sandbox], tmp_path: Path) -> None:
    service = shares.service()
    claim = claim_with_two_shares(shares, {"dhcp": ["ipv4"]}, {"dhcp": ["ipv4"]})
    with dhcp_server(tmp_path) as log:
        shares.attach(service, claim, pods[0])
        given = set(re.findall(r"DHCPACK\(far\) (\S+)", log.read_text()))
        assert len(given) == 2
        service.unprepare(claim)
        until(lambda: set(re.findall(r"DHCPRELEASE\(far\) (\S+)", log.read_text())) == given, why=log.read_text)
    service.close()


def test_a_problem_is_reported_for_the_share_that_has_it(shares: SharesWorld, pods: list[Sandbox]) -> None:
    service = shares.service()
    service.status.start()
    claim = claim_with_two_shares(shares, {}, {})
    shares.attach(service, claim, pods[0])

    def ready() -> dict[str, tuple[str, str]]:
        assert service.status.wait(20)
        found = [(one["shareID"], one["conditions"][0]) for one in shares.cluster.statuses["both"]]
        return {share: (condition["status"], condition["message"]) for share, condition in found}

    healthy = ("True", "the device is in the pod")
    assert ready() == {"share-both": healthy, "share-more": healthy}
    for share, name, other in (("share-both", "net1", "share-more"), ("share-more", "net2", "share-both")):
        ip("link", "set", name, "down", netns=pods[0].pid)
        assert service.check_pods()
        assert ready() == {share: ("False", f"{name} was set down in the pod"), other: healthy}
        ip("link", "set", name, "up", netns=pods[0].pid)
        assert service.check_pods() and ready() == {share: healthy, other: healthy}
    service.unprepare(claim)
    assert service.status.wait(20)
    service.status.stop()
    shares.cluster.statuses.clear()


@pytest.mark.parametrize("how", ["ends", "cannot be attached", "was being attached by a killed driver"])
def test_a_pod_keeps_its_share_if_that_of_its_other_claim_ends_or_fails(
    shares: SharesWorld, pods: list[Sandbox], how: str
) -> None:
    service, fails = shares.service(), how == "cannot be attached"
    more = {"addresses": ["198.51.100.7/24"], "routes": [NO_ROUTE]} if fails else {}
    first, second = shares.allocate("first", "300M"), shares.allocate("second", "200M")
    status = shares.cluster.claims["second"]["status"]
    status["allocation"]["devices"]["config"][1:] = [config({"name": "net2", **more})]
    status["reservedFor"] = shares.cluster.claims["first"]["status"]["reservedFor"]
    shares.attach(service, first, pods[0])
    mac = pods[0].links()["net1"]["address"]
    request = replace(shares.request(first, pods[0]), uid=second.uid)

    def only_the_first() -> bool:
        inside, record = pods[0].links(), service.store.load(first.uid)
        assert set(inside) == {"lo", "net1"} and inside["net1"]["address"] == mac
        return record is not None and record.phase == ATTACHED and class_rates() == [(300, 1000)]

    step, killed = 0, False
    while step == 0 or killed:
        service.prepare(second)
        if fails:
            with pytest.raises(KernelError, match="add the route"):
                service.attach(request)
            assert only_the_first()
        elif how == "ends":
            service.attach(request)
            ip("link", "add", "link", "net1", "name", "tap0", "type", "macvlan", "mode", "bridge", netns=pods[0].pid)
        else:
            killed = killed_at(step, lambda: shares.service().attach(request), driver_changes.watch)
            service = shares.service()
            assert service.recover() and "net1" in pods[0].links(), step
        service.unprepare(second)
        assert only_the_first(), step
        step += 1
    service.unprepare(first)
    assert set(pods[0].links()) == {"lo"}


def test_thin_shares_change_with_their_neighbours(shares: SharesWorld, pods: list[Sandbox]) -> None:
    shares.settings = shares.with_rule(factor=2)
    service = shares.service()
    soft, hard = (
        shares.allocate("soft", "800M"),
        shares.allocate("hard", "1G", share={"hard": True, "guarantee": "500M"}),
    )
    shares.attach(service, soft, pods[0])
    assert class_rates() == [(800, 1000)]
    shares.attach(service, hard, pods[1])
    assert class_rates() == [(500, 1000), (500, 1000)]
    (nic,) = service.shares.nics()
    assert (nic.totals.promised, nic.totals.debt) == (1800 * 10**6, 0)
    # a lowered factor changes no existing share
    shares.settings = shares.with_rule(factor=1)
    service.inventory.refresh()
    assert service.shares.refresh() and class_rates() == [(500, 1000), (500, 1000)]
    assert service.shares.nics()[0].totals.debt == 300 * 10**6
    # a part of the NIC is kept for something else: the hard share keeps what it has
    shares.settings = shares.with_rule(factor=2, bandwidth="900M", ceiling="700M")
    service.inventory.refresh()
    assert service.shares.refresh() and class_rates() == [(400, 700), (500, 700)]
    service.unprepare(hard)
    assert class_rates() == [(800, 800)]
    service.unprepare(soft)


def test_a_share_may_be_promised_more_than_the_nic_has(shares: SharesWorld, pods: list[Sandbox]) -> None:
    """The scheduler only knows the capacity. The share gets the whole NIC while no other pod has a share."""
    shares.settings = shares.with_rule(factor=2)
    service = shares.service()
    service.status.start()
    large, other = shares.allocate("large", "1500M"), shares.allocate("other", "250M")
    shares.attach(service, large, pods[0])
    assert class_rates() == [(1000, 1000)] and service.status.wait(20)
    (device,) = shares.cluster.statuses["large"]
    reported = device["data"]["share"]
    assert (reported["bandwidth"], reported["guaranteed"], reported["ceiling"]) == ("1500M", "750M", "1G")
    shares.attach(service, other, pods[1])
    assert [round(rate) for rate, _most in class_rates()] == [143, 857]
    for claim in (large, other):
        service.unprepare(claim)
    service.status.stop()
    shares.cluster.statuses.clear()


def test_an_interface_that_is_gone_has_no_rates() -> None:
    by_class.set_classes(Identity(None, None, "gone0"), 10**9, {3: htb.Class("02:00:00:00:00:01", 10**6, 10**6)})
    assert by_class.sent(Identity(None, None, "gone0")) == {}
    gone = {"0000:ff:1f.7": EffectiveRate(10**6, 10**6)}
    assert by_vf.set_rates(gone) == by_vf.current_rates(gone) == {}


def test_status_metrics_and_report_show_the_rates_in_force(shares: SharesWorld, pods: list[Sandbox]) -> None:
    """Status of claims, metrics, and the report for administrators: after the second share both have less."""
    shares.settings = shares.with_rule(factor=2)
    service = shares.service()
    service.status.start()
    soft = shares.allocate("soft", "800M", share={"burst": "900M"})
    hard = shares.allocate("hard", "1G", share={"hard": True, "guarantee": "500M"})

    def status(name: str) -> t.Any:
        assert service.status.wait(20)
        (device,) = shares.cluster.statuses[name]
        return device["data"]["share"]

    service.prepare(soft)
    promised = {"mechanism": "macvlan", "bandwidth": "800M", "guaranteed": "400M", "ceiling": "900M", "hard": False}
    shares.attach(service, soft, pods[0])
    assert status("soft") == {**promised, "inForce": {"bandwidth": "800M", "ceiling": "900M"}}
    shares.attach(service, hard, pods[1])
    assert status("soft") == {**promised, "inForce": {"bandwidth": "500M", "ceiling": "900M"}}
    assert status("hard")["inForce"] == {"bandwidth": "500M", "ceiling": "1G"} and status("hard")["hard"] is True
    shares.settings = shares.with_rule(factor=1)
    service.inventory.refresh()
    assert service.shares.refresh()
    assert status("hard")["debtOfNIC"] == "300M"
    registry = CollectorRegistry()
    registry.register(ShareMetrics(service.shares))
    text = generate_latest(registry).decode()
    assert f'lanewise_shared_nic_bits_per_second{{amount="debt",nic="net-{NIC}"}} 3e+08' in text
    assert 'amount="in_force",claim="soft",namespace="team-a"' in text
    assert 'lanewise_share_sent_bytes_total{claim="hard"' in text
    (nic,) = found = share_report.shares(service.ledger.records(), service.ledger.boot, service.inventory)
    assert (nic["promised"], nic["capacity"], nic["debt"]) == (1300 * 10**6, 10**9, 300 * 10**6)
    assert {one["claim"]: (one["guaranteed"], one["inForce"]) for one in nic["shares"]} == {
        "team-a/soft": (500 * 10**6, 500 * 10**6),
        "team-a/hard": (500 * 10**6, 500 * 10**6),
    }
    assert all(one["used"] is not None for one in nic["shares"])
    first, *rest = share_report.lines(found)
    assert first == (f"shares of net-{NIC}: promised 1300M of 1G (1G times 1), guaranteed 1G, in force 1G, debt 300M")
    assert any(
        "team-a/soft  nic  800M soft: guaranteed 500M, in force 500M, ceiling 900M, uses" in line for line in rest
    )
    for claim in (soft, hard):
        service.unprepare(claim)
    assert service.status.wait(20) and list(shares.cluster.statuses.values()) == [[], []]
    service.status.stop()


@pytest.mark.parametrize("published", ["once", "never"])
def test_a_changed_factor_is_reported_to_those_it_affects(
    shares: SharesWorld, pods: list[Sandbox], published: str
) -> None:
    """Also if nothing was published between the last allocation and the change."""
    service = shares.service()

    def reports() -> list[tuple[str, str, str]]:
        named = {soft.name, hard.name}  # events of other tests may still arrive
        return [one for one in shares.cluster.events if one[0] in named and one[1] == "ShareGuaranteeChanged"]

    soft = shares.allocate(f"soft-{published}", "600M")
    hard = shares.allocate(f"hard-{published}", "200M", share={"hard": True, "guarantee": "200M"})
    for claim, pod in ((soft, pods[0]), (hard, pods[1])):
        shares.attach(service, claim, pod)
    if published == "once":
        assert service.shares.refresh() and reports() == []
    shares.settings = shares.with_rule(factor=2)
    again = shares.service()  # the role restarts the driver with its new settings
    assert again.recover()
    again.inventory.refresh()
    assert again.shares.refresh() and again.shares.refresh()
    until(reports)
    ((name, _reason, note),) = reports()
    assert name == soft.name
    assert "is now promised 2 times its bandwidth instead of 1" in note
    assert "is guaranteed 300Mbit/s instead of 600Mbit/s" in note
    shares.cluster.events.clear()
    for claim in (soft, hard):
        again.unprepare(claim)


@pytest.mark.parametrize(
    "rate, shown",
    [
        (None, "0"),
        (999, "999"),
        (1000, "1k"),
        (999_499, "999k"),
        (999_700, "1M"),
        (123_456_789, "123M"),
        (10**11, "100G"),
        (10**12, "1000G"),
    ],
)
def test_measured_rates_are_shown_with_three_digits(rate: int | None, shown: str) -> None:
    assert share_report._rounded(rate) == shown


def test_shares_that_the_rule_does_not_allow_are_refused(shares: SharesWorld, pods: list[Sandbox]) -> None:
    service = shares.service()

    def refused(error: type[Exception], words: str, *args: t.Any, **more: t.Any) -> None:
        claim = shares.allocate("bad", *args, **more)
        with pytest.raises(error, match=words):
            service.prepare(claim)
        assert service.store.load(claim.uid) is None

    refused(Refused, "for the namespace team-a, and", "100M", namespace="team-b")
    refused(Refused, "exceed the", "2G")
    refused(Refused, "bandwidth: 'x' is not a quantity", "x")
    refused(Refused, "is not a rate", "0")
    refused(Refused, "is not a rate", "1E")
    refused(Refused, "burst: 50M is less", "100M", share={"burst": "50M"})
    refused(Refused, "render the claim again", "100M", share={"hard": True, "guarantee": "200M"})
    refused(Refused, "child: is not allowed for shares", "100M", child={"type": "macvlan"})
    refused(Refused, "has no VF", "100M", vf={"vlan": 5})
    refused(Refused, "as a whole, not in shares", "", f"net-{NIC}", share={})
    claim = shares.allocate("bad", "100M")
    del shares.cluster.claims["bad"]["status"]["allocation"]["devices"]["results"][0]["shareID"]
    with pytest.raises(Refused, match="shareID: is missing"):
        service.prepare(claim)
    share = shares.allocate("share", "600M")
    shares.attach(service, share, pods[0])
    refused(Busy, "would be promised more than 1 times its", "500M")
    refused(Busy, f"still has a share of net-{NIC}", "", f"net-{NIC}")
    shares.settings = without_shares(shares.settings)
    service.inventory.refresh()
    refused(Busy, "do not divide", "100M")
    shares.settings = shares.with_rule()
    service.inventory.refresh()
    service.unprepare(share)
    whole = shares.allocate("whole", "", f"net-{NIC}")
    service.prepare(whole)
    refused(Busy, f"still has net-{NIC}", "100M")
    service.unprepare(whole)


def test_an_unclean_nic_does_not_return_to_its_own_pod(
    shares: SharesWorld, pods: list[Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pod has a new sandbox, or a new driver takes the NIC back before the pod's container starts."""
    monkeypatch.setattr(unclean, "_INTERVAL", 0.0)
    service, claim = shares.service(), shares.allocate("whole", "", f"net-{NIC}")
    shares.attach(service, claim, pods[0])
    ip("link", "set", "net1", "mtu", "1300", netns=pods[0].pid)
    with monkeypatch.context() as broken:
        broken.setattr(take_back, "restore", lambda *_arguments: [])
        for driver in (service, shares.service()):
            assert driver is service or driver.recover()
            with pytest.raises(Busy, match=f"net-{NIC} is withheld from pods until its original state is restored: "):
                driver.attach(shares.request(claim, pods[1]))
            assert set(pods[1].links()) == {"lo"} and set(driver.unclean.all()) == {f"net-{NIC}"}
    assert driver.retry_unclean() and driver.unclean.all() == {}
    driver.attach(shares.request(claim, pods[1]))
    assert pods[1].links()["net1"]["mtu"] == 1500 and not driver.retry_unclean()
    driver.unprepare(claim)


def test_a_vf_as_a_whole_excludes_shares_of_its_card() -> None:
    """For example, the settings may divide a card of which a pod already has a VF."""
    pf, name = "0000:23:00.0", "pci-0000-23-00-0"
    share = DeviceRecord(
        f"{name}-share",
        NODE,
        "nic",
        Device(f"{name}-share", {}, "0000:23:10.0", pf=pf, vf=0),
        lock=pf,
        share=ShareRecord(name, "vfs", 10**9, 10**9, 10**10, 10**10),
    )

    def whole(address: str, of: str | None) -> DeviceRecord:
        known = Device(device_name(address), {}, address, pf=of)
        return DeviceRecord(known.name, NODE, "nic", known, lock=of or address)

    for other, excluded in (
        (whole("0000:23:10.2", pf), True),
        (whole(pf, None), True),
        (whole("0000:23:10.1", "0000:23:00.1"), False),
        (whole("0000:43:00.0", None), False),
    ):
        assert share_plan.excludes(share, other) == share_plan.excludes(other, share) == excluded


def test_a_class_caps_the_ceiling(shares: SharesWorld, pods: list[Sandbox]) -> None:
    service = shares.service()

    def allocate(name: str, bandwidth: str, **share: t.Any) -> ClaimRef:
        claim = shares.allocate(name, bandwidth, **({"share": share} if share else {}))
        configs = shares.cluster.claims[name]["status"]["allocation"]["devices"]["config"]
        configs.insert(0, config({"share": {"burst": "400M"}}, source="FromClass"))
        return claim

    soft = allocate("soft", "100M")
    hard = allocate("hard", "200M", hard=True, guarantee="200M", burst="300M")
    for claim, pod in ((soft, pods[0]), (hard, pods[1])):
        shares.attach(service, claim, pod)
    assert class_rates() == [(100, 400), (200, 300)]
    for more, words in (
        ({"burst": "500M"}, "can only lower the burst of 400Mbit/s"),
        ({"hard": True, "guarantee": "500M"}, "can only lower the burst of 400Mbit/s"),
        ({}, "burst: 400M is less than the share"),
    ):
        with pytest.raises(Refused, match=words):
            service.prepare(allocate("bad", "500M", **more))
    for claim in (soft, hard):
        service.unprepare(claim)


def test_a_root_qdisc_of_the_site_is_not_replaced(shares: SharesWorld) -> None:
    service = shares.service()
    shares_world.tc(
        "qdisc", "add", "dev", NIC, "root", "handle", "1:", "tbf", "rate", "1gbit", "burst", "9k", "latency", "1ms"
    )
    try:
        with pytest.raises(Busy, match="root qdisc tbf 1: was not configured by the driver"):
            service.prepare(shares.allocate("share", "100M"))
    finally:
        shares_world.tc("qdisc", "del", "dev", NIC, "root")


def test_a_lasting_error_of_shares_is_retried_and_reported(
    shares: SharesWorld, pods: list[Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The site replaces the qdisc of the driver: /readyz reports it, and claims are not recovered again."""
    claim = shares.allocate("first", "300M")
    shares.attach(shares.service(), claim, pods[0])
    shares_world.tc(*f"qdisc replace dev {NIC} root handle 1: tbf rate 1gbit burst 9k latency 1ms".split())
    shares.paths.settings.write_text(json.dumps({"node_name": NODE, "virtual_interfaces": [NIC], "shares": [RULE]}))
    reconciled: list[bool] = []
    with monkeypatch.context() as patch:
        patch.setattr(daemon, "SETTLE_INTERVAL", 0.05)
        patch.setattr(daemon.logs, "setup", lambda level: None)
        patch.setattr(daemon.signal, "signal", lambda number, handler: None)
        driver = daemon.Daemon(shares.paths)
        patch.setattr(driver, "_start", lambda: setattr(driver, "_settled", driver.service.recover()))
        patch.setattr(driver, "_stop", driver.service.close)
        patch.setattr(driver.service, "reconcile", lambda: not reconciled.append(driver.service.recover()))
        running = threading.Thread(target=driver.run)
        running.start()
        try:
            until(lambda: reconciled == [True])
            driver._on_published(driver.inventory.publication)
            problem = "root qdisc tbf 1: was not configured by the driver"
            reason = f"the shares of net-{NIC} could not be set: .*{problem}.*; trying again"
            assert [one for one in driver.not_ready_reasons() if re.fullmatch(reason, one)]
            assert not [reason for reason in driver.not_ready_reasons() if "operations" in reason]
            shares_world.tc("qdisc", "del", "dev", NIC, "root")
            until(lambda: class_rates() == [(300, 1000)])
            until(lambda: not [reason for reason in driver.not_ready_reasons() if "shares" in reason])
        finally:
            driver._stopping.set()
            running.join()
            if "tbf" in root_qdiscs()[0]:
                shares_world.tc("qdisc", "del", "dev", NIC, "root")
            shares.paths.settings.unlink()
            shares.service().unprepare(claim)
    assert reconciled == [True]


@pytest.mark.parametrize("operation", ["attach", "detach", "change"])
def test_a_driver_killed_before_any_change_restores_all_shares(
    shares: SharesWorld, pods: list[Sandbox], operation: str
) -> None:
    """After each restart, exactly the shares of attached claims are in force, by the settings of the restart; at the
    end nothing is left."""
    staying, leaving = shares.allocate("staying", "300M"), shares.allocate("leaving", "500M")
    shares.attach(shares.service(), staying, pods[0])
    changed = shares.with_rule(ceiling="500M", bandwidth="600M", factor=2)

    def change() -> None:
        shares.settings = changed
        one = shares.service()
        one.inventory.refresh()
        assert one.shares.refresh()

    act = {
        "attach": lambda: shares.attach(shares.service(), leaving, pods[1]),
        "detach": lambda: shares.service().unprepare(leaving),
        "change": change,
    }[operation]
    step, killed = 0, True
    while killed:
        shares.settings = shares.with_rule()
        if operation != "attach":
            shares.attach(shares.service(), leaving, pods[1])
        killed = killed_at(step, act, driver_changes.watch)
        if operation == "change":
            shares.settings = changed
        service = shares.service()
        assert service.recover()
        assert service.shares.refresh()
        record = service.store.load(leaving.uid)
        attached = record is not None and record.phase == ATTACHED
        assert record is None or record.phase in (PREPARED, ATTACHED)
        if operation == "change":
            assert attached and class_rates() == [(225, 500), (375, 500)], step
        else:
            assert class_rates() == [(300, 1000)] + [(500, 1000)] * attached, step
        assert ("net1" in pods[1].links()) == attached, step
        shares.settings = shares.with_rule()
        shares.service().unprepare(leaving)
        assert class_rates() == [(300, 1000)] and set(pods[1].links()) == {"lo"}
        step += 1
    print(f"{operation}: killed before each of {step - 1} changes")
    assert step > 5
    shares.service().unprepare(staying)


def test_classes_without_a_claim_are_removed(shares: SharesWorld, pods: list[Sandbox]) -> None:
    """For example, the record of the claim could not be read."""
    service = shares.service()
    claim = shares.allocate("lost", "300M")
    shares.attach(service, claim, pods[0])
    content = service.store.path(claim.uid).read_bytes()
    service.store.path(claim.uid).unlink()
    assert class_rates() == [(300, 1000)]
    again = shares.service()
    assert again.recover() and class_rates() == []
    again.store.path(claim.uid).write_bytes(content)
    again.unprepare(claim)
    Path(shares.paths.pin(claim.uid)).unlink(missing_ok=True)


@pytest.mark.parametrize("mechanism", [MACVLAN, VFS])
def test_after_a_reboot_a_share_is_still_its_vf_or_the_parent_without_rdma(tmp_path: Path, mechanism: str) -> None:
    """On an example machine with the names that devices have after the reboot."""
    pf = "0000:c9:00.1"
    share = f"{device_name(pf)}-share"
    rule = {"select": {"address": pf}, "mechanism": mechanism, "namespace": "team-a"}
    settings, cluster = read({"node_name": NODE, "shares": [rule]}), Cluster()
    inventory = Inventory(lambda: settings, lambda: [], str(build("sriov", tmp_path / "machine")))
    offer = inventory.offer(share)
    assert offer and offer.base.rdma_devices
    part = replace(offer.base, rdma_devices=()) if mechanism == MACVLAN else offer.vfs[1]
    now = replace(part, name=share, device=offer.published)
    before = replace(now, interface="old0")
    ledger = Ledger(folders.flat(tmp_path), NODE, inventory, Writer(cluster), boot="this boot")
    device = DeviceRecord(share, NODE, "nic", before, share=ShareRecord(offer.base.name, mechanism, 1, 1, 1, 1))
    ledger.store.save(Record("0000-one", "team-a", "one", None, "the boot before", [device]))
    record = ledger.load("0000-one")
    assert record and record.boot == "this boot"
    assert (record.held[0].known, record.held[0].own_name) == (now, device.own_name)
    if mechanism == VFS:  # also one that the card does not have (yet)
        device.known = replace(before, address="0000:ff:1f.7")
        ledger.store.save(Record("0000-two", "team-a", "two", None, "the boot before", [device]))
        record = ledger.load("0000-two")
        assert record and record.held[0].known == device.known
