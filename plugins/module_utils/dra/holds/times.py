# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""When a hold expires."""

from __future__ import annotations

from datetime import datetime, timedelta

from . import hold as forms
from .hold import Hold


def expiry(expires: str | None, hours: int, old: Hold | None, now: datetime) -> datetime:
    """The expiry that is asked for. A hold that exists and is not overdue keeps its own, unless `expires` is given.

    Raises ValueError.
    """
    if expires:
        try:
            return forms.moment(expires)
        except ValueError as error:
            raise ValueError(f"expires: {expires!r} is not a time such as 2026-12-01T08:00:00Z") from error
    if not 0 < hours <= forms.DAYS * 24:
        raise ValueError(f"hours: {hours} is not from 1 to {forms.DAYS * 24}")
    if old and old.expires and not old.overdue(now):
        return old.expires
    return (now + timedelta(hours=hours)).replace(microsecond=0)
