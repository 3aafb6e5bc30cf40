# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Sphinx settings of the site of ``make docs``: the guides as they are, and antsibull-docs' pages in reference/.

tools/sessions/release.py lays out the source folder: this file, index.md and reference/ beside all files of the
repository, so that a link from a page to a file means the same there. A link that leads nowhere fails the build.
"""

project = "lanewise.dra"
extensions = ["myst_parser", "sphinx_antsibull_ext"]
html_theme = "sphinx_ansible_theme"
html_short_title = project
html_title = project
highlight_language = "YAML+Jinja"
include_patterns = [
    "index.md",
    "README.md",
    "CONTRIBUTING.md",
    "docs/**.md",
    "roles/*/README.md",
    "requirements/README.md",
    "reference/**.rst",
]
exclude_patterns = ["docs/docsite"]
myst_heading_anchors = 4  # as GitHub names them
# labels of Ansible's own pages, which need the network; the changelog before its first release
suppress_warnings = ["ref.ref", "toc.no_title"]
