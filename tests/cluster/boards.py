# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Boards on which pairs are claimed: real nodes' slices, example machines, and random maps.

Each board has a map of its aligned pairs, and claims for one or more pairs. The map is computed here, from recorded
addresses or from the probe's levels, and uses neither the compiler's pairs nor the scheduler's.
"""

from __future__ import annotations

import functools
import json
import random
import typing as t
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.objects import Object
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.problems import Problems
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offer import Offer
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import as_dict
from ansible_collections.lanewise.dra.plugins.module_utils.topology.probe import probe
from ansible_collections.lanewise.dra.tests.machines.builder import build
from ansible_collections.lanewise.dra.tests.machines.description import load, names
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import facts

#: The NICs that are near enough to each GPU, by PCI address.
Map = dict[str, frozenset[str]]

RECORDED = Path(__file__).resolve().parents[1] / "claims" / "slices"
MAX_PAIRS = 4  # of a claim
VFS = 2  # of each NIC, on machines whose NICs have VFs
NEAR_LEVELS = ("SELF", "PIX", "PXB", "PHB", "NODE")
PCI_BUS_ID = "resource.kubernetes.io/pciBusID"
PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
GPU_CLASSES = {"gpu.nvidia.com": "board-nvidia", "gpu.amd.com": "board-amd"}
NIC_CLASSES = {"lanewise.dev": "board-lanewise", "dra.net": "board-dranet"}


def _class(name: str, expression: str) -> Object:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }


CLASSES = {
    entry["metadata"]["name"]: entry
    for entry in (
        _class(
            "board-nvidia", 'device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu"'
        ),
        _class("board-amd", 'device.driver == "gpu.amd.com" && device.attributes["gpu.amd.com"].type == "amdgpu"'),
        _class("board-lanewise", 'device.driver == "lanewise.dev" && device.attributes["lanewise.dev"].rdma'),
        _class("board-dranet", 'device.driver == "dra.net" && device.attributes["dra.net"].rdma'),
    )
}


@dataclass(frozen=True)
class Board:
    """A node's devices, its map, and the claims for pairs on it: `claims[N]` is the spec for N pairs.

    `form` says how the claims express pairs. `gpu` and `nic` are the device classes of its GPUs and RDMA NICs.
    """

    name: str
    form: str
    offers: tuple[Offer, ...]
    pairs: Map
    claims: t.Mapping[int, Object]
    gpu: str
    nic: str
    classes: t.Mapping[str, Object] = field(default_factory=lambda: CLASSES)

    @functools.cached_property
    def nics(self) -> list[str]:
        """The addresses of the NICs or VFs of the class `nic`."""
        return rdma_nics(self.offers, "vf" if self.nic.endswith("-vf") else "pf")

    @functools.cached_property
    def devices(self) -> dict[tuple[str, str], Offer]:
        """The offers, by driver and device name."""
        return {(offer.driver, offer.device["name"]): offer for offer in self.offers if not offer.possible}

    def single(self, kind: str) -> Object:
        """A claim for one GPU or NIC."""
        return {
            "devices": {"requests": [{"name": kind, "exactly": {"deviceClassName": getattr(self, kind)}}]},
        }


def aligned(pairs: Map, gpu: str, nic: str) -> bool:
    """Whether this GPU and NIC are a pair of the map."""
    return nic in pairs.get(gpu, ())


def has_pairs(pairs: Map, gpus: t.Collection[str], nics: t.Collection[str], count: int) -> bool:
    """Whether these free devices contain `count` disjoint pairs of the map. Tries all combinations."""
    if count == 0:
        return True
    if len(gpus) < count or len(nics) < count:
        return False
    first, *others = sorted(gpus)
    for nic in sorted(pairs.get(first, ())):
        if nic in nics and has_pairs(pairs, others, set(nics) - {nic}, count - 1):
            return True
    return has_pairs(pairs, others, nics, count)  # without the first GPU


# hand-written claims


def _address(attribute: str, addresses: t.Iterable[str]) -> Object:
    """A selector of devices by PCI address. `attribute` is `domain/name`."""
    domain, _slash, name = attribute.partition("/")
    listed = json.dumps(sorted(addresses))
    return {"cel": {"expression": f'device.attributes["{domain}"].{name} in {listed}'}}


def _nearest(gpu: str) -> Object:
    """A selector of the NICs that lanewise.dev publishes as nearest to this GPU."""
    published = 'device.attributes["lanewise.dev"]'
    return {"cel": {"expression": f'has({published}.nearestGPUs) && {published}.nearestGPUs.contains("{gpu}")'}}


def alternatives_claim(
    classes: tuple[str, str], gpus: t.Mapping[str, Object], nics: t.Mapping[str, Object], attribute: str, count: int
) -> Object:
    """A claim that expresses pairs as alternatives. GPU number I has the subrequests gI and nI. A constraint forbids gI
    with every nJ except nI.

    `gpus` and `nics` are selectors by the GPU's address: of the GPU itself, and of its NICs.
    """
    requests, constraints = [], []
    for pair in range(count):
        for name, class_name, chosen in (("g", classes[0], gpus), ("n", classes[1], nics)):
            choices = [
                {"name": f"{name}{index}", "deviceClassName": class_name, "selectors": [selector]}
                for index, selector in enumerate(chosen.values())
            ]
            requests.append({"name": f"{'gpu' if name == 'g' else 'nic'}-{pair}", "firstAvailable": choices})
        for index in range(len(gpus)):
            others = [f"nic-{pair}/n{other}" for other in range(len(gpus)) if other != index]
            constraints.append({"matchAttribute": attribute, "requests": [f"gpu-{pair}/g{index}", *others]})
    return {"devices": {"requests": requests, "constraints": constraints}}


def matching_claim(classes: tuple[str, str], attribute: str, count: int) -> Object:
    """A claim that expresses pairs by an attribute that has the same value for the GPU and the NIC."""
    requests, constraints = [], []
    for pair in range(count):
        both = [f"gpu-{pair}", f"nic-{pair}"]
        requests += [{"name": name, "exactly": {"deviceClassName": entry}} for name, entry in zip(both, classes)]
        constraints.append({"matchAttribute": attribute, "requests": both})
    return {"devices": {"requests": requests, "constraints": constraints}}


# real nodes


def address_of(device: Object) -> str:
    """The PCI address of a recorded device."""
    values = device["attributes"]
    found: str = (values.get(PCI_BUS_ID) or values["dra.net/pciAddress"])["string"]
    return found


def recorded(name: str, node: str) -> list[Offer]:
    """The devices of a real node."""
    return [
        Offer(entry["spec"]["driver"], node, node, device, address=address_of(device))
        for entry in json.loads((RECORDED / f"{name}.json").read_text())
        for device in entry["spec"]["devices"]
    ]


def rdma_nics(published: t.Iterable[Offer], kind: str = "pf") -> list[str]:
    """The addresses of the RDMA NICs, or with the kind `vf` of all VFs."""
    found = []
    for device in published:
        values = device.device["attributes"]
        flag = values.get("rdma" if device.driver == "lanewise.dev" else "dra.net/rdma", {})
        type_ = values.get("type", {}).get("string")
        if device.driver in NIC_CLASSES and (type_ == "vf" if kind == "vf" else type_ != "vf" and flag.get("bool")):
            found.append(device.address)
    return found


def gpus_of(published: t.Iterable[Offer]) -> list[str]:
    """The addresses of whole GPUs."""
    return [device.address for device in published if device.driver in GPU_CLASSES and not device.possible]


def with_lanewise(recorded_offers: t.Iterable[Offer], pairs: Map) -> list[Offer]:
    """A real node's devices, with NICs of lanewise.dev instead of DRANET's. The new NICs publish the map."""
    result = []
    for offer in recorded_offers:
        if offer.driver == "dra.net":
            near = ",".join(gpu for gpu, nics in pairs.items() if offer.address in nics)
            attributes = {
                PCI_BUS_ID: {"string": offer.address},
                "type": {"string": "pf"},
                "rdma": offer.device["attributes"]["dra.net/rdma"],
                **({"nearestGPUs": {"string": near}, "nearestGPULevel": {"string": "PIX"}} if near else {}),
            }
            device = {"name": offer.device["name"], "attributes": attributes}
            offer = Offer("lanewise.dev", offer.pool, offer.node, device, address=offer.address)
        result.append(offer)
    return sorted(result, key=lambda offer: offer.driver)


def board_of_alternatives(
    name: str, published: list[Offer], pairs: Map, attribute: str, form: str = "nearestGPUs"
) -> Board:
    """A board whose claims are alternatives that select NICs by `nearestGPUs` or by address."""
    nic = "dra.net" if any(device.driver == "dra.net" for device in published) else "lanewise.dev"
    classes = ("board-nvidia", NIC_CLASSES[nic])
    where = "dra.net/pciAddress" if nic == "dra.net" else PCI_BUS_ID
    gpus = {gpu: _address(PCI_BUS_ID, [gpu]) for gpu in pairs}
    nics = {gpu: _nearest(gpu) if form == "nearestGPUs" else _address(where, near) for gpu, near in pairs.items()}
    claims = {count: alternatives_claim(classes, gpus, nics, attribute, count) for count in range(1, MAX_PAIRS + 1)}
    return Board(name, form, tuple(published), pairs, claims, *classes)


def shuffled_map(gpus: t.Sequence[str], nics: t.Sequence[str], seed: int) -> Map:
    """A random map that assigns the same number of NICs to each GPU, and each NIC to at most one GPU."""
    shuffled = random.Random(seed).sample(list(nics), len(nics))
    share = len(nics) // len(gpus)
    return {gpu: frozenset(shuffled[index * share : (index + 1) * share]) for index, gpu in enumerate(gpus)}


def real_boards() -> list[Board]:
    """EKS p4d, AKS GB300 and OKE GB200: with lanewise.dev, and with DRANET if it publishes enough attributes."""
    found = []
    p4d = recorded("eks-p4d", "eks-p4d")
    root = {device.address: device.device["attributes"][PCIE_ROOT]["string"] for device in p4d}
    same_root = {gpu: frozenset(nic for nic in rdma_nics(p4d) if root[nic] == root[gpu]) for gpu in gpus_of(p4d)}
    classes = ("board-nvidia", "board-dranet")
    claims = {count: matching_claim(classes, PCIE_ROOT, count) for count in range(1, MAX_PAIRS + 1)}
    found.append(Board("eks-p4d", "matchAttribute", tuple(p4d), same_root, claims, *classes))
    p4d_lanewise = with_lanewise(recorded("eks-p4d", "eks-p4d-ours"), same_root)
    found.append(board_of_alternatives("eks-p4d-ours", p4d_lanewise, same_root, PCI_BUS_ID))

    gb300 = recorded("aks-gb300", "aks-gb300-ours")
    # one NIC for each GPU, as in the claim templates of the example
    one_each = {gpu: frozenset([nic]) for gpu, nic in zip(gpus_of(gb300), rdma_nics(gb300))}
    found.append(board_of_alternatives("aks-gb300-ours", with_lanewise(gb300, one_each), one_each, PCI_BUS_ID))
    random_map = shuffled_map(gpus_of(gb300), rdma_nics(gb300), 5)
    mixed = recorded("aks-gb300", "aks-gb300-mixed")
    found.append(board_of_alternatives("aks-gb300-mixed", with_lanewise(mixed, random_map), random_map, PCI_BUS_ID))

    gb200 = recorded("oke-gb200", "oke-gb200")
    # the first digits of the PCI domain identify the NUMA node
    same_numa = {gpu: frozenset(nic for nic in rdma_nics(gb200) if nic[:3] == gpu[:3]) for gpu in gpus_of(gb200)}
    found.append(board_of_alternatives("oke-gb200", gb200, same_numa, PCIE_ROOT, "address"))
    random_map = shuffled_map(gpus_of(gb200), rdma_nics(gb200), 7)
    mixed = recorded("oke-gb200", "oke-gb200-mixed")
    found.append(board_of_alternatives("oke-gb200-mixed", mixed, random_map, PCIE_ROOT, "address"))
    gb200_lanewise = with_lanewise(recorded("oke-gb200", "oke-gb200-ours"), random_map)
    found.append(board_of_alternatives("oke-gb200-ours", gb200_lanewise, random_map, PCI_BUS_ID))
    return found


def synthetic_board(name: str, gpus: int, nics: int, near: t.Callable[[int], t.Iterable[int]]) -> Board:
    """A synthetic board. `near` returns the numbers of a GPU's NICs. Devices have an address, but no topology."""
    gpu_at = [f"0000:{0x10 + index:02x}:00.0" for index in range(gpus)]
    nic_at = [f"0001:{0x10 + index:02x}:00.0" for index in range(nics)]
    published = []
    for index, address in enumerate(gpu_at + nic_at):
        kind = {"type": {"string": "gpu"}} if index < gpus else {"type": {"string": "pf"}, "rdma": {"bool": True}}
        device = {"name": f"d-{index}", "attributes": {PCI_BUS_ID: {"string": address}, **kind}}
        driver = "gpu.nvidia.com" if index < gpus else "lanewise.dev"
        published.append(Offer(driver, name, name, device, address=address))
    pairs = {gpu: frozenset(nic_at[nic] for nic in near(index)) for index, gpu in enumerate(gpu_at)}
    return board_of_alternatives(name, published, pairs, PCI_BUS_ID, "address")


def claim_for(board: Board, addresses: t.Iterable[str]) -> Object:
    """A claim for exactly these devices."""
    gpus = set(gpus_of(board.offers))
    requests = []
    for index, address in enumerate(sorted(addresses)):
        body = {
            "deviceClassName": board.gpu if address in gpus else board.nic,
            "selectors": [_address(PCI_BUS_ID, [address])],
        }
        requests.append({"name": f"d{index}", "exactly": body})
    return {"devices": {"requests": requests}}


# example machines, with compiled claims


def nearest_map(probed: Object, published: t.Sequence[Offer], kind: str) -> Map:
    """Each GPU's nearest published NICs, of the level NODE or nearer, from the probe's table of levels.

    A VF has the level of its PF.
    """
    parent = {nic["address"]: nic["physfn"] or nic["address"] for nic in probed["nics"]}
    position = {address: index for index, address in enumerate(probed["affinity"]["devices"])}
    rows = probed["affinity"]["levels"]
    found = {}
    for gpu in gpus_of(published):
        levels = {nic: rows[position[gpu]][position[parent[nic]]] for nic in rdma_nics(published, kind)}
        best = next((level for level in NEAR_LEVELS if level in levels.values()), None)
        if best:
            found[gpu] = frozenset(nic for nic, level in levels.items() if level == best)
    return found


def compiled_board(name: str, probed: Object, kind: str = "rdma") -> Board | None:
    """A machine with the claims that the compiler writes for it. None if the compiler refuses all numbers of pairs.

    A pair is a GPU and a NIC of this kind, `rdma` or `vf`.
    """
    driver, version = ("gpu.nvidia.com", "0.5.0")
    if any(gpu["vendor"] == "AMD" for gpu in probed["gpus"]):
        driver, version = ("gpu.amd.com", "1.0.0")
    drivers: Object = {driver: {"version": version}, "lanewise.dev": {}}
    published = offers(name, probed, drivers)
    classes: dict[str, Object] = {}
    claims = {}
    for count in range(1, MAX_PAIRS + 1):
        devices = [{"name": "gpu", "kind": "gpu"}, {"name": "nic", "kind": kind}]
        group = {"count": count, "align": "nearest", "at_least": "NODE", "devices": devices}
        templates = [{"name": "pairs", "namespace": "boards", "groups": [group]}]
        try:
            compiled = compile_site({"dra_claims_drivers": drivers, "dra_claims_templates": templates}, {name: probed})
        except Problems:
            continue
        (claims[count],) = [
            manifest["spec"]["spec"] for manifest in compiled.objects if manifest["kind"] == "ResourceClaimTemplate"
        ]
        classes.update(
            {
                manifest["metadata"]["name"]: manifest
                for manifest in compiled.objects
                if manifest["kind"] == "DeviceClass"
            }
        )
    if not claims:
        return None
    prefix = f"board-{driver.split('.')[1]}-"  # boards of several vendors share a cluster
    classes = {
        prefix + deviceclass: {**body, "metadata": {**body["metadata"], "name": prefix + deviceclass}}
        for deviceclass, body in classes.items()
    }
    for spec in claims.values():
        for request in spec["devices"]["requests"]:
            for body in [request["exactly"]] if "exactly" in request else request["firstAvailable"]:
                body["deviceClassName"] = prefix + body["deviceClassName"]
    form = "alternatives" if "firstAvailable" in claims[1]["devices"]["requests"][0] else "matchAttribute"
    pairs = nearest_map(probed, published, kind)
    return Board(name, form, tuple(published), pairs, claims, f"{prefix}gpu", prefix + kind, classes)


def with_map(probed: Object, pairs: Map) -> Object:
    """The machine with another map: a GPU and a NIC of these pairs are below one PCIe switch, and any other GPU and NIC
    are on different NUMA nodes."""
    position = {address: index for index, address in enumerate(probed["affinity"]["devices"])}
    rows = probed["affinity"]["levels"]
    nics = [nic["address"] for nic in probed["nics"] if not nic["physfn"]]
    for gpu in [entry["address"] for entry in probed["gpus"]]:
        for nic in nics:
            level = "PIX" if aligned(pairs, gpu, nic) else "SYS"
            rows[position[gpu]][position[nic]] = rows[position[nic]][position[gpu]] = level
    return probed


def with_vfs(tree: t.Any, vfs: int) -> t.Any:
    """The description of a machine whose InfiniBand NICs have VFs."""
    if not isinstance(tree, dict):
        return tree
    return {key: {"vfs": vfs} if str(key).endswith(" cx7-ib") else with_vfs(value, vfs) for key, value in tree.items()}


def vf_board(folder: Path) -> Board:
    """A board with eight GPUs. A random map assigns one NIC with its VFs to each GPU."""
    probed = as_dict(probe(str(build(with_vfs(load("hgx-h100"), VFS), folder))))
    gpus = [gpu["address"] for gpu in probed["gpus"]]
    pfs = [nic["address"] for nic in probed["nics"] if nic["nearest_gpus"]["level"] == "PIX"]
    found = compiled_board("hgx-h100-vfs", with_map(probed, shuffled_map(gpus, pfs, 17)), "vf")
    assert found and len(found.nics) == VFS * len(gpus)
    return found


def machine_boards() -> list[Board]:
    """Every example machine that has pairs, and three of them also with random maps."""
    found = [compiled_board(name, facts(name)) for name in names()]
    for seed, name in enumerate(("hgx-h100", "mi300x", "gb200"), 11):
        probed = facts(name)
        fabric = [nic["address"] for nic in probed["nics"] if nic["rdma_devices"] and not nic["default_route"]]
        gpus = [gpu["address"] for gpu in probed["gpus"]]
        pairs = shuffled_map(gpus, fabric[: len(fabric) // len(gpus) * len(gpus)], seed)
        found.append(compiled_board(f"{name}-mixed", with_map(probed, pairs)))
    return [entry for entry in found if entry]
