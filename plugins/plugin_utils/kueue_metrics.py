# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
# Note: this file is private to the collection.

"""Reads the charges of queues from Kueue's metrics. Only this file imports prometheus-client."""

from __future__ import annotations

import math

from ansible.module_utils.basic import missing_required_lib

CHARGED = "kueue_cluster_queue_resource_reservation"
#: The maximum length of metrics, in characters.
MAX_LENGTH = 64 << 20


class Unreadable(ValueError):
    """The text is not that of Kueue's metrics, or lacks the charges."""


def charges(text: str) -> dict[tuple[str, str], float]:
    """What Kueue has charged, by ClusterQueue and resource, summed over flavors. Raises Unreadable."""
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError as error:
        raise Unreadable(missing_required_lib("prometheus-client", reason="for Kueue's metrics")) from error
    if len(text) > MAX_LENGTH:
        raise Unreadable(f"they have {len(text)} characters, more than {MAX_LENGTH}")
    charged: dict[tuple[str, str], float] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples if family.name == CHARGED else ():
                key = (sample.labels["cluster_queue"], sample.labels["resource"])
                charged[key] = charged.get(key, 0.0) + sample.value
    except KeyError as error:
        raise Unreadable(f"{CHARGED} has no label {error}") from error
    except ValueError as error:
        raise Unreadable(f"they are not in Prometheus' text format: {error}") from error
    for (queue, resource), amount in charged.items():
        if not math.isfinite(amount):
            raise Unreadable(f"the charge of {resource} in {queue} is not a finite number: {amount}")
    if CHARGED not in text:
        raise Unreadable(
            f"they have no {CHARGED}: set metrics.enableClusterQueueResources in Kueue's configuration, or omit metrics"
        )
    return charged
