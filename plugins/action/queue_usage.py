# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Add a sample of what each team uses, and write the report over all samples, on the controller.

The documentation is in plugins/modules/queue_usage.py.
"""

from __future__ import annotations

import json
import pathlib
from datetime import datetime, timezone

from ansible.errors import AnsibleActionFail
from ansible_collections.lanewise.dra.plugins.module_utils.dra.plan.inputs import objects_of
from ansible_collections.lanewise.dra.plugins.module_utils.dra.queues import usage
from ansible_collections.lanewise.dra.plugins.module_utils.topology.stored import Formats, NewerFormat
from ansible_collections.lanewise.dra.plugins.plugin_utils.controller_action import ReportAction
from ansible_collections.lanewise.dra.plugins.plugin_utils.kueue_metrics import Unreadable, charges
from ansible_collections.lanewise.dra.plugins.plugin_utils.queue_pages import usage_page
from ansible_collections.lanewise.dra.plugins.plugin_utils.values import Json, Result, Spec, Variables

#: Each line of the samples has a format number, and so does usage.json.
FORMATS = Formats()
SAMPLES = "usage-samples.jsonl"
_SPEC: Spec = {
    "dest": {"type": "path", "required": True},
    "objects": {"type": "dict"},
    "metrics": {"type": "str", "default": ""},
    "gap": {"type": "int", "default": int(usage.GAP_SECONDS)},
    "title": {"type": "str", "default": "Usage of queues"},
    "template_dir": {"type": "path"},
}


class ActionModule(ReportAction):
    """Reads and writes files of one folder. Never connects to a target."""

    def run(self, tmp: str | None = None, task_vars: Variables | None = None) -> Result:
        result = super().run(tmp, task_vars)
        _unused, options = self.validate_argument_spec(argument_spec=_SPEC)
        dest = pathlib.Path(self._loader.path_dwim(options["dest"]))
        folders = self._templates(options["template_dir"], "queues", "topology")
        with self._reporting_faults():
            lines, samples = _stored(dest / SAMPLES)
            if options["objects"] is not None:
                new = _sample(options["objects"], options["metrics"])
                samples.append(new)
                lines.append(json.dumps(FORMATS.write(new.as_dict()), sort_keys=True).encode())
            samples.sort(key=lambda sample: sample.time)
            totals = usage.totals(samples, options["gap"])
            page = usage_page(folders, options["title"], totals, samples, options["gap"])
            files = {SAMPLES: b"".join(line + b"\n" for line in lines)}
            result.update(self._write_report(dest, "usage", FORMATS.write(totals.as_dict()), page, files))
        loans = samples[-1].loans if samples else []
        result.update(usage=totals.as_dict(), lines=usage.lines(totals, loans))
        return result


def _sample(objects: Json, metrics: str) -> usage.Sample:
    """A sample of the objects and Kueue's metrics. Raises AnsibleActionFail if they cannot be read."""
    try:
        charged = charges(metrics) if metrics else None
    except Unreadable as error:
        raise AnsibleActionFail(f"metrics cannot be read: {error}") from None
    try:
        return usage.sample(objects_of(dict(objects)), datetime.now(timezone.utc), charged)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise AnsibleActionFail(f"objects are not those of lanewise.dra.dra_objects_info: {error!r}") from error


def _stored(path: pathlib.Path) -> tuple[list[bytes], list[usage.Sample]]:
    """The lines of a file of samples, and the samples. Raises AnsibleActionFail for a line that is not a sample."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    samples = []
    for number, line in enumerate(lines, 1):
        try:
            samples.append(usage.sample_from_dict(FORMATS.read(json.loads(line))))
        except NewerFormat as error:
            raise AnsibleActionFail(f"{path}:{number}: {error}. Nothing was written") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise AnsibleActionFail(
                f"{path}:{number} is not a sample: {error}. Nothing was written. Move the file away, or remove the line"
            ) from None
    return lines, samples
