# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""What an operator should know about a node: findings, and the fingerprint of its shape.

This package imports `topology`, which never imports this package: :func:`diagnose.diagnose` is passed to the probe. The
driver does not contain it.
"""

from __future__ import annotations
