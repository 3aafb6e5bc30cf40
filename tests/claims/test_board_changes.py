# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A board changes after a template was rendered: a card is replaced or moved, or firmware renumbers the buses.

For each form of template, the tests check whether rendering gives another template, which drift reports, and which
pairs the old template still gives.
"""

from __future__ import annotations

import copy
import json
import typing as t

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.inventory import NEAREST_ANNOTATION
from ansible_collections.lanewise.dra.plugins.module_utils.dra.claims.pair_reasons import pair_reason
from ansible_collections.lanewise.dra.plugins.module_utils.dra.vendors.offers import offers
from ansible_collections.lanewise.dra.plugins.module_utils.topology.boards import board_map
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.dra.claims.simulated_node import (
    DRANET,
    GPU,
    LANEWISE,
    NIC,
    NVIDIA,
    SimulatedNode,
    site,
    with_near_nics,
)
from ansible_collections.lanewise.dra.tests.unit.plugins.module_utils.probed import facts

pytest.importorskip("cel_expr_python", reason="needs the CEL engine")

Values = dict[str, t.Any]
OLD_NVIDIA: Values = {"gpu.nvidia.com": {"version": "0.4.0"}}
#: By the form that is rendered: the machine, the NIC of each GPU by number, and the drivers.
FORMS: dict[str, tuple[str, t.Callable[[int], t.Collection[int]], Values]] = {
    "published map": ("hgx-h100", lambda gpu: [(3 * gpu + 1) % 8], {**NVIDIA, **LANEWISE}),
    # six GPUs of one NIC are more than an attribute can list
    "board and address": ("hgx-h100", lambda gpu: [0] if gpu < 6 else [gpu - 5], {**NVIDIA, **LANEWISE}),
    "address": ("gb200", lambda gpu: [(gpu + 1) % 4], {**OLD_NVIDIA, **DRANET}),
}


def board(form: str) -> Values:
    name, own, _drivers = FORMS[form]
    return with_near_nics(copy.deepcopy(facts(name)), own)


def replaced_card(form: str) -> Values:
    """The board with another card in the same slot."""
    changed = board(form)
    nic = next(entry for entry in changed["nics"] if entry["rdma_devices"] and not entry["default_route"])
    nic["model"], nic["firmware"] = "another ConnectX-7", "28.40.1000"
    for device in changed["rdma_devices"]:
        if device["name"] in nic["rdma_devices"]:
            device["node_guid"] = device["sys_image_guid"] = "a088:c203:00ff:ffff"
    return changed


def moved(form: str) -> Values:
    """The board with the NICs of the last two GPUs exchanged."""
    name, own, _drivers = FORMS[form]
    number = len(facts(name)["gpus"])
    last = {number - 1: number - 2, number - 2: number - 1}
    return with_near_nics(copy.deepcopy(facts(name)), lambda gpu: own(last.get(gpu, gpu)))


def renumbered(form: str) -> Values:
    """The board with other addresses for all devices, which are as near to each other as before."""
    text = json.dumps(board(form))
    for domain in ("0000:", "0002:", "0008:", "0009:", "0010:", "0012:", "0018:", "0019:"):
        text = text.replace(f'"{domain}', f'"f{domain[1:]}').replace(f"pci{domain}", f"pcif{domain[1:]}")
    changed: Values = json.loads(text)
    return changed


def count_pairs(old: SimulatedNode, machine: Values, form: str) -> tuple[int, int]:
    """The number of claims of an older template that get pairs on the changed machine, and of correct pairs."""
    node = copy.copy(old)
    node.allocated, node.board = {}, board_map(machine)
    node.offers = offers("node", machine, FORMS[form][2])
    node.pf_of = {nic["address"]: nic["physfn"] or nic["address"] for nic in machine["nics"]}
    node.rdma_addresses = {offer.address for offer in node.offers}
    node.allocate_all()
    right = sum(node.board.level(gpu, nic) == "PIX" for gpu, nic in node.allocated_pairs())
    return len(node.allocated), right


def rendered(form: str, machine: Values) -> SimulatedNode:
    node = SimulatedNode(site([GPU, NIC], FORMS[form][2]), {"node": machine})
    assert [use.form for use in node.site.boards] == [form]
    (made,) = (manifest for manifest in node.site.objects if manifest["kind"] == "ResourceClaimTemplate")
    assert made["metadata"]["annotations"][NEAREST_ANNOTATION], "dra_apply would not replace it"
    return node


def total(form: str) -> int:
    node = rendered(form, board(form))
    return count_pairs(node, board(form), form)[0]


@pytest.mark.parametrize("form", FORMS)
def test_a_replaced_card_changes_nothing(form: str) -> None:
    before, after = rendered(form, board(form)), rendered(form, replaced_card(form))
    assert board_map(board(form)).shape == board_map(replaced_card(form)).shape
    assert replaced_card(form) != board(form) and after.claim == before.claim
    assert count_pairs(before, replaced_card(form), form) == (total(form), total(form))


@pytest.mark.parametrize(
    ("form", "differs", "still"), [("published map", False, 8), ("board and address", True, 0), ("address", True, None)]
)
def test_a_moved_card_changes_templates_that_name_boards_or_addresses(
    form: str, differs: bool, still: int | None
) -> None:
    """NICs publish the new map at once, so a template that uses the published map fits. A template with the board's
    name gives nothing. A template with addresses gives the old pairs until the claims are rendered again."""
    before, after = rendered(form, board(form)), rendered(form, moved(form))
    assert (after.claim != before.claim) is differs
    number, right = count_pairs(before, moved(form), form)
    if still is None:
        assert number == total(form) and right == number - 2
    else:
        assert (number, right) == (still, still)
    assert count_pairs(after, moved(form), form) == (total(form), total(form))


@pytest.mark.parametrize("form", FORMS)
def test_old_templates_give_nothing_after_buses_are_renumbered(form: str) -> None:
    """The reason for the refusal of the old template is reported. The new template gives as many pairs as before."""
    before, after = rendered(form, board(form)), rendered(form, renumbered(form))
    assert after.claim != before.claim
    assert count_pairs(before, renumbered(form), form) == (0, 0)
    offered = offers("node", renumbered(form), FORMS[form][2])
    reason = pair_reason(before.claim["devices"], before.classes, offered, before.engine)
    assert "none of the GPUs that this claim was rendered for" in reason
    assert count_pairs(after, renumbered(form), form) == (total(form), total(form))
