# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which optional fields of a ResourceSlice the API server keeps."""

from __future__ import annotations

import typing as t
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Features:
    """What the API server keeps of a slice."""

    taints: bool = True
    counters: bool = True


def cut(features: Features, lost: t.Iterable[str]) -> Features:
    """The features without those whose fields the server did not keep: paths, as `versions.dropped` returns them."""
    lost = list(lost)
    taints = features.taints and not any(".taints" in path for path in lost)
    counters = features.counters and not any("ounters" in path for path in lost)
    return replace(features, taints=taints, counters=counters)
