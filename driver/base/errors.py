# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the driver says when it cannot do what it was asked; the message goes to the pod's events."""

from __future__ import annotations

import os

#: Characters of a message. Parts of it are what a tenant wrote, and it is kept by logs, events and kubelet.
MESSAGE_LIMIT = 4000


def bounded(text: str, limit: int = MESSAGE_LIMIT) -> str:
    """C(text) in no more than C(limit) characters, all of which UTF-8 can hold."""
    text = text if len(text) <= limit else text[: limit - 4] + " ..."
    return text.encode("utf-8", "replace").decode()


class DriverError(Exception):
    """The base of all of them. C(message) is one sentence for the pod's owner, of at most MESSAGE_LIMIT characters,
    C(fix) another one on what to do."""

    fix = "The log of the driver on the node tells more."

    def __init__(self, message: str) -> None:
        self.message = bounded(message)
        super().__init__(self.message)


class Refused(DriverError):
    """The claim, its configuration or its pod is at fault: to try again as it is does not help."""

    fix = "Correct the claim, its template or its class, and make the pod anew."


class Busy(DriverError):
    """Something else has to end first, such as another claim that still holds the device: to try again may help."""

    fix = "It is tried again; where it lasts, look at what is in the way."


class Unreachable(DriverError):
    """The API server did not answer in time."""

    fix = "It is tried again; where it lasts, look at the node's way to the API server."


class KernelError(DriverError):
    """The kernel refused a step. C(step) says what was tried; C(errno) is 0 where there was no error number."""

    fix = "The kernel of the node refused it: 'lanewise-driver doctor' and 'status' there tell more."

    def __init__(self, step: str, errno: int = 0, detail: str = "") -> None:
        reason = detail or (os.strerror(errno) if errno else "failed")
        super().__init__(f"{step}: {reason}")
        self.step = step
        self.errno = errno
