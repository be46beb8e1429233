# SPDX-License-Identifier: Apache-2.0
"""The preload library, and the implementation of gmm.memory_saver; gmm.vllm uses the former."""
