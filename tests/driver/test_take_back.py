# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a pod leaves on its interface, or does with it, does not reach the next pod. Real namespaces, veth and macvlan.

A hidden namespace is one that only an open file keeps: no process is in it and nothing is mounted.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import random
import socket
import struct
import subprocess
import threading

import pytest
from ansible_collections.lanewise.dra.tests.common.waiting import until
from ansible_collections.lanewise.dra.tests.driver import tenant
from ansible_collections.lanewise.dra.tests.driver.nodes import (
    HiddenNamespace,
    Pod,
    busy,
    on_a_node,
    pair,
    run,
    shown,
    wait_for_ipv6,
    without_dad,
)
from lanewise_driver.base.errors import KernelError
from lanewise_driver.interface import interfaces, take_back
from lanewise_driver.interface.interfaces import Identity
from lanewise_driver.kernel import links, netlink, netns, programs, stacked
from lanewise_driver.kernel.netlink import Netlink

ONE = Identity(None, None, "one")


def supported(kind: str) -> bool:
    done = subprocess.run(["ip", "link", "add", "link", "one", "name", "try0", "type", kind], check=False)
    run("ip link del try0", check=False)
    return done.returncode == 0


KINDS = {
    "macvlan bridge": "type macvlan mode bridge",
    "macvlan private": "type macvlan mode private",
    "macvlan passthru": "type macvlan mode passthru",
    "macvlan source": "type macvlan mode source",
    "macvtap": "type macvtap mode vepa",
    "ipvlan": "type ipvlan mode l2",
    "vlan": "type vlan id 77",
    "vlan 802.1ad": "type vlan protocol 802.1ad id 4000",
}


@pytest.mark.parametrize("up", ["up", "down"])
@pytest.mark.parametrize("made", KINDS)
@on_a_node
def test_a_child_interface_that_a_pod_moved_away_is_removed(made: str, up: str) -> None:
    without_dad()
    pair("one")
    if not supported(KINDS[made].split()[1]):
        pytest.skip(f"this kernel cannot create {made}")
    run("ip addr add 10.1.0.2/24 dev one")
    wait_for_ipv6()
    before, host = shown("one"), interfaces.snapshot(ONE)
    with Pod() as pod, Pod("other") as other:
        interfaces.attach(ONE, host, {}, pod.pin)
        pod.run(f"ip link add link one name tap0 {KINDS[made]}")
        run(f"nsenter --net={pod.pin} ip link set tap0 netns {other_name(other)}")
        other.run(f"ip link set tap0 {up}")
        outcome = take_back.take_back(ONE, host, pod.pin, {})
        assert outcome == take_back.Outcome()
        assert "tap0" not in other.run("ip -o link")
    wait_for_ipv6()
    assert shown("one") == before


def other_name(pod: Pod) -> str:
    """A name of a pod's namespace as ip takes it."""
    run("mkdir -p /run/netns")
    run(f"touch /run/netns/{pod.pin.name}; mount --bind {pod.pin} /run/netns/{pod.pin.name}")
    return pod.pin.name


@on_a_node
def test_a_tap_in_another_pod_receives_nothing_of_the_next_pod() -> None:
    """The attack itself: a macvlan on the interface, which the pod has moved to another pod."""
    pair("one")
    host = interfaces.snapshot(ONE)
    with Pod() as pod, Pod("other") as other, Pod("next") as follower:
        interfaces.attach(ONE, host, {"addresses": ["10.1.0.2/24"]}, pod.pin)
        pod.run("ip link add link one name tap0 type macvlan mode bridge")
        pod.run(f"ip link set tap0 netns {other_name(other)}")
        other.run("ip link set tap0 up")
        assert interfaces.detach(ONE, host, pod.pin, {}) == []
        interfaces.attach(ONE, interfaces.snapshot(ONE), {"addresses": ["10.1.0.3/24"]}, follower.pin)
        assert other.run("ip -o link | grep -c . ").strip() == "1"  # the loopback interface alone
        assert interfaces.detach(ONE, host, follower.pin, {}) == []


@pytest.mark.parametrize("how", ["an open file", "no name at all"])
@on_a_node
def test_a_macvlan_in_a_hidden_namespace_is_removed_or_withholds_its_parent(how: str) -> None:
    pair("one")
    run("ip link set one down")
    host = interfaces.snapshot(ONE)
    hidden = HiddenNamespace(passed=how == "no name at all")
    with Pod() as pod:
        interfaces.attach(ONE, host, {}, pod.pin)
        pod.run("ip link add link one name tap0 type macvlan mode bridge")
        pod.run(f"ip link set tap0 netns {hidden.path()}")
        hidden.hide()
        outcome = take_back.take_back(ONE, host, pod.pin, {})
        if how == "an open file":
            assert outcome == take_back.Outcome()
            assert "tap0" not in hidden.run("ip -o link")
            return
        (reason,) = outcome.reasons
        assert reason.word == "stacked" and "macvlan" in reason.text and "one" in reason.text
        again = take_back.take_back(ONE, host, None, {})
        assert [one.word for one in again.reasons] == ["stacked"]
        hidden.show()
        assert "tap0" in hidden.run("ip -o link")
        # it is removed as soon as its namespace can be seen
        assert take_back.take_back(ONE, host, None, {}) == take_back.Outcome()
        assert "tap0" not in hidden.run("ip -o link")


@pytest.mark.parametrize("made", ["macvlan bridge", "vlan"])
@on_a_node
def test_take_back_waits_for_a_namespace_that_the_kernel_is_about_to_end(made: str) -> None:
    """A namespace cannot be listed once its last user is gone, and ends some time after that."""
    pair("one")
    if not supported(KINDS[made].split()[1]):
        pytest.skip(f"this kernel cannot create {made}")
    host = interfaces.snapshot(ONE)
    hidden = HiddenNamespace(passed=True)
    with Pod() as pod:
        interfaces.attach(ONE, host, {}, pod.pin)
        pod.run(f"ip link add link one name tap0 {KINDS[made]}")
        pod.run(f"ip link set tap0 netns {hidden.path()}")
        hidden.hide()
        impatient = take_back.take_back(ONE, host, pod.pin, {}, timeout=0)
        assert [one.word for one in impatient.reasons] == ["stacked"]
        ending = threading.Timer(0.2, hidden.end)
        ending.start()
        assert take_back.take_back(ONE, host, None, {}, timeout=120) == take_back.Outcome()
        ending.join()


@on_a_node
def test_a_link_that_ended_with_its_pod_withholds_no_interface() -> None:
    """On a busy machine, while the kernel destroys many namespaces, both when hardware returns and at the next pod."""
    pair("one")
    host = interfaces.snapshot(ONE)
    with busy():
        for _turn in range(3):
            pods = [Pod(f"pod{number}") for number in range(30)]
            interfaces.attach(ONE, host, {}, pods[-1].pin)
            pods[-1].run(f"ip link add link one name tap0 type macvlan; ip link set one netns {os.getpid()}")
            for pod in pods:
                pod.end()
            assert take_back.take_back(ONE, host, None, {}) == take_back.Outcome()
            with Pod("other") as other:
                tap_from_pod(other, "one")
            with Pod("next") as follower:
                interfaces.attach(ONE, host, {}, follower.pin)
                assert take_back.take_back(ONE, host, follower.pin, {}) == take_back.Outcome()
            run("ip link del cni0", check=False)  # unless it went with the other pod


@on_a_node
def test_interfaces_that_the_node_stacked_on_an_interface_stay() -> None:
    pair("one")
    run("ip link add link one name own0 type macvlan mode bridge")
    host = interfaces.snapshot(ONE)
    with Pod() as pod:
        interfaces.attach(ONE, host, {}, pod.pin)
        pod.run("ip link add link one name tap0 type macvlan mode bridge")
        assert take_back.take_back(ONE, host, pod.pin, {}).reasons == []
        assert "tap0" not in pod.run("ip -o link")
    assert "own0@one" in run("ip -o link")


def tap_from_pod(pod: Pod, name: str) -> None:
    """Create a macvlan on an interface of the node, as a pod with only NET_ADMIN can: its own interface shows the ID of
    the namespace of the node."""
    run(f"ip link add eth0 type veth peer name cni0; ip link set eth0 netns {pod.pin}")
    index = int(run(f"cat /sys/class/net/{name}/ifindex"))
    with Netlink(pod.pin) as connection:
        eth0 = links.get(connection, name="eth0")
        assert eth0 is not None
        info = netlink.text(links.IFLA_INFO_KIND, "macvlan")
        body = links.header() + netlink.u32(links.IFLA_LINK, index) + netlink.text(links.IFLA_IFNAME, "tap0")
        body += netlink.attribute(links.IFLA_LINK_NETNSID, eth0.raw[links.IFLA_LINK_NETNSID])
        connection.request(links.RTM_NEWLINK, body + netlink.nest(links.IFLA_LINKINFO, info), netlink.CREATE)


@on_a_node
def test_an_interface_that_another_pod_has_tapped_is_withheld() -> None:
    pair("one")
    host = interfaces.snapshot(ONE)
    with Pod() as pod, Pod("other") as other:
        tap_from_pod(other, "one")
        host = interfaces.snapshot(ONE)
        with pytest.raises(KernelError, match=r"give one to a pod: the macvlan tap0 of .*/other uses it"):
            interfaces.attach(ONE, host, {}, pod.pin)
        assert interfaces.locate(ONE, pod.pin, host).side == "host"
        assert "tap0" in other.run("ip -o link")  # it may be there for a good reason
        (reason,) = take_back.take_back(ONE, host, None, {}).reasons
        assert reason.word == "stacked" and "tap0" in reason.text
        other.run("ip link del tap0")
        assert take_back.take_back(ONE, host, None, {}) == take_back.Outcome()
        host = interfaces.snapshot(ONE)
        interfaces.attach(ONE, host, {}, pod.pin)
        tap_from_nowhere = "ip link add link one name tap1 type macvlan"
        pod.run(tap_from_nowhere)
        hidden = HiddenNamespace(passed=True)
        pod.run(f"ip link set tap1 netns {hidden.path()}")
        hidden.hide()
        assert len(interfaces.detach(ONE, host, pod.pin, {})) == 1
        with pytest.raises(KernelError, match="in a network namespace that no process or mount refers to"):
            interfaces.attach(ONE, host, {}, pod.pin)
        hidden.end()


@on_a_node
def test_a_query_changes_nothing() -> None:
    without_dad()
    pair("one")
    wait_for_ipv6()
    before = run("ip -o link"), shown("one")
    with Netlink() as connection:
        link = links.get(connection, name="one")
        assert link is not None and stacked.evidence(connection, link) == ""
        assert stacked.vlans(connection, link) == []
        run("ip link add bridge0 type bridge; ip link set one master bridge0")
        assert "or the like uses it" in stacked.evidence(connection, link)
        run("ip link set one nomaster; ip link del bridge0")
    wait_for_ipv6()
    assert (run("ip -o link"), shown("one")) == before


def namespaces_kept_open() -> set[str]:
    """The network namespaces that this process has open."""
    found = set()
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/self/fd/{entry}"))
    return {one for one in found if one.startswith("net:[")}


@on_a_node
def test_no_namespace_is_kept_open_by_a_query() -> None:
    """The RDMA mode can be changed only while no namespace exists except that of the node."""
    pair("one")
    before = namespaces_kept_open()
    with Netlink() as connection:
        link = links.get(connection, name="one")
        assert link is not None and stacked.evidence(connection, link) == ""
        (kept,) = namespaces_kept_open() - before
        assert stacked.evidence(connection, link) == "" and namespaces_kept_open() - before == {kept}
        until(lambda: namespaces_kept_open() == before, 60)
        assert stacked.evidence(connection, link) == ""


# ---- an interface that was moved to another pod


@pytest.mark.parametrize("peer", ["on the node", "elsewhere", "in the pod that has it now"])
@on_a_node
def test_an_interface_that_a_pod_gave_to_another_pod_comes_back(peer: str) -> None:
    without_dad()
    pair("one")
    with Pod() as pod, Pod("other") as other, Pod("fabric") as fabric:
        if peer == "elsewhere":
            run(f"ip link set one-far netns {other_name(fabric)}")
            fabric.run("ip link set one-far up")
        elif peer == "in the pod that has it now":
            run(f"ip link set one-far netns {other_name(other)}")
            other.run("ip link set one-far up")
        run("ip addr add 10.1.0.2/24 dev one")
        wait_for_ipv6()
        before, host = shown("one"), interfaces.snapshot(ONE)
        # similar interfaces, whose peers have the same index in another namespace
        for number in range(3):
            other.run(f"ip link add like{number} type veth peer name ekil{number}")
        interfaces.attach(ONE, host, {}, pod.pin)
        pod.run("ip link property del dev one altname lanewise-one; ip link set one name mine")
        pod.run(f"ip link set mine netns {other_name(other)}")
        other.run("ip link set mine up")
        assert take_back.take_back(ONE, host, pod.pin, {}) == take_back.Outcome()
        assert "mine" not in other.run("ip -o link") and "like0" in other.run("ip -o link")
        wait_for_ipv6()
        assert shown("one") == before


@on_a_node
def test_an_interface_in_a_hidden_namespace_is_not_reported_as_gone() -> None:
    pair("one")
    host = interfaces.snapshot(ONE)
    hidden = HiddenNamespace(passed=True)
    with Pod() as pod:
        interfaces.attach(ONE, host, {}, pod.pin)
        pod.run(f"ip link set one netns {hidden.path()}")
        hidden.hide()
        with pytest.raises(KernelError, match="its other end still exists"):
            take_back.take_back(ONE, host, pod.pin, {})
        pod.end()
        with pytest.raises(KernelError, match="its other end still exists"):
            take_back.take_back(ONE, host, None, {})
        hidden.end()  # the kernel ends the veth with its namespace, some time later
        until(lambda: "one-far" not in run("ip -o link"), 60)
        outcome = take_back.take_back(ONE, host, None, {})
        assert outcome.reasons == [] and "is gone" in outcome.notes[0]


# ---- settings that outlive a namespace


SETTINGS = {
    "link mode": "ip link set one mode dormant",
    "state": "ip link set one state dormant",
    "broadcast address": "ip link set one broadcast 02:00:00:00:00:bb",
    "protocol down": "ip link set one protodown on; ip link set one protodown_reason 3 on",
    "token": "ip token set ::77 dev one; sysctl -w net.ipv6.conf.one.accept_ra=2; ip token set ::77 dev one",
    "GRO flush": "echo 20000 > /sys/class/net/one/gro_flush_timeout; echo 3 > /sys/class/net/one/napi_defer_hard_irqs",
    "steering": "echo 3 > /sys/class/net/one/queues/rx-0/rps_cpus; echo 1 > /sys/class/net/one/queues/tx-0/xps_cpus",
    "threads": "echo 1 > /sys/class/net/one/threaded",
    "rate": "echo 5 > /sys/class/net/one/queues/tx-0/tx_maxrate",
    "channels": "ethtool -L one rx 1 tx 1",
}


NOT_EVERYWHERE = {"protocol down", "threads", "rate", "channels"}


@pytest.mark.parametrize("setting", SETTINGS)
@on_a_node
def test_settings_that_outlive_the_namespace_are_restored(setting: str) -> None:
    without_dad()
    pair("one")
    wait_for_ipv6()
    before, host = shown("one"), interfaces.snapshot(ONE)
    with Pod() as pod, Pod("next") as follower:
        interfaces.attach(ONE, host, {}, pod.pin)
        # settings that the kernel lacks are tried, too
        made = f"unshare -m sh -c 'mount -t sysfs sys /sys; {SETTINGS[setting]}'"
        pod.run(made, check=setting not in NOT_EVERYWHERE)
        assert take_back.take_back(ONE, host, pod.pin, {}) == take_back.Outcome()
        wait_for_ipv6()
        assert shown("one") == before
        assert interfaces.snapshot(ONE) == host
        interfaces.attach(ONE, host, {}, follower.pin)
        assert "state UP" in follower.run("ip link show one")
        assert interfaces.detach(ONE, host, follower.pin, {}) == []


@on_a_node
def test_bpf_programs_of_a_pod_are_removed() -> None:
    """The kernel keeps XDP and tcx programs during a move, and refuses to detach those of BPF links by name."""
    pair("one")
    host = interfaces.snapshot(ONE)
    with Pod() as pod:
        interfaces.attach(ONE, host, {}, pod.pin)
        held: list[int] = []
        for number in range(8):
            held += tenant.attach_programs(pod, "one", random.Random(number))
        assert "prog/xdp" in pod.run("ip link show one")
        assert take_back.take_back(ONE, host, pod.pin, {}) == take_back.Outcome()
        with Netlink() as connection:
            link = links.get(connection, name="one")
        assert link is not None and programs.listed(link.index) == {} and link.xdp == {}
        for descriptor in held:
            os.close(descriptor)


def xdp_socket(pod: Pod, name: str) -> socket.socket:
    """An AF_XDP socket that receives all packets of the first queue (linux/if_xdp.h). Raises OSError."""
    area = mmap.mmap(-1, 64 * 4096)
    held = ctypes.addressof(ctypes.c_char.from_buffer(area))
    libc = ctypes.CDLL(None, use_errno=True)

    def make() -> socket.socket:
        made = socket.socket(_AF_XDP, socket.SOCK_RAW, 0)
        made.setsockopt(_SOL_XDP, _UMEM_REG, struct.pack("=QQIIII", held, 64 * 4096, 4096, 0, 0, 0))
        for ring in (_RX_RING, _FILL_RING, _COMPLETION_RING):
            made.setsockopt(_SOL_XDP, ring, 64)
        index = socket.if_nametoindex(name)
        address = struct.pack("=HHIII", _AF_XDP, 0, index, 0, 0)
        if libc.bind(made.fileno(), address, len(address)):
            code = ctypes.get_errno()
            made.close()
            raise OSError(code, os.strerror(code))
        return made

    made = netns.run(pod.pin, make)
    _areas.append(area)
    return made


_AF_XDP, _SOL_XDP = 44, 283
_RX_RING, _UMEM_REG, _FILL_RING, _COMPLETION_RING = 2, 4, 5, 6
_areas: list[mmap.mmap] = []  # the kernel uses them while a socket is open


@on_a_node
def test_an_af_xdp_socket_of_a_pod_loses_its_queue() -> None:
    pair("one")
    host = interfaces.snapshot(ONE)
    with Pod() as pod, Pod("next") as follower:
        interfaces.attach(ONE, host, {}, pod.pin)
        try:
            held = xdp_socket(pod, "one")
        except OSError as error:
            pytest.skip(f"this kernel has no AF_XDP: {error}")
        with pytest.raises(OSError, match="busy"):
            xdp_socket(pod, "one")
        assert take_back.take_back(ONE, host, pod.pin, {}) == take_back.Outcome()
        assert held.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ENETDOWN
        interfaces.attach(ONE, host, {}, follower.pin)
        xdp_socket(follower, "one").close()
        assert interfaces.detach(ONE, host, follower.pin, {}) == []
        held.close()
