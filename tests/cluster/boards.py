# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Boards on which pairs are claimed: real nodes' slices, example machines, and random maps.

Each has the map of its aligned pairs, made here from recorded addresses or from the probe's levels, and claims for one
pair and more. It uses neither the pairs of the compiler nor those of the scheduler.
"""

from __future__ import annotations

import functools
import json
import random
import typing as t
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.compiler import compile_site
from ansible_collections.lanewise.dra.plugins.module_utils.dra.kube.problems import Problems
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offer import Offer
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import as_dict
from ansible_collections.lanewise.dra.plugins.module_utils.topology.probe import probe
from ansible_collections.lanewise.dra.tests.machines.builder import build
from ansible_collections.lanewise.dra.tests.machines.description import load, names
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import facts

Object = dict[str, t.Any]
#: The NICs that are near enough to each GPU, by PCI address.
Map = dict[str, frozenset[str]]

RECORDED = Path(__file__).resolve().parents[1] / "claims" / "slices"
MOST = 4  # pairs a claim
VFS = 2  # of each NIC, where NICs have VFs
NEAR = ("SELF", "PIX", "PXB", "PHB", "NODE")
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
    one["metadata"]["name"]: one
    for one in (
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

    `form` says how pairs are asked for. `gpu` and `nic` are the classes of its GPUs and RDMA NICs.
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
        return rdma(self.offers, "vf" if self.nic.endswith("-vf") else "pf")

    @functools.cached_property
    def devices(self) -> dict[tuple[str, str], Offer]:
        """By driver and device."""
        return {(one.driver, one.device["name"]): one for one in self.offers if not one.possible}

    def single(self, kind: str) -> Object:
        """A claim for one GPU or NIC."""
        return {
            "devices": {"requests": [{"name": kind, "exactly": {"deviceClassName": getattr(self, kind)}}]},
        }


def aligned(pairs: Map, gpu: str, nic: str) -> bool:
    """Whether the map has a pair."""
    return nic in pairs.get(gpu, ())


def room(pairs: Map, gpus: t.Collection[str], nics: t.Collection[str], count: int) -> bool:
    """Whether there are this many pairs among free devices: tries all."""
    if count == 0:
        return True
    if len(gpus) < count or len(nics) < count:
        return False
    first, *others = sorted(gpus)
    for nic in sorted(pairs.get(first, ())):
        if nic in nics and room(pairs, others, set(nics) - {nic}, count - 1):
            return True
    return room(pairs, others, nics, count)  # a set of pairs without the first GPU


# claims by hand


def _address(attribute: str, addresses: t.Iterable[str]) -> Object:
    """A selector by address; `attribute` is `domain/name`."""
    domain, _slash, name = attribute.partition("/")
    listed = json.dumps(sorted(addresses))
    return {"cel": {"expression": f'device.attributes["{domain}"].{name} in {listed}'}}


def _nearest(gpu: str) -> Object:
    """A selector of NICs by what lanewise.dev publishes of them."""
    published = 'device.attributes["lanewise.dev"]'
    return {"cel": {"expression": f'has({published}.nearestGPUs) && {published}.nearestGPUs.contains("{gpu}")'}}


def alternatives(
    classes: tuple[str, str], gpus: t.Mapping[str, Object], nics: t.Mapping[str, Object], attribute: str, count: int
) -> Object:
    """Pairs by alternatives: subrequest gI and nI for each GPU, and a constraint for each that no other nJ satisfies.

    `gpus` and `nics` have, by the GPU's address, the selector of the GPU and of its NICs.
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


def matching(classes: tuple[str, str], attribute: str, count: int) -> Object:
    """Pairs by an attribute in common."""
    requests, constraints = [], []
    for pair in range(count):
        both = [f"gpu-{pair}", f"nic-{pair}"]
        requests += [{"name": name, "exactly": {"deviceClassName": one}} for name, one in zip(both, classes)]
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
        Offer(one["spec"]["driver"], node, node, device, address=address_of(device))
        for one in json.loads((RECORDED / f"{name}.json").read_text())
        for device in one["spec"]["devices"]
    ]


def rdma(given: t.Iterable[Offer], kind: str = "pf") -> list[str]:
    """The addresses of RDMA NICs, or of all VFs."""
    found = []
    for one in given:
        values = one.device["attributes"]
        flag = values.get("rdma" if one.driver == "lanewise.dev" else "dra.net/rdma", {})
        type_ = values.get("type", {}).get("string")
        if one.driver in NIC_CLASSES and (type_ == "vf" if kind == "vf" else type_ != "vf" and flag.get("bool")):
            found.append(one.address)
    return found


def gpus_of(given: t.Iterable[Offer]) -> list[str]:
    """The addresses of whole GPUs."""
    return [one.address for one in given if one.driver in GPU_CLASSES and not one.possible]


def ours(given: t.Iterable[Offer], pairs: Map) -> list[Offer]:
    """A real node's devices with lanewise.dev in DRANET's place, which publishes the map."""
    result = []
    for one in given:
        if one.driver == "dra.net":
            near = ",".join(gpu for gpu, nics in pairs.items() if one.address in nics)
            attributes = {
                PCI_BUS_ID: {"string": one.address},
                "type": {"string": "pf"},
                "rdma": one.device["attributes"]["dra.net/rdma"],
                **({"nearestGPUs": {"string": near}, "nearestGPULevel": {"string": "PIX"}} if near else {}),
            }
            device = {"name": one.device["name"], "attributes": attributes}
            one = Offer("lanewise.dev", one.pool, one.node, device, address=one.address)
        result.append(one)
    return sorted(result, key=lambda offer: offer.driver)


def by_hand(name: str, given: list[Offer], pairs: Map, attribute: str, form: str = "nearestGPUs") -> Board:
    """A board whose claims are alternatives; NICs are selected by `nearestGPUs` or by address."""
    nic = "dra.net" if any(one.driver == "dra.net" for one in given) else "lanewise.dev"
    classes = ("board-nvidia", NIC_CLASSES[nic])
    where = "dra.net/pciAddress" if nic == "dra.net" else PCI_BUS_ID
    gpus = {gpu: _address(PCI_BUS_ID, [gpu]) for gpu in pairs}
    nics = {gpu: _nearest(gpu) if form == "nearestGPUs" else _address(where, near) for gpu, near in pairs.items()}
    claims = {count: alternatives(classes, gpus, nics, attribute, count) for count in range(1, MOST + 1)}
    return Board(name, form, tuple(given), pairs, claims, *classes)


def shuffled(gpus: t.Sequence[str], nics: t.Sequence[str], seed: int) -> Map:
    """A random map: every NIC is for one GPU, and GPUs have as many as each other."""
    mixed = random.Random(seed).sample(list(nics), len(nics))
    each = len(nics) // len(gpus)
    return {gpu: frozenset(mixed[index * each : (index + 1) * each]) for index, gpu in enumerate(gpus)}


def real_boards() -> list[Board]:
    """EKS p4d, AKS GB300 and OKE GB200, with DRANET where it publishes enough, and with lanewise.dev."""
    found = []
    p4d = recorded("eks-p4d", "eks-p4d")
    domain = {one.address: one.device["attributes"][PCIE_ROOT]["string"] for one in p4d}
    same = {gpu: frozenset(nic for nic in rdma(p4d) if domain[nic] == domain[gpu]) for gpu in gpus_of(p4d)}
    classes = ("board-nvidia", "board-dranet")
    plain = {count: matching(classes, PCIE_ROOT, count) for count in range(1, MOST + 1)}
    found.append(Board("eks-p4d", "matchAttribute", tuple(p4d), same, plain, *classes))
    found.append(by_hand("eks-p4d-ours", ours(recorded("eks-p4d", "eks-p4d-ours"), same), same, PCI_BUS_ID))

    gb300 = recorded("aks-gb300", "aks-gb300-ours")
    own = {gpu: frozenset([nic]) for gpu, nic in zip(gpus_of(gb300), rdma(gb300))}  # as its example's templates have it
    found.append(by_hand("aks-gb300-ours", ours(gb300, own), own, PCI_BUS_ID))
    random_map = shuffled(gpus_of(gb300), rdma(gb300), 5)
    mixed = recorded("aks-gb300", "aks-gb300-mixed")
    found.append(by_hand("aks-gb300-mixed", ours(mixed, random_map), random_map, PCI_BUS_ID))

    gb200 = recorded("oke-gb200", "oke-gb200")
    half = {gpu: frozenset(nic for nic in rdma(gb200) if nic[:3] == gpu[:3]) for gpu in gpus_of(gb200)}  # its NUMA node
    found.append(by_hand("oke-gb200", gb200, half, PCIE_ROOT, "address"))
    random_map = shuffled(gpus_of(gb200), rdma(gb200), 7)
    found.append(by_hand("oke-gb200-mixed", recorded("oke-gb200", "oke-gb200-mixed"), random_map, PCIE_ROOT, "address"))
    theirs = recorded("oke-gb200", "oke-gb200-ours")
    found.append(by_hand("oke-gb200-ours", ours(theirs, random_map), random_map, PCI_BUS_ID))
    return found


def drawn(name: str, gpus: int, nics: int, near: t.Callable[[int], t.Iterable[int]]) -> Board:
    """A board as drawn: `near` has the NICs of each GPU by number. Devices have an address and no place."""
    gpu_at = [f"0000:{0x10 + index:02x}:00.0" for index in range(gpus)]
    nic_at = [f"0001:{0x10 + index:02x}:00.0" for index in range(nics)]
    given = []
    for index, address in enumerate(gpu_at + nic_at):
        own = {"type": {"string": "gpu"}} if index < gpus else {"type": {"string": "pf"}, "rdma": {"bool": True}}
        device = {"name": f"d-{index}", "attributes": {PCI_BUS_ID: {"string": address}, **own}}
        driver = "gpu.nvidia.com" if index < gpus else "lanewise.dev"
        given.append(Offer(driver, name, name, device, address=address))
    pairs = {gpu: frozenset(nic_at[nic] for nic in near(index)) for index, gpu in enumerate(gpu_at)}
    return by_hand(name, given, pairs, PCI_BUS_ID, "address")


def taking(board: Board, addresses: t.Iterable[str]) -> Object:
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


# example machines, with what the compiler writes


def levels_of(probed: Object, given: t.Sequence[Offer], kind: str) -> Map:
    """Each GPU's nearest NICs of those that are published, NODE or nearer, from the probe's table of levels.

    A VF is as near as its PF.
    """
    parent = {nic["address"]: nic["physfn"] or nic["address"] for nic in probed["nics"]}
    place = {address: index for index, address in enumerate(probed["affinity"]["devices"])}
    rows = probed["affinity"]["levels"]
    found = {}
    for gpu in gpus_of(given):
        levels = {nic: rows[place[gpu]][place[parent[nic]]] for nic in rdma(given, kind)}
        best = next((level for level in NEAR if level in levels.values()), None)
        if best:
            found[gpu] = frozenset(nic for nic, level in levels.items() if level == best)
    return found


def compiled(name: str, probed: Object, kind: str = "rdma") -> Board | None:
    """A machine with the claims that the compiler writes for it, those it does not refuse; None if it has no pairs.

    Pairs are of a GPU and a NIC of this kind, `rdma` or `vf`.
    """
    driver, version = ("gpu.nvidia.com", "0.5.0")
    if any(gpu["vendor"] == "AMD" for gpu in probed["gpus"]):
        driver, version = ("gpu.amd.com", "1.0.0")
    drivers: Object = {driver: {"version": version}, "lanewise.dev": {}}
    given = offers(name, probed, drivers)
    classes: dict[str, Object] = {}
    claims = {}
    for count in range(1, MOST + 1):
        devices = [{"name": "gpu", "kind": "gpu"}, {"name": "nic", "kind": kind}]
        group = {"count": count, "align": "nearest", "at_least": "NODE", "devices": devices}
        templates = [{"name": "pairs", "namespace": "boards", "groups": [group]}]
        try:
            made = compile_site({"dra_claims_drivers": drivers, "dra_claims_templates": templates}, {name: probed})
        except Problems:
            continue
        (claims[count],) = [one["spec"]["spec"] for one in made.objects if one["kind"] == "ResourceClaimTemplate"]
        classes.update({one["metadata"]["name"]: one for one in made.objects if one["kind"] == "DeviceClass"})
    if not claims:
        return None
    new = {one: f"board-{driver.split('.')[1]}-{one}" for one in classes}
    classes = {new[one]: {**body, "metadata": {**body["metadata"], "name": new[one]}} for one, body in classes.items()}
    for spec in claims.values():
        for request in spec["devices"]["requests"]:
            for body in [request["exactly"]] if "exactly" in request else request["firstAvailable"]:
                body["deviceClassName"] = new[body["deviceClassName"]]
    form = "alternatives" if "firstAvailable" in claims[1]["devices"]["requests"][0] else "matchAttribute"
    pairs = levels_of(probed, given, kind)
    return Board(name, form, tuple(given), pairs, claims, new["gpu"], new[kind], classes)


def with_map(probed: Object, pairs: Map) -> Object:
    """A machine with another map: these pairs are one switch apart, all others on other NUMA nodes."""
    place = {address: index for index, address in enumerate(probed["affinity"]["devices"])}
    rows = probed["affinity"]["levels"]
    nics = [nic["address"] for nic in probed["nics"] if not nic["physfn"]]
    for gpu in [one["address"] for one in probed["gpus"]]:
        for nic in nics:
            level = "PIX" if aligned(pairs, gpu, nic) else "SYS"
            rows[place[gpu]][place[nic]] = rows[place[nic]][place[gpu]] = level
    return probed


def with_vfs(tree: t.Any, vfs: int) -> t.Any:
    """The description of a machine whose InfiniBand NICs have VFs."""
    if not isinstance(tree, dict):
        return tree
    return {key: {"vfs": vfs} if str(key).endswith(" cx7-ib") else with_vfs(value, vfs) for key, value in tree.items()}


def vf_board(folder: Path) -> Board:
    """Eight GPUs, each with the VFs of one NIC, by a random map."""
    probed = as_dict(probe(str(build(with_vfs(load("hgx-h100"), VFS), folder))))
    gpus = [gpu["address"] for gpu in probed["gpus"]]
    pfs = [nic["address"] for nic in probed["nics"] if nic["nearest_gpus"]["level"] == "PIX"]
    found = compiled("hgx-h100-vfs", with_map(probed, shuffled(gpus, pfs, 17)), "vf")
    assert found and len(found.nics) == VFS * len(gpus)
    return found


def machine_boards() -> list[Board]:
    """Every example machine that has pairs, and three of them with random maps."""
    found = [compiled(name, facts(name)) for name in names()]
    for seed, name in enumerate(("hgx-h100", "mi300x", "gb200"), 11):
        probed = facts(name)
        fabric = [nic["address"] for nic in probed["nics"] if nic["rdma_devices"] and not nic["default_route"]]
        gpus = [gpu["address"] for gpu in probed["gpus"]]
        found.append(
            compiled(
                f"{name}-mixed", with_map(probed, shuffled(gpus, fabric[: len(fabric) // len(gpus) * len(gpus)], seed))
            )
        )
    return [one for one in found if one]
