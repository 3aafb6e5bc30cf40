# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Every network namespace of this node that can be listed: those of processes and threads, of open files of processes,
and of mounts in any mount namespace.

One that only a socket keeps, or a file that is on its way through a Unix socket, cannot be listed. Who looks for
something and does not find it here has not proven that it is gone. Looking takes some milliseconds for a thousand
processes: for the rare case, not for every pod.
"""

from __future__ import annotations

import os
import re
import time
import typing as t

from . import netns

_PROC = "/proc"
_ESCAPED = re.compile(r"\\([0-7]{3})")
_NAME = "net:["
#: How long what no namespace shows may be in one that the kernel is about to end, and the first pause, in seconds.
ENDING, _PAUSE = 2.5, 0.01

Key = tuple[int, int]


class Namespace(t.NamedTuple):
    """One namespace: an open file of it, which is closed when the next one is asked for; what tells it from others; and
    who has it, for people."""

    descriptor: int
    key: Key
    owner: str


def looks(patience: float = ENDING) -> t.Iterator[None]:
    """A turn for each look at something that no namespace shows; at least one, the last one after `patience` seconds.

    A namespace can be listed no more once its last user is gone, but the kernel ends it some time after that
    (cleanup_net in net/core/net_namespace.c, a kernel worker's). Until then what is in it is still there.
    """
    pause, end = _PAUSE, time.monotonic() + patience
    yield
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(pause, left))
        pause *= 2
        yield


def all_but_own() -> t.Iterator[Namespace]:
    """Every network namespace but the driver's own, once each. A process may end meanwhile, and a new one come."""
    own = os.stat(netns.HOST)
    seen: set[Key] = {(own.st_dev, own.st_ino)}
    for path, owner in _places():
        descriptor = _opened(path, own.st_dev, seen)
        if descriptor is None:
            continue
        try:
            status = os.fstat(descriptor)
            yield Namespace(descriptor, (status.st_dev, status.st_ino), owner)
        finally:
            os.close(descriptor)


def _opened(path: str, device: int, seen: set[Key]) -> int | None:
    """The network namespace at a path, if it is one that was not seen yet. Nothing else is opened: a file in a pod's
    mount namespace may be anything."""
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(place)
        key = status.st_dev, status.st_ino
        if status.st_dev != device or key in seen:
            return None
        descriptor = os.open(f"{_PROC}/self/fd/{place}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    finally:
        os.close(place)
    seen.add(key)
    if netns.is_open(descriptor):
        return descriptor
    os.close(descriptor)
    return None


def _places() -> t.Iterator[tuple[str, str]]:
    """Paths of namespaces and who has them; the likely ones first."""
    processes = [entry for entry in os.listdir(_PROC) if entry.isdigit()]
    for process in processes:
        yield f"{_PROC}/{process}/ns/net", f"process {process}"
    mounts: dict[str, str] = {}
    for process in processes:
        mounts.setdefault(_link(f"{_PROC}/{process}/ns/mnt"), process)
    for process in mounts.values():
        for point in _mounted(process):
            yield f"{_PROC}/{process}/root{point}", f"the mount {point}"
    for process in processes:
        for entry in _listed(f"{_PROC}/{process}/fd"):
            if _link(f"{_PROC}/{process}/fd/{entry}").startswith(_NAME):
                yield f"{_PROC}/{process}/fd/{entry}", f"an open file of process {process}"
    for process in processes:
        threads = _listed(f"{_PROC}/{process}/task")
        for thread in threads if len(threads) > 1 else ():
            yield f"{_PROC}/{process}/task/{thread}/ns/net", f"thread {thread} of process {process}"


def _mounted(process: str) -> list[str]:
    """Where network namespaces are mounted in a process's mount namespace."""
    try:
        with open(f"{_PROC}/{process}/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            lines = [line.split(" ") for line in file if " - nsfs " in line]
    except OSError:
        return []
    found = [words[4] for words in lines if len(words) > 4 and words[3].startswith(_NAME)]
    return [_ESCAPED.sub(lambda match: chr(int(match.group(1), 8)), point) for point in found]


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # it ended meanwhile
        return []


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
