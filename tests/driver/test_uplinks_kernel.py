# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Kernel queries for the interfaces that carry the traffic of a node: how often they are sent, and what happens if one
fails."""

from __future__ import annotations

import errno
import ipaddress
import socket
import subprocess
import sys
import time
import typing as t
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible_collections.lanewise.dra.tests.driver.nodes import on_a_node, run
from ansible_collections.lanewise.dra.tests.driver.uplink_cases import (
    DEFAULT,
    LEADS,
    connection,
    kept_open,
    server_named,
    world,
)
from ansible_collections.lanewise.dra.tests.driver.uplink_cases import session as session_to
from lanewise_driver.kernel import netns
from lanewise_driver.uplinks import carried, netlink, routes, sockets, ssh
from lanewise_driver.uplinks.carried import Path as Way
from lanewise_driver.uplinks.carried import Rule
from lanewise_driver.uplinks.watch import Watch

HOUR = 3600.0


@pytest.mark.parametrize(
    "change",
    [
        "ip route add default via 192.0.0.9",
        "ip link set nic0 down",
        "ip addr add 192.0.9.1/24 dev nic0",
        "ip rule add from 192.0.1.1 table 100",
        "ip -6 rule add from 2001:db8:1::1 table 100",
        "ip nexthop add id 1 via 192.0.0.9 dev nic0",
        "ip link add br0 type bridge",
        "ip link del nic3",
        "ip -6 route add 2000::/3 via 2001:db8:1::9",
    ],
)
@on_a_node
def test_a_change_is_noticed_at_once(change: str) -> None:
    world()
    watch = Watch()
    assert not watch.changed()
    run(change)
    assert watch.changed() and not watch.changed()


@on_a_node
def test_routes_to_networks_do_not_count_as_a_change() -> None:
    """They are looked up each time. More messages than the kernel can queue count as a change."""
    world()
    watch = Watch()
    run("ip route add 10.1.0.0/16 via 192.0.0.9; ip -6 route add fd00:1::/32 via 2001:db8:1::9")
    assert not watch.changed()
    lines = "".join(f"route add 10.{n >> 8}.{n & 255}.0/24 dev nic0\n" for n in range(20000))
    run("ip -batch -", text=lines)
    assert watch.changed()


@on_a_node
def test_an_old_answer_is_reused_within_its_age_unless_routes_change() -> None:
    world()
    rule = Rule()
    assert rule.now(max_age=HOUR).by_name == {}
    connection("192.0.1.1", 22, "192.0.1.9")
    assert rule.now(max_age=HOUR).by_name == {}
    assert rule.now().by_name == {"nic1": f"{LEADS} 192.0.1.9"}
    run("ip route add default via 192.0.0.9")
    assert rule.now(max_age=HOUR).by_name == {"nic0": DEFAULT, "nic1": f"{LEADS} 192.0.1.9"}
    # other addresses do not make the open connections any older
    connection("192.0.2.1", 22, "192.0.2.9")
    run("ip addr add 192.0.9.1/24 dev nic0")
    assert rule.now(max_age=HOUR).by_name == {"nic0": DEFAULT, "nic1": f"{LEADS} 192.0.1.9"}
    # a caller with other arguments gets another answer
    way = Way(None, ipaddress.ip_address("192.0.3.9"), "", "the API server is reached over it")
    assert rule.now([way], max_age=HOUR).by_name["nic3"] == "the API server is reached over it"
    rule.close()
    both = {"nic1": f"{LEADS} 192.0.1.9", "nic2": f"{LEADS} 192.0.2.9"}
    assert rule.now().by_name == {"nic0": DEFAULT, **both}


@on_a_node
def test_an_answer_is_as_old_as_the_oldest_list_that_it_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The age of an answer is that of the oldest list or file that it uses."""
    world()
    clock = [1000.0]
    monkeypatch.setattr(carried, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    rule = Rule()
    assert rule.now(max_age=1).by_name == {}
    clock[0] += 0.9
    run("ip route add default via 192.0.0.9")  # the tables are read again, the connections are young enough
    assert rule.now(max_age=1).by_name == {"nic0": DEFAULT}
    connection("192.0.1.1", 22, "192.0.1.9")
    clock[0] += 0.2
    assert rule.now(max_age=1).by_name == {"nic0": DEFAULT, "nic1": f"{LEADS} 192.0.1.9"}


@on_a_node
def test_storage_that_was_just_mounted_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By RDMA, so that no connection shows it."""
    world()
    clock = [1000.0]
    monkeypatch.setattr(carried, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(sockets, "_read", lambda *_unused: [])
    (tmp_path / "proc/1").mkdir(parents=True)
    (tmp_path / "proc/1/mounts").write_text("")
    rule = Rule(root=str(tmp_path))
    assert rule.now(max_age=1).by_name == {}
    (tmp_path / "proc/1/mounts").write_text("nas:/data /data nfs4 rw,proto=rdma,addr=192.0.0.77 0 0\n")
    clock[0] += 1.1
    assert rule.now(max_age=1).by_name == {"nic0": "it is on the route to the NFS server 192.0.0.77"}


@on_a_node
def test_the_next_caller_scans_again_after_a_failed_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    world()
    connection("192.0.1.1", 22, "192.0.1.9")
    rule = Rule()

    def fails(*_unused: object) -> t.NoReturn:
        raise MemoryError

    monkeypatch.setattr(ssh.Servers, "sessions", fails)
    with pytest.raises(MemoryError):
        rule.now(max_age=HOUR)
    monkeypatch.undo()
    assert rule.now(max_age=HOUR).by_name == {"nic1": f"{LEADS} 192.0.1.9"}


@on_a_node
def test_interfaces_are_reported_by_index_too() -> None:
    world()
    run("ip route add default via 192.0.0.9")
    assert Rule().now().by_index == {socket.if_nametoindex("nic0"): DEFAULT}


@on_a_node
def test_connections_and_processes_do_not_slow_the_lookup() -> None:
    """Of many connections the kernel returns the relevant ones; each of many processes is examined once."""
    world()
    server = socket.create_server(("127.0.0.1", 8080), backlog=64)
    ends = []
    for _unused in range(1000):
        ends += [socket.create_connection(("127.0.0.1", 8080)), server.accept()[0]]
    many = [subprocess.Popen(["sleep", "600"]) for _unused in range(200)]
    try:
        server_named("sshd", "192.0.3.1", 2022, "192.0.3.9")
        rule = Rule()
        expected = {"nic3": f"{LEADS} 192.0.3.9"}
        assert rule.now().by_name == expected
        began = time.process_time()
        for _unused in range(10):
            assert len(sockets._of_proc(1, "/proc")) > 2000
        plain = time.process_time() - began
        began = time.process_time()
        for _unused in range(10):
            assert rule.now().by_name == expected
        assert time.process_time() - began < plain / 2
    finally:
        for process in many:
            process.kill()
            process.wait()


@on_a_node
def test_both_lists_of_connections_agree() -> None:
    """sock_diag, and /proc/net/tcp, which is read if the kernel has no sock_diag."""
    world()
    connection("192.0.2.1", 22, "192.0.2.9", listen="::")
    kept_open[0].close()  # it listens on every address
    connection("192.0.1.1", 22, "192.0.1.9")
    connection("2001:db8:1::1", 22, "2001:db8:1::9")
    session_to("192.0.1.9", 3260, "192.0.1.1")
    connection("192.0.1.1", 8080, "192.0.1.9")
    ranges = [(22, 22), (3000, 3300)]
    asked = sockets.established(ranges, ranges)
    assert [(str(one.local), one.local_port) for one in asked if one.local_port == 22] == [
        *(("192.0.1.1", 22), ("192.0.2.1", 22), ("2001:db8:1::1", 22))
    ]
    assert len(asked) == 4 and all(one.inode for one in asked)
    plain = [one for one in sockets._of_proc(1, "/proc") if one.local_port in (22,) or one.remote_port == 3260]
    assert {(one.local, one.local_port, one.remote, one.remote_port, one.inode) for one in plain} == {
        (one.local, one.local_port, one.remote, one.remote_port, one.inode) for one in asked
    }
    assert {one.local_port for one in sockets.listening()} == {22, 8080}
    assert {one.inode for one in sockets.listening()} == {one.inode for one in sockets._of_proc(10, "/proc")}


@pytest.mark.parametrize("many", [1, 2, 3, 30])
@on_a_node
def test_the_kernel_selects_connections_by_ranges_of_ports(many: int) -> None:
    """All ports of each range, including both ends, and no others."""
    server = socket.create_server(("127.0.0.2", 5000))
    clients = []
    for port in range(6000, 6000 + 3 * many):
        clients.append(socket.create_connection(("127.0.0.2", 5000), 20, ("127.0.0.2", port)))
        clients.append(server.accept()[0])
    ranges = [(False, low, low + 1) for low in range(6000, 6000 + 3 * many, 3)]
    with netlink.Connection(netlink.NETLINK_SOCK_DIAG) as kernel:
        found = [one.remote_port for one in sockets._dumped(kernel, socket.AF_INET, 1, ranges)]
    assert sorted(found) == [port for _own, low, _high in ranges for port in (low, low + 1)]


def test_addresses_of_proc_net_tcp_are_decoded() -> None:
    local = ipaddress.ip_address("127.0.0.1")
    assert sys.byteorder == "little", "the examples are from little-endian machines"
    assert sockets.endpoint("0100007F:0016") == (local, 22)
    assert sockets.endpoint("0000000000000000FFFF00000100007F:0016") == (local, 22)
    assert sockets.endpoint("000080FE00000000FF010002010000FE:01BB")[0] == ipaddress.ip_address("fe80::200:1ff:fe00:1")


@on_a_node
def test_unreadable_routes_count_as_carried_traffic(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Then every interface with an address counts, and no other."""
    world()
    run("ip addr flush dev nic3; ip -6 addr flush dev nic3; ip route add default via 192.0.0.9")

    def refused(*_unused: object) -> t.NoReturn:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(sockets, "established", refused)
    unreadable = "it has an address, and what uses it cannot be determined: could not examine {}"
    why = unreadable.format("the open TCP connections (Operation not permitted)")
    assert Rule().now().by_name == {"nic0": DEFAULT, "nic1": why, "nic2": why}
    monkeypatch.undo()
    # a root without proc: neither mounts nor processes can be seen
    (tmp_path / "proc").mkdir()
    why = unreadable.format("the mounts (No such file or directory)")
    assert Rule(root=str(tmp_path)).now().by_name == {"nic0": DEFAULT, "nic1": why, "nic2": why}
    monkeypatch.setattr(netlink.Connection, "dump", refused)
    with pytest.raises(PermissionError):
        Rule().now()


@on_a_node
def test_storage_that_no_connection_shows_counts(tmp_path: Path) -> None:
    """RDMA has no TCP connection, and an unreachable server has none either."""
    world()
    run("ip route add 198.51.100.0/24 nexthop via 192.0.1.9 nexthop via 192.0.2.9")
    for name, text in {
        "proc/1/mounts": "nas:/data /data nfs4 rw,proto=rdma,addr=192.0.0.77 0 0\n",
        "sys/class/nvme/nvme1/transport": "rdma",
        "sys/class/nvme/nvme1/address": "traddr=198.51.100.7,trsvcid=4420",
        "sys/class/nvme/nvme2/transport": "tcp",
        "sys/class/nvme/nvme2/address": "traddr=203.0.113.1,trsvcid=4420,host_iface=nic3",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    leads = "it is on the route to the NVMe/RDMA server 198.51.100.7"
    assert Rule(root=str(tmp_path)).now().by_name == {
        "nic0": "it is on the route to the NFS server 192.0.0.77",
        "nic1": leads,
        "nic2": leads,
        "nic3": "an NVMe/TCP session is bound to it",
    }


@on_a_node
def test_many_clients_are_looked_up_to_a_limit_and_do_not_hide_others() -> None:
    """The limit is per address of the node. Its interface is reported anyway, and so is a client of another address."""
    world()
    server = socket.create_server(("192.0.1.1", 2049))
    most = range(100, 100 + carried._MAX_REMOTES + 10)
    run("ip -n far -batch -", text="".join(f"addr add 192.0.1.{number}/32 dev far1\n" for number in most))
    ends = []
    for number in most:
        remote = (f"192.0.1.{number}", 0)
        ends.append(netns.run("/run/netns/far", socket.create_connection, ("192.0.1.1", 2049), 20, remote))
        ends.append(server.accept()[0])
    run("ip route add 198.51.100.1 via 192.0.3.9")
    connection("192.0.2.1", 2049, "198.51.100.1")
    found = Rule().now().by_name
    assert set(found) == {"nic1", "nic2", "nic3"}
    assert found["nic3"] == "it is on the route to the NFS client 198.51.100.1"


@on_a_node
def test_ended_clients_are_remembered_up_to_a_limit() -> None:
    world()
    rule = Rule(remember=True)
    for number in range(3):
        server_named("sshd", f"192.0.{number}.1", 22, f"192.0.{number}.9")
    found = rule.now().by_name
    assert found == {f"nic{number}": f"{LEADS} 192.0.{number}.9" for number in range(3)}
    for one in kept_open:
        one.close() if isinstance(one, socket.socket) else one.communicate()
    assert all(one.local_port != 22 for one in sockets.established([(22, 22)], ()))
    assert rule.now().by_name == found
    run("ip addr del 192.0.1.1/24 dev nic1")
    assert set(rule.now().by_name) == {"nic0", "nic2"}
    assert len(rule._clients) == 2 and Rule(remember=True).now().by_name == {}


@on_a_node
def test_ports_of_servers_are_looked_for_when_a_socket_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    world()
    servers = ssh.Servers()
    looks: list[object] = []
    real = ssh.Servers._scan_processes
    monkeypatch.setattr(ssh.Servers, "_scan_processes", lambda self: looks.append(1) or real(self))  # type: ignore[func-returns-value]
    assert servers.ports([]) == {22} and not looks
    server_named("sshd", "192.0.3.1", 2022, "192.0.3.9")
    assert servers.ports([]) == {22, 2022} and len(looks) == 1
    assert servers.ports([]) == {22, 2022} and len(looks) == 1
    other = socket.create_server(("192.0.3.1", 2023))
    assert servers.ports([]) == {22, 2022} and len(looks) == 2
    other.close()
    local = socket.create_server(("127.0.0.1", 2024))
    assert servers.ports([]) == {22, 2022} and len(looks) == 2
    local.close()


@on_a_node
def test_a_server_that_systemd_listens_for_is_found_once_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Socket activation: the socket is older than the process of the server."""
    world()
    servers = ssh.Servers()
    socket_of_systemd = socket.create_server(("192.0.3.1", 2022))
    assert servers.ports([]) == {22}
    program = "import sys; open('/proc/self/comm', 'w').write('sshd'); print(flush=True); sys.stdin.read()"
    pipes: dict[str, t.Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], pass_fds=[socket_of_systemd.fileno()], **pipes) as server:
        assert server.stdout and server.stdout.readline()
        monkeypatch.setattr(ssh, "PORTS_MAX_AGE_SECONDS", 0.0)
        assert servers.ports([]) == {22, 2022}
        server.communicate()
    socket_of_systemd.close()


@on_a_node
def test_a_foreign_source_address_does_not_hide_the_route() -> None:
    """For example, another machine has taken over the connection, or the address has just been removed."""
    world()
    run("ip route add 198.51.100.1 via 192.0.2.9")
    with netlink.Connection() as kernel:
        remote, local = ipaddress.ip_address("198.51.100.1"), ipaddress.ip_address("203.0.113.77")
        index = socket.if_nametoindex("nic2")
        assert routes.Routes(kernel).outgoing_links(routes.Query(remote, local)) == {index}
        assert routes.Routes(kernel).outgoing_links(routes.Query(remote, local, local_port=22, remote_port=40000)) == {
            index
        }
        assert routes.Routes(kernel).outgoing_links(routes.Query(local)) == set()
