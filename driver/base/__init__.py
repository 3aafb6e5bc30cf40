# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What all other packages of the driver use: errors, files on disk, locks, logs, metrics, paths, settings.

`calls` defines the values that the packages pass to each other: a claim, a pod, a request to attach. This package
imports the standard library, prometheus_client, yaml, and the collection's `dra.kube`, `dra.config` and `topology`. It
never imports another package of the driver, and does not depend on netlink, gRPC or HTTP.
"""

from __future__ import annotations
