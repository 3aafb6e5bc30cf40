# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Runs the modules that plan with the objects of a cluster: their common options, and messages for invalid objects."""

from __future__ import annotations

import typing as t

from ansible.module_utils.basic import AnsibleModule

from .dra.cel.errors import EngineMissing
from .dra.kube.objects import Object


def run(options: Object, planned: t.Callable[[Object], Object]) -> None:
    """Run a module with these `options` and the common ones.

    `planned` returns the result for the module's parameters. If it has a key `failed`, the module fails with that
    message.
    """
    module = AnsibleModule(
        argument_spec={
            "objects": {"type": "dict", "required": True},
            **options,
            "kubernetes_version": {"type": "str", "default": "1.37"},
            "feature_gates": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    try:
        result = planned(module.params)
    except KeyError as error:
        module.fail_json(msg=f"The objects cannot be read: an object lacks the field {error}")
    except (ValueError, EngineMissing) as error:
        module.fail_json(msg=str(error))
    except (TypeError, AttributeError) as error:
        module.fail_json(msg=f"The objects or the workload do not have the types of the Kubernetes API: {error}")
    if failed := result.pop("failed", ""):
        module.fail_json(msg=failed, **result)
    module.exit_json(changed=False, **result)
