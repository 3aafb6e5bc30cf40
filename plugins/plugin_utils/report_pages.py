# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# Note: this file is private to the collection.

"""Renders the pages of the site report.

This uses plain Jinja2 with autoescaping, not Ansible's templar: hostnames, aliases and evidence are text from machines
that may be hostile, and must never be interpreted as templates or markup. The page's content security policy allows
only scripts with a known digest, and no content from other sources.
"""

from __future__ import annotations

import base64
import hashlib
import pathlib
import typing as t
from dataclasses import dataclass

import jinja2
from markupsafe import Markup

from ..module_utils.topology.model import Interface, Nic, RdmaDevice
from .report_drawing import draw
from .report_facts import LEVELS, SEVERITIES, Device, View, clean, natural

#: What each level means.
LEGEND = {
    "SELF": "The same device, or two functions of one card.",
    "PIX": "Both are below one PCIe switch, or share one bridge: traffic stays inside it.",
    "PXB": "Several switches or bridges lie between them, but not the CPU.",
    "PHB": "Traffic goes up to the CPU and down again within one root complex.",
    "NODE": "Traffic crosses from one root complex to another of the same NUMA node.",
    "SYS": "Traffic crosses to another NUMA node, usually over the link between CPU sockets.",
    "UNKNOWN": "The machine does not report it, as is common in virtual machines. Never counted as near.",
}

_MAX_MATRIX = 48  # the maximum number of devices in the drawn matrix


class NamedNode(t.Protocol):
    """The fields of a node that this file uses. The templates use more of them."""

    shown: str


@dataclass(frozen=True)
class Matrix:
    """The affinity matrix: the address and label of each column, each row with its head, and the number of devices
    that are omitted."""

    heads: list[tuple[str, str]]
    rows: list[tuple[tuple[str, str], list[str]]]
    hidden: int


@dataclass(frozen=True)
class GpuPairs:
    """A GPU and the NICs nearest to it: for each NIC its address, its label and the function that carries the data."""

    device: Device
    rail: int | None
    level: str
    nics: list[tuple[str, str, str | None]]


@dataclass(frozen=True)
class NicRow:
    """A NIC with its nearest GPUs, interfaces and RDMA devices.

    An interface or RDMA device of which the facts have only the name is a text.
    """

    device: Device
    nic: Nic
    level: str
    gpus: list[str]
    interfaces: list[Interface | str]
    rdma: list[RdmaDevice | str]
    representors: list[str]


class Pages:
    """The templates of one report."""

    def __init__(self, folders: t.Sequence[str], title: str) -> None:
        """Read the templates in `folders`. If several folders have a template, that of the first one is used.

        Raises `jinja2.TemplateError` if a template is missing or faulty.
        """
        self.environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(list(folders)),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )
        self.environment.globals.update(
            site_title=clean(title),
            legend=LEGEND,
            severities=SEVERITIES,
            style=Markup(self._source("style.css")),
            script=Markup(self._source("script.js")),
        )
        script = hashlib.sha256(self._source("script.js").encode()).digest()
        self.environment.globals["script_digest"] = "sha256-" + base64.b64encode(script).decode()
        self._index = self.environment.get_template("index.html.j2")
        self._node = self.environment.get_template("node.html.j2")
        #: A digest of the templates, this code and the title. If it changes, all pages are rendered again.
        self.version = self._version(title)

    def _source(self, name: str) -> str:
        loader = t.cast(jinja2.FileSystemLoader, self.environment.loader)
        return loader.get_source(self.environment, name)[0]

    def _version(self, title: str) -> str:
        digest = hashlib.sha256(f"{title}\0{jinja2.__version__}".encode("utf-8", "replace"))
        for name in sorted(self.environment.list_templates()):
            digest.update(f"\0{name}\0{self._source(name)}".encode())
        for path in sorted(pathlib.Path(__file__).parent.glob("report_*.py")):
            digest.update(path.read_bytes())
        return digest.hexdigest()

    def index(self, **values: object) -> bytes:
        """The fleet page."""
        return self._index.render(values).encode("utf-8", "replace")

    def node(self, view: View, node: NamedNode) -> bytes:
        """The page of one node."""
        return self._node.render(
            node=node,
            view=view,
            topology=view.topology,
            system=view.topology.system,
            drawing=Markup(draw(view, f"PCIe tree of {node.shown}")),
            matrix=matrix(view),
            pairs=list(pairs(view)),
            nics=list(nics(view)),
            sriov=[function for function in view.functions.values() if function.sriov and function.sriov.total_vfs],
            findings=sorted(view.topology.findings, key=lambda finding: SEVERITIES.index(finding.severity)),
        ).encode("utf-8", "replace")


def matrix(view: View) -> Matrix:
    """The affinity matrix with labels, limited to a size that a person can read."""
    affinity = view.topology.affinity
    order = list(range(len(affinity.devices)))
    total = len(order)
    if total > _MAX_MATRIX:  # GPUs and NICs matter most
        order = [i for i in order if view.by_address.get(affinity.devices[i], _NOTHING).kind != "nvme"][:_MAX_MATRIX]

    def level(row: int, column: int) -> str:
        try:
            return _level(affinity.levels[row][column])
        except IndexError:
            return "UNKNOWN"

    heads = [(affinity.devices[i], view.label(affinity.devices[i])) for i in order]
    rows = [(head, [level(row, column) for column in order]) for head, row in zip(heads, order)]
    return Matrix(heads, rows, total - len(order))


_NOTHING = Device(address="", kind="", label="")


def pairs(view: View) -> t.Iterator[GpuPairs]:
    """Each GPU with the NICs nearest to it."""
    gpus = {gpu.address: gpu for gpu in view.topology.gpus}
    for device in view.devices:
        if device.kind in ("gpu", "accelerator"):
            gpu = gpus[device.address]
            nearest = gpu.nearest_nics
            near_nics = [(address, view.label(address), nearest.via.get(address)) for address in nearest.devices]
            yield GpuPairs(device, gpu.rail, _level(nearest.level), near_nics)


def nics(view: View) -> t.Iterator[NicRow]:
    """Each NIC, except VFs of the node's own PFs, with its interfaces and RDMA devices."""
    facts = {nic.address: nic for nic in view.topology.nics}
    for device in view.devices:
        if device.kind == "nic":
            nic = facts[device.address]
            near = nic.nearest_gpus
            yield NicRow(
                device,
                nic,
                _level(near.level),
                gpus=[view.label(address) for address in near.devices],
                interfaces=[view.interfaces.get(name) or name for name in nic.interfaces],
                rdma=[view.rdma.get(name) or name for name in nic.rdma_devices],
                representors=sorted(nic.representors, key=natural),
            )


def _level(stated: str) -> str:
    """A known level."""
    return stated if stated in LEVELS else "UNKNOWN"
