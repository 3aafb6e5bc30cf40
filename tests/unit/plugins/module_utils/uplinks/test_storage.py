# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The remote endpoints of a node's storage, from the kernel's files."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.uplinks.storage import StorageEndpoint, endpoints, service


def endpoint(service_name: str, remote: str, local: str = "", interface: str = "") -> StorageEndpoint:
    return StorageEndpoint(
        service_name, ipaddress.ip_address(remote), ipaddress.ip_address(local) if local else None, interface
    )


def tree(root: Path, files: dict[str, str]) -> str:
    """Write files below `root`, and an empty list of mounts unless `files` has one. Returns `root`."""
    for name, text in {"proc/1/mounts": "", **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "nas.example.com:/data /data nfs4 rw,vers=4.2,proto=tcp,clientaddr=192.0.2.1,addr=192.0.2.9 0 0",
            [endpoint("NFS", "192.0.2.9")],
        ),
        (
            "[2001:db8::9]:/data /data nfs rw,proto=rdma,port=20049,addr=2001:db8::9 0 0",
            [endpoint("NFS", "2001:db8::9")],
        ),
        ("//nas/share /mnt cifs rw,vers=3.1.1,addr=192.0.2.9,username=x 0 0", [endpoint("SMB", "192.0.2.9")]),
        (
            "10.0.0.1:6789,10.0.0.2:6789:/ /mnt ceph rw,name=admin,secret=<hidden> 0 0",
            [endpoint("Ceph", "10.0.0.1"), endpoint("Ceph", "10.0.0.2")],
        ),
        (
            "admin@00000000-0000.fs=/ /mnt ceph rw,mon_addr=10.0.0.1:6789/[2001:db8::2]:6789 0 0",
            [endpoint("Ceph", "10.0.0.1"), endpoint("Ceph", "2001:db8::2")],
        ),
        (
            "10.0.0.1@o2ib:10.0.0.2@o2ib:/scratch /scratch lustre rw 0 0",
            [endpoint("Lustre", "10.0.0.1"), endpoint("Lustre", "10.0.0.2")],
        ),
        ("/dev/sda1 / ext4 rw 0 0", []),
        ("tmpfs /192.0.2.9 tmpfs rw,addr=192.0.2.9 0 0", []),
        ("nfs", []),
    ],
)
def test_the_endpoints_of_a_network_mount_are_its_servers(
    tmp_path: Path, line: str, expected: list[StorageEndpoint]
) -> None:
    assert endpoints(tree(tmp_path, {"proc/1/mounts": line + "\n"})) == (expected, [])


def test_nvme_controllers_over_a_network_have_endpoints(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "sys/class/nvme/nvme0/transport": "pcie\n",
            "sys/class/nvme/nvme0/address": "0000:01:00.0\n",
            "sys/class/nvme/nvme1/transport": "tcp\n",
            "sys/class/nvme/nvme1/address": "traddr=192.0.2.9,trsvcid=4420,host_iface=eth1,src_addr=192.0.2.1\n",
            "sys/class/nvme/nvme2/transport": "rdma\n",
            "sys/class/nvme/nvme2/address": "traddr=2001:db8::9,trsvcid=4420,host_traddr=2001:db8::1\n",
            "sys/class/nvme/nvme3/transport": "fc\n",
            "sys/class/nvme/nvme3/address": "traddr=nn-0x1000:pn-0x2000\n",
            "sys/class/nvme/nvme4/transport": "tcp\n",
        },
    )
    assert endpoints(root) == (
        [endpoint("NVMe/TCP", "192.0.2.9", "192.0.2.1", "eth1"), endpoint("NVMe/RDMA", "2001:db8::9", "2001:db8::1")],
        [],
    )


def test_iscsi_connections_have_their_current_and_persistent_address_as_endpoints(tmp_path: Path) -> None:
    """The netdev of an iSCSI host is `default` if the session is not bound to an interface."""
    root = tree(tmp_path, {})
    for number, netdev in ((3, "eth1"), (4, "default")):
        host = tmp_path / f"sys/devices/platform/host{number}"
        connection = host / f"session1/connection{number}:0/iscsi_connection/connection{number}:0"
        connection.mkdir(parents=True)
        (connection / "address").write_text("192.0.2.9\n")
        (connection / "persistent_address").write_text(f"192.0.{number}.9\n")
        (host / f"iscsi_host/host{number}").mkdir(parents=True)
        (host / f"iscsi_host/host{number}/netdev").write_text(f"{netdev}\n")
        (tmp_path / "sys/class/iscsi_connection").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"sys/class/iscsi_connection/connection{number}:0").symlink_to(connection)
    found, unread = endpoints(root)
    assert not unread and found == [
        *(endpoint("iSCSI", "192.0.2.9", interface="eth1"), endpoint("iSCSI", "192.0.3.9", interface="eth1")),
        *(endpoint("iSCSI", "192.0.2.9"), endpoint("iSCSI", "192.0.4.9")),
    ]


def test_the_endpoints_of_a_ceph_block_device_are_its_monitors(tmp_path: Path) -> None:
    root = tree(
        tmp_path, {"sys/bus/rbd/devices/0/config_info": "10.0.0.1:6789,[2001:db8::1]:6789 name=x pool image -\n"}
    )
    assert endpoints(root) == ([endpoint("Ceph", "10.0.0.1"), endpoint("Ceph", "2001:db8::1")], [])


def test_files_that_cannot_be_read_are_reported(tmp_path: Path) -> None:
    found, unread = endpoints(str(tmp_path))
    assert not found and unread == ["the mounts (No such file or directory)"]
    if os.geteuid():
        root = tree(tmp_path, {"sys/class/nvme/nvme1/transport": "tcp"})
        (tmp_path / "sys/class/nvme").chmod(0)
        assert endpoints(root)[1] == ["the NVMe controllers (Permission denied)"]


def test_at_most_4096_endpoints_of_mounts_are_returned(tmp_path: Path) -> None:
    lines = "".join(f"x:/ /m{n} nfs rw,addr=10.{n >> 16}.{n >> 8 & 255}.{n & 255} 0 0\n" for n in range(50000))
    found, unread = endpoints(tree(tmp_path, {"proc/1/mounts": lines}))
    assert len(found) == 4096 and unread == ["all of 50000 addresses of storage"]


def test_mounts_of_many_containers_do_not_hide_the_nodes_storage(tmp_path: Path) -> None:
    layers = ":".join(f"/var/lib/containerd/snapshots/{number}/fs" for number in range(100))
    lines = f"overlay /run/containerd/rootfs overlay rw,lowerdir={layers} 0 0\n" * 2000
    lines += "nas:/data /data nfs4 rw,proto=rdma,addr=192.0.2.9 0 0\n"
    assert len(lines) > 6 << 20
    assert endpoints(tree(tmp_path, {"proc/1/mounts": lines})) == ([endpoint("NFS", "192.0.2.9")], [])


@pytest.mark.parametrize(("port", "expected"), [(3260, "iSCSI"), (6900, "Ceph"), (22, ""), (0, ""), (65535, "")])
def test_well_known_ports_have_the_name_of_their_service(port: int, expected: str) -> None:
    assert service(port) == expected
