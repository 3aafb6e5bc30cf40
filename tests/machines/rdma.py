# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Files of RDMA devices: ports, GIDs, character devices."""

from __future__ import annotations

import ipaddress

from .addresses import Addresses
from .description import Function

_RATES = {  # by speed in Mb/s
    800000: "800 Gb/sec (4X XDR)",
    400000: "400 Gb/sec (4X NDR)",
    200000: "200 Gb/sec (4X HDR)",
    100000: "100 Gb/sec (4X EDR)",
    50000: "50 Gb/sec (2X EDR)",
    40000: "40 Gb/sec (4X QDR)",
    25000: "25 Gb/sec (1X EDR)",
    10000: "10 Gb/sec (1X QDR)",
    1000: "2.5 Gb/sec (1X SDR)",
}
_PORT_STATES = {  # logical and physical state
    "up": ("4: ACTIVE", "5: LinkUp"),
    "init": ("2: INIT", "5: LinkUp"),
    "nolink": ("1: DOWN", "2: Polling"),
    "down": ("1: DOWN", "3: Disabled"),
}


def _words(value: int, count: int) -> str:
    """A GUID or GID as the kernel prints it, in words of 16 bits."""
    return ":".join(f"{value >> 16 * i & 0xFFFF:04x}" for i in reversed(range(count)))


class RdmaDevices(Addresses):
    """Adds the files of RDMA devices."""

    def add_rdma_device(self, function: Function) -> None:
        spec = function.spec["rdma"]
        name = spec.get("name") or f"{spec['prefix']}{self.next_number(spec['prefix'])}"
        infiniband = (function.spec.get("net") or {}).get("type") == "ib" or spec.get("link_layer") == "InfiniBand"
        speed = spec.get("speed") or (function.spec.get("net") or {}).get("speed")
        guid, path = self.guid_of(function), f"{function.path}/infiniband/{name}"

        system_guid = self.guid_of(function.pf or function) & ~0x7 if function.spec.get("oui") else guid
        self.put_attributes(
            path,
            {
                "node_type": "1: CA",
                "node_guid": _words(guid, 4),
                "sys_image_guid": _words(system_guid, 4),
                "fw_ver": spec.get("fw"),
                "board_id": spec.get("board"),
                "hca_type": spec.get("hca"),
                "hw_rev": "0",
                "node_desc": f"{self.machine.get('name')} {name}",
            },
        )
        self.put_class_device("infiniband", path, function.path)
        state = function.spec.get("state", "up")
        state = "nolink" if state == "down" and infiniband else state
        logical, physical = _PORT_STATES[spec.get("state", state)]
        rate = _RATES[speed] if logical != "1: DOWN" or not infiniband else "10 Gb/sec (4X SDR)"
        port = f"{path}/ports/1"
        number = self.next_number("lid") + 1
        self.put_attributes(
            port,
            {
                "state": logical,
                "phys_state": physical,
                "rate": rate,
                "link_layer": "InfiniBand" if infiniband else "Ethernet",
                "lid": f"0x{number if infiniband and logical == '4: ACTIVE' else 0xFFFF if infiniband else 0:x}",
                "sm_lid": "0x1" if infiniband and logical == "4: ACTIVE" else "0x0",
                "lid_mask_count": 0,
                "sm_sl": 0,
                "cap_mask": "0xa651e84a" if infiniband else "0x04010000",
                "pkeys/0": "0xffff",
            },
        )
        self.add_gid_table(function, port, infiniband)
        self.add_rdma_character_devices(function, name)

    def add_gid_table(self, function: Function, port: str, infiniband: bool) -> None:
        nets = function.spec.get("_nets", [])
        if infiniband:
            self.put(f"{port}/gids/0", _words(0xFE80 << 112 | self.guid_of(function), 8))
            self.put(f"{port}/gid_attrs/types/0", "IB/RoCE v1")
            count = 1
        else:
            mac = int(self.mac_of(function).replace(":", ""), 16) ^ 2 << 40
            link_local = 0xFE80 << 112 | mac >> 24 << 40 | 0xFFFE << 24 | mac & 0xFFFFFF
            entries = [link_local]
            if "ip" in function.spec:
                entries.append(0xFFFF << 32 | int(ipaddress.IPv4Address(function.spec["ip"])))
            count = 2 * len(entries)
            for index in range(count):
                self.put(f"{port}/gids/{index}", _words(entries[index // 2], 8))
                self.put(f"{port}/gid_attrs/types/{index}", "RoCE v2" if index % 2 else "IB/RoCE v1")
                if nets:
                    self.put(f"{port}/gid_attrs/ndevs/{index}", nets[0])
        self.put(f"{port}/gids/{count}", _words(0, 8))  # the table's first empty entry; the others are left out

    def add_rdma_character_devices(self, function: Function, name: str) -> None:
        number = self.next_number("uverbs")
        path = f"{function.path}/infiniband_verbs/uverbs{number}"
        self.put_attributes(path, {"ibdev": name, "abi_version": 1, "dev": f"231:{192 + number}"})
        self.put_class_device("infiniband_verbs", path, function.path)
        self.put("class/infiniband_verbs/abi_version", 6)
        self.put("class/infiniband_mad/abi_version", 5)
        for kind, minor in (("umad", number), ("issm", 64 + number)):
            path = f"{function.path}/infiniband_mad/{kind}{number}"
            self.put_attributes(path, {"ibdev": name, "port": 1, "dev": f"231:{minor}"})
            self.put_class_device("infiniband_mad", path, function.path)
