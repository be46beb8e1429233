# SPDX-License-Identifier: Apache-2.0
"""Packages of gmm under the names of others. A folder of links brings each into Python's path."""
