# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Drawing and matrix agree: devices in the box of the same switch are PIX, and devices in nested boxes PXB."""

from __future__ import annotations

import os
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.topology.model import as_dict
from ansible_collections.lanewise.dra.plugins.module_utils.topology.xml_import.read import read_xml
from ansible_collections.lanewise.dra.plugins.plugin_utils import report_drawing
from ansible_collections.lanewise.dra.plugins.plugin_utils.report_drawing import Box, draw
from ansible_collections.lanewise.dra.plugins.plugin_utils.report_facts import View, read_facts
from ansible_collections.lanewise.dra.tests.machines.description import names

SWITCH = '<pci busid="0000:{bus}:00.0" class="0x060400" link_speed="16 GT/s" link_width="16">{below}</pci>'
#: A switch whose ports hold a GPU, a NIC and another switch with both, as RCCL's models of cascaded switches do.
CASCADE = (
    '<system version="2"><cpu numaid="0" affinity="ff" arch="x86_64">'
    + SWITCH.format(
        bus="01",
        below='<pci busid="0000:02:00.0" class="0x030200"/><pci busid="0000:03:00.0" class="0x020700"/>'
        + SWITCH.format(
            bus="04",
            below='<pci busid="0000:05:00.0" class="0x030200"/><pci busid="0000:06:00.0" class="0x020700"/>'
            + SWITCH.format(bus="07", below='<pci busid="0000:08:00.0" class="0x030200"/>'),
        ),
    )
    + "</cpu></system>"
)


def chains(view: View) -> dict[str, tuple[str, ...]]:
    """The switches' boxes around each device, the outermost first."""
    found: dict[str, tuple[str, ...]] = {}

    def walk(box: Box, around: tuple[str, ...]) -> None:
        if box.style.startswith("chip"):
            found[box.head[1].removeprefix("from ")] = around
        for child in box.children:
            walk(child, (*around, box.head[0]) if box.head[:1] and box.head[0].startswith("Switch ") else around)

    for box in report_drawing._layout(view):
        walk(box, ())
    return found


def contradictions(view: View) -> list[str]:
    """Pairs of devices whose level in the matrix does not match the switches that are drawn around them."""
    drawn = chains(view)
    affinity = view.topology.affinity
    wrong = []
    for row, device in enumerate(affinity.devices):
        for column, other in enumerate(affinity.devices[:row]):
            reported = affinity.levels[row][column]
            if (
                device not in drawn
                or other not in drawn
                or reported == "SELF"
                or {device, other} & data_direct_nics(view)
            ):
                continue
            shared = os.path.commonprefix([drawn[device], drawn[other]])
            if shared:
                agrees = reported == ("PIX" if drawn[device] == drawn[other] else "PXB")
            else:
                agrees = reported not in ("PIX", "PXB")
            if not agrees:
                wrong.append(
                    f"{device} and {other}: {reported} in the matrix, {drawn[device]} and {drawn[other]} in the drawing"
                )
    return wrong


def data_direct_nics(view: View) -> set[str]:
    """NICs whose function near a GPU is not the one that is drawn."""
    return {nic.address for nic in view.topology.nics if nic.data_direct}


def imported(document: str, path: Path) -> View:
    path.write_text(document, encoding="utf-8")
    return View(read_facts(as_dict(read_xml(str(path)))))


@pytest.mark.parametrize("name", names())
def test_drawing_and_matrix_of_a_machine_agree(machines: dict[str, t.Any], name: str) -> None:
    view = View(read_facts(machines[name]))
    assert contradictions(view) == []


def test_drawing_and_matrix_of_nccl_files_agree(tmp_path: Path) -> None:
    view = imported(CASCADE, tmp_path / "cascade.xml")
    assert len(chains(view)) == 5
    assert contradictions(view) == []
    assert draw(view, "x").count('class="switch"') == 3
    assert [device.switch for device in view.devices] == [f"0000:{bus}:00.0" for bus in ("01", "04", "07", "01", "04")]


def test_drawing_and_matrix_of_cloud_files_agree() -> None:
    folder = Path(os.environ.get("LANEWISE_TOPOLOGIES", "/nowhere")) / "nccl"
    files = sorted(folder.glob("*.xml"))
    if not files:
        pytest.skip("set LANEWISE_TOPOLOGIES to the folder of recorded machines")
    for file in files:
        view = View(read_facts(as_dict(read_xml(str(file)))))
        assert contradictions(view) == [], file.name
        bridges = {address for device in view.devices for address in device.bridges}
        assert draw(view, "x").count('class="switch"') == len(bridges)
