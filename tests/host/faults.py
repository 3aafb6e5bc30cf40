# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Access to a node, in which one step of a run fails with a chosen error. All other steps are executed."""

from __future__ import annotations

import errno
import os
import subprocess
import typing as t

from ansible_collections.lanewise.dra.plugins.module_utils.host.access.system import System, refused

T = t.TypeVar("T")


class NetlinkRefusal(Exception):
    """Like pyroute2's NetlinkError: it is not an OSError, and `code` is the error number."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(code, os.strerror(code))


#: Every kind of error by name: from the kernel, a full disk or a program, and unexpected exceptions.
ERRORS: dict[str, t.Callable[[str], BaseException]] = {
    **{
        errno.errorcode[code]: (lambda step, code=code: refused(step, code, os.strerror(code)))
        for code in (errno.EBUSY, errno.EIO, errno.ENOSPC, errno.EPERM, errno.ENODEV)
    },
    "OSError": lambda step: OSError(errno.ENOSPC, "No space left on device", step),
    "ValueError": lambda step: ValueError(f"embedded null byte in {step}"),
    "KeyError": KeyError,
    "RuntimeError": RuntimeError,
    "MemoryError": lambda step: MemoryError(),
    "TimeoutExpired": lambda step: subprocess.TimeoutExpired([step], 10),
    "netlink": lambda step: NetlinkRefusal(errno.ENOBUFS),
    "interrupted": lambda step: KeyboardInterrupt(),
}


class FailingSystem(System):
    """Fails step number `fail_at` (from 0) with the error number `code`, or with `error`. With `takes_effect`, the step
    is executed before it fails, as when the kernel's reply is lost. With `always`, the step also fails each time it is
    tried again.

    Each change is a step. With `reads`, each read by a program, by netlink or of a whole file is a step, too, except
    those before `begin`. `steps` lists the attempted steps in order; those after the failed one belong to the undo.
    """

    def __init__(  # noqa: PLR0917  # callers pass most of them by keyword
        self,
        fail_at: int = -1,
        code: int = 0,
        takes_effect: bool = False,
        root: str = "/",
        error: t.Callable[[str], BaseException] | None = None,
        always: bool = False,
        reads: bool = False,
        run: t.Any = None,
    ) -> None:
        super().__init__(root, run)
        self._fail_at, self._takes_effect, self._always, self._reads = fail_at, takes_effect, always, reads
        self._error = error or (lambda step: refused(step, code, os.strerror(code)))
        self._within_step, self._begun = False, False
        self.steps: list[str] = []

    def begin(self) -> None:
        """Start a run. Earlier reads, which the plan needs, do not count as steps."""
        super().begin()
        self._begun = True

    @property
    def failed(self) -> bool:
        """Whether the run has reached the step that fails."""
        return 0 <= self._fail_at < len(self.steps)

    def _change(self, step: str, change: t.Callable[[], T]) -> T:
        if self._within_step:  # a step is counted once, even if it consists of others
            return change()
        self.steps.append(step)
        number = len(self.steps) - 1
        repeated = self._always and number > self._fail_at >= 0 and step == self.steps[self._fail_at]
        self._within_step = True
        try:
            if number != self._fail_at and not repeated:
                return change()
            if self._takes_effect and not repeated:
                change()
        finally:
            self._within_step = False
        raise self._error(step)

    def _read_step(self, step: str, request: t.Callable[[], T]) -> T:
        return self._change(step, request) if self._reads and self._begun else request()

    def write(self, path: str, value: str, step: str, fix: str = "") -> None:
        self._change(step, lambda: super(FailingSystem, self).write(path, value, step, fix))

    def write_at(self, path: str, offset: int, data: bytes, step: str, fix: str = "") -> None:
        self._change(step, lambda: super(FailingSystem, self).write_at(path, offset, data, step, fix))

    def make_folder(self, path: str, step: str) -> None:
        self._change(step, lambda: super(FailingSystem, self).make_folder(path, step))

    def remove_folder(self, path: str, step: str) -> None:
        self._change(step, lambda: super(FailingSystem, self).remove_folder(path, step))

    def install(self, path: str, content: str | bytes | None, step: str, mode: int = 0o644) -> None:
        self._change(step, lambda: super(FailingSystem, self).install(path, content, step, mode))

    def remove(self, path: str, step: str) -> None:
        self._change(step, lambda: super(FailingSystem, self).remove(path, step))

    def command(self, argv: list[str], step: str, fix: str = "") -> str:
        return self._change(step, lambda: super(FailingSystem, self).command(argv, step, fix))

    def request_change(self, step: str, request: t.Callable[[], object], fix: str = "") -> None:
        self._change(step, lambda: super(FailingSystem, self).request_change(step, request, fix))

    def query(self, argv: list[str], step: str, fix: str = "") -> str:
        return self._read_step(step, lambda: super(FailingSystem, self).query(argv, step, fix))

    def read(self, step: str, request: t.Callable[[], T]) -> T:
        return self._read_step(step, lambda: super(FailingSystem, self).read(step, request))

    def dump(self, step: str, request: t.Callable[[], t.Iterable[t.Any]]) -> list[t.Any]:
        return self._read_step(step, lambda: super(FailingSystem, self).dump(step, request))

    def content(self, path: str) -> str | None:
        return self._read_step(f"read {path}", lambda: super(FailingSystem, self).content(path))
