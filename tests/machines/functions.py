# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""PCI functions with configuration space, VFs and IOMMU groups."""

from __future__ import annotations

from . import configspace
from .description import Function, link
from .files import Files, cpu_list, cpu_mask


class Functions(Files):
    """PCI functions with configuration space, VFs and IOMMU groups."""

    def pci_bus(self, parent: str, name: str, numa: int, device: str) -> None:
        path = f"{parent}/pci_bus/{name}"
        cpus = self.local_cpus(numa)
        self.put(f"{path}/cpuaffinity", cpu_mask(cpus, self.cpus))
        self.put(f"{path}/cpulistaffinity", cpu_list(cpus))
        self.class_device("pci_bus", path, device)

    def function(self, fn: Function) -> None:
        spec, path = fn.spec, fn.path
        vendor, device = spec["id"].split(":")
        sub_vendor, sub_device = spec.get("subsystem", "0000:0000").split(":")
        code = spec["class"]
        modalias = (
            f"pci:v0000{vendor.upper()}d0000{device.upper()}sv0000{sub_vendor.upper()}"
            f"sd0000{sub_device.upper()}bc{code[:2].upper()}sc{code[2:4].upper()}i{code[4:].upper()}"
        )
        cpus = self.local_cpus(fn.numa)
        driver = spec.get("driver")
        uevent = [f"DRIVER={driver}"] if driver else []
        uevent += [
            f"PCI_CLASS={int(code, 16):X}",
            f"PCI_ID={vendor.upper()}:{device.upper()}",
            f"PCI_SUBSYS_ID={sub_vendor.upper()}:{sub_device.upper()}",
            f"PCI_SLOT_NAME={fn.address}",
            f"MODALIAS={modalias}",
        ]
        self.attributes(
            path,
            {
                "class": f"0x{code}",
                "vendor": f"0x{vendor}",
                "device": f"0x{device}",
                "subsystem_vendor": f"0x{sub_vendor}",
                "subsystem_device": f"0x{sub_device}",
                "revision": f"0x{spec.get('rev', '00')}",
                "modalias": modalias,
                "uevent": "\n".join(uevent),
                "enable": spec.get("enable", 1 if driver else 0),
                "irq": 0,
                "driver_override": "(null)",
                "numa_node": fn.numa,
                "local_cpus": cpu_mask(cpus, self.cpus),
                "local_cpulist": cpu_list(cpus),
            },
        )
        self.files[f"sys/{path}/resource"] = b"0x0000000000000000 0x0000000000000000 0x0000000000000000\n" * 13
        self.link(f"{path}/subsystem", "bus/pci")
        self.link(f"bus/pci/devices/{fn.address}", path)
        if driver:
            self.link(f"{path}/driver", f"bus/pci/drivers/{driver}")
            self.link(f"bus/pci/drivers/{driver}/{fn.address}", path)
        if fn.secondary is not None:
            self.pci_bus(path, f"{fn.domain:04x}:{fn.secondary:02x}", fn.numa, path)
        if "slot" in spec and fn.function == 0:
            self.put(f"bus/pci/slots/{spec['slot']}/address", fn.address[:-2])
        if spec.get("model") and driver == "amdgpu":
            self.put(f"{path}/product_name", spec["model"])
        self.pci_link(fn)
        self.pci_config(fn)
        self.pci_sriov(fn)

    def links_of(self, fn: Function) -> tuple[tuple[float, int] | None, tuple[float, int] | None]:
        """(current, best) link of a function; a link runs at what both of its ends can do."""
        if "link" not in fn.spec:
            return None, None
        best = link(fn.spec["link"])
        if fn.pf:
            return (0, 0), best
        if "trained" in fn.spec:
            return link(fn.spec["trained"]), best
        other = None
        if fn.port in ("root", "downstream"):
            other = fn.children[0] if fn.children else None
            if other is None:
                return (2.5, 0), best  # an empty slot
        elif fn.parent and fn.parent.port in ("root", "downstream"):
            other = fn.parent
        if other is None or "link" not in other.spec:
            return best, best
        if "trained" in other.spec:
            return link(other.spec["trained"]), best
        theirs = link(other.spec["link"])
        return (min(best[0], theirs[0]), min(best[1], theirs[1])), best

    def pci_link(self, fn: Function) -> None:
        now, best = self.links_of(fn)
        if best is None:
            return

        def speed(value: float) -> str:
            return f"{value:.1f} GT/s PCIe" if value else "Unknown"

        if fn.spec.get("link_files") is False:  # PCI Express attributes need the capability, which hypervisors hide
            return
        self.attributes(
            fn.path,
            {
                "current_link_speed": speed(now[0]),
                "current_link_width": now[1],
                "max_link_speed": speed(best[0]),
                "max_link_width": best[1],
                "ari_enabled": int(fn.pf is not None),
            },
        )

    def pci_config(self, fn: Function) -> None:
        spec = fn.spec
        vendor, device = (int(x, 16) for x in spec["id"].split(":"))
        now, best = self.links_of(fn)
        hidden = spec.get("link_files") is False
        data = configspace.config_space(
            vendor,
            device,
            int(spec["class"], 16),
            int(spec.get("rev", "00"), 16),
            subsystem=tuple(int(x, 16) for x in spec.get("subsystem", "0000:0000").split(":")),
            buses=(fn.bus, fn.secondary, fn.subordinate) if fn.secondary is not None else None,
            port=None if hidden else fn.port,
            link=now,
            max_link=best,
            multifunction=fn.multifunction,
            slot="slot" in spec or fn.port in ("root", "downstream"),
            has_vpd="vpd" in spec,
            serial=int(spec["dsn"].replace("-", ""), 16) if "dsn" in spec else None,
            acs=(spec["acs_capable"], fn.acs_enabled) if fn.acs_enabled is not None else None,
            sriov=fn.sriov,
            virtual=fn.pf is not None,
        )
        size = self.system.get("config_bytes", len(data))  # 64 is what the kernel gives to other users than root
        self.files[f"sys/{fn.path}/config"] = data[:size]
        card = spec.get("vpd")
        if card:
            fields = {k: v for k, v in card.items() if len(k) == 2}
            serial = self.made_up("card", fn.address[:-2] if "uuid" not in card else card["uuid"])
            fields.setdefault("SN", f"MT{serial % 10**10:010d}")
            if vendor == 0x15B3:
                word = card.get("uuid", fn.address[:-2])
                fields["V3"] = f"{self.made_up('uuid', word):032x}"
            self.files[f"sys/{fn.path}/vpd"] = configspace.vpd(card["name"], fields)

    def pci_sriov(self, fn: Function) -> None:
        if fn.sriov:
            self.attributes(
                fn.path,
                {
                    "sriov_totalvfs": fn.sriov["total"],
                    "sriov_numvfs": fn.sriov["num"],
                    "sriov_offset": fn.sriov["offset"],
                    "sriov_stride": fn.sriov["stride"],
                    "sriov_vf_device": f"{fn.sriov['vf']:x}",
                    "sriov_drivers_autoprobe": fn.spec.get("autoprobe", 1),
                },
            )
        for vf in fn.vfs:
            self.link(f"{fn.path}/virtfn{vf.vf_number}", vf.path)
            self.link(f"{vf.path}/physfn", fn.path)

    def iommu(self) -> None:
        spec = self.system.get("iommu")
        if not spec:
            return
        kind, homes = spec.get("unit", "dmar"), {}
        for fn in self.plan.functions:
            if fn.group is None:
                continue
            group = f"kernel/iommu_groups/{fn.group}"
            self.put(f"{group}/type", fn.spec.get("iommu_type", spec.get("type", "DMA-FQ")))
            self.put(f"{group}/reserved_regions", "0x00000000fee00000 0x00000000feefffff msi")
            self.link(f"{group}/devices/{fn.address}", fn.path)
            self.link(f"{fn.path}/iommu_group", group)
            if fn.root not in homes:  # one unit for each root complex
                number = len(homes)
                homes[fn.root] = f"devices/virtual/iommu/{kind}{number}"
                if kind == "smmu3":
                    base = 0x5000000 + 0x1000000 * number
                    homes[fn.root] = f"devices/platform/arm-smmu-v3.{number}.auto/iommu/smmu3.0x{base:016x}"
                self.class_device("iommu", homes[fn.root], None)
            self.link(f"{fn.path}/iommu", homes[fn.root])
            self.link(f"{homes[fn.root]}/devices/{fn.address}", fn.path)
