# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The blocks of commands in README and docs, with the output that they show.

The words after `console` in a fence describe where a block's commands can run:

- no word: in a fresh checkout, one block after the other in the order of the page.
- `nodes`: with an inventory of nodes, for which the test uses recorded machines.
- `cluster`, `lab`, `node`, `tools`: only with a Kubernetes cluster, virtual nodes, on a node with the driver, or
  with programs that the project does not install.
- a number: the exit status of the last command, by default 0.

A line that begins with `$` is a command; it continues while lines end with a backslash or a here-document is open.
Other lines are output: each must be in the real output, in this order. `...` stands for any text, and a line `...` for
any lines.
"""

from __future__ import annotations

import re
import typing as t
from pathlib import Path

ELSEWHERE = {
    "cluster": "needs a Kubernetes cluster",
    "lab": "needs virtual nodes",
    "node": "runs on a node that has the driver",
    "tools": "needs programs that the project does not install",
}
KNOWN = {"nodes", *ELSEWHERE}


class Command(t.NamedTuple):
    text: str
    output: tuple[str, ...]


class Block(t.NamedTuple):
    page: Path
    line: int
    words: tuple[str, ...]
    commands: tuple[Command, ...]

    @property
    def where(self) -> str:
        """One of `KNOWN`, or empty."""
        return next((word for word in self.words if not word.isdigit()), "")

    @property
    def status(self) -> int:
        return next((int(word) for word in self.words if word.isdigit()), 0)

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """The `console` blocks of a page. Raises ValueError for unknown words, and for commands in any other block."""
    found: list[Block] = []
    start, words, lines = 0, [""], [""]
    inside = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        mark = re.match(r"\s*```(.*)$", line)
        if mark and not inside:
            start, words, lines, inside = number, mark[1].split(), [], True
        elif mark:
            inside = False
            if words[:1] in (["sh"], ["bash"], ["shell"]):
                raise ValueError(f"{page}:{start}: write commands as a 'console' block, each after '$ '")
            if words[:1] == ["console"]:
                block = Block(page, start, tuple(words[1:]), tuple(_commands(lines)))
                if not block.commands or not {word for word in block.words if not word.isdigit()} <= KNOWN:
                    raise ValueError(f"{block}: no command after '$ ', or a word besides {', '.join(sorted(KNOWN))}")
                found.append(block)
        elif inside:
            lines.append(line)
    return found


def _commands(lines: list[str]) -> t.Iterator[Command]:
    rest = list(lines)
    while rest:
        line = rest.pop(0).strip()
        if not line.startswith("$ "):
            continue
        text = line[2:]
        heredoc = re.search(r"<<'?(\w+)'?", text)
        while rest and (text.endswith("\\") or (heredoc and text.rsplit("\n", 1)[-1] != heredoc[1])):
            text += "\n" + rest.pop(0)
        shown = []
        while rest and not rest[0].strip().startswith("$ "):
            shown.append(rest.pop(0))
        yield Command(text, tuple(line for line in shown if line.strip()))


def missing(shown: t.Iterable[str], output: str) -> list[str]:
    """The lines of a page that are not in the output in this order. Any white space counts as one space."""
    real = [" ".join(line.split()) for line in output.splitlines()]
    missing_lines, at = [], 0
    for line in shown:
        expected = " ".join(line.split())
        if expected == "...":
            continue
        pattern = re.compile(".*".join(re.escape(part) for part in expected.split("...")))
        index = next((number for number in range(at, len(real)) if pattern.fullmatch(real[number])), None)
        if index is None:
            missing_lines.append(line)
        else:
            at = index + 1
    return missing_lines
