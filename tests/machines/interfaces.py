# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Network interfaces, virtual interfaces on top of others, and routes."""

from __future__ import annotations

import typing as t

from .description import DescriptionError, Function
from .files import Files


class Interfaces(Files):
    """Network interfaces, virtual interfaces on top of others, and routes."""

    def mac(self, fn: Function, index: int = 0) -> str:
        tail = self.made_up("mac", fn.address, index) & 0xFFFFFF
        oui = fn.spec.get("oui", "02:00:00")
        if fn.pf:
            oui = f"{int(oui[:2], 16) & 0xFE | 2:02x}{oui[2:]}"
        return ":".join([oui, *(f"{tail >> s & 0xFF:02x}" for s in (16, 8, 0))])

    def net_name(self, fn: Function, net: dict[str, t.Any], index: int) -> str:
        """Name of the predictable path policy (systemd.net-naming-scheme)."""
        if "name" in net:
            return net["name"]
        at = fn.pf or fn
        name = "ib" if net["type"] == "ib" else "en"
        name += (f"P{at.domain}" if at.domain else "") + f"p{at.bus}s{at.device}"
        name += f"f{at.function}" if at.multifunction or at.function else ""
        if fn.pf:
            return f"{name}v{fn.vf_number}"
        if net.get("port_name"):
            return f"{name}n{net['port_name']}"
        return f"{name}d{index}" if index else name

    def pci_net(self, fn: Function, net: dict[str, t.Any], index: int) -> None:
        name = self.net_name(fn, net, index)
        fn.spec.setdefault("_nets", []).append(name)
        port_name = net.get("port_name")
        if fn.pf:
            port_name = None
        elif port_name == "p0":
            port_name = f"p{fn.function}"
            name = name[:-2] + port_name if "name" not in net else name
            fn.spec["_nets"][-1] = name
        switch = f"{self.made_up('switch', fn.address[:-2]) & 0xFFFFFFFFFFFF:012x}" if net.get("switchdev") else None
        if fn.pf:
            switch = None
        state = fn.spec.get("state", "up")
        address = mac = self.mac(fn, index)
        if net["type"] == "ib":
            guid = self.guid(fn)
            tail = ":".join(f"{guid >> shift & 0xFF:02x}" for shift in range(56, -1, -8))
            address = f"00:00:10:29:fe:80:00:00:00:00:00:00:{tail}"  # queue pair number, then the port's GID
        self.macs[name] = mac
        self.interface(
            f"{fn.path}/net/{name}",
            fn.path,
            {
                "type": 32 if net["type"] == "ib" else 1,
                "address": address,
                "mtu": net.get("mtu", 1500),
                "state": state,
                "speed": net.get("speed"),
                "dev_port": index,
                "port_name": port_name,
                "switch_id": switch,
                "assign": 3 if fn.pf else 0,
                "alias": net.get("alias"),
            },
        )

    def interface(self, path: str, device: str | None, net: dict[str, t.Any]) -> None:
        name = path.rsplit("/", 1)[1]
        state, kind = net.get("state", "up"), net.get("type", 1)
        up = state == "up"
        index = self.ifindex
        self.ifindex += 1
        flags = 0x1003 if state != "down" else 0x1002
        self.net_paths[name] = path
        uevent = [f"DEVTYPE={net['devtype']}"] if net.get("devtype") else []
        self.attributes(
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
        self.class_device("net", path, device)

    def representors(self, fn: Function) -> None:
        pattern = fn.spec.get("representors")
        if not pattern:
            return
        uplink = self.net_paths[fn.spec["_nets"][0]]
        switch = self.files[f"sys/{uplink}/phys_switch_id"].decode().strip()
        for vf in fn.vfs:
            self.interface(
                f"{fn.path}/net/{pattern.format(vf.vf_number)}",
                fn.path,
                {
                    "address": self.mac(vf, 9),
                    "assign": 1,
                    "speed": fn.spec["net"]["speed"],
                    "switch_id": switch,
                    "port_name": f"pf{fn.function}vf{vf.vf_number}",
                },
            )

    def loopback(self) -> None:
        self.interface(
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

    def virtual_net(self, name: str, spec: dict[str, t.Any]) -> None:
        kind, lower = spec["kind"], spec.get("lower", [])
        device = None
        if "under" in spec:  # a paravirtual card
            device = "/".join(["devices", *filter(None, [self.machine.get("under"), spec["under"]])])
        path = f"{device or 'devices/virtual'}/net/{name}"
        for below in lower:
            if below not in self.net_paths:
                raise DescriptionError(f"{name}: no interface {below!r}; there are {', '.join(self.net_paths)}")
        mac = self.macs[lower[0]] if lower else "02:00:00:00:00:01"
        self.macs[name] = mac
        below_index = None
        if lower and kind in ("vlan", "macvlan"):
            below_index = int(self.files[f"sys/{self.net_paths[lower[0]]}/ifindex"])
        assign = {"bond": 2, "vlan": 2, "netvsc": 0}.get(kind, 3)
        self.interface(
            path,
            device,
            {
                "address": mac,
                "assign": assign,
                "speed": spec.get("speed"),
                "mtu": spec.get("mtu", 1500),
                "devtype": kind if kind in ("bond", "vlan", "bridge") else None,
                "iflink": below_index or self.ifindex,
                "flags": 0x1403 if kind == "bond" else 0x1003,
            },
        )
        for below in lower:
            self.link(f"{path}/lower_{below}", self.net_paths[below])
            self.link(f"{self.net_paths[below]}/upper_{name}", path)
            if kind in ("bond", "bridge", "netvsc"):
                self.link(f"{self.net_paths[below]}/master", path)
        if kind == "bond":
            self.bond(name, path, spec, mac)
        elif kind == "bridge":
            self.bridge(path, lower, mac)
        elif kind == "vlan":
            head = "VLAN Dev name\t | VLAN ID\nName-Type: VLAN_NAME_TYPE_RAW_PLUS_VID_NO_PAD\n"
            text = self.files.get("proc/net/vlan/config", head.encode()).decode()
            self.proc("net/vlan/config", f"{text}{name:<15}| {spec['id']:<4} | {lower[0]}\n")

    def bond(self, name: str, path: str, spec: dict[str, t.Any], mac: str) -> None:
        lower = spec.get("lower", [])
        self.attributes(
            f"{path}/bonding",
            {
                "slaves": " ".join(lower),
                "mode": spec.get("mode", "802.3ad 4"),
                "mii_status": "up",
                "active_slave": lower[0] if spec.get("mode", "").startswith("active-backup") else "",
            },
        )
        for below in lower:
            place = self.net_paths[below]
            self.attributes(
                f"{place}/bonding_slave",
                {"perm_hwaddr": self.macs[below], "state": "active", "mii_status": "up", "queue_id": 0},
            )
            self.put(f"{place}/address", mac)
            self.put(f"{place}/flags", "0x1903")
        members = (self.files.get("sys/class/net/bonding_masters", b"").decode().split()) + [name]
        self.put("class/net/bonding_masters", " ".join(members))

    def bridge(self, path: str, lower: list[str], mac: str) -> None:
        self.attributes(f"{path}/bridge", {"bridge_id": f"8000.{mac.replace(':', '')}", "stp_state": 0})
        for number, below in enumerate(lower, 1):
            place = self.net_paths[below]
            self.attributes(f"{place}/brport", {"port_no": f"0x{number:x}", "state": 3})
            self.link(f"{place}/brport/bridge", path)
            self.link(f"{path}/brif/{below}", f"{place}/brport")

    def routes(self) -> None:
        route = self.machine.get("default_route")
        rows = ["Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"]
        if route:
            if route not in self.net_paths:
                raise DescriptionError(f"default_route: no interface {route!r}; there are {', '.join(self.net_paths)}")
            rows.append(f"{route}\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0")
            rows.append(f"{route}\t0000000A\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0")
        self.proc("net/route", "".join(f"{row:<127}\n" for row in rows))
