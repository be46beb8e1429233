# SPDX-License-Identifier: Apache-2.0
"""torch_memory_saver.hooks: how allocations are taken."""
