# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Writes log records as JSON, one per line, with the claim and pod that they are about.

with logs.context(claim=uid, pod="training/worker-0"):
    log.info("attached", extra={"device": name})
"""

from __future__ import annotations

import contextlib
import contextvars
import datetime
import json
import logging
import sys
import typing as t

from .errors import bounded

#: The fields that a line may have in addition to its message, set by `context` or a call's `extra`.
FIELDS = ("claim", "claim_name", "pod", "pod_uid", "container", "device", "interface", "operation", "step", "instance")

#: Maximum characters of a message and of each field: parts of both come from tenants and container runtimes.
_MESSAGE_LIMIT, _FIELD_LIMIT = 8192, 512

_context: contextvars.ContextVar[dict[str, str] | None] = contextvars.ContextVar("context", default=None)


@contextlib.contextmanager
def context(**fields: str) -> t.Iterator[None]:
    """Add fields to all lines that this thread writes within the block. Raises KeyError for an unknown field."""
    for name in fields:
        if name not in FIELDS:
            raise KeyError(name)
    added = {name: bounded(value, _FIELD_LIMIT) for name, value in fields.items() if value}
    token = _context.set({**(_context.get() or {}), **added})
    try:
        yield
    finally:
        _context.reset(token)


class Conditions:
    """Logs conditions that are checked repeatedly, but only when they appear or change.

    A key identifies a condition, such as a claim that cannot be recovered. May be used from any thread.
    """

    _MAX_CONDITIONS = 1000

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._logged: dict[t.Hashable, str] = {}

    def report(self, key: t.Hashable, level: int, message: str) -> None:
        """Log the message, at level debug if it repeats the last message of this key."""
        same = self._logged.get(key) == message
        if not same:
            while len(self._logged) >= self._MAX_CONDITIONS:
                self._logged.clear()  # atomic: other threads may do the same
            self._logged[key] = message
        self._log.log(logging.DEBUG if same else level, "%s", message)

    def clear(self, key: t.Hashable) -> None:
        """Forget a condition that has ended, so that its next message is logged again."""
        self._logged.pop(key, None)


class JsonFormatter(logging.Formatter):
    """Formats a record as one line with a JSON object: time (RFC 3339, UTC), level, message, part (the module), FIELDS,
    error, trace (of the exception)."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.datetime.fromtimestamp(record.created, datetime.timezone.utc)
        line: dict[str, t.Any] = {
            "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "message": bounded(record.getMessage(), _MESSAGE_LIMIT),
            "part": record.name.removeprefix("lanewise_driver."),
            **(_context.get() or {}),
        }
        line.update(
            (name, bounded(str(record.__dict__[name]), _FIELD_LIMIT)) for name in FIELDS if name in record.__dict__
        )
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = bounded(f"{type(record.exc_info[1]).__name__}: {record.exc_info[1]}", _MESSAGE_LIMIT)
            line["trace"] = bounded(self.formatException(record.exc_info), 2 * _MESSAGE_LIMIT)
        return json.dumps(line)


def setup(level: str = "info", stream: t.TextIO | None = None) -> None:
    """Send all log records of the process to `stream` (default: stderr). May be called again to change the level.

    Raises ValueError for an unknown level.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.setLevel(level.upper())
    for old in [old for old in root.handlers if isinstance(old.formatter, JsonFormatter)]:
        root.removeHandler(old)
    root.addHandler(handler)
    # libraries log each request and retry
    for noisy in ("urllib3", "grpc"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))
