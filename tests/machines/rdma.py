# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""RDMA devices with ports, GIDs and character devices."""

from __future__ import annotations

from .description import Function
from .files import Files

_RATE = {
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
_PORT_STATE = {
    "up": ("4: ACTIVE", "5: LinkUp"),
    "init": ("2: INIT", "5: LinkUp"),
    "nolink": ("1: DOWN", "2: Polling"),
    "down": ("1: DOWN", "3: Disabled"),
}


def _words(value: int, count: int) -> str:
    return ":".join(f"{value >> 16 * i & 0xFFFF:04x}" for i in reversed(range(count)))


class RdmaDevices(Files):
    """RDMA devices with ports, GIDs and character devices."""

    def guid(self, fn: Function) -> int:
        """The driver's GUID: the card's MAC address with 0300h in its middle (mlx5)."""
        mac = int(self.mac(fn).replace(":", ""), 16)
        return mac >> 24 << 40 | 0x0300 << 24 | mac & 0xFFFFFF

    def rdma(self, fn: Function) -> None:
        spec = fn.spec["rdma"]
        name = spec.get("name") or f"{spec['prefix']}{self.count(spec['prefix'])}"
        infiniband = (fn.spec.get("net") or {}).get("type") == "ib" or spec.get("link_layer") == "InfiniBand"
        speed = spec.get("speed") or (fn.spec.get("net") or {}).get("speed")
        guid, path = self.guid(fn), f"{fn.path}/infiniband/{name}"

        system_guid = self.guid(fn.pf or fn) & ~0x7 if fn.spec.get("oui") else guid
        self.attributes(
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
        self.class_device("infiniband", path, fn.path)
        state = fn.spec.get("state", "up")
        state = "nolink" if state == "down" and infiniband else state
        logical, physical = _PORT_STATE[spec.get("state", state)]
        rate = _RATE[speed] if logical != "1: DOWN" or not infiniband else "10 Gb/sec (4X SDR)"
        port = f"{path}/ports/1"
        number = self.count("lid") + 1
        self.attributes(
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
        self.gid_table(fn, port, infiniband)
        self.rdma_characters(fn, name)

    def gid_table(self, fn: Function, port: str, infiniband: bool) -> None:
        nets = fn.spec.get("_nets", [])
        if infiniband:
            self.put(f"{port}/gids/0", _words(0xFE80 << 112 | self.guid(fn), 8))
            self.put(f"{port}/gid_attrs/types/0", "IB/RoCE v1")
            count = 1
        else:
            mac = int(self.mac(fn).replace(":", ""), 16) ^ 2 << 40
            local = 0xFE80 << 112 | mac >> 24 << 40 | 0xFFFE << 24 | mac & 0xFFFFFF
            octets = [int(x) for x in fn.spec["ip"].split(".")] if "ip" in fn.spec else None
            entries = [local] + ([0xFFFF << 32 | int.from_bytes(bytes(octets), "big")] if octets else [])
            count = 2 * len(entries)
            for index in range(count):
                self.put(f"{port}/gids/{index}", _words(entries[index // 2], 8))
                self.put(f"{port}/gid_attrs/types/{index}", "RoCE v2" if index % 2 else "IB/RoCE v1")
                if nets:
                    self.put(f"{port}/gid_attrs/ndevs/{index}", nets[0])
        self.put(f"{port}/gids/{count}", _words(0, 8))  # the rest of the table is empty: one such entry is enough

    def rdma_characters(self, fn: Function, name: str) -> None:
        number = self.count("uverbs")
        path = f"{fn.path}/infiniband_verbs/uverbs{number}"
        self.attributes(path, {"ibdev": name, "abi_version": 1, "dev": f"231:{192 + number}"})
        self.class_device("infiniband_verbs", path, fn.path)
        self.put("class/infiniband_verbs/abi_version", 6)
        self.put("class/infiniband_mad/abi_version", 5)
        for kind, minor in (("umad", number), ("issm", 64 + number)):
            path = f"{fn.path}/infiniband_mad/{kind}{number}"
            self.attributes(path, {"ibdev": name, "port": 1, "dev": f"231:{minor}"})
            self.class_device("infiniband_mad", path, fn.path)
