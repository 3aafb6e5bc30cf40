# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A kernel that fails once: the n-th change of a run is answered with an error number, and all others are real."""

from __future__ import annotations

import os
import typing as t

from ansible_collections.lanewise.dra.plugins.module_utils.host.system import System, refused

T = t.TypeVar("T")


class FailingSystem(System):
    """Fails the change number C(fails) (from 0) with C(code); C(after) makes it first, as when an answer is lost.

    C(steps) are what was attempted, in order. Those after the failed one are the undoing.
    """

    def __init__(self, fails: int = -1, code: int = 0, after: bool = False, root: str = "/") -> None:
        super().__init__(root)
        self._fails, self._code, self._after = fails, code, after
        self.steps: list[str] = []

    @property
    def failed(self) -> bool:
        return 0 <= self._fails < len(self.steps)

    def _change(self, step: str, change: t.Callable[[], T]) -> T:
        self.steps.append(step)
        if len(self.steps) - 1 != self._fails:
            return change()
        if self._after:
            change()
        raise refused(step, self._code, os.strerror(self._code))

    def write(self, path: str, value: str, step: str, fix: str = "") -> None:
        self._change(step, lambda: System.write(self, path, value, step, fix))

    def write_at(self, path: str, offset: int, data: bytes, step: str, fix: str = "") -> None:
        self._change(step, lambda: System.write_at(self, path, offset, data, step, fix))

    def make_folder(self, path: str, step: str) -> None:
        self._change(step, lambda: System.make_folder(self, path, step))

    def install(self, path: str, content: str | None, step: str, mode: int = 0o644) -> None:
        self._change(step, lambda: System.install(self, path, content, step, mode))

    def command(self, argv: list[str], step: str, fix: str = "") -> str:
        return self._change(step, lambda: System.command(self, argv, step, fix))

    def ask(self, step: str, request: t.Callable[[], object], fix: str = "") -> None:
        self._change(step, lambda: System.ask(self, step, request, fix))
