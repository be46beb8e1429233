# SPDX-License-Identifier: Apache-2.0
"""The implementation of gmm.torch, and PyTorch's memory pools, which gmm.memory_saver and gmm.vllm use too."""
