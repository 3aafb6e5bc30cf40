# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Prometheus metrics of shares, computed at each scrape: one series for each share and kind of amount."""

from __future__ import annotations

import logging
import typing as t

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..base import logs
from ..base.errors import DriverError
from . import share_state
from .share_state import HeldShare, SharedNic
from .shares import Shares

log = logging.getLogger(__name__)

_SHARE_LABELS = ["nic", "namespace", "claim", "request", "share"]


class ShareMetrics(Collector):
    """Collects the metrics of the node's shares."""

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._errors = logs.Conditions(log)

    def describe(self) -> t.Iterable[Metric]:
        return _families()

    def collect(self) -> t.Iterable[Metric]:
        nic_rates, share_rates, sent_bytes = families = _families()
        for planned in self._shares.nics():
            nic, sent = self._read(planned)
            totals = nic.totals
            for amount, rate in (
                ("physical", nic.divided.physical),
                ("capacity", nic.capacity),
                ("promised", totals.promised),
                ("guaranteed", nic.guaranteed),
                ("in_force", sum(share.current.rate for share in nic.shares if share.current)),
                ("debt", totals.debt),
            ):
                nic_rates.add_metric([nic.name, amount], rate)
            for share in nic.shares:
                labels = _labels(nic, share)
                for amount, rate in share_state.amounts(nic, share).items():
                    share_rates.add_metric([*labels, amount], rate)
                if share.device.share_id in sent:
                    sent_bytes.add_metric(labels, sent[share.device.share_id])
        return families

    def _read(self, nic: SharedNic) -> tuple[SharedNic, dict[str, int]]:
        """A NIC with the rates that the kernel reports, and the bytes that its shares have sent, by share ID. If the
        kernel does not report them, the NIC unchanged."""
        try:
            reported = share_state.as_reported(nic), share_state.sent(nic)
        except DriverError as error:
            self._errors.report(nic.name, logging.WARNING, f"{nic.name}: {error.message}")
            return nic, {}
        self._errors.clear(nic.name)
        return reported


def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily, CounterMetricFamily]:
    return (
        GaugeMetricFamily(
            "lanewise_shared_nic_bits_per_second",
            "Bandwidth of a NIC of which pods have shares, by amount: physical, capacity (physical times the factor), "
            "promised (of the capacity), guaranteed (to all shares together), in_force (reserved for shares now), debt "
            "(promised beyond the capacity).",
            labels=["nic", "amount"],
        ),
        GaugeMetricFamily(
            "lanewise_share_bits_per_second",
            "Bandwidth of a share, by amount: asked, guaranteed, in_force, ceiling.",
            labels=[*_SHARE_LABELS, "amount"],
        ),
        CounterMetricFamily(
            "lanewise_share_sent_bytes",
            "Bytes that the pod of a share has sent, as far as the kernel counts them.",
            labels=_SHARE_LABELS,
        ),
    )


def _labels(nic: SharedNic, share: HeldShare) -> list[str]:
    return [nic.name, share.record.namespace, share.record.name, share.device.request, share.device.share_id]
