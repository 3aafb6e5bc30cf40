# Copyright (c) 2026, the lanewise authors
# Simplified BSD License (see licenses/BSD-2-Clause.txt or https://opensource.org/licenses/BSD-2-Clause)
# SPDX-License-Identifier: BSD-2-Clause
# Note: this package is private to the collection.

"""Streams of jobs, recorded or drawn from published figures, and their results in queues.

- `trace`: jobs from a CSV, or drawn from the distributions of a published trace.
- `score`: device-hours, waiting times and alignment of jobs that have run.

It imports `kube`. It never talks to a server: its callers submit the jobs, and pass `score` what they did.
"""
