# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Create the pictures of docs/planning.md with Chromium: a plan's page, and a fleet before and after pods are moved.

Run `python -m tests.report.picture` in the collection's folder, in the developers' environment.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from ansible_collections.lanewise.dra.plugins.plugin_utils import plan_pages
from ansible_collections.lanewise.dra.plugins.plugin_utils.report_pages import Pages
from ansible_collections.lanewise.dra.tests.common.moves import ExampleMoves, example_moves
from ansible_collections.lanewise.dra.tests.common.plans import example_plan

from tests.report.chromium import CHROMIUM, Browser

COLLECTION = Path(__file__).resolve().parents[2]
IMAGES = COLLECTION / "docs" / "images"
FOLDERS = [str(COLLECTION / "roles" / role / "templates" / "report") for role in ("alignment", "topology")]
#: Width and height of each picture, in pixels.
SIZES = {"plan.png": (1100, 1180), "moves.png": (760, 300)}
_STYLE = """
body { padding: 16px; } h2 { font-size: 15px; margin: 0 0 10px; } section { display: inline-block; width: 235px;
vertical-align: top; } p { margin: 2px 0; font-size: 13px; } .map { display: block; margin: 0 0 8px; } .map path {
stroke-width: 1; } .du { fill: var(--wire); stroke: var(--wire); } .df { fill: var(--card); stroke: var(--good);
stroke-width: 1.6; } .dh { fill: var(--nic); stroke: var(--nic); }
"""


def moves_page(moved: ExampleMoves) -> str:
    """The maps of each step side by side; the colours are those of a plan's page."""
    style = str(Pages(FOLDERS, "").environment.globals["style"])
    parts = []
    for title, found in moved.steps:
        rows = [
            f"<p>{node['node']}</p>{plan_pages.drawing([list(node['states'])], node['node'])}"
            for node in found["nodes"]
        ]
        parts.append(f"<section><h2>{title}</h2>{''.join(rows)}</section>")
    lines = "".join(f"<p>{line}</p>" for line in moved.lines)
    return f"<!doctype html><meta charset=utf-8><style>{style}{_STYLE}</style>{''.join(parts)}{lines}"


def main() -> None:
    pages = {
        "plan.png": plan_pages.render(FOLDERS, "Training cluster: what still fits", example_plan()).decode(),
        "moves.png": moves_page(example_moves()),
    }
    with tempfile.TemporaryDirectory() as folder:
        browser = Browser(str(CHROMIUM), Path(folder) / "profile")
        try:
            for name, text in pages.items():
                page = Path(folder) / f"{name}.html"
                page.write_text(text)
                width, height = SIZES[name]
                browser.open(page, width)
                browser.screenshot(IMAGES / name, height)
        finally:
            browser.close()


if __name__ == "__main__":
    main()
