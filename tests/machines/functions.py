# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Files of PCI functions: ids, locality, link, configuration space, VFs, IOMMU groups."""

from __future__ import annotations

from . import configspace
from .description import Function, parse_link
from .files import cpu_list, cpu_mask
from .processors import Processors


class Functions(Processors):
    """Adds the files of PCI functions."""

    def add_pci_bus(self, parent: str, name: str, numa: int, device: str) -> None:
        path = f"{parent}/pci_bus/{name}"
        cpus = self.local_cpus(numa)
        self.put(f"{path}/cpuaffinity", cpu_mask(cpus, self.cpu_count))
        self.put(f"{path}/cpulistaffinity", cpu_list(cpus))
        self.put_class_device("pci_bus", path, device)

    def add_function(self, function: Function) -> None:
        spec, path = function.spec, function.path
        vendor, device = spec["id"].split(":")
        sub_vendor, sub_device = spec.get("subsystem", "0000:0000").split(":")
        code = spec["class"]
        modalias = (
            f"pci:v0000{vendor.upper()}d0000{device.upper()}sv0000{sub_vendor.upper()}"
            f"sd0000{sub_device.upper()}bc{code[:2].upper()}sc{code[2:4].upper()}i{code[4:].upper()}"
        )
        cpus = self.local_cpus(function.numa)
        driver = spec.get("driver")
        uevent = [f"DRIVER={driver}"] if driver else []
        uevent += [
            f"PCI_CLASS={int(code, 16):X}",
            f"PCI_ID={vendor.upper()}:{device.upper()}",
            f"PCI_SUBSYS_ID={sub_vendor.upper()}:{sub_device.upper()}",
            f"PCI_SLOT_NAME={function.address}",
            f"MODALIAS={modalias}",
        ]
        self.put_attributes(
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
                "numa_node": function.numa,
                "local_cpus": cpu_mask(cpus, self.cpu_count),
                "local_cpulist": cpu_list(cpus),
            },
        )
        self.files[f"sys/{path}/resource"] = b"0x0000000000000000 0x0000000000000000 0x0000000000000000\n" * 13
        self.put_link(f"{path}/subsystem", "bus/pci")
        self.put_link(f"bus/pci/devices/{function.address}", path)
        if driver:
            self.put_link(f"{path}/driver", f"bus/pci/drivers/{driver}")
            self.put_link(f"bus/pci/drivers/{driver}/{function.address}", path)
        if function.secondary is not None:
            self.add_pci_bus(path, f"{function.domain:04x}:{function.secondary:02x}", function.numa, path)
        if "slot" in spec and function.function == 0:
            self.put(f"bus/pci/slots/{spec['slot']}/address", function.address[:-2])
        if spec.get("model") and driver == "amdgpu":
            self.put(f"{path}/product_name", spec["model"])
        self.add_link_speeds(function)
        self.add_config_space(function)
        self.add_sriov(function)

    def links_of(self, function: Function) -> tuple[tuple[float, int] | None, tuple[float, int] | None]:
        """The current and the best link of a function. By default both ends run at the best link that both support."""
        if "link" not in function.spec:
            return None, None
        best = parse_link(function.spec["link"])
        if function.pf:
            return (0, 0), best
        if "trained" in function.spec:
            return parse_link(function.spec["trained"]), best
        other_end = None
        if function.port in ("root", "downstream"):
            other_end = function.children[0] if function.children else None
            if other_end is None:
                return (2.5, 0), best  # an empty slot
        elif function.parent and function.parent.port in ("root", "downstream"):
            other_end = function.parent
        if other_end is None or "link" not in other_end.spec:
            return best, best
        if "trained" in other_end.spec:
            return parse_link(other_end.spec["trained"]), best
        other_best = parse_link(other_end.spec["link"])
        return (min(best[0], other_best[0]), min(best[1], other_best[1])), best

    def add_link_speeds(self, function: Function) -> None:
        current, best = self.links_of(function)
        if best is None:
            return

        def speed_text(value: float) -> str:
            return f"{value:.1f} GT/s PCIe" if value else "Unknown"

        # these files need the PCI Express capability, which hypervisors hide
        if function.spec.get("link_files") is False:
            return
        self.put_attributes(
            function.path,
            {
                "current_link_speed": speed_text(current[0]),
                "current_link_width": current[1],
                "max_link_speed": speed_text(best[0]),
                "max_link_width": best[1],
                "ari_enabled": int(function.pf is not None),
            },
        )

    def add_config_space(self, function: Function) -> None:
        spec = function.spec
        vendor, device = (int(number, 16) for number in spec["id"].split(":"))
        current, best = self.links_of(function)
        hidden = spec.get("link_files") is False
        data = configspace.config_space(
            vendor,
            device,
            int(spec["class"], 16),
            int(spec.get("rev", "00"), 16),
            subsystem=tuple(int(number, 16) for number in spec.get("subsystem", "0000:0000").split(":")),
            buses=(function.bus, function.secondary, function.subordinate) if function.secondary is not None else None,
            port=None if hidden else function.port,
            link=current,
            max_link=best,
            multifunction=function.multifunction,
            slot="slot" in spec or function.port in ("root", "downstream"),
            has_vpd="vpd" in spec,
            serial=int(spec["dsn"].replace("-", ""), 16) if "dsn" in spec else None,
            acs=(spec["acs_capable"], function.acs_enabled) if function.acs_enabled is not None else None,
            sriov=function.sriov,
            virtual=function.pf is not None,
        )
        size = self.system.get("config_bytes", len(data))  # 64 is what the kernel gives to other users than root
        self.files[f"sys/{function.path}/config"] = data[:size]
        vpd = spec.get("vpd")
        if vpd:
            fields = {k: v for k, v in vpd.items() if len(k) == 2}
            card = vpd.get("uuid", function.address[:-2])  # the same for all functions of a card
            fields.setdefault("SN", f"MT{self.made_up_number('card', card) % 10**10:010d}")
            if vendor == 0x15B3:
                fields["V3"] = f"{self.made_up_number('uuid', card):032x}"
            self.files[f"sys/{function.path}/vpd"] = configspace.vpd(vpd["name"], fields)

    def add_sriov(self, function: Function) -> None:
        if function.sriov:
            self.put_attributes(
                function.path,
                {
                    "sriov_totalvfs": function.sriov["total"],
                    "sriov_numvfs": function.sriov["num"],
                    "sriov_offset": function.sriov["offset"],
                    "sriov_stride": function.sriov["stride"],
                    "sriov_vf_device": f"{function.sriov['vf']:x}",
                    "sriov_drivers_autoprobe": function.spec.get("autoprobe", 1),
                },
            )
        for vf in function.vfs:
            self.put_link(f"{function.path}/virtfn{vf.vf_number}", vf.path)
            self.put_link(f"{vf.path}/physfn", function.path)

    def add_iommu_groups(self) -> None:
        spec = self.system.get("iommu")
        if not spec:
            return
        kind, unit_paths = spec.get("unit", "dmar"), {}
        for function in self.plan.functions:
            if function.group is None:
                continue
            group = f"kernel/iommu_groups/{function.group}"
            self.put(f"{group}/type", function.spec.get("iommu_type", spec.get("type", "DMA-FQ")))
            self.put(f"{group}/reserved_regions", "0x00000000fee00000 0x00000000feefffff msi")
            self.put_link(f"{group}/devices/{function.address}", function.path)
            self.put_link(f"{function.path}/iommu_group", group)
            if function.root not in unit_paths:  # one IOMMU for each root complex
                number = len(unit_paths)
                unit_paths[function.root] = f"devices/virtual/iommu/{kind}{number}"
                if kind == "smmu3":
                    base = 0x5000000 + 0x1000000 * number
                    unit_paths[function.root] = f"devices/platform/arm-smmu-v3.{number}.auto/iommu/smmu3.0x{base:016x}"
                self.put_class_device("iommu", unit_paths[function.root], None)
            self.put_link(f"{function.path}/iommu", unit_paths[function.root])
            self.put_link(f"{unit_paths[function.root]}/devices/{function.address}", function.path)
