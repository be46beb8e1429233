# SPDX-License-Identifier: Apache-2.0
"""How buffers, arrays, events and tensors travel through multiprocessing: see gmm.multiprocessing."""
