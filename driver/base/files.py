# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Writes files that other processes read at the same time."""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import secrets
import time
from pathlib import Path

#: The suffix of incomplete files. Readers of these folders look for other suffixes (.json).
UNFINISHED = ".unfinished"
#: Seconds after which an unfinished file is considered abandoned.
_ABANDONED_SECONDS = 60


class PowerCut(enum.Enum):
    """What a file contains if the power is cut right after it is written. Each fsync commits the filesystem's journal,
    which takes milliseconds on many disks: KEEPS_NEW needs two, KEEPS_EITHER one, MAY_EMPTY none."""

    KEEPS_NEW = "the new content"
    KEEPS_EITHER = "the old content or the new"
    MAY_EMPTY = "the old content, the new, or none: for files that are rewritten after a boot"


def replace(path: Path, content: bytes, mode: int, power_cut: PowerCut = PowerCut.KEEPS_NEW) -> None:
    """Replace a file atomically: readers see the old content or the new, even if this process is killed. A file that
    already has this content is not touched. A missing folder is created. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        if path.read_bytes() == content:
            return
    draft = Path(f"{path}.{secrets.token_hex(4)}{UNFINISHED}")
    descriptor = _create_draft(draft, mode)
    try:
        try:
            written = 0
            while written < len(content):
                written += os.write(descriptor, content[written:] if written else content)
            os.fchmod(descriptor, mode)
            if power_cut is not PowerCut.MAY_EMPTY:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(draft, path)
    except OSError:
        remove(draft)
        raise
    if power_cut is PowerCut.KEEPS_NEW:
        _fsync_folder(path.parent)


def _create_draft(path: Path, mode: int) -> int:
    """Create a file, and its folder if that is missing. Returns a descriptor for writing. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags, mode)
    except FileNotFoundError:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        return os.open(path, flags, mode)


def overwrite(path: Path, content: bytes) -> None:
    """Write new content into the same inode, for containers that have the file mounted. Shorter content is padded with
    newlines, so that one write replaces all of the old content. If the disk is full, the old content is restored. A
    power cut may lose the content, but it also ends the containers. Raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        content = content.ljust(size, b"\n")
        old = os.pread(descriptor, size + 1, 0)
        if old != content:
            if os.pwrite(descriptor, content, 0) != len(content):
                os.ftruncate(descriptor, size)
                os.pwrite(descriptor, old, 0)  # the blocks of the old content are still allocated
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file if it exists. Raises OSError."""
    path.unlink(missing_ok=True)


def sweep(folder: Path, prefix: str = "") -> None:
    """Remove unfinished files that killed writers left behind, if their names begin with `prefix`. Files that were
    modified within the last _ABANDONED_SECONDS stay: another instance may be writing them. Raises OSError."""
    for draft in folder.glob(f"{prefix}*{UNFINISHED}"):
        try:
            if time.time() - draft.stat().st_mtime > _ABANDONED_SECONDS:
                remove(draft)
        except FileNotFoundError:
            continue


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
