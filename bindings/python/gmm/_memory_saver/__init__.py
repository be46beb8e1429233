# SPDX-License-Identifier: Apache-2.0
"""The preload library, its memory by a lease, and upstream's name, for gmm.memory_saver and gmm.vllm."""
