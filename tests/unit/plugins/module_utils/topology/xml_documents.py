# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Topology files of NCCL and lstopo that were written for tests, and functions that read them."""

from __future__ import annotations

import os
import re
import tempfile

from ansible_collections.lanewise.dra.plugins.module_utils.topology import affinity
from ansible_collections.lanewise.dra.plugins.module_utils.topology.xml_import.read import read_xml

# A part of the layout that AWS documents for p4d: two sockets, switches below them, GPUs and a NIC below each switch.
CLOUD = """<?xml version="1.0"?>
<!-- one node -->
<system version="1">
  <cpu numaid="0" affinity="0000ffff,ffffffff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85">
    <pci busid="ffff:ff:01.0" class="0x060400" vendor="0xffff" device="0xffff" link_speed="8 GT/s" link_width="16">
      <pci busid="0000:10:1C.0" class="0x030200" vendor="0x10de" device="0x20b0" link_speed="8 GT/s" link_width="16"/>
      <pci busid="0000:10:1d.0" class="0x030200" vendor="0x10de" device="0x20b0" link_speed="8.0 GT/s PCIe"/>
      <pci busid="0000:10:1b.0" class="0x020000" vendor="0x1d0f" device="0xefa0" link_speed="" link_width="0"/>
    </pci>
    <pci busid="ffff:ff:02.0" class="0x060400" link_speed="8 GT/s" link_width="16">
      <pci busid="0000:20:1c.0" class="0x030200"/>
      <pci busid="0000:20:1b.0" class="0x020000" vendor="0x1d0f" device="0xefa0"/>
    </pci>
  </cpu>
  <cpu numaid="1" affinity="ffff0000,00000000" arch="x86_64">
    <pci busid="ffff:ff:03.0" class="0x060400">
      <pci busid="0000:90:1c.0" class="0x030200"/>
      <pci busid="0000:90:1b.0" class="0x020000"/>
    </pci>
  </cpu>
</system>
"""

# A dump of a running job has `net` and `gpu` elements, abbreviated PCI classes, and NVML's PCI domains of 8 digits.
DUMP = """<system version="1">
  <cpu host_hash="0x1" numaid="-1" arch="arm64">
    <pci busid="00000000:0B:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="00000000:0C:00.0" class="0x03">
        <gpu dev="0" sm="90" rank="0" gdr="1"><nvlink target="0000:05:00.0" count="4" tclass="0x068000"/></gpu>
      </pci>
      <pci busid="0000:0d:00.0" class="0x02">
        <nic>
          <net name="mlx5_0" dev="0" speed="200000" port="1" latency="0.0" guid="0x785634120003a1a0" gdr="1"/>
          <net name="mlx5_0" dev="1" speed="100000" port="2" guid="0x785634120003a1a0" gdr="1"/>
          <net name="mlx5_0" dev="2" speed="100000" port="2" guid="0x785634120003a1a0" gdr="1"/>
        </nic>
      </pci>
      <pci busid="0000:0e:00.0">
        <nic><net name="ens9f0" dev="3" speed="25000" port="0" guid="0x3"/></nic>
      </pci>
      <pci busid="0000:0f:00.0"><gpu dev="1" sm="90"/></pci>
    </pci>
    <nic><net name="eth0" dev="4" speed="10000" port="0" guid="0x0"/></nic>
  </cpu>
  <cpu host_hash="0x1" numaid="-1" arch="arm64"><nic><net name="mlx5_0+mlx5_1" speed="300000" port="1"/></nic></cpu>
</system>
"""

LSTOPO = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" os_index="0" cpuset="0x0000000f,,0x000000ff" nodeset="0x00000003" gp_index="1">
    <info name="DMIProductName" value="R1"/>
    <info name="DMISysVendor" value="Vendor"/>
    <info name="OSRelease" value="6.8.0"/>
    <info name="Architecture" value="x86_64"/>
    <object type="Package" os_index="0" cpuset="0x000000ff" gp_index="2">
      <info name="CPUModel" value="CPU 1"/>
      <object type="NUMANode" os_index="0" cpuset="0x000000ff" local_memory="1024" gp_index="3"/>
      <object type="Bridge" bridge_type="0-1" depth="0" bridge_pci="0000:[17-1e]">
        <object type="Bridge" bridge_type="1-1" depth="1" bridge_pci="0000:[18-1e]" pci_busid="0000:17:00.0"
                pci_type="0604 [8086:2030] [8086:0000] 04" pci_link_speed="15.753846">
          <object type="PCIDev" pci_busid="0000:18:00.0" pci_type="0207 [15b3:101b] [15b3:0007] 00"
                  pci_link_speed="31.507692">
            <info name="PCISlot" value="4"/>
            <object type="OSDev" name="ib0" osdev_type="2">
              <info name="Address" value="00:00:10:86:fe:80:00:00:00:00:00:00:b8:59:9f:03:00:01:02:03"/>
              <info name="Port" value="1"/>
            </object>
            <object type="OSDev" name="mlx5_0" osdev_type="3">
              <info name="NodeGUID" value="b859:9f03:0001:0203"/>
              <info name="SysImageGUID" value="b859:9f03:0001:0203"/>
              <info name="Port1State" value="4"/>
              <info name="Port1LID" value="0x15"/>
              <info name="Port1LMC" value="0"/>
              <info name="Port1GID0" value="fe80:0000:0000:0000:b859:9f03:0001:0203"/>
            </object>
          </object>
          <object type="PCIDev" pci_busid="0000:19:00.0" pci_type="0302 [10de:20b2] [10de:1463] a1"
                  pci_link_speed="0.000000">
            <object type="OSDev" name="nvml0" subtype="NVML" osdev_type="1">
              <info name="GPUModel" value="NVIDIA A100-SXM4-80GB"/>
            </object>
          </object>
        </object>
      </object>
      <object type="Bridge" bridge_type="0-1" depth="0" bridge_pci="0000:[30-30]">
        <object type="PCIDev" pci_busid="0000:30:00.0" pci_type="0302 [10de:20b2] [10de:1463] a1"/>
      </object>
      <object type="Bridge" bridge_type="0-1" depth="0" bridge_pci="10000:[01-01]">
        <object type="PCIDev" pci_busid="10000:01:00.0" pci_type="0108 [144d:a80a] [144d:aa8b] 00">
          <object type="OSDev" name="nvme0n1" osdev_type="0">
            <info name="Model" value="Disk"/>
            <info name="SerialNumber" value="S1"/>
          </object>
        </object>
      </object>
    </object>
    <object type="Package" os_index="1" cpuset="0x0000000f,,0x0" gp_index="9">
      <object type="NUMANode" os_index="8" cpuset="0x0000000f,,0x0" gp_index="10"/>
      <object type="Bridge" bridge_type="0-1" depth="0" bridge_pci="0001:[04-04]">
        <object type="PCIDev" pci_busid="0001:04:00.0" pci_type="0300 [0000:0000] [0000:0000] ff"/>
      </object>
    </object>
    <object type="Bridge" bridge_type="0-1" depth="0" bridge_pci="0002:[00-00]">
      <object type="PCIDev" pci_busid="0002:00:01.0" pci_type="0200 [8086:1592] [8086:0001] 02"/>
    </object>
  </object>
  <distances2 type="NUMANode" nbobjs="2" kind="5" name="NUMALatency" indexing="os">
    <indexes length="4">0 8 </indexes>
    <u64values length="8">10 40 </u64values><u64values length="8">40 10 </u64values>
  </distances2>
</topology>
"""


def load(document, form="auto", overrides=()):
    """The topology of a document that is text or bytes."""
    data = document if isinstance(document, bytes) else document.encode()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "topology.xml")
        with open(path, "wb") as file:
            file.write(data)
        return read_xml(path, form, overrides)


def level(topology, first, second):
    return affinity.level(topology.functions[first], topology.functions[second])


def finding_ids(topology):
    return {finding.id for finding in topology.findings}


#: Programming interfaces other than 00, by class and subclass.
PROGRAMMING_INTERFACES = {"0108": "02", "0604": "01"}


def as_hwloc_3(document):
    """A file of hwloc 2 in the format of hwloc 3: information about software is at the root, types of OS devices are
    bit masks, and types of PCI devices have a programming interface."""
    document = document.replace('version="2.0"', 'version="3.0"')
    for name in ("OSRelease", "Architecture"):
        (line,) = (line for line in document.splitlines(True) if f'"{name}"' in line)
        document = document.replace(line, "").replace("</topology>", f"{line}</topology>")
    bits = {"0": 1, "1": 4, "2": 16, "3": 48}  # RDMA devices have the network bit, too
    document = re.sub('osdev_type="(.)"', lambda match: f'osdev_type="{bits[match.group(1)]}"', document)
    return re.sub(
        'pci_type="((....)[^"]*)"',
        lambda match: f'pci_type="{match.group(1)} {PROGRAMMING_INTERFACES.get(match.group(2), "00")}"',
        document,
    )


LSTOPO_3 = as_hwloc_3(LSTOPO)
