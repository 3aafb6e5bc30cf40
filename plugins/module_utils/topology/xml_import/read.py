# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Reading a topology from a file instead of a node: NCCL's topology XML, or the output of `lstopo --of xml`.

Both contain fewer facts than the node itself; the other facts are unknown. Neither contains what Kubernetes would
publish, so `kubernetes` is empty for every function.
"""

from __future__ import annotations

import typing as t

from .. import overrides
from ..model import Source, Topology
from .document import parse
from .hwloc import Hwloc
from .nccl import Nccl

#: The files of large machines have some hundred kilobytes.
_MAX_BYTES = 16 << 20


def read_xml(path: str, form: str = "auto", locality_overrides: t.Sequence[t.Mapping[str, object]] = ()) -> Topology:
    """Read the node that a file describes.

    :param path: the file, of at most 16 MiB.
    :param form: `nccl`, `hwloc`, or `auto` to detect it by the root element.
    :param locality_overrides: see :func:`overrides.check_overrides`.
    :raises ValueError: for a file that is not such XML; the text contains the line and what to do. Its subclass
        OverrideError is raised for a malformed override.
    :raises OSError: for a file that cannot be read.
    """
    if form not in ("auto", "nccl", "hwloc"):
        raise ValueError(f"unknown form {form!r}; give 'auto', 'nccl' or 'hwloc'")
    stated = overrides.check_overrides(locality_overrides)
    with open(path, "rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise ValueError(f"larger than {_MAX_BYTES >> 20} MiB, so it is not a topology file; give the file of one node")
    root = parse(data)
    detected = {"system": "nccl", "topology": "hwloc"}.get(root.tag)
    if detected is None:
        hint = " (an NCCL graph; give the file of NCCL_TOPO_DUMP_FILE)" if root.tag == "graphs" else ""
        raise ValueError(
            f"line {root.line}: the root element is <{root.tag[:60]}>{hint}; an NCCL topology begins with <system>, "
            "a file of lstopo with <topology>"
        )
    if form not in ("auto", detected):
        raise ValueError(f"line {root.line}: <{root.tag}> is the {detected} form, not {form}; leave the form to 'auto'")
    topology = Topology(source=Source(kind=f"{detected}_xml", path=path))
    if detected == "nccl":
        Nccl(topology).read(root, stated)
    else:
        Hwloc(topology).read(root, stated)
    return topology
