# SPDX-License-Identifier: Apache-2.0
"""Contexts' parts, one module a concept: buffers, streams, events, tags, tickets, heaps, and the values that calls return."""
