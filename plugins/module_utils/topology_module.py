# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Runs the package `topology` for Ansible modules."""

from __future__ import annotations

import os
import typing as t

if t.TYPE_CHECKING:
    from .topology.model import Topology

#: The keys of the result by subset.
SECTIONS: dict[str, tuple[str, ...]] = {
    "system": ("system",),
    "numa": ("numa_nodes", "packages"),
    "functions": ("functions",),
    "interfaces": ("interfaces",),
    "rdma": ("rdma_devices",),
    "devices": ("gpus", "nics", "nvme"),
    "affinity": ("affinity", "groups"),
    "findings": ("findings",),
}
#: The options of a probe, without the root folder and the imported file.
OPTIONS: dict[str, dict[str, t.Any]] = {
    "subset": {"type": "list", "elements": "str", "choices": list(SECTIONS), "default": list(SECTIONS)},
    "pci_functions": {"type": "str", "choices": ["relevant", "all"], "default": "relevant"},
    "vpd": {"type": "bool", "default": True},
    "gids": {"type": "bool", "default": True},
    "locality_overrides": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "address": {"type": "str"},
            "slot": {"type": "str"},
            "numa_node": {"type": "int"},
            "switch": {"type": "str"},
            "rail": {"type": "int"},
        },
    },
}


class Unreadable(Exception):
    """The topology cannot be read; the message says why."""


def read(
    root: str, options: t.Mapping[str, t.Any], import_file: str | None = None, form: str = "auto"
) -> dict[str, t.Any]:
    """The topology below a root folder or in an XML file, in the form of a module's result. Raises Unreadable.

    `options` are the values of `OPTIONS`.
    """
    # imported here, as the controller only needs OPTIONS, and Ansible compiles a collection's files in each process
    from .topology.diagnosis.diagnose import diagnose
    from .topology.model import OverrideError, as_dict
    from .topology.probe import keep_relevant, probe

    overrides = options["locality_overrides"]
    try:
        if import_file:
            topology = _imported(import_file, form, overrides)
        elif not os.path.isdir(os.path.join(root, "sys")):
            raise Unreadable(
                f"root {root!r} has no folder 'sys': set it to the absolute path of the folder with a machine's sys "
                "and proc"
            )
        else:
            topology = probe(
                root,
                overrides,
                with_vpd=options["vpd"],
                with_gids=options["gids"],
                only_relevant=options["pci_functions"] == "relevant",
                diagnose=diagnose,
            )
    except OverrideError as error:
        raise Unreadable(str(error)) from None
    except (OSError, ValueError) as error:
        action = f"import {import_file!r}" if import_file else f"read {root!r}"
        raise Unreadable(f"cannot {action}: {error}") from None
    if options["pci_functions"] == "relevant":
        keep_relevant(topology)
    result = as_dict(topology)
    for section in SECTIONS:
        if section not in options["subset"]:
            for key in SECTIONS[section]:
                del result[key]
    return result


def _imported(path: str, form: str, overrides: list[dict[str, t.Any]]) -> Topology:
    """The topology in an XML file. Raises OSError, ValueError."""
    # imported here, as a real node does not need it
    from .topology.xml_import.read import read_xml

    return read_xml(path, form, overrides)
