# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# Note: this file is private to the collection.

"""The CSV files of the site report: columns, and rows from a node's facts."""

from __future__ import annotations

import csv
import io
import typing as t

from .report_facts import SEVERITIES, View

Row = list[t.Union[str, int, None]]

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


def device_rows(shown: str, view: View) -> t.Iterator[Row]:
    """The rows of devices.csv for a node with the name `shown`."""
    nics = {nic.address: nic for nic in view.topology.nics}
    gpus = {gpu.address: gpu for gpu in view.topology.gpus}
    for device in view.devices:
        nic, gpu = nics.get(device.address), gpus.get(device.address)
        near = nic.nearest_gpus if nic else gpu.nearest_nics if gpu else None
        yield [
            shown,
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
            near.level if near else "",
            " ".join(near.devices) if near else "",
        ]


def _cell(value: object) -> str:
    """The text of a cell."""
    text = "" if value is None else str(value)
    # a spreadsheet would evaluate such text as a formula, and text from a host is not trusted
    return "'" + text if isinstance(value, str) and text[:1] in ("=", "+", "-", "@") else text


def csv_of(columns: list[str], rows: list[Row]) -> bytes:
    """A CSV file in UTF-8 with a line of column names; None is an empty cell."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return stream.getvalue().encode("utf-8", "replace")
