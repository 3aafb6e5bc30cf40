# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""MTUs and VFs that networkd, udev or NetworkManager set, read from their files. tests/host/test_owner.py runs these
programs."""

from __future__ import annotations

import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import System
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.converge import Refused, converge
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.node import Node
from ansible_collections.lanewise.dra.plugins.module_utils.host.engine.resource import Resource
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources import owner
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.mtu import Mtu
from ansible_collections.lanewise.dra.plugins.module_utils.host.resources.sriov import Sriov
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.host.conftest import MakeNode
from hypothesis import example, given
from hypothesis import strategies as st

#: The file in which systemd-networkd 252 describes a link.
_NETIF = """\
# This is private data. Do not parse.
ADMIN_STATE={}
OPER_STATE=routable
NETWORK_FILE={}
DNS=
LLMNR=yes
"""
_PROFILE = """\
[connection]
id=rail
uuid=0d1f6b0c-6fd4-4e10-8d29-1c5a92f1b7a7
type={}

[{}]
mtu={}

[ipv4]
method=disabled
"""
_UUID = "0d1f6b0c-6fd4-4e10-8d29-1c5a92f1b7a7"
_KEYFILE = "etc/NetworkManager/system-connections/rail.nmconnection"


class ManagedNic:
    """A PF with 8 VFs of an example machine, and the files of programs that manage its interface."""

    def __init__(self, make_node: MakeNode) -> None:
        node = make_node("sriov")
        self._make_node = make_node
        self.address = next(
            key for key, device in sorted(node.devices.items()) if len(device.vfs) == 8 and device.total_vfs
        )
        self.interface = node.devices[self.address].interface
        self.root = Path(node.system.reader.root)
        self.index = (self.root / "sys/class/net" / self.interface / "ifindex").read_text().strip()

    def write(self, path: str, text: str | bytes) -> None:
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode() if isinstance(text, str) else text)

    def write_network_file(
        self, text: str, path: str = "/etc/systemd/network/10-rail.network", state: str = "configured"
    ) -> None:
        self.write(f"run/systemd/netif/links/{self.index}", _NETIF.format(state, path))
        self.write(path, text)

    def write_link_file(self, text: str, path: str = "/etc/systemd/network/10-rail.link") -> None:
        self.write(
            f"run/udev/data/n{self.index}", f"I:1066\nE:ID_NET_DRIVER=mlx5_core\nE:ID_NET_LINK_FILE={path}\nV:1\n"
        )
        self.write(path, text)

    def write_profile(self, text: str, path: str = _KEYFILE, managed: str = "true") -> None:
        state = f"[device]\nmanaged={managed}\nconnection-uuid={_UUID}\nnm-owned=false\n"
        self.write(f"run/NetworkManager/devices/{self.index}", state)
        self.write(path, text)

    def node(self, **settings: t.Any) -> Node:
        node = self._make_node("sriov", allow_management=True)
        node.settings = {self.address: settings}
        return node

    def planned_changes(self, resource: type[Resource], **settings: t.Any) -> list[str]:
        node = self.node(**settings)
        changes = converge(node, [resource(node.system)], check_mode=True).changes
        return [str(change).replace(self.address, "PF") for change in changes]

    def refusal(self, resource: type[Resource], **settings: t.Any) -> str:
        with pytest.raises(Refused) as failure:
            self.planned_changes(resource, **settings)
        return str(failure.value).replace(self.address, "PF").replace(self.interface, "IF")


@pytest.fixture
def nic(make_node: MakeNode) -> ManagedNic:
    return ManagedNic(make_node)


DROP_IN = "/etc/systemd/network/10-rail.network.d/lanewise.conf"


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("[Match]\nName=*\n\n[Link]\nMTUBytes=1500\n", 1500),
        ("[Link]\nMTUBytes = 4K\n", 4096),
        ("[Link]\nMTUBytes=1500\nMTUBytes=9000\n", 9000),
        ("[Link]\nMTUBytes=1500\nMTUBytes=\n", None),
        ("[Link]\n#MTUBytes=1500\n;MTUBytes=1500\n", None),
        ("[Network]\nMTUBytes=1500\n", None),
        ("[Match]\nName=a \\\n# a comment inside\n[Link]\nMTUBytes=1500\n", None),
        ("[Match]\r\nName=*\r\n[Link]\r\nMTUBytes=1500\r\n", 1500),
        ("[Link]\nMTUBytes=many\n", "many"),
    ],
)
def test_the_mtu_of_a_network_file_is_overridden_if_it_differs(
    nic: ManagedNic, text: str, reported: int | str | None
) -> None:
    nic.write_network_file(text)
    drop_in = [f"PF: mtu in {DROP_IN} unset -> 9000"] if reported not in (None, 9000) else []
    assert nic.planned_changes(Mtu, mtu=9000) == [*drop_in, "PF: mtu 1500 -> 9000"]
    system = System(str(nic.root))
    assert [owner._mtu(system, manager) for manager in owner.managers(system, nic.interface)] == [
        (reported, "/etc/systemd/network/10-rail.network")
    ]


def test_a_manager_that_does_not_manage_the_interface_is_ignored(nic: ManagedNic) -> None:
    nic.write_network_file("[Link]\nMTUBytes=1500\n", state="unmanaged")
    nic.write_profile(_PROFILE.format("ethernet", "ethernet", 1500), managed="false")
    assert not owner.managers(System(str(nic.root)), nic.interface)
    assert not owner.managers(System(str(nic.root)), "nothing0")
    assert nic.planned_changes(Mtu, mtu=9000) == ["PF: mtu 1500 -> 9000"]


def test_drop_ins_apply_in_order_of_name_and_those_in_etc_replace_others(nic: ManagedNic) -> None:
    nic.write_network_file("[Link]\nMTUBytes=1500\n", "/run/systemd/network/10 a rail.network")
    nic.write(
        f"run/systemd/netif/links/{nic.index}",
        _NETIF.format("configuring", '"/run/systemd/network/10 a rail.network"'),
    )
    folder = "systemd/network/10 a rail.network.d"
    nic.write(f"usr/lib/{folder}/20.conf", "[Link]\nMTUBytes=1400\n")
    nic.write(f"usr/lib/{folder}/10.conf", "[Link]\nMTUBytes=1300\n")
    nic.write(f"usr/lib/{folder}/30.txt", "[Link]\nMTUBytes=1200\n")
    nic.write(f"etc/{folder}/20.conf", "[Link]\nMTUBytes=9000\n")
    assert nic.planned_changes(Mtu, mtu=9000) == ["PF: mtu 1500 -> 9000"]
    nic.write(f"etc/{folder}/20.conf", "")  # replaces the file in usr/lib
    assert nic.planned_changes(Mtu, mtu=9000)[0] == f"PF: mtu in /etc/{folder}/lanewise.conf unset -> 9000"
    nic.write(f"etc/{folder}/zz.conf", "[Link]\nMTUBytes=1450\n")
    text = nic.refusal(Mtu, mtu=9000)
    assert f"systemd-networkd sets 1450 again, because of /etc/{folder}/zz.conf, which overrides" in text
    nic.write(f"etc/{folder}/zz.conf", "[Link]\nMTUBytes=9000\n")
    assert nic.planned_changes(Mtu, mtu=9000) == ["PF: mtu 1500 -> 9000"]


def test_a_link_file_that_applies_to_several_interfaces_is_not_changed(nic: ManagedNic) -> None:
    nic.write_link_file("[Link]\nMTUBytes=1500\n")
    assert nic.planned_changes(Mtu, mtu=9000)[0] == (
        "PF: mtu in /etc/systemd/network/10-rail.link.d/lanewise.conf unset -> 9000"
    )
    record = (nic.root / f"run/udev/data/n{nic.index}").read_bytes()
    others = [
        folder
        for folder in (nic.root / "sys/class/net").iterdir()
        if folder.is_dir() and folder.name not in (nic.interface, "lo")
    ]
    for folder in others:
        nic.write(f"run/udev/data/n{(folder / 'ifindex').read_text().strip()}", record)
    names = sorted(folder.name for folder in others)
    text = nic.refusal(Mtu, mtu=9000)
    assert (
        f"udev sets 1500 again, because of /etc/systemd/network/10-rail.link, which is for {', '.join(names[:3])} and "
        in text
    )
    assert text.endswith(f"{len(names) - 3} more too (give IF a separate file, or request 9000 for them too)")


@pytest.mark.parametrize(
    ("section", "reported"), [("ethernet", "1500"), ("802-3-ethernet", "1500"), ("infiniband", "2044"), ("bond", None)]
)
def test_the_mtu_of_a_profile_is_changed_if_it_differs(nic: ManagedNic, section: str, reported: str | None) -> None:
    nic.write("usr/bin/nmcli", "")
    nic.write_profile(_PROFILE.format(section, section, reported or 1500))
    keyfile = [f"PF: mtu in /{_KEYFILE} {reported} -> 9000"] if reported else []
    assert nic.planned_changes(Mtu, mtu=9000) == [*keyfile, "PF: mtu 1500 -> 9000"]
    nic.write_profile(_PROFILE.format(section, section, 9000))
    assert nic.planned_changes(Mtu, mtu=9000) == ["PF: mtu 1500 -> 9000"]


def test_a_profile_that_must_not_be_edited_is_refused(nic: ManagedNic) -> None:
    text = _PROFILE.format("ethernet", "ethernet", 1500)
    nic.write_profile(text)
    assert nic.refusal(Mtu, mtu=9000) == (
        f"PF: mtu: NetworkManager sets 1500 again, because of /{_KEYFILE} "
        "(write mtu=9000 there: this node has no nmcli)"
    )
    (nic.root / _KEYFILE).unlink()
    assert nic.refusal(Mtu, mtu=9000) == (
        f"PF: mtu: NetworkManager's profile {_UUID} of IF is not in a keyfile, so its MTU is unknown "
        f"('nmcli connection migrate uuid {_UUID}' converts an ifcfg file to a keyfile)"
    )
    generated = "run/NetworkManager/system-connections/rail.nmconnection"
    nic.write_profile(text, generated)
    assert f"because of /{generated} (set the MTU 9000 in the profile {_UUID} with nmcli" in nic.refusal(Mtu, mtu=9000)


def test_a_profile_without_a_uuid_gets_the_uuid_that_networkmanager_computes() -> None:
    # the UUID that NetworkManager 1.42 gave to a file below /run
    assert owner._computed_uuid("netplan-rail0.nmconnection") == "da01d0ae-925a-35ae-a96e-31fe7d6563c7"


def test_vfs_that_another_program_creates_are_refused(nic: ManagedNic) -> None:
    fix = "(write 16 there or remove it, or leave the VFs to that program: externally_managed: true)"
    link = "/etc/systemd/network/10-rail.link"
    for text, count in (
        ("[Link]\nSR-IOVVirtualFunctions=4\n", 4),
        ("[Link]\nSR-IOVVirtualFunctions=\n[SR-IOV]\nVirtualFunction=2\n[SR-IOV]\nVirtualFunction=1\n", 3),
    ):
        nic.write_link_file(text)
        assert nic.refusal(Sriov, num_vfs=16) == f"PF: num_vfs: {link} creates {count} VFs of IF, not 16 {fix}"
        assert "creates" in nic.refusal(Sriov, num_vfs=8)  # as many as exist now
        assert nic.planned_changes(Sriov, num_vfs=count) == [f"PF: num_vfs 8 -> {count}"]
        assert nic.planned_changes(Sriov, num_vfs=8, externally_managed=True) == []
    nic.write_link_file("[Link]\nMTUBytes=9000\n")
    for text, count in (("[sriov]\ntotal-vfs=6\n", 6), ("[sriov]\nautoprobe-drivers=1\n", 0), ("[sriov]\n", 0)):
        nic.write_profile(_PROFILE.format("ethernet", "ethernet", 9000) + text)
        assert nic.refusal(Sriov, num_vfs=16) == f"PF: num_vfs: /{_KEYFILE} creates {count} VFs of IF, not 16 {fix}"
    nic.write_profile(_PROFILE.format("ethernet", "ethernet", 9000))
    assert nic.planned_changes(Sriov, num_vfs=16) == ["PF: num_vfs 8 -> 16"]


def test_damaged_files_are_read_without_an_error(tmp_path: Path) -> None:
    @given(
        text=st.binary()
        | st.lists(st.sampled_from([b"[Link]", b"MTUBytes=", b"=", b"1K", b"\\\n", b"\n", b"#", b"\x00"])).map(b"".join)
    )
    @example(text=b"[Link]\nMTUBytes=\xff\\")
    @example(text="[Link]\nMTUBytes=\u0665".encode())
    def check(text: bytes) -> None:
        for path in (*names, "etc/systemd/network/a.network", "etc/NetworkManager/system-connections/a"):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_bytes(text)
        for line in owner.entries(text.decode(errors="replace"), True):
            assert len(line) == 3 and "\n" not in "".join(line)
        system = System(str(tmp_path))
        owner.managers(system, "rail0")
        owner.mtu_settings(system, "rail0", 9000)
        owner.mtu_refusals(system, "0000:00:01.0", "rail0", 9000, ["rail0"])
        owner.vfs_refusals(system, "0000:00:01.0", "rail0", 8)

    (tmp_path / "sys/class/net/rail0").mkdir(parents=True)
    (tmp_path / "sys/class/net/rail0/ifindex").write_text("7\n")
    names = ["run/systemd/netif/links/7", "run/udev/data/n7", "run/NetworkManager/devices/7"]
    check()
    references = (
        "NETWORK_FILE=/etc/systemd/network/a.network\n",
        "E:ID_NET_LINK_FILE=/etc/systemd/network/a.network\n",
        f"[device]\nmanaged=true\nconnection-uuid={owner._computed_uuid('a')}\n",
    )
    for path, text in zip(names, references):
        (tmp_path / path).write_text(text)
    names = []
    check()  # the files that these name are damaged
