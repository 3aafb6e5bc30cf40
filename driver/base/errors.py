# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The driver's errors. Their messages are shown in the pod's events."""

from __future__ import annotations

import os

#: Maximum characters of a message: parts of it may come from tenants, and it is stored in logs, events and by kubelet.
MESSAGE_LIMIT = 4000


def bounded(text: str, limit: int = MESSAGE_LIMIT) -> str:
    """`text` cut to `limit` characters. Characters that cannot be encoded in UTF-8 are replaced with `?`."""
    text = text if len(text) <= limit else text[: limit - 4] + " ..."
    return text.encode("utf-8", "replace").decode()


class DriverError(Exception):
    """The base class. `message` is one sentence for the pod's owner, of at most MESSAGE_LIMIT characters; `fix` says
    what to do."""

    fix = "See the driver's log on the node."

    def __init__(self, message: str) -> None:
        self.message = bounded(message)
        super().__init__(self.message)


class Refused(DriverError):
    """The claim, its configuration or its pod is at fault: a retry without a change does not help."""

    fix = "Correct the claim, its template or its class, then delete and recreate the pod."


class Busy(DriverError):
    """Something else has to finish first, such as another claim that still holds the device. A retry may help."""

    fix = "The driver retries; if this persists, resolve what the message names."


class Unreachable(DriverError):
    """The API server did not answer in time."""

    fix = "The driver retries; if this persists, check the node's connection to the API server."


class KernelError(DriverError):
    """A kernel operation failed. `step` says what was attempted; `errno` is 0 if there is no error number."""

    fix = "A kernel operation failed on the node: run 'lanewise-driver doctor' and 'lanewise-driver status' there."

    def __init__(self, step: str, errno: int = 0, detail: str = "") -> None:
        reason = detail or (os.strerror(errno) if errno else "failed")
        super().__init__(f"{step}: {reason}")
        self.step = step
        self.errno = errno
