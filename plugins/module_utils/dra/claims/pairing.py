# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Compiles claims for the nearest pairs of a board whose GPUs and NICs have no common attribute for them.

The GPU's request and each NIC's request have the same alternatives (`firstAvailable`), one for each set of GPUs that
have the same nearest NICs. Constraints forbid every combination of different alternatives: a `matchAttribute` on an
attribute that both drivers publish and whose values are never equal fails as soon as it covers two of the chosen
devices.

One constraint for each alternative would be enough, but fewer suffice. Each alternative gets a set of numbers, and no
set is a subset of another. Constraint `c` covers the GPU's alternatives whose sets contain `c`, and the NIC's
alternatives whose sets do not. So two different alternatives are covered by some constraint, and two equal ones by
none. By Sperner's theorem, `k` constraints suffice for at most `C(k, k // 2)` alternatives: five for eight.
"""

from __future__ import annotations

import itertools
import typing as t
from dataclasses import dataclass
from math import comb

from ...topology.affinity import RANK
from ..kube import limits
from ..vendors.knowledge import NUMA_NODE, PCI_BUS_ID, PCIE_ROOT, DriverKnowledge, Filter
from . import selectors
from .boards import BOARD, NEAREST_GPU_LEVEL, NEAREST_GPUS, MatchedBoard, MatchingDevice

#: The form of claims that select NICs only by address. They may match another board with the same addresses.
ADDRESS = "address"
#: The greatest distance that two devices with the same value of an attribute can have, on any board.
GUARANTEED = {"pcie_root": "PHB", "numa_node": "NODE"}
_COMMON = {"pcie_root": PCIE_ROOT, "numa_node": NUMA_NODE}


@dataclass(frozen=True)
class Alternative:
    """GPUs with the same nearest NICs. `gpu` selects the GPUs, `nics` the nearest NICs for each NIC of the group."""

    name: str
    gpus: tuple[str, ...]
    gpu: tuple[selectors.Selector, ...]
    nics: tuple[tuple[selectors.Selector, ...], ...]
    #: The addresses of the GPUs, for messages.
    description: str = ""


@dataclass(frozen=True)
class Pairing:
    """What a group is compiled to for some boards.

    `form` says how NICs are selected. `attribute` is the attribute that the constraints compare; empty if no
    constraints are needed.
    """

    alternatives: tuple[Alternative, ...]
    form: str
    attribute: str = ""


class NoPairing(Exception):
    """A group cannot be compiled for some boards. `split` says that it might be possible for fewer boards."""

    def __init__(self, reason: str, fix: str, rule: str, split: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.fix, self.rule, self.split = reason, fix, rule, split


def constraint_sets(number: int) -> list[frozenset[int]]:
    """The set of constraints of each of `number` alternatives. No set is a subset of another (an antichain)."""
    if number < 2:
        return [frozenset()] * number
    size = next(size for size in itertools.count(2) if comb(size, size // 2) >= number)
    return [
        frozenset(combination)
        for combination in itertools.islice(itertools.combinations(range(size), size // 2), number)
    ]


def exclusions(number: int) -> list[tuple[list[int], list[int]]]:
    """The fewest constraints that forbid every combination of different alternatives.

    Each constraint is the numbers of the alternatives of the first request, and those of the second, that it covers.
    """
    sets = constraint_sets(number)
    constraints = sorted(frozenset().union(*sets))
    return [
        (
            [alternative for alternative in range(number) if constraint in sets[alternative]],
            [alternative for alternative in range(number) if constraint not in sets[alternative]],
        )
        for constraint in constraints
    ]


def plain_level(matched_boards: t.Sequence[MatchedBoard], at_least: str, common: t.Mapping[str, str]) -> str:
    """The level whose attribute selects exactly the allowed pairs on all boards; empty if none does.

    `common` contains, by level, the attribute that all drivers of the group publish. A level is never chosen if it
    could match pairs farther than `at_least` on a board that was not probed.
    """
    for level, name in common.items():
        if name != _COMMON[level] or RANK[GUARANTEED[level]] > RANK[at_least]:
            continue
        if all(_selects(matched, name) for matched in matched_boards):
            return level
    return ""


def _selects(matched: MatchedBoard, name: str) -> bool:
    """Whether exactly the allowed pairs of a board have the same value of an attribute."""
    for number, nics in enumerate(matched.nics):
        for gpu, device in matched.gpus.items():
            value = device.values.get(name)
            for place, entries in nics.items():
                allowed = place in matched.allowed[number][gpu]
                if any((value is not None and value == nic.values.get(name)) is not allowed for nic in entries):
                    return False
    # a GPU with pairs for only some NIC requests does not matter, as one constraint is for all of the requests
    return True


class PairingPlanner:
    """Compiles the alternatives of a group for some boards.

    `gpu` and `nics` are the drivers of its devices, with their kinds. With `others`, GPUs without a nearest NIC can be
    allocated too, as in a preference list with other levels.
    """

    def __init__(
        self,
        gpu: tuple[DriverKnowledge, str],
        nics: t.Sequence[tuple[DriverKnowledge, str]],
        others: bool = False,
    ) -> None:
        self.gpu, self.nics, self.others = gpu, list(nics), others

    def pairing(self, matched_boards: t.Sequence[MatchedBoard]) -> Pairing:
        """The alternatives that are valid on all of these boards. Raises NoPairing."""
        if not any(matched.served() for matched in matched_boards):
            raise NoPairing("no GPU has a NIC that is near enough", "", "unreachable")
        mapped = [self._by_map(matched_boards, number) for number in range(len(self.nics))]
        if all(mapped):
            form, alternatives = "published map", self._of_published_map(matched_boards)
        elif all(by_map or self._has_board(matched_boards, number) for number, by_map in enumerate(mapped)):
            form, alternatives = "board and address", self._of_boards(matched_boards, mapped)
        else:
            form, alternatives = ADDRESS, self._of_addresses(matched_boards)
        if len(alternatives) > limits.FIRST_AVAILABLE:
            boards = len({matched.board.shape for matched in matched_boards})
            raise NoPairing(
                f"{boards} board(s) need {len(alternatives)} alternatives; the limit is {limits.FIRST_AVAILABLE}",
                "request whole boards with all, or select GPUs with where",
                "too-many",
                split=boards > 1,
            )
        attribute = self._attribute(matched_boards, alternatives) if len(alternatives) > 1 or self.others else ""
        return Pairing(tuple(alternatives), form, attribute)

    # the three forms of selecting the NICs of a GPU

    def _of_published_map(self, matched_boards: t.Sequence[MatchedBoard]) -> list[Alternative]:
        """Alternatives by the nearest GPUs that NICs publish; one list of alternatives for all boards."""
        alternatives = []
        for gpus in _gpus_by_nics(matched_boards):
            near = [_map_selectors(matched_boards, number, gpus) for number in range(len(self.nics))]
            alternatives.append(self._alternative(gpus, near, ""))
        return alternatives

    def _of_boards(self, matched_boards: t.Sequence[MatchedBoard], mapped: t.Sequence[bool]) -> list[Alternative]:
        """Alternatives by the addresses of NICs and the name of the board, which the NIC's driver publishes."""
        boards: dict[tuple[tuple[str, ...], tuple[frozenset[str], ...]], list[str]] = {}
        for matched in matched_boards:
            for gpus in _gpus_by_nics([matched]):
                places = tuple(nearest_to[gpus[0]] for nearest_to in matched.allowed)
                names = boards.setdefault((gpus, places), [])
                names += [matched.board.shape] if matched.board.shape not in names else []
        # nodes with the same map may publish different NICs, but an address means the same NIC on each of them
        alternatives = []
        for (gpus, places), names in boards.items():
            on_boards = selectors.one_of(BOARD, sorted(names))
            near = []
            for number, by_map in enumerate(mapped):
                if by_map:
                    near.append((*_map_selectors(matched_boards, number, gpus), on_boards))
                else:
                    near.append((self._address_of_nic(matched_boards, number, places[number]), on_boards))
            alternatives.append(
                self._alternative(gpus, near, names[0] if len({*map(_board_name, matched_boards)}) > 1 else "")
            )
        return alternatives

    def _of_addresses(self, matched_boards: t.Sequence[MatchedBoard]) -> list[Alternative]:
        """Alternatives by only the addresses of NICs. Raises NoPairing if boards have different pairs of addresses."""
        alternatives = []
        for gpus in _gpus_by_nics(matched_boards):
            near = []
            for number in range(len(self.nics)):
                with_gpu = [matched for matched in matched_boards if gpus[0] in matched.gpus]
                places = frozenset().union(*(matched.allowed[number][gpus[0]] for matched in with_gpu))
                for matched in with_gpu:
                    if places & set(matched.nics[number]) != matched.allowed[number][gpus[0]]:
                        driver = self.nics[number][0]
                        raise NoPairing(
                            f"boards with the same addresses have different pairs, and {driver.name} publishes no "
                            "attribute by which a claim could distinguish them",
                            "let lanewise.dev serve these NICs: it publishes the map of their board",
                            "ambiguous-boards",
                            split=True,
                        )
                near.append((self._address_of_nic(matched_boards, number, places),))
            alternatives.append(self._alternative(gpus, near, ""))
        return alternatives

    # parts

    def _alternative(
        self, gpus: tuple[str, ...], nics: t.Sequence[tuple[selectors.Selector, ...]], board: str
    ) -> Alternative:
        test = _by_address(*self.gpu, "GPUs", "align on pcie_root or numa_node")
        name = gpus[0].replace(":", "-").replace(".", "-") + (f"-{board[:6]}" if board else "")
        return Alternative(name, gpus, (selectors.one_of(test.name, gpus),), tuple(nics), " or ".join(gpus))

    def _address_of_nic(
        self, matched_boards: t.Sequence[MatchedBoard], number: int, places: t.Collection[str]
    ) -> selectors.Selector:
        driver, kind = self.nics[number]
        if driver.pf_address and kind == "vf":
            return selectors.one_of(driver.pf_address, sorted(places))
        test = _by_address(driver, kind, "NICs", "let lanewise.dev serve these NICs")
        rows = [matched.nics[number] for matched in matched_boards]
        devices = [device for row in rows for place in places for device in row.get(place, ())]
        return selectors.one_of(test.name, sorted({device.address for device in devices}))

    def _has_board(self, matched_boards: t.Sequence[MatchedBoard], number: int) -> bool:
        """Whether all matching NICs of a request publish the name of their board."""
        rows = [device for matched in matched_boards for devices in matched.nics[number].values() for device in devices]
        return all(device.values.get(BOARD) for device in rows)

    def _by_map(self, matched_boards: t.Sequence[MatchedBoard], number: int) -> bool:
        """Whether the nearest GPUs that NICs publish select exactly the allowed pairs."""
        for gpu in {gpu for matched in matched_boards for gpu in matched.served()}:
            levels = _levels(matched_boards, number, gpu)
            for matched in matched_boards:
                for place, devices in matched.nics[number].items() if gpu in matched.gpus else ():
                    allowed = place in matched.allowed[number][gpu]
                    if any(_publishes_pair(device, gpu, levels) is not allowed for device in devices):
                        return False
        return True

    def _attribute(self, matched_boards: t.Sequence[MatchedBoard], alternatives: t.Sequence[Alternative]) -> str:
        """An attribute that every device of the pairs publishes, and that differs in every forbidden combination.

        Raises NoPairing if there is none.
        """
        for name in (PCI_BUS_ID, PCIE_ROOT, NUMA_NODE):
            if all(_differs(matched, alternatives, name, self.others) for matched in matched_boards):
                return name
        drivers = dict.fromkeys([self.gpu[0].name, *(driver.name for driver, _kind in self.nics)])
        raise NoPairing(
            f"{' and '.join(drivers)} publish no common attribute by which wrong combinations could be excluded: every "
            "GPU and NIC of the pairs must have it, with different values on both (pciBusID, or a pcieRoot or numaNode "
            "that only nearest pairs share)",
            "let lanewise.dev serve these NICs: it publishes pciBusID, as the GPU drivers do",
            "no-common-attribute",
        )


def _by_address(driver: DriverKnowledge, kind: str, plural: str, fix: str) -> Filter:
    """The filter that selects a driver's devices by PCI address. Raises NoPairing if the driver publishes none."""
    test = driver.filter(kind, "pci_address")
    if test is None:
        raise NoPairing(
            f"{driver.name} {driver.version} publishes no PCI address, so a claim cannot select its {plural}",
            driver.hint("pci_address") or fix,
            "unanswered-filter",
        )
    return test


def _levels(matched_boards: t.Sequence[MatchedBoard], number: int, gpu: str) -> list[str]:
    """The levels of a GPU's nearest NICs on these boards."""
    pairs = [(matched, nic) for matched in matched_boards for nic in matched.allowed[number].get(gpu, ())]
    return sorted({matched.board.level(gpu, nic) for matched, nic in pairs}, key=RANK.__getitem__)


def _publishes_pair(device: MatchingDevice, gpu: str, levels: t.Collection[str]) -> bool:
    """Whether a NIC publishes that it is nearest to a GPU, at one of these levels."""
    near = str(device.values.get(NEAREST_GPUS, "")).split(",")
    return gpu in near and device.values.get(NEAREST_GPU_LEVEL) in levels


def _map_selectors(
    matched_boards: t.Sequence[MatchedBoard], number: int, gpus: tuple[str, ...]
) -> tuple[selectors.Selector, ...]:
    """The selectors of NICs that publish these GPUs as nearest."""
    levels = [level for level in RANK if any(level in _levels(matched_boards, number, gpu) for gpu in gpus)]
    parts = [selectors.lists(NEAREST_GPUS, gpu) for gpu in gpus]
    return (*parts, selectors.one_of(NEAREST_GPU_LEVEL, levels))


def _board_name(matched: MatchedBoard) -> str:
    return matched.board.shape


def _gpus_by_nics(matched_boards: t.Sequence[MatchedBoard]) -> list[tuple[str, ...]]:
    """The GPUs with a nearest NIC for every request, grouped by their nearest NICs on all boards."""
    groups: dict[t.Hashable, list[str]] = {}
    served = {gpu for matched in matched_boards for gpu in matched.served()}
    for gpu in dict.fromkeys(gpu for matched in matched_boards for gpu in matched.gpus):
        if gpu in served:
            nics = tuple(
                tuple(row[gpu] for row in matched.allowed) if gpu in matched.gpus else None
                for matched in matched_boards
            )
            groups.setdefault(nics, []).append(gpu)
    return [tuple(gpus) for gpus in groups.values()]


def _differs(matched: MatchedBoard, alternatives: t.Sequence[Alternative], name: str, others: bool) -> bool:
    """Whether an attribute differs in every combination of a GPU with a NIC of another alternative."""
    for gpu in matched.gpus if others else matched.served():
        own_alternative = next((alternative for alternative in alternatives if gpu in alternative.gpus), None)
        value = matched.gpus[gpu].values.get(name)
        if value is None and own_alternative is None:
            continue  # a constraint that covers this GPU fails
        if value is None:
            return False
        for alternative in alternatives:
            for number, nics in enumerate(matched.nics):
                near = {
                    place
                    for member in alternative.gpus
                    if member in matched.gpus
                    for place in matched.allowed[number][member]
                }
                for place in near:
                    for device in nics.get(place, ()):
                        nic_value = device.values.get(name)
                        if nic_value is None or (alternative is not own_alternative and nic_value == value):
                            return False
    return True
