# SPDX-License-Identifier: Apache-2.0
"""gmm.Array, and arrays over the memory of other packages."""
