# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Files of network interfaces, of virtual interfaces on top of others, and of routes."""

from __future__ import annotations

import typing as t

from .addresses import Addresses
from .description import DescriptionError, Function


class Interfaces(Addresses):
    """Adds the files of network interfaces, of virtual interfaces on top of others, and of routes."""

    def interface_name(self, function: Function, net: dict[str, t.Any], index: int) -> str:
        """The name of the interface by systemd's path policy (systemd.net-naming-scheme)."""
        if "name" in net:
            return net["name"]
        pf = function.pf or function
        name = "ib" if net["type"] == "ib" else "en"
        name += (f"P{pf.domain}" if pf.domain else "") + f"p{pf.bus}s{pf.device}"
        name += f"f{pf.function}" if pf.multifunction or pf.function else ""
        if function.pf:
            return f"{name}v{function.vf_number}"
        if net.get("port_name"):
            return f"{name}n{net['port_name']}"
        return f"{name}d{index}" if index else name

    def add_pci_interface(self, function: Function, net: dict[str, t.Any], index: int) -> None:
        name = self.interface_name(function, net, index)
        function.spec.setdefault("_nets", []).append(name)
        port_name = net.get("port_name")
        if function.pf:
            port_name = None
        elif port_name == "p0":
            port_name = f"p{function.function}"
            name = name[:-2] + port_name if "name" not in net else name
            function.spec["_nets"][-1] = name
        switch = (
            f"{self.made_up_number('switch', function.address[:-2]) & 0xFFFFFFFFFFFF:012x}"
            if net.get("switchdev")
            else None
        )
        if function.pf:
            switch = None
        state = function.spec.get("state", "up")
        address = mac = self.mac_of(function, index)
        if net["type"] == "ib":
            guid = self.guid_of(function)
            tail = ":".join(f"{guid >> shift & 0xFF:02x}" for shift in range(56, -1, -8))
            address = f"00:00:10:29:fe:80:00:00:00:00:00:00:{tail}"  # queue pair number, then the port's GID
        self.macs[name] = mac
        self.add_interface(
            f"{function.path}/net/{name}",
            function.path,
            {
                "type": 32 if net["type"] == "ib" else 1,
                "address": address,
                "mtu": net.get("mtu", 1500),
                "state": state,
                "speed": net.get("speed"),
                "dev_port": index,
                "port_name": port_name,
                "switch_id": switch,
                "assign": 3 if function.pf else 0,
                "alias": net.get("alias"),
            },
        )

    def add_interface(self, path: str, device: str | None, net: dict[str, t.Any]) -> None:
        name = path.rsplit("/", 1)[1]
        state, kind = net.get("state", "up"), net.get("type", 1)
        up = state == "up"
        index = self.ifindex
        self.ifindex += 1
        flags = 0x1003 if state != "down" else 0x1002
        self.interface_paths[name] = path
        uevent = [f"DEVTYPE={net['devtype']}"] if net.get("devtype") else []
        self.put_attributes(
            path,
            {
                "address": net["address"],
                "addr_len": net["address"].count(":") + 1,
                "broadcast": net.get("broadcast", ":".join(["ff"] * (net["address"].count(":") + 1))),
                "addr_assign_type": net.get("assign", 0),
                "mtu": net.get("mtu", 1500),
                "type": kind,
                "ifindex": index,
                "iflink": net.get("iflink", index),
                "flags": f"0x{net.get('flags', flags):x}",
                "operstate": net.get("operstate", "up" if up else "down"),
                "carrier": None if state == "down" else int(up),
                "dormant": None if state == "down" else 0,
                "speed": None if state == "down" or not net.get("speed") else net["speed"] if up else -1,
                "duplex": None if state == "down" or not net.get("speed") else "full" if up else "unknown",
                "dev_id": f"0x{net.get('dev_id', 0):x}",
                "dev_port": net.get("dev_port", 0),
                "link_mode": 0,
                "tx_queue_len": 1000,
                "netdev_group": 0,
                "name_assign_type": net.get("name_assign", 4),
                "phys_port_name": net.get("port_name"),
                "phys_switch_id": net.get("switch_id"),
                "uevent": "\n".join([*uevent, f"INTERFACE={name}", f"IFINDEX={index}"]),
            },
        )
        self.files[f"sys/{path}/ifalias"] = f"{net['alias']}\n".encode() if net.get("alias") else b""
        self.put_class_device("net", path, device)

    def add_representors(self, function: Function) -> None:
        pattern = function.spec.get("representors")
        if not pattern:
            return
        uplink = self.interface_paths[function.spec["_nets"][0]]
        switch = self.files[f"sys/{uplink}/phys_switch_id"].decode().strip()
        for vf in function.vfs:
            self.add_interface(
                f"{function.path}/net/{pattern.format(vf.vf_number)}",
                function.path,
                {
                    "address": self.mac_of(vf, 9),
                    "assign": 1,
                    "speed": function.spec["net"]["speed"],
                    "switch_id": switch,
                    "port_name": f"pf{function.function}vf{vf.vf_number}",
                },
            )

    def add_loopback(self) -> None:
        self.add_interface(
            "devices/virtual/net/lo",
            None,
            {
                "address": "00:00:00:00:00:00",
                "broadcast": "00:00:00:00:00:00",
                "type": 772,
                "mtu": 65536,
                "flags": 0x9,
                "operstate": "unknown",
                "name_assign": 2,
            },
        )

    def add_virtual_interface(self, name: str, spec: dict[str, t.Any]) -> None:
        kind, lower = spec["kind"], spec.get("lower", [])
        device = None
        if "under" in spec:  # a paravirtual card
            device = "/".join(["devices", *filter(None, [self.machine.get("under"), spec["under"]])])
        path = f"{device or 'devices/virtual'}/net/{name}"
        for lower_name in lower:
            if lower_name not in self.interface_paths:
                known = ", ".join(self.interface_paths)
                raise DescriptionError(f"{name}: no interface {lower_name!r}; there are {known}")
        mac = self.macs[lower[0]] if lower else "02:00:00:00:00:01"
        self.macs[name] = mac
        lower_index = None
        if lower and kind in ("vlan", "macvlan"):
            lower_index = int(self.files[f"sys/{self.interface_paths[lower[0]]}/ifindex"])
        assign = {"bond": 2, "vlan": 2, "netvsc": 0}.get(kind, 3)
        self.add_interface(
            path,
            device,
            {
                "address": mac,
                "assign": assign,
                "speed": spec.get("speed"),
                "mtu": spec.get("mtu", 1500),
                "devtype": kind if kind in ("bond", "vlan", "bridge") else None,
                "iflink": lower_index or self.ifindex,
                "flags": 0x1403 if kind == "bond" else 0x1003,
            },
        )
        for lower_name in lower:
            lower_path = self.interface_paths[lower_name]
            self.put_link(f"{path}/lower_{lower_name}", lower_path)
            self.put_link(f"{lower_path}/upper_{name}", path)
            if kind in ("bond", "bridge", "netvsc"):
                self.put_link(f"{lower_path}/master", path)
        if kind == "bond":
            self.add_bond(name, path, spec, mac)
        elif kind == "bridge":
            self.add_bridge(path, lower, mac)
        elif kind == "vlan":
            header = "VLAN Dev name\t | VLAN ID\nName-Type: VLAN_NAME_TYPE_RAW_PLUS_VID_NO_PAD\n"
            text = self.files.get("proc/net/vlan/config", header.encode()).decode()
            self.put_proc("net/vlan/config", f"{text}{name:<15}| {spec['id']:<4} | {lower[0]}\n")

    def add_bond(self, name: str, path: str, spec: dict[str, t.Any], mac: str) -> None:
        lower = spec.get("lower", [])
        self.put_attributes(
            f"{path}/bonding",
            {
                "slaves": " ".join(lower),
                "mode": spec.get("mode", "802.3ad 4"),
                "mii_status": "up",
                "active_slave": lower[0] if spec.get("mode", "").startswith("active-backup") else "",
            },
        )
        for lower_name in lower:
            lower_path = self.interface_paths[lower_name]
            self.put_attributes(
                f"{lower_path}/bonding_slave",
                {"perm_hwaddr": self.macs[lower_name], "state": "active", "mii_status": "up", "queue_id": 0},
            )
            self.put(f"{lower_path}/address", mac)
            self.put(f"{lower_path}/flags", "0x1903")
        bonds = (self.files.get("sys/class/net/bonding_masters", b"").decode().split()) + [name]
        self.put("class/net/bonding_masters", " ".join(bonds))

    def add_bridge(self, path: str, lower: list[str], mac: str) -> None:
        self.put_attributes(f"{path}/bridge", {"bridge_id": f"8000.{mac.replace(':', '')}", "stp_state": 0})
        for number, lower_name in enumerate(lower, 1):
            lower_path = self.interface_paths[lower_name]
            self.put_attributes(f"{lower_path}/brport", {"port_no": f"0x{number:x}", "state": 3})
            self.put_link(f"{lower_path}/brport/bridge", path)
            self.put_link(f"{path}/brif/{lower_name}", f"{lower_path}/brport")

    def add_routes(self) -> None:
        interface = self.machine.get("default_route")
        rows = ["Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"]
        if interface:
            if interface not in self.interface_paths:
                raise DescriptionError(
                    f"default_route: no interface {interface!r}; there are {', '.join(self.interface_paths)}"
                )
            rows.append(f"{interface}\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0")
            rows.append(f"{interface}\t0000000A\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0")
        self.put_proc("net/route", "".join(f"{row:<127}\n" for row in rows))
