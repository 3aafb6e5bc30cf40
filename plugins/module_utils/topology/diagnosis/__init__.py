# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""What follows from a whole node for its operator: findings, and the fingerprint of its shape.

It imports the files of `topology`, which get :func:`diagnose.diagnose` handed to them and never import it. The driver
does not carry it.
"""

from __future__ import annotations
