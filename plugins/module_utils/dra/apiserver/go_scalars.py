# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Which unquoted scalars of YAML are numbers for go-yaml v2 and v3 (resolve.go), and therefore for kubectl."""

from __future__ import annotations

#: The characters that a number can begin with.
FIRST = "+-.0123456789"
#: A number. Underscores are ignored. Base 60 is not supported.
NUMBER = (
    r"(?:[-+]_*)?(?:0_*[xX][0-9a-fA-F_]+|0_*[oO]_*[-+]?[0-7_]+|0_*[bB]_*[-+]?[01_]+"
    r"|(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9_]+)(?:[eE]_*[-+]?[0-9_]+)?)"
)


def number(text: str) -> int | float | str:
    """Go's value of a text that matches `NUMBER`: `017` is octal, `08` is a float, and `0x_` stays text."""
    compact = text.replace("_", "")
    digits = compact.lstrip("+-")
    octal = digits.isdigit() and digits[0] == "0"
    for read in (lambda: int(compact, 8 if octal else 0), lambda: float(compact)):
        try:
            return read()
        except ValueError:
            continue
    return text
