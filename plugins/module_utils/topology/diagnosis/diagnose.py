# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""The last step of a probe whose facts are for people: fingerprint and findings."""

from __future__ import annotations

from ..affinity import Proximity
from ..model import Topology
from . import findings
from .fingerprint import fingerprint


def diagnose(topology: Topology, proximity: Proximity) -> None:
    """Add the fingerprint of a node, and its findings, in front of the existing ones."""
    topology.fingerprint = fingerprint(topology)
    topology.findings = findings.find(topology, proximity) + topology.findings
