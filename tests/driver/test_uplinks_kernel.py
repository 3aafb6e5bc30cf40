# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How the interfaces that carry a node's traffic are determined: when the kernel is queried, and what happens if a
query fails."""

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
    ON_ROUTE,
    REMOTE_NETNS,
    connect_from_node,
    connect_to_node,
    connect_to_process,
    create_network,
    kept_open,
)
from lanewise_driver.kernel import netns
from lanewise_driver.uplinks import carried, netlink, routes, sockets, ssh
from lanewise_driver.uplinks.carried import Path as TrafficPath
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
def test_the_watch_reports_each_change_once(change: str) -> None:
    create_network()
    watch = Watch()
    assert not watch.changed()
    run(change)
    assert watch.changed() and not watch.changed()


@on_a_node
def test_a_new_route_to_a_network_is_not_a_change_but_lost_messages_are() -> None:
    """Routes to networks are looked up each time. Messages are lost if there are more than the kernel can queue."""
    create_network()
    watch = Watch()
    run("ip route add 10.1.0.0/16 via 192.0.0.9; ip -6 route add fd00:1::/32 via 2001:db8:1::9")
    assert not watch.changed()
    lines = "".join(f"route add 10.{n >> 8}.{n & 255}.0/24 dev nic0\n" for n in range(20000))
    run("ip -batch -", text=lines)
    assert watch.changed()


@on_a_node
def test_a_result_is_reused_up_to_the_maximum_age_unless_default_routes_change() -> None:
    create_network()
    rule = Rule()
    assert rule.now(max_age=HOUR).by_name == {}
    connect_to_node("192.0.1.1", 22, "192.0.1.9")
    assert rule.now(max_age=HOUR).by_name == {}
    assert rule.now().by_name == {"nic1": f"{ON_ROUTE} 192.0.1.9"}
    run("ip route add default via 192.0.0.9")
    assert rule.now(max_age=HOUR).by_name == {"nic0": DEFAULT, "nic1": f"{ON_ROUTE} 192.0.1.9"}
    # after a change of addresses, the list of connections is still reused
    connect_to_node("192.0.2.1", 22, "192.0.2.9")
    run("ip addr add 192.0.9.1/24 dev nic0")
    assert rule.now(max_age=HOUR).by_name == {"nic0": DEFAULT, "nic1": f"{ON_ROUTE} 192.0.1.9"}
    # a caller with other arguments gets another result
    path = TrafficPath(None, ipaddress.ip_address("192.0.3.9"), "", "the API server is reached over it")
    assert rule.now([path], max_age=HOUR).by_name["nic3"] == "the API server is reached over it"
    rule.close()
    both = {"nic1": f"{ON_ROUTE} 192.0.1.9", "nic2": f"{ON_ROUTE} 192.0.2.9"}
    assert rule.now().by_name == {"nic0": DEFAULT, **both}


@on_a_node
def test_a_result_is_as_old_as_the_oldest_list_that_it_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    create_network()
    clock = [1000.0]
    monkeypatch.setattr(carried, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    rule = Rule()
    assert rule.now(max_age=1).by_name == {}
    clock[0] += 0.9
    run("ip route add default via 192.0.0.9")  # only the routes are read again: the list of connections is not too old
    assert rule.now(max_age=1).by_name == {"nic0": DEFAULT}
    connect_to_node("192.0.1.1", 22, "192.0.1.9")
    clock[0] += 0.2
    assert rule.now(max_age=1).by_name == {"nic0": DEFAULT, "nic1": f"{ON_ROUTE} 192.0.1.9"}


@on_a_node
def test_storage_that_was_mounted_over_rdma_counts_after_the_maximum_age(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With RDMA there is no TCP connection that shows the mount."""
    create_network()
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
    create_network()
    connect_to_node("192.0.1.1", 22, "192.0.1.9")
    rule = Rule()

    def fail(*_unused: object) -> t.NoReturn:
        raise MemoryError

    monkeypatch.setattr(ssh.Servers, "sessions", fail)
    with pytest.raises(MemoryError):
        rule.now(max_age=HOUR)
    monkeypatch.undo()
    assert rule.now(max_age=HOUR).by_name == {"nic1": f"{ON_ROUTE} 192.0.1.9"}


@on_a_node
def test_interfaces_are_reported_by_index_too() -> None:
    create_network()
    run("ip route add default via 192.0.0.9")
    assert Rule().now().by_index == {socket.if_nametoindex("nic0"): DEFAULT}


@on_a_node
def test_many_connections_and_processes_do_not_slow_down_the_lookup() -> None:
    """The kernel returns only the relevant connections, and each process is examined once."""
    create_network()
    server = socket.create_server(("127.0.0.1", 8080), backlog=64)
    ends = []
    for _unused in range(1000):
        ends += [socket.create_connection(("127.0.0.1", 8080)), server.accept()[0]]
    processes = [subprocess.Popen(["sleep", "600"]) for _unused in range(200)]
    try:
        connect_to_process("sshd", "192.0.3.1", 2022, "192.0.3.9")
        rule = Rule()
        expected = {"nic3": f"{ON_ROUTE} 192.0.3.9"}
        assert rule.now().by_name == expected
        began = time.process_time()
        for _unused in range(10):
            assert len(sockets._of_proc(1, "/proc")) > 2000
        reading_all = time.process_time() - began
        began = time.process_time()
        for _unused in range(10):
            assert rule.now().by_name == expected
        assert time.process_time() - began < reading_all / 2
    finally:
        for process in processes:
            process.kill()
            process.wait()


@on_a_node
def test_connections_of_sock_diag_and_of_proc_are_the_same() -> None:
    """/proc/net/tcp is read if the kernel does not support sock_diag."""
    create_network()
    connect_to_node("192.0.2.1", 22, "192.0.2.9", listen="::")
    kept_open[0].close()  # this server listens at every address, so others could not use its port
    connect_to_node("192.0.1.1", 22, "192.0.1.9")
    connect_to_node("2001:db8:1::1", 22, "2001:db8:1::9")
    connect_from_node("192.0.1.9", 3260, "192.0.1.1")
    connect_to_node("192.0.1.1", 8080, "192.0.1.9")
    ranges = [(22, 22), (3000, 3300)]
    of_sock_diag = sockets.established(ranges, ranges)
    assert [str(found.local) for found in of_sock_diag if found.local_port == 22] == [
        "192.0.1.1",
        "192.0.2.1",
        "2001:db8:1::1",
    ]
    assert len(of_sock_diag) == 4 and all(found.inode for found in of_sock_diag)
    of_proc = [found for found in sockets._of_proc(1, "/proc") if found.local_port == 22 or found.remote_port == 3260]
    assert {(found.local, found.local_port, found.remote, found.remote_port, found.inode) for found in of_proc} == {
        (found.local, found.local_port, found.remote, found.remote_port, found.inode) for found in of_sock_diag
    }
    assert {found.local_port for found in sockets.listening()} == {22, 8080}
    assert {found.inode for found in sockets.listening()} == {found.inode for found in sockets._of_proc(10, "/proc")}


@pytest.mark.parametrize("count", [1, 2, 3, 30])
@on_a_node
def test_the_kernel_selects_connections_by_ranges_of_ports(count: int) -> None:
    """All ports of each range, including both ends, and no others."""
    server = socket.create_server(("127.0.0.2", 5000))
    clients = []
    for port in range(6000, 6000 + 3 * count):
        clients.append(socket.create_connection(("127.0.0.2", 5000), 20, ("127.0.0.2", port)))
        clients.append(server.accept()[0])
    ranges = [(False, low, low + 1) for low in range(6000, 6000 + 3 * count, 3)]
    with netlink.Connection(netlink.NETLINK_SOCK_DIAG) as kernel:
        found = [connection.remote_port for connection in sockets._dumped(kernel, socket.AF_INET, 1, ranges)]
    assert sorted(found) == [port for _own, low, _high in ranges for port in (low, low + 1)]


def test_addresses_of_proc_net_tcp_are_decoded() -> None:
    local = ipaddress.ip_address("127.0.0.1")
    assert sys.byteorder == "little", "the examples are from little-endian machines"
    assert sockets.endpoint("0100007F:0016") == (local, 22)
    assert sockets.endpoint("0000000000000000FFFF00000100007F:0016") == (local, 22)
    assert sockets.endpoint("000080FE00000000FF010002010000FE:01BB")[0] == ipaddress.ip_address("fe80::200:1ff:fe00:1")


@on_a_node
def test_if_connections_or_mounts_cannot_be_read_every_interface_with_an_address_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """If the kernel refuses to list links or routes, the lookup fails."""
    create_network()
    run("ip addr flush dev nic3; ip -6 addr flush dev nic3; ip route add default via 192.0.0.9")

    def refuse(*_unused: object) -> t.NoReturn:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(sockets, "established", refuse)
    unreadable = "it has an address, and what uses it cannot be determined: could not examine {}"
    reason = unreadable.format("the open TCP connections (Operation not permitted)")
    assert Rule().now().by_name == {"nic0": DEFAULT, "nic1": reason, "nic2": reason}
    monkeypatch.undo()
    # with an empty /proc, neither mounts nor processes can be read
    (tmp_path / "proc").mkdir()
    reason = unreadable.format("the mounts (No such file or directory)")
    assert Rule(root=str(tmp_path)).now().by_name == {"nic0": DEFAULT, "nic1": reason, "nic2": reason}
    monkeypatch.setattr(netlink.Connection, "dump", refuse)
    with pytest.raises(PermissionError):
        Rule().now()


@on_a_node
def test_storage_without_a_tcp_connection_counts(tmp_path: Path) -> None:
    """That is storage over RDMA, and storage whose server is unreachable."""
    create_network()
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
    on_route = "it is on the route to the NVMe/RDMA server 198.51.100.7"
    assert Rule(root=str(tmp_path)).now().by_name == {
        "nic0": "it is on the route to the NFS server 192.0.0.77",
        "nic1": on_route,
        "nic2": on_route,
        "nic3": "an NVMe/TCP session is bound to it",
    }


@on_a_node
def test_clients_are_looked_up_to_a_limit_for_each_address_of_the_node() -> None:
    """The interface with the address is reported anyway, and clients of other addresses are looked up."""
    create_network()
    server = socket.create_server(("192.0.1.1", 2049))
    clients = range(100, 100 + carried._MAX_REMOTES + 10)
    run("ip -n far -batch -", text="".join(f"addr add 192.0.1.{number}/32 dev far1\n" for number in clients))
    ends = []
    for number in clients:
        remote = (f"192.0.1.{number}", 0)
        ends.append(netns.run(REMOTE_NETNS, socket.create_connection, ("192.0.1.1", 2049), 20, remote))
        ends.append(server.accept()[0])
    run("ip route add 198.51.100.1 via 192.0.3.9")
    connect_to_node("192.0.2.1", 2049, "198.51.100.1")
    found = Rule().now().by_name
    assert set(found) == {"nic1", "nic2", "nic3"}
    assert found["nic3"] == "it is on the route to the NFS client 198.51.100.1"


@on_a_node
def test_connections_within_the_node_do_not_count_towards_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example those of the storage daemons of a node that is part of a Ceph cluster."""
    monkeypatch.setattr(carried, "_MAX_REMOTES", 4)
    monkeypatch.setattr(carried, "_MAX_STORAGE_PATHS", 4)
    create_network()
    server = socket.create_server(("192.0.1.1", 2049))
    ends = []
    for _unused in range(5):
        ends += [socket.create_connection(("192.0.1.1", 2049), 20, ("192.0.1.1", 0)), server.accept()[0]]
    client = netns.run(REMOTE_NETNS, socket.create_connection, ("192.0.1.1", 2049), 20)
    ends += [client, server.accept()[0]]
    assert Rule().now().by_name == {"nic1": "it is on the route to the NFS client 192.0.1.9"}


@on_a_node
def test_many_connections_of_one_client_count_as_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carried, "_MAX_REMOTES", 4)
    create_network()
    run("ip route add 198.51.100.1 via 192.0.3.9")
    server = socket.create_server(("192.0.1.1", 2049))
    ends = []
    for remote in (*["192.0.1.9"] * 5, "198.51.100.1"):
        client = netns.run(REMOTE_NETNS, socket.create_connection, ("192.0.1.1", 2049), 20, (remote, 0))
        ends += [client, server.accept()[0]]
    on_route = "it is on the route to the NFS client {}"
    expected = {"nic1": on_route.format("192.0.1.9"), "nic3": on_route.format("198.51.100.1")}
    assert Rule().now().by_name == expected


@on_a_node
def test_ended_clients_are_remembered_until_the_node_loses_the_address() -> None:
    create_network()
    rule = Rule(remember=True)
    for number in range(3):
        connect_to_process("sshd", f"192.0.{number}.1", 22, f"192.0.{number}.9")
    found = rule.now().by_name
    assert found == {f"nic{number}": f"{ON_ROUTE} 192.0.{number}.9" for number in range(3)}
    for client_or_server in kept_open:
        if isinstance(client_or_server, socket.socket):
            client_or_server.close()
        else:
            client_or_server.communicate()
    assert sockets.established([(22, 22)], ()) == []
    assert rule.now().by_name == found
    run("ip addr del 192.0.1.1/24 dev nic1")
    assert set(rule.now().by_name) == {"nic0", "nic2"}
    assert len(rule._clients) == 2 and Rule(remember=True).now().by_name == {}


@on_a_node
def test_processes_are_scanned_for_ssh_servers_only_when_a_socket_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    create_network()
    servers = ssh.Servers()
    scans: list[object] = []
    original = ssh.Servers._scan_processes
    monkeypatch.setattr(ssh.Servers, "_scan_processes", lambda self: scans.append(1) or original(self))  # type: ignore[func-returns-value]
    assert servers.ports([]) == {22} and not scans
    connect_to_process("sshd", "192.0.3.1", 2022, "192.0.3.9")
    assert servers.ports([]) == {22, 2022} and len(scans) == 1
    assert servers.ports([]) == {22, 2022} and len(scans) == 1
    other = socket.create_server(("192.0.3.1", 2023))
    assert servers.ports([]) == {22, 2022} and len(scans) == 2
    other.close()
    local = socket.create_server(("127.0.0.1", 2024))
    assert servers.ports([]) == {22, 2022} and len(scans) == 2
    local.close()


@on_a_node
def test_a_socket_activated_ssh_server_is_found_when_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """systemd opens the listening socket before the server's process starts."""
    create_network()
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
def test_a_route_is_found_for_a_source_address_that_the_node_does_not_have() -> None:
    """For example, the address has just been removed, or another machine has taken it over."""
    create_network()
    run("ip route add 198.51.100.1 via 192.0.2.9")
    with netlink.Connection() as kernel:
        remote, local = ipaddress.ip_address("198.51.100.1"), ipaddress.ip_address("203.0.113.77")
        index = socket.if_nametoindex("nic2")
        assert routes.Routes(kernel).outgoing_links(routes.Query(remote, local)) == {index}
        assert routes.Routes(kernel).outgoing_links(routes.Query(remote, local, local_port=22, remote_port=40000)) == {
            index
        }
        assert routes.Routes(kernel).outgoing_links(routes.Query(local)) == set()
