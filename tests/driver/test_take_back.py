# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whatever a pod changes on its interface, and wherever it moves it, the next pod gets the interface in its original
state, or the interface is withheld. With network namespaces, veth and macvlan of the kernel.

A hidden namespace is one that only an open file keeps: no process is in it, and it is not mounted.
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
    ONE,
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
from lanewise_driver.kernel import links, netlink, netns, programs, stacked
from lanewise_driver.kernel.netlink import Netlink


def can_create(kind: str) -> bool:
    """Whether the kernel supports this kind of interface on the interface `one`."""
    done = subprocess.run(["ip", "link", "add", "link", "one", "name", "try0", "type", kind], check=False)
    run("ip link del try0", check=False)
    return done.returncode == 0


#: Arguments of `ip link add` for an interface on top of another.
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


@pytest.mark.parametrize("state", ["up", "down"])
@pytest.mark.parametrize("kind", KINDS)
@on_a_node
def test_a_child_interface_that_a_pod_moved_away_is_removed(kind: str, state: str) -> None:
    without_dad()
    pair("one")
    if not can_create(KINDS[kind].split()[1]):
        pytest.skip(f"this kernel cannot create {kind}")
    run("ip addr add 10.1.0.2/24 dev one")
    wait_for_ipv6()
    before, host = shown("one"), interfaces.snapshot(ONE)
    with Pod() as pod, Pod("other") as other:
        interfaces.attach(ONE, host, {}, pod.pin)
        pod.run(f"ip link add link one name tap0 {KINDS[kind]}")
        run(f"nsenter --net={pod.pin} ip link set tap0 netns {name_namespace(other)}")
        other.run(f"ip link set tap0 {state}")
        outcome = take_back.take_back(ONE, host, pod.pin, {})
        assert outcome == take_back.Outcome()
        assert "tap0" not in other.run("ip -o link")
    wait_for_ipv6()
    assert shown("one") == before


def name_namespace(pod: Pod) -> str:
    """Give a pod's namespace a name that `ip` accepts. Returns the name."""
    run("mkdir -p /run/netns")
    run(f"touch /run/netns/{pod.pin.name}; mount --bind {pod.pin} /run/netns/{pod.pin.name}")
    return pod.pin.name


@on_a_node
def test_a_macvlan_in_another_pod_is_removed_before_the_next_pod_gets_the_interface() -> None:
    """The pod creates a macvlan on its interface and moves it to the other pod, to see the traffic of the next pod."""
    pair("one")
    host = interfaces.snapshot(ONE)
    with Pod() as pod, Pod("other") as other, Pod("next") as follower:
        interfaces.attach(ONE, host, {"addresses": ["10.1.0.2/24"]}, pod.pin)
        pod.run("ip link add link one name tap0 type macvlan mode bridge")
        pod.run(f"ip link set tap0 netns {name_namespace(other)}")
        other.run("ip link set tap0 up")
        assert interfaces.detach(ONE, host, pod.pin, {}) == []
        interfaces.attach(ONE, interfaces.snapshot(ONE), {"addresses": ["10.1.0.3/24"]}, follower.pin)
        assert other.run("ip -o link | grep -c . ").strip() == "1"  # only the loopback interface
        assert interfaces.detach(ONE, host, follower.pin, {}) == []


@pytest.mark.parametrize("kept_by", ["an open file", "a file in flight"])
@on_a_node
def test_a_macvlan_in_a_hidden_namespace_is_removed_or_its_parent_is_withheld(kept_by: str) -> None:
    """A process has the open file; with a file in flight in a Unix socket, the driver cannot find the namespace."""
    pair("one")
    run("ip link set one down")
    host = interfaces.snapshot(ONE)
    hidden = HiddenNamespace(passed=kept_by == "a file in flight")
    with Pod() as pod:
        interfaces.attach(ONE, host, {}, pod.pin)
        pod.run("ip link add link one name tap0 type macvlan mode bridge")
        pod.run(f"ip link set tap0 netns {hidden.path()}")
        hidden.hide()
        outcome = take_back.take_back(ONE, host, pod.pin, {})
        if kept_by == "an open file":
            assert outcome == take_back.Outcome()
            assert "tap0" not in hidden.run("ip -o link")
            return
        (reason,) = outcome.reasons
        assert reason.word == "stacked" and "macvlan" in reason.text and "one" in reason.text
        again = take_back.take_back(ONE, host, None, {})
        assert [found.word for found in again.reasons] == ["stacked"]
        hidden.show()
        assert "tap0" in hidden.run("ip -o link")
        # it is removed when the driver can find its namespace
        assert take_back.take_back(ONE, host, None, {}) == take_back.Outcome()
        assert "tap0" not in hidden.run("ip -o link")


@pytest.mark.parametrize("kind", ["macvlan bridge", "vlan"])
@on_a_node
def test_take_back_waits_until_the_kernel_has_destroyed_an_unused_namespace(kind: str) -> None:
    """A namespace without users cannot be found any more, and the kernel destroys it some time later."""
    pair("one")
    if not can_create(KINDS[kind].split()[1]):
        pytest.skip(f"this kernel cannot create {kind}")
    host = interfaces.snapshot(ONE)
    hidden = HiddenNamespace(passed=True)
    with Pod() as pod:
        interfaces.attach(ONE, host, {}, pod.pin)
        pod.run(f"ip link add link one name tap0 {KINDS[kind]}")
        pod.run(f"ip link set tap0 netns {hidden.path()}")
        hidden.hide()
        without_waiting = take_back.take_back(ONE, host, pod.pin, {}, timeout=0)
        assert [reason.word for reason in without_waiting.reasons] == ["stacked"]
        ending = threading.Timer(0.2, hidden.end)
        ending.start()
        assert take_back.take_back(ONE, host, None, {}, timeout=120) == take_back.Outcome()
        ending.join()


@on_a_node
def test_a_macvlan_that_the_kernel_removes_with_its_pod_does_not_withhold_the_interface() -> None:
    """On a busy machine, while the kernel destroys many namespaces: when the interface returns to the node, and when
    the next pod ends."""
    pair("one")
    host = interfaces.snapshot(ONE)
    with busy():
        for _attempt in range(3):
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
            run("ip link del cni0", check=False)  # the kernel may have removed it with the other pod


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
    """Create a macvlan on an interface of the node from within a pod. NET_ADMIN is enough for that: the link attributes
    of the pod's own veth contain the ID of the node's namespace."""
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
    with Pod() as pod, Pod("other") as other:
        tap_from_pod(other, "one")
        host = interfaces.snapshot(ONE)
        with pytest.raises(KernelError, match=r"give one to a pod: the macvlan tap0 of .*/other uses it"):
            interfaces.attach(ONE, host, {}, pod.pin)
        assert interfaces.locate(ONE, pod.pin, host).side == "host"
        assert "tap0" in other.run("ip -o link")  # it may belong to another program
        (reason,) = take_back.take_back(ONE, host, None, {}).reasons
        assert reason.word == "stacked" and "tap0" in reason.text
        other.run("ip link del tap0")
        assert take_back.take_back(ONE, host, None, {}) == take_back.Outcome()
        host = interfaces.snapshot(ONE)
        interfaces.attach(ONE, host, {}, pod.pin)
        pod.run("ip link add link one name tap1 type macvlan")
        hidden = HiddenNamespace(passed=True)
        pod.run(f"ip link set tap1 netns {hidden.path()}")
        hidden.hide()
        assert len(interfaces.detach(ONE, host, pod.pin, {})) == 1
        with pytest.raises(KernelError, match="in a network namespace that no process or mount refers to"):
            interfaces.attach(ONE, host, {}, pod.pin)
        hidden.end()


@on_a_node
def test_looking_for_stacked_interfaces_changes_nothing() -> None:
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


def open_namespaces() -> set[str]:
    """The network namespaces that this process has open."""
    targets = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            targets.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    return {target for target in targets if target.startswith("net:[")}


@on_a_node
def test_the_namespace_of_queries_is_reused_and_then_closed() -> None:
    """The RDMA mode can be changed only while no namespace exists except that of the node."""
    pair("one")
    before = open_namespaces()
    with Netlink() as connection:
        link = links.get(connection, name="one")
        assert link is not None and stacked.evidence(connection, link) == ""
        (reused,) = open_namespaces() - before
        assert stacked.evidence(connection, link) == "" and open_namespaces() - before == {reused}
        until(lambda: open_namespaces() == before, 60)
        assert stacked.evidence(connection, link) == ""


# ---- an interface that was moved to another pod


@pytest.mark.parametrize("peer", ["on the node", "in a third pod", "in the pod with the interface"])
@on_a_node
def test_an_interface_that_a_pod_gave_to_another_pod_comes_back(peer: str) -> None:
    without_dad()
    pair("one")
    with Pod() as pod, Pod("other") as other, Pod("fabric") as fabric:
        if peer == "in a third pod":
            run(f"ip link set one-far netns {name_namespace(fabric)}")
            fabric.run("ip link set one-far up")
        elif peer == "in the pod with the interface":
            run(f"ip link set one-far netns {name_namespace(other)}")
            other.run("ip link set one-far up")
        run("ip addr add 10.1.0.2/24 dev one")
        wait_for_ipv6()
        before, host = shown("one"), interfaces.snapshot(ONE)
        # similar interfaces, whose peers have the same index in another namespace
        for number in range(3):
            other.run(f"ip link add similar{number} type veth peer name peer{number}")
        interfaces.attach(ONE, host, {}, pod.pin)
        pod.run("ip link property del dev one altname lanewise-one; ip link set one name mine")
        pod.run(f"ip link set mine netns {name_namespace(other)}")
        other.run("ip link set mine up")
        assert take_back.take_back(ONE, host, pod.pin, {}) == take_back.Outcome()
        assert "mine" not in other.run("ip -o link") and "similar0" in other.run("ip -o link")
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
        hidden.end()  # the kernel removes the veth with its namespace, some time later
        until(lambda: "one-far" not in run("ip -o link"), 60)
        outcome = take_back.take_back(ONE, host, None, {})
        assert outcome.reasons == [] and "is gone" in outcome.notes[0]


# ---- settings that outlive a namespace


#: Commands that change a setting of the interface `one`.
SETTINGS = {
    "link mode": "ip link set one mode dormant",
    "state": "ip link set one state dormant",
    "broadcast address": "ip link set one broadcast 02:00:00:00:00:bb",
    "protocol down": "ip link set one protodown on; ip link set one protodown_reason 3 on",
    "token": "ip token set ::77 dev one; sysctl -w net.ipv6.conf.one.accept_ra=2; ip token set ::77 dev one",
    "GRO flush": "echo 20000 > /sys/class/net/one/gro_flush_timeout; echo 3 > /sys/class/net/one/napi_defer_hard_irqs",
    "steering": "echo 3 > /sys/class/net/one/queues/rx-0/rps_cpus; echo 1 > /sys/class/net/one/queues/tx-0/xps_cpus",
    "threaded NAPI": "echo 1 > /sys/class/net/one/threaded",
    "transmit rate": "echo 5 > /sys/class/net/one/queues/tx-0/tx_maxrate",
    "channels": "ethtool -L one rx 1 tx 1",
}
#: Settings that some kernels lack.
NOT_EVERYWHERE = {"protocol down", "threaded NAPI", "transmit rate", "channels"}


@pytest.mark.parametrize("setting", SETTINGS)
@on_a_node
def test_settings_that_outlive_the_namespace_are_restored(setting: str) -> None:
    without_dad()
    pair("one")
    wait_for_ipv6()
    before, host = shown("one"), interfaces.snapshot(ONE)
    with Pod() as pod, Pod("next") as follower:
        interfaces.attach(ONE, host, {}, pod.pin)
        command = f"unshare -m sh -c 'mount -t sysfs sys /sys; {SETTINGS[setting]}'"
        pod.run(command, check=setting not in NOT_EVERYWHERE)
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
        descriptors: list[int] = []
        for number in range(8):
            descriptors += tenant.attach_programs(pod, "one", random.Random(number))
        assert "prog/xdp" in pod.run("ip link show one")
        assert take_back.take_back(ONE, host, pod.pin, {}) == take_back.Outcome()
        with Netlink() as connection:
            link = links.get(connection, name="one")
        assert link is not None and programs.listed(link.index) == {} and link.xdp == {}
        for descriptor in descriptors:
            os.close(descriptor)


@on_a_node
def test_an_xdp_program_of_another_namespace_stays() -> None:
    """The kernel reports the interface of a BPF link by its index only, which is unique only in its namespace."""
    pair("one")
    host = interfaces.snapshot(ONE)
    with Netlink() as connection:
        index = links.get(connection, name="one").index
    with Pod() as pod, Pod("other") as other:
        interfaces.attach(ONE, host, {}, pod.pin)
        other.run(f"ip link add same index {index} type veth peer name same-far")

        def link_program() -> list[int]:
            program = tenant.load_program(tenant._XDP_PROGRAM)
            return [program, tenant._link_program(program, index, tenant._XDP)]

        descriptors = [*netns.run(pod.pin, link_program), *netns.run(other.pin, link_program)]
        assert take_back.take_back(ONE, host, pod.pin, {}) == take_back.Outcome()
        with Netlink() as connection:
            link = links.get(connection, name="one")
        assert link.index == index and link.xdp == {} and "prog/xdp" in other.run("ip link show same")
        for descriptor in descriptors:
            os.close(descriptor)


def open_xdp_socket(pod: Pod, name: str) -> socket.socket:
    """Open an AF_XDP socket that receives all packets of the first queue. Raises OSError."""
    area = mmap.mmap(-1, 64 * 4096)
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    libc = ctypes.CDLL(None, use_errno=True)

    def open_in_pod() -> socket.socket:
        opened = socket.socket(_AF_XDP, socket.SOCK_RAW, 0)
        opened.setsockopt(_SOL_XDP, _UMEM_REG, struct.pack("=QQIIII", start, 64 * 4096, 4096, 0, 0, 0))
        for ring in (_RX_RING, _FILL_RING, _COMPLETION_RING):
            opened.setsockopt(_SOL_XDP, ring, 64)
        index = socket.if_nametoindex(name)
        address = struct.pack("=HHIII", _AF_XDP, 0, index, 0, 0)
        if libc.bind(opened.fileno(), address, len(address)):
            code = ctypes.get_errno()
            opened.close()
            raise OSError(code, os.strerror(code))
        return opened

    opened = netns.run(pod.pin, open_in_pod)
    _areas.append(area)
    return opened


#: Constants of linux/if_xdp.h.
_AF_XDP, _SOL_XDP = 44, 283
_RX_RING, _UMEM_REG, _FILL_RING, _COMPLETION_RING = 2, 4, 5, 6
#: The memory of open AF_XDP sockets, which must not be freed before they are closed.
_areas: list[mmap.mmap] = []


@on_a_node
def test_an_af_xdp_socket_of_a_pod_loses_its_queue() -> None:
    pair("one")
    host = interfaces.snapshot(ONE)
    with Pod() as pod, Pod("next") as follower:
        interfaces.attach(ONE, host, {}, pod.pin)
        try:
            opened = open_xdp_socket(pod, "one")
        except OSError as error:
            pytest.skip(f"this kernel has no AF_XDP: {error}")
        with pytest.raises(OSError, match="busy"):
            open_xdp_socket(pod, "one")
        assert take_back.take_back(ONE, host, pod.pin, {}) == take_back.Outcome()
        assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ENETDOWN
        interfaces.attach(ONE, host, {}, follower.pin)
        open_xdp_socket(follower, "one").close()
        assert interfaces.detach(ONE, host, follower.pin, {}) == []
        opened.close()
