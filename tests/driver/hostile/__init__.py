# Copyright (c) 2026, the lanewise authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What pods try against their neighbours on one card, and against machines on the network.

`program` is what they run, `frames` what they send, `arena` has the pods, the card and the network, `attempts` has what
is tried, and `table` reads the table of docs/security.md. The same code runs in network namespaces of this machine, and
inside a virtual node with virtual functions (`python3 -m hostile`, beside the package `lanewise_driver`): it needs
nothing else of the tests.
"""
