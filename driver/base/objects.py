# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Types for the JSON objects that the driver reads and writes: Kubernetes objects, and files on disk."""

from __future__ import annotations

from ..dra.kube.objects import Object, ObjectView

__all__ = ["Object", "ObjectView"]
