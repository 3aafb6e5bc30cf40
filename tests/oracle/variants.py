# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Peculiarities of recorded trees, other kernels and other platforms, each as a change to one small machine.

The decorator of a variant names the rules of compare.RULES that it must trigger. It may trigger no others except
COMMON_RULES.
"""

from __future__ import annotations

import os
import re
import typing as t
from pathlib import Path

from ansible_collections.lanewise.dra.tests.machines import description
from ansible_collections.lanewise.dra.tests.oracle.trees import Tree

_SMALL = description.load(Path(__file__).with_name("small.yml"))
_CPU, _NODE = "sys/devices/system/cpu", "sys/devices/system/node"
_IDS = ("vendor", "device", "subsystem_vendor", "subsystem_device")

#: Rules that any variant may trigger: the machine has a loopback interface, and functions whose local CPUs the probe
#: does not read.
COMMON_RULES = {"virtual-interface", "locality-not-read"}
VARIANTS: dict[str, tuple[t.Callable[[Tree], None], set[str]]] = {}


def make(name: str) -> Tree:
    """The small machine with the changes of a variant."""
    tree = Tree(_SMALL)
    VARIANTS[name][0](tree)
    return tree


def _variant(*rules: str) -> t.Callable[[t.Callable[[Tree], None]], t.Callable[[Tree], None]]:
    """Make a variant of a function that changes a tree. Comparing the tree must trigger these rules."""

    def add(change: t.Callable[[Tree], None]) -> t.Callable[[Tree], None]:
        VARIANTS[change.__name__] = (change, set(rules))
        return change

    return add


def _drop(tree: Tree, *names: str) -> None:
    """Remove these files from all PCI functions."""
    for name in names:
        tree.drop(f"sys/devices/pci*/{name}")


def _path_of(tree: Tree, address: str) -> str:
    """The device directory of a PCI function."""
    return next(path for path in tree.functions() if path.endswith(address))


def _replace(tree: Tree, old: str, new: str) -> None:
    """Replace a text in all paths, link targets and file contents."""
    tree.files = {path.replace(old, new): data.replace(old.encode(), new.encode()) for path, data in tree.files.items()}
    tree.links = {path.replace(old, new): target.replace(old, new) for path, target in tree.links.items()}


def _set_locality(tree: Tree, pattern: str, cpus: str, mask: str, node: int | None = None) -> None:
    """Set the local CPUs, as list and mask, of the functions whose path matches; also their NUMA node if given."""
    for path in tree.functions():
        if re.search(pattern, path):
            tree.put(f"{path}/local_cpulist", cpus)
            tree.put(f"{path}/local_cpus", mask)
            if node is not None:
                tree.put(f"{path}/numa_node", str(node))


@_variant()
def unchanged(tree: Tree) -> None:
    pass


# Identity


@_variant()
def ids_in_their_files_only(tree: Tree) -> None:
    _drop(tree, "modalias", "revision", "uevent")


@_variant("id-without-file")
def ids_in_uevent_only(tree: Tree) -> None:
    _drop(tree, "modalias", *_IDS)


@_variant("id-without-file", "unreadable-is-zero")
def ids_in_config_only(tree: Tree) -> None:
    _drop(tree, "modalias", "uevent", "revision", *_IDS)


@_variant(
    "unreadable-is-zero", "revision-without-config", "bridge-without-config", "host-bridge-by-bus", "encoding-from-text"
)
def no_ids(tree: Tree) -> None:
    _drop(tree, "modalias", "uevent", "config", "revision", *_IDS)


# The tree of bridges


@_variant("revision-without-config", "bridge-without-config", "host-bridge-by-bus", "encoding-from-text")
def no_config(tree: Tree) -> None:
    _drop(tree, "config")


@_variant("encoding-from-text")
def config_of_64_bytes(tree: Tree) -> None:
    for path in tree.matching("sys/devices/pci*/config"):
        tree.files[path] = tree.files[path][:64]


@_variant("bridge-without-buses", "host-bridge-by-bus")
def bridge_that_firmware_did_not_configure(tree: Tree) -> None:
    path = f"{_path_of(tree, '0000:97:02.0')}/config"
    config = tree.files[path]
    tree.files[path] = config[:0x18] + bytes(3) + config[0x1B:]


@_variant("bridge-of-other-class", "host-bridge-by-bus")
def cardbus_bridge(tree: Tree) -> None:
    path = _path_of(tree, "0000:97:02.0")
    tree.put(f"{path}/class", "0x060700")
    for name, old, new in (("modalias", b"bc06sc04", b"bc06sc07"), ("uevent", b"=60400", b"=60700")):
        tree.files[f"{path}/{name}"] = tree.files[f"{path}/{name}"].replace(old, new)
    tree.files[f"{path}/uevent"] = tree.files[f"{path}/uevent"].replace(b"bc06sc04", b"bc06sc07")


@_variant("bridge-not-recorded")
def port_left_out_of_the_recording(tree: Tree) -> None:
    tree.drop("sys/bus/pci/devices/0000:16:00.0")


@_variant("no-kernel-path")
def plain_directories(tree: Tree) -> None:
    for path in tree.functions():
        address = path.rpartition("/")[2]
        del tree.links[f"sys/bus/pci/devices/{address}"]
        for name in ("class", "vendor", "device", "config", "local_cpus", "numa_node", "modalias", "revision"):
            tree.files[f"sys/bus/pci/devices/{address}/{name}"] = tree.files[f"{path}/{name}"]
        for name in ("subsystem_vendor", "subsystem_device"):
            tree.files[f"sys/bus/pci/devices/{address}/{name}"] = tree.files[f"{path}/{name}"]


@_variant("host-bridge-by-bus")
def two_buses_on_one_root_complex(tree: Tree) -> None:
    _replace(tree, "pci0000:97/", "pci0000:15/")


@_variant()
def another_domain(tree: Tree) -> None:
    for bus in ("97", "98", "99"):
        _replace(tree, f"0000:{bus}", f"00ab:{bus}")


@_variant("wide-domain")
def domain_of_five_digits(tree: Tree) -> None:
    for bus in ("97", "98", "99"):
        _replace(tree, f"0000:{bus}", f"10000:{bus}")


# Links


@_variant()
def links_in_config_only(tree: Tree) -> None:
    _drop(tree, "current_link_*", "max_link_*")


@_variant()
def links_that_the_kernel_does_not_know(tree: Tree) -> None:
    for path in tree.matching("sys/devices/pci*/current_link_speed"):
        tree.put(path, "Unknown")


@_variant()
def links_that_config_contradicts(tree: Tree) -> None:
    for path in tree.matching("sys/devices/pci*/current_link_speed"):
        tree.put(path, "2.5 GT/s PCIe")


@_variant("encoding-from-text")
def links_of_generation_2(tree: Tree) -> None:
    _drop(tree, "max_link_*")
    for path in tree.matching("sys/devices/pci*/config"):
        tree.files[path] = tree.files[path][:64]
    for path in tree.matching("sys/devices/pci*/current_link_speed"):
        tree.put(path, "5.0 GT/s PCIe")


# Locality


@_variant()
def masks_only(tree: Tree) -> None:
    _drop(tree, "local_cpulist")
    tree.drop(f"{_NODE}/node*/cpulist")
    tree.drop(f"{_CPU}/cpu*/topology/*_list")


@_variant("locality-from-list")
def local_lists_only(tree: Tree) -> None:
    _drop(tree, "local_cpus", "numa_node")


@_variant("no-locality", "numa-from-file")
def node_number_only(tree: Tree) -> None:
    _drop(tree, "local_cpus", "local_cpulist")


@_variant()
def no_node_number(tree: Tree) -> None:
    _drop(tree, "numa_node")


@_variant("no-locality")
def no_locality(tree: Tree) -> None:
    _drop(tree, "numa_node", "local_cpus", "local_cpulist")


@_variant()
def firmware_without_proximity(tree: Tree) -> None:
    _set_locality(tree, "", "0-7", "ff", -1)


@_variant("locality-of-host-bridge", "numa-from-file")
def ports_of_one_root_near_two_nodes(tree: Tree) -> None:
    _set_locality(tree, "0000:97:02.0", "0-3", "0f", 0)


@_variant("locality-conflict")
def local_cpus_across_packages(tree: Tree) -> None:
    _set_locality(tree, "pci0000:97", "3-4", "18", -1)


@_variant()
def mask_and_list_disagree(tree: Tree) -> None:
    for path in tree.functions():
        tree.put(f"{path}/numa_node", "-1")
        tree.put(f"{path}/local_cpulist", "0-7")


@_variant()
def masks_with_a_prefix(tree: Tree) -> None:
    for path in tree.functions():
        tree.put(f"{path}/numa_node", "-1")
        tree.put(f"{path}/local_cpulist", "0-7")
        tree.put(f"{path}/local_cpus", f"0x{tree.files[f'{path}/local_cpus'].decode().strip()}")


@_variant()
def local_cpus_are_half_a_node(tree: Tree) -> None:
    _set_locality(tree, "pci0000:97", "4-5", "30")


# CPUs and memory


@_variant("offline-cpus")
def cpu_offline(tree: Tree) -> None:
    tree.put(f"{_CPU}/online", "0-6")
    tree.drop(f"{_CPU}/cpu7/topology/*")


@_variant("offline-cpus")
def cpu_offline_and_no_node_number(tree: Tree) -> None:
    """A node shows its online CPUs, a function all CPUs that are near it."""
    cpu_offline(tree)
    tree.put(f"{_NODE}/node1/cpulist", "4-6")
    tree.put(f"{_NODE}/node1/cpumap", "70")
    _drop(tree, "numa_node")


@_variant("no-locality", "numa-from-file")
def node_of_memory_only(tree: Tree) -> None:
    tree.put(f"{_NODE}/node1/cpulist", "")
    tree.put(f"{_NODE}/node1/cpumap", "00")
    _set_locality(tree, "pci0000:97", "", "00", 1)


@_variant("node-without-cpus")
def node_of_gpu_memory(tree: Tree) -> None:
    tree.put(f"{_NODE}/online", "0-2")
    for node, distances in enumerate(("10 21 40", "21 10 80", "40 80 10")):
        tree.put(f"{_NODE}/node{node}/distance", distances)
    tree.put(f"{_NODE}/node2/cpulist", "")
    tree.put(f"{_NODE}/node2/cpumap", "00")
    tree.put(f"{_NODE}/node2/meminfo", "Node 2 MemTotal:       83886080 kB")
    tree.put("proc/driver/nvidia/gpus/0000:18:00.0/numa_status", "Node: 2")


@_variant()
def folder_of_an_absent_node(tree: Tree) -> None:
    for name, text in (("cpumap", "00"), ("cpulist", ""), ("meminfo", "Node 2 MemTotal:       1024 kB")):
        tree.put(f"{_NODE}/node2/{name}", text)


@_variant()
def sparse_numbers(tree: Tree) -> None:
    _replace(tree, f"{_NODE}/node1/", f"{_NODE}/node8/")
    tree.put(f"{_NODE}/online", "0,8")
    _set_locality(tree, "pci0000:97", "4-7", "f0", 8)
    for cpu in range(4, 8):
        tree.put(f"{_CPU}/cpu{cpu}/topology/physical_package_id", "2056")


@_variant("no-nodes")
def kernel_without_numa(tree: Tree) -> None:
    tree.drop(f"{_NODE}/*")
    _drop(tree, "numa_node")


@_variant("node-from-list", "no-distances")
def node_list_only(tree: Tree) -> None:
    tree.drop(f"{_NODE}/node1/cpumap")


@_variant("node-overlap", "no-distances")
def nodes_overlap(tree: Tree) -> None:
    tree.put(f"{_NODE}/node1/cpulist", "3-7")
    tree.put(f"{_NODE}/node1/cpumap", "f8")


@_variant("no-distances")
def one_node(tree: Tree) -> None:
    tree.drop(f"{_NODE}/node1/*")
    tree.put(f"{_NODE}/online", "0")
    tree.put(f"{_NODE}/node0/cpulist", "0-7")
    tree.put(f"{_NODE}/node0/cpumap", "ff")
    tree.put(f"{_NODE}/node0/distance", "10")
    _set_locality(tree, "", "0-7", "ff", 0)


@_variant()
def no_distance_table(tree: Tree) -> None:
    tree.drop(f"{_NODE}/node*/distance")


@_variant("package-conflict")
def packages_overlap(tree: Tree) -> None:
    for cpu in range(4, 8):
        for name in ("core_siblings", "package_cpus"):
            tree.put(f"{_CPU}/cpu{cpu}/topology/{name}", "f8")
            tree.put(f"{_CPU}/cpu{cpu}/topology/{name}_list", "3-7")


@_variant()
def packages_unknown(tree: Tree) -> None:
    for cpu in range(8):
        tree.put(f"{_CPU}/cpu{cpu}/topology/physical_package_id", "-1")


@_variant()
def new_names_of_siblings(tree: Tree) -> None:
    _replace(tree, "/topology/core_siblings", "/topology/package_cpus")


# OS devices


@_variant("class-directory")
def class_directories(tree: Tree) -> None:
    """Before Linux 2.6.26 an entry of /sys/class was not a link, but a directory with a link `device`."""
    for path in tree.matching("sys/class/net/*") + tree.matching("sys/class/infiniband/*"):
        if path.endswith("/"):
            continue
        device = os.path.normpath(os.path.join(os.path.dirname(path), tree.links.pop(path)))
        for name in tree.matching(f"{device}/*"):
            if name in tree.files:
                tree.files[path + name[len(device) :]] = tree.files.pop(name)
            else:
                del tree.links[name]
        if "/virtual/" not in device:
            function = device.rsplit("/", 2)[0]
            tree.links[f"{path}/device"] = os.path.relpath(function, path)


@_variant()
def interfaces_that_were_not_recorded(tree: Tree) -> None:
    tree.drop("sys/devices/*/net/*")


@_variant()
def device_with_two_ports(tree: Tree) -> None:
    for path in tree.matching("sys/devices/pci*/infiniband/*/ports/1/*"):
        tree.files[path.replace("/ports/1/", "/ports/2/")] = tree.files[path]
    for path in tree.matching("sys/devices/pci*/infiniband/*/ports/2/state"):
        tree.put(path, "2: INIT")


@_variant()
def usb_interface(tree: Tree) -> None:
    device_path = f"{_path_of(tree, '0000:00:1f.0')}/usb1/1-1/1-1:1.0/net/usb0"
    for name, text in (("address", "02:00:00:00:00:01"), ("ifindex", "99"), ("type", "1")):
        tree.put(f"{device_path}/{name}", text)
    tree.links["sys/class/net/usb0"] = os.path.relpath(device_path, "sys/class/net")
    tree.links[f"{device_path}/device"] = "../.."


@_variant()
def soft_rdma(tree: Tree) -> None:
    device_path = "sys/devices/virtual/infiniband/rxe0"
    for name, text in (("node_guid", "0200:00ff:fe00:0001"), ("sys_image_guid", "0200:00ff:fe00:0001")):
        tree.put(f"{device_path}/{name}", text)
    tree.put(f"{device_path}/ports/1/state", "4: ACTIVE")
    tree.links["sys/class/infiniband/rxe0"] = os.path.relpath(device_path, "sys/class/infiniband")


@_variant("other-fabric")
def another_fabric(tree: Tree) -> None:
    device_path = f"{_path_of(tree, '0000:00:1f.0')}/bxi/bxi0"
    tree.put(f"{device_path}/uuid", "00000000-0000-0000-0000-000000000001")
    tree.links["sys/class/bxi/bxi0"] = os.path.relpath(device_path, "sys/class/bxi")


@_variant()
def block_class_only(tree: Tree) -> None:
    tree.drop("sys/class/nvme/*")


@_variant("no-nvme-class")
def nvme_driver_without_a_class(tree: Tree) -> None:
    """Before Linux 4.0 the block device of a drive was directly below the PCI function."""
    _replace(tree, "/nvme/nvme0/nvme0n1", "/block/nvme0n1")
    tree.drop("sys/class/nvme/*")
    tree.drop("sys/devices/*/nvme/nvme0/*")
    (device,) = tree.matching("sys/devices/*/block/nvme0n1/device")
    tree.links[device] = "../.."
