# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The side of the container runtime: the createRuntime hook, its installation, and the server that it asks.

`program` and `hook.sh` run in a process of the runtime and import nothing of the driver. The other modules import
`base` and the path checks of `kernel`. They know no claim: they pass a request on to the service that `base.calls`
describes.
"""

from __future__ import annotations
