# SPDX-License-Identifier: Apache-2.0
"""What the memory managers of gmm.numba are made of."""
