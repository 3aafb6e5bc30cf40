# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Parses times that users write, and determines when a hold expires."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone

from .hold import MAX_DAYS, Hold

#: A time with a time zone. The second format is that of an unquoted YAML time that Ansible has converted to a string.
_TIMES = ("%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%d %H:%M:%S%z")
_DATE = "%Y-%m-%d"


def parse_user_time(value: object) -> datetime:
    """A time in UTC from what a user writes: 2026-12-01T08:00:00Z, or 2026-12-01 for the first second of that day.

    YAML reads unquoted values as a time or a date. Times without a time zone are in UTC. Raises ValueError.
    """
    if isinstance(value, datetime):
        return _utc(value)
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=timezone.utc)
    for form in _TIMES:
        try:
            time = datetime.strptime(str(value), form)
        except ValueError:
            continue
        return _utc(time)
    return _utc(datetime.strptime(str(value), _DATE))


def _utc(time: datetime) -> datetime:
    """A time in UTC. A time without a time zone is taken as UTC. Raises ValueError."""
    try:
        return time.replace(tzinfo=timezone.utc) if time.tzinfo is None else time.astimezone(timezone.utc)
    except OverflowError as error:
        raise ValueError(str(error)) from error


def expiry(expires: str | None, hours: int, old: Hold | None, now: datetime) -> datetime:
    """The expiry of a hold: `expires` if given, else that of the `old` hold unless overdue, else in `hours` hours.

    Raises ValueError if `expires` or `hours` is invalid.
    """
    if expires:
        try:
            return parse_user_time(expires)
        except ValueError as error:
            raise ValueError(f"expires: {expires!r} is not a time such as 2026-12-01T08:00:00Z") from error
    if not 0 < hours <= MAX_DAYS * 24:
        raise ValueError(f"hours: {hours} is not from 1 to {MAX_DAYS * 24}")
    if old and old.expires and not old.overdue(now):
        return old.expires
    return (now + timedelta(hours=hours)).replace(microsecond=0)
