# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Files on disk that others read while we write them."""

from __future__ import annotations

import enum
import errno
import os
import secrets
import time
from pathlib import Path

#: The ending of files that are not yet whole. Readers of our folders look for others (.json).
UNFINISHED = ".unfinished"
#: Seconds after which an unfinished file has no writer any more.
_ABANDONED = 60


class PowerCut(enum.Enum):
    """What a power cut right after a write leaves. Each fsync is a commit of the filesystem's journal, which takes
    milliseconds on many disks: two for the first, one for the second, none for the third."""

    KEEPS_NEW = "the new content"
    KEEPS_EITHER = "the old content or the new"
    MAY_EMPTY = "the old content, the new, or none: for what is written anew after a boot"


def replace(path: Path, content: bytes, mode: int, power_cut: PowerCut = PowerCut.KEEPS_NEW) -> None:
    """Write a file as a whole: readers see the old content or the new, also after the death of this process. Leaves one
    with the same content as it is. The folder is made where it is missing. Raises OSError."""
    try:
        if path.read_bytes() == content:
            return
    except FileNotFoundError:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}{UNFINISHED}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(descriptor, mode)
            if power_cut is not PowerCut.MAY_EMPTY:
                os.fsync(descriptor)
        os.rename(draft, path)
    except OSError:
        remove(draft)
        raise
    if power_cut is PowerCut.KEEPS_NEW:
        _synchronize(path.parent)


def overwrite(path: Path, content: bytes) -> None:
    """Write new content into the same file, for those who have it mounted. Where it is shorter than the old, line ends
    follow: one write changes everything, and none of the old is left to be read. Where the disk is full the old content
    is put back. A power cut may lose it: whoever had it mounted is gone then too. Raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        content = content.ljust(size, b"\n")
        old = os.pread(descriptor, size + 1, 0)
        if old != content:
            if os.pwrite(descriptor, content, 0) != len(content):
                os.ftruncate(descriptor, size)
                os.pwrite(descriptor, old, 0)  # which has its room already
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file, if it is there. Raises OSError."""
    path.unlink(missing_ok=True)


def sweep(folder: Path, prefix: str = "") -> None:
    """Remove what killed writers left in a folder, known by age as another instance may be writing. Raises OSError."""
    for draft in folder.glob(f"{prefix}*{UNFINISHED}"):
        try:
            if time.time() - draft.stat().st_mtime > _ABANDONED:
                remove(draft)
        except FileNotFoundError:
            continue


def _synchronize(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
