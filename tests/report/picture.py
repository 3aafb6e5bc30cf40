# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Make the picture of docs/planning.md: the page of a plan of the example fleet, in Chromium.

python -m tests.report.picture, from the collection's folder in the developers' environment
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from ansible_collections.lanewise.dra.plugins.plugin_utils import plan_pages
from ansible_collections.lanewise.dra.tests.common.plans import example_plan

from tests.report.chromium import PROGRAM, Browser

COLLECTION = Path(__file__).resolve().parents[2]
WIDTH, HEIGHT = 1100, 1180


def main() -> None:
    folders = [str(COLLECTION / "roles" / role / "templates" / "report") for role in ("alignment", "topology")]
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "plan.html"
        page.write_bytes(plan_pages.render(folders, "Training cluster: what still fits", example_plan()))
        browser = Browser(str(PROGRAM), Path(folder) / "profile")
        try:
            browser.open(page, WIDTH)
            browser.screenshot(COLLECTION / "docs" / "images" / "plan.png", HEIGHT)
        finally:
            browser.close()


if __name__ == "__main__":
    main()
