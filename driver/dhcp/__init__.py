# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""DHCP for the interfaces of pods: getting a lease, and renewing it while the pod runs.

This package imports `base` and `kernel`. It does not depend on claims: a lease is a value that the caller stores.
"""

from __future__ import annotations
