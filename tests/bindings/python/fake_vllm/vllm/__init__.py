# SPDX-License-Identifier: Apache-2.0
"""NOT vLLM: a fake of the few parts of it that gmm.vllm touches, for tests on machines without vLLM."""
