# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Command line: `python -m tests.machines list` and `python -m tests.machines build NAME|FILE ... --out DIR`."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from .builder import build
from .description import DescriptionError, load, names, plan


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.machines", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="the machines of this package")
    build_parser = commands.add_parser("build", help="write machines as DIR/NAME")
    build_parser.add_argument("machine", nargs="*", help="a name that list shows, or a description file")
    build_parser.add_argument("--all", action="store_true", help="every machine of this package")
    build_parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    arguments = parser.parse_args()
    if arguments.command == "list":
        for name in names():
            machine = load(name)
            print(f"{name:16} {len(plan(machine).functions):4} functions  {machine['summary']}")
        return 0
    wanted = arguments.machine + (names() if arguments.all else [])
    if not wanted:
        build_parser.error("name a machine or use --all")
    for name in wanted:
        start = time.perf_counter()
        try:
            root = build(name, arguments.out / Path(name).stem)
        except (DescriptionError, OSError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 1
        print(f"{root} {time.perf_counter() - start:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
