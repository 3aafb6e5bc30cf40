# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection and to the bundled driver.

"""What PCI identifiers mean: the kinds of functions, and the names of common parts.

Numbers are from the PCI Code and ID Assignment Specification (classes) and the public PCI ID database (devices). A
part that is not listed is still recognized by its class; it only has no name.
"""

from __future__ import annotations

import functools

from .model import PciFunction

VENDORS = {
    "0014": "Loongson",
    "0731": "Jingjia Micro",
    "1002": "AMD",
    "1077": "QLogic",
    "10de": "NVIDIA",
    "1137": "Cisco",
    "1414": "Microsoft",
    "14e4": "Broadcom",
    "15b3": "NVIDIA",
    "1ae0": "Google",
    "1af4": "Virtio",
    "1c36": "Amazon",
    "1d0f": "Amazon",
    "1d17": "Zhaoxin",
    "1d94": "Hygon",
    "1da3": "Habana",
    "1dd8": "AMD Pensando",
    "1e36": "Enflame",
    "1e3e": "Iluvatar",
    "1e52": "Tenstorrent",
    "1ec6": "Vastai",
    "1ec8": "Innosilicon",
    "1ed5": "Moore Threads",
    "1ee0": "Biren",
    "1f67": "Yunsilicon",
    "1fe9": "MemryX",
    "19e5": "Huawei",
    "8086": "Intel",
    "9999": "MetaX",
    "cabc": "Cambricon",
}

DEVICES = {
    ("15b3", "1003"): "ConnectX-3",
    ("15b3", "1007"): "ConnectX-3 Pro",
    ("15b3", "1013"): "ConnectX-4",
    ("15b3", "1014"): "ConnectX-4 VF",
    ("15b3", "1015"): "ConnectX-4 Lx",
    ("15b3", "1016"): "ConnectX-4 Lx VF",
    ("15b3", "1017"): "ConnectX-5",
    ("15b3", "1018"): "ConnectX-5 VF",
    ("15b3", "1019"): "ConnectX-5 Ex",
    ("15b3", "101a"): "ConnectX-5 Ex VF",
    ("15b3", "101b"): "ConnectX-6",
    ("15b3", "101c"): "ConnectX-6 VF",
    ("15b3", "101d"): "ConnectX-6 Dx",
    ("15b3", "101e"): "ConnectX VF",
    ("15b3", "101f"): "ConnectX-6 Lx",
    ("15b3", "1021"): "ConnectX-7",
    ("15b3", "1023"): "ConnectX-8",
    ("15b3", "1025"): "ConnectX-9",
    ("15b3", "2100"): "ConnectX-8 data-direct DMA",
    ("15b3", "197b"): "BlueField-3 PCIe switch",
    ("15b3", "197c"): "ConnectX PCIe switch",
    ("15b3", "a2d2"): "BlueField",
    ("15b3", "a2d6"): "BlueField-2",
    ("15b3", "a2dc"): "BlueField-3",
    ("10de", "1db1"): "Tesla V100 SXM2",
    ("10de", "1db4"): "Tesla V100 PCIe",
    ("10de", "1db5"): "Tesla V100 SXM2 32GB",
    ("10de", "1eb8"): "Tesla T4",
    ("10de", "20b0"): "A100 SXM4 40GB",
    ("10de", "20b2"): "A100 SXM4 80GB",
    ("10de", "20b5"): "A100 PCIe 80GB",
    ("10de", "20f1"): "A100 PCIe 40GB",
    ("10de", "2235"): "A40",
    ("10de", "2237"): "A10G",
    ("10de", "26b5"): "L40",
    ("10de", "26b9"): "L40S",
    ("10de", "27b8"): "L4",
    ("10de", "2322"): "H800 PCIe",
    ("10de", "2324"): "H800 SXM5",
    ("10de", "2330"): "H100 SXM5 80GB",
    ("10de", "2331"): "H100 PCIe",
    ("10de", "2335"): "H200 SXM 141GB",
    ("10de", "2339"): "H100 SXM5 94GB",
    ("10de", "2342"): "GH200 120GB",
    ("10de", "2348"): "GH200 144GB",
    ("10de", "233b"): "H200 NVL",
    ("10de", "2901"): "B200",
    ("10de", "2941"): "GB200",
    ("10de", "31c2"): "GB300",
    ("10de", "22a3"): "NVSwitch (H100)",
    ("10de", "1af1"): "NVSwitch (A100)",
    ("10de", "22b1"): "Grace PCIe root port",
    ("10de", "22b2"): "Grace PCIe root port",
    ("10de", "22b8"): "Grace PCIe root port",
    ("1002", "738c"): "Instinct MI100",
    ("1002", "7408"): "Instinct MI250X",
    ("1002", "740c"): "Instinct MI250X/MI250",
    ("1002", "740f"): "Instinct MI210",
    ("1002", "74a0"): "Instinct MI300A",
    ("1002", "74a1"): "Instinct MI300X",
    ("1002", "74a5"): "Instinct MI325X",
    ("1002", "75a0"): "Instinct MI350X",
    ("1002", "75a3"): "Instinct MI355X",
    ("1da3", "1000"): "Gaudi",
    ("1da3", "1020"): "Gaudi 2",
    ("1da3", "1060"): "Gaudi 3",
    ("8086", "0bd5"): "Data Center GPU Max 1550",
    ("8086", "0bda"): "Data Center GPU Max 1100",
    ("8086", "56c0"): "Data Center GPU Flex 170",
    ("8086", "56c1"): "Data Center GPU Flex 140",
    ("8086", "1521"): "I350",
    ("8086", "1528"): "X540",
    ("8086", "1563"): "X550",
    ("8086", "1572"): "X710",
    ("8086", "1583"): "XL710",
    ("8086", "158b"): "XXV710",
    ("8086", "1592"): "E810-C",
    ("8086", "1593"): "E810-C",
    ("8086", "159b"): "E810-XXV",
    ("8086", "1889"): "Adaptive VF",
    ("8086", "10c9"): "82576",
    ("8086", "10ca"): "82576 VF",
    ("14e4", "165f"): "BCM5720",
    ("14e4", "16d7"): "BCM57414",
    ("14e4", "16d8"): "BCM57416",
    ("14e4", "1750"): "BCM57508",
    ("14e4", "1751"): "BCM57504",
    ("14e4", "1760"): "BCM57608 Thor2",
    ("14e4", "1807"): "BCM5750X VF",
    ("14e4", "1819"): "BCM5760X VF",
    ("1dd8", "1002"): "DSC Ethernet",
    ("1d0f", "ec20"): "ENA",
    ("1d0f", "efa0"): "EFA",
    ("1d0f", "efa1"): "EFA",
    ("1d0f", "efa2"): "EFA",
    ("1d0f", "efa3"): "EFA",
    ("1af4", "1000"): "virtio-net",
    ("1af4", "1041"): "virtio-net",
}

#: AWS Inferentia and Trainium, whose class is that of any system peripheral.
_NEURON = frozenset(("7064", "7065", "7066", "7067", "7164", "7264", "7364"))

#: Compression engines, which have the class of accelerators.
_NOT_ACCELERATORS = frozenset((("19e5", "a250"), ("19e5", "a251")))

#: Vendors whose display controllers belong to management processors (BMC) or hypervisors, and are never GPUs.
_MANAGEMENT_GRAPHICS = frozenset(("1a03", "102b", "126f", "18ca", "19e5"))  # ASPEED, Matrox, Silicon Motion, XGI, iBMC
_VIRTUAL_GRAPHICS = frozenset(
    (
        "1013",  # Cirrus Logic, as QEMU emulates it
        "1234",  # QEMU and Bochs
        "1414",  # Hyper-V
        "15ad",  # VMware
        "1ab8",  # Parallels
        "1ae0",  # Google
        "1af4",  # virtio
        "1b36",  # QXL
        "1d0f",  # Amazon EC2
        "5853",  # Xen
        "80ee",  # VirtualBox
        "fb5d",  # bhyve
    )
)
#: Display controllers for BMCs of older servers, by a vendor that also makes GPUs: Rage XL, Radeon 7000 and ES1000.
_NOT_GPUS = frozenset((("1002", "4752"), ("1002", "5159"), ("1002", "515e"), ("1002", "5965")))

#: Vendors of processors and chipsets with integrated graphics, which are on the root bus.
_INTEGRATED_GRAPHICS = frozenset(("0014", "1106", "1d17", "8086"))

#: Vendors of GPUs. A display controller of another vendor also counts as a GPU, with a finding.
_GPU_VENDORS = frozenset(
    ("0731", "1002", "10de", "1d94", "1e36", "1e3e", "1ec6", "1ec8", "1ed5", "1ee0", "8086", "9999", "cabc")
)


def device_name(vendor_id: str | None, device_id: str | None) -> str | None:
    """A short name such as `NVIDIA ConnectX-7`; None for an unknown part."""
    if vendor_id is None or device_id is None:
        return None
    device = DEVICES.get((vendor_id, device_id))
    return f"{VENDORS[vendor_id]} {device}" if device else None


def is_unlisted_gpu(function: PciFunction) -> bool:
    """Whether a display controller counts as a GPU although its vendor is not listed here."""
    is_display = (function.class_code or "03")[:2] == "03"  # lstopo's files may lack the class of a GPU
    return function.kind == "gpu" and is_display and function.vendor_id not in (None, *_GPU_VENDORS)


def _is_gpu(subclass: str, vendor_id: str | None, device_id: str | None, on_root_bus: bool) -> bool:
    """Whether a display controller is a GPU, and not only for a console."""
    if vendor_id is None or vendor_id in _MANAGEMENT_GRAPHICS or vendor_id in _VIRTUAL_GRAPHICS:
        return False
    if on_root_bus and subclass == "0300" and vendor_id in _INTEGRATED_GRAPHICS:
        return False
    return (vendor_id, device_id) not in _NOT_GPUS


@functools.lru_cache(maxsize=256)
def kind(class_code: str | None, vendor_id: str | None, device_id: str | None, on_root_bus: bool) -> str:
    """The kind of a function: gpu, accelerator, nic, nvme, bridge, data_direct or other.

    Every display controller (class 03) of any vendor is a GPU, except those of management processors and hypervisors.
    `on_root_bus` distinguishes the graphics of a desktop CPU from a card: both are Intel VGA controllers.
    """
    if vendor_id == "15b3" and device_id == "2100":
        return "data_direct"
    if (vendor_id, device_id) in _NOT_ACCELERATORS:
        return "other"
    base, sub = (class_code or "")[:2], (class_code or "")[:4]
    if sub in ("0604", "0609"):
        return "bridge"
    if base == "02" or sub == "0c06":  # 0c06: InfiniBand as a serial bus, as on older HCAs
        return "nic"
    if sub == "0108":
        return "nvme"
    if base == "03":
        return "gpu" if _is_gpu(sub, vendor_id, device_id, on_root_bus) else "other"
    if base == "12":
        return "gpu" if vendor_id == "1002" else "accelerator"
    if sub == "0b40":  # co-processors; Intel's are mostly QuickAssist (compression and cryptography)
        return "other" if vendor_id == "8086" and not (device_id or "").startswith("225") else "accelerator"
    if vendor_id == "1d0f" and device_id in _NEURON:
        return "accelerator"
    return "other"
