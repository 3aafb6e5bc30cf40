# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Build Go programs, and exchange lines of JSON with them."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import typing as t
from pathlib import Path

import pytest
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.engine import Engine
from ansible_collections.lanewise.dra.plugins.module_utils.dra.cel.errors import EngineMissing
from ansible_collections.lanewise.dra.tests.oracle import trees


def needs_go(program: str) -> pytest.MarkDecorator:
    """A mark that skips tests on a machine that cannot build their program."""
    return pytest.mark.skipif(shutil.which("go") is None, reason=f"no Go toolchain to build {program} with")


def needs_engine() -> pytest.MarkDecorator:
    """A mark that skips tests if the engine that evaluates CEL selectors is not installed for this Python."""
    try:
        Engine()
    except EngineMissing as error:
        return pytest.mark.skipif(True, reason=str(error))
    return pytest.mark.skipif(False, reason="the engine is installed")


def build(source: Path, module: Path | None = None) -> Path:
    """Build the program in the folder `source` if the binary is missing or older than its source. Returns the binary.

    `module` is the folder of the Go module that it is built in, by default `source`.
    """
    binary = trees.CACHE / (f"{source.name}-{module.name}" if module else source.name)
    binary.parent.mkdir(parents=True, exist_ok=True)
    newest = max(path.stat().st_mtime for path in source.iterdir())
    with binary.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        if not binary.exists() or binary.stat().st_mtime < newest:
            command = [str(shutil.which("go")), "build", "-trimpath", "-o", str(binary)]
            command += [str(path) for path in source.glob("*.go")] if module else ["."]
            subprocess.run(command, cwd=module or source, env={**os.environ, "CGO_ENABLED": "0"}, check=True)
            os.utime(binary)
    return binary


class Program:
    """A running Go program that reads one JSON object a line and answers each with another."""

    def __init__(self, source: Path, module: Path | None = None) -> None:
        self.process = subprocess.Popen([str(build(source, module))], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_unused: object) -> None:
        self.process.communicate()

    def ask(self, question: dict[str, t.Any]) -> dict[str, t.Any]:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(question).encode() + b"\n")
        self.process.stdin.flush()
        return t.cast("dict[str, t.Any]", json.loads(self.process.stdout.readline()))
