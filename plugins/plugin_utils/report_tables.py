# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# Note: this file is private to the collection.

"""The tables of the site report as CSV: their columns, the rows of devices, and the text of a file."""

from __future__ import annotations

import csv
import io
import typing as t

from .report_facts import SEVERITIES, View

#: The values of a row in the order of its table's columns. None is unknown.
Row = list[t.Union[str, int, None]]

#: The columns of nodes.csv, findings.csv and devices.csv. Sites read these files, so the names stay.
NODE_COLUMNS = [
    "node",
    "status",
    "product",
    "gpu_model",
    "gpus",
    "nics",
    "nvme",
    "groups",
    *SEVERITIES,
    "outlier",
    "fingerprint",
    "facts_changed",
]
FINDING_COLUMNS = ["node", "severity", "id", "summary", "action", "devices", "evidence"]
DEVICE_COLUMNS = [
    "node",
    "address",
    "kind",
    "label",
    "model",
    "driver",
    "numa_node",
    "root_complex",
    "switch",
    "rail",
    "link",
    "link_degraded",
    "vfs",
    "interfaces",
    "rdma_devices",
    "nearest_level",
    "nearest",
]


def device_rows(node_name: str, view: View) -> t.Iterator[Row]:
    """The rows of devices.csv for a node. Lists, such as a NIC's interfaces, are separated by spaces."""
    nics = {nic.address: nic for nic in view.topology.nics}
    gpus = {gpu.address: gpu for gpu in view.topology.gpus}
    for device in view.devices:
        nic, gpu = nics.get(device.address), gpus.get(device.address)
        nearest = nic.nearest_gpus if nic else gpu.nearest_nics if gpu else None
        yield [
            node_name,
            device.address,
            device.kind,
            device.label,
            device.model,
            device.driver,
            device.numa,
            device.root,
            device.switch,
            device.rail,
            device.link,
            device.degraded,
            device.vfs,
            " ".join(nic.interfaces) if nic else "",
            " ".join(nic.rdma_devices) if nic else "",
            nearest.level if nearest else "",
            " ".join(nearest.devices) if nearest else "",
        ]


def _cell(value: object) -> str:
    """A value as the text of a cell, which no spreadsheet evaluates as a formula: text of a node is not trusted."""
    text = "" if value is None else str(value)
    return "'" + text if isinstance(value, str) and text[:1] in ("=", "+", "-", "@") else text


def csv_bytes(columns: list[str], rows: list[Row]) -> bytes:
    """A table as CSV (RFC 4180, but with line feeds only): a line of column names, and a line for each row.

    It is encoded in UTF-8. A character that UTF-8 does not have, half of a surrogate pair, becomes `?`.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return stream.getvalue().encode("utf-8", "replace")
