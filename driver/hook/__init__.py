# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The createRuntime hook that container runtimes call, its installation, the server that the hook connects to, and the
early attach, which moves devices to a pod before its containers start.

`program.py` (installed as `hook.py`) and `hook.sh` run in a process of the runtime and import nothing of the driver.
The other modules import `base`, `dra.kube` and the namespace checks of `kernel`. They do not depend on claims: they
pass requests to the `Service` of `base.calls`.
"""

from __future__ import annotations
