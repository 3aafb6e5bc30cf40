# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""NVIDIA's own DRA driver on a machine without a GPU: a library that stands in for NVML, and a driver root.
docs/cluster.md describes what such tests prove."""
