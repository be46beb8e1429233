# SPDX-License-Identifier: Apache-2.0
"""Reads the public headers: which functions they declare."""

import re


def functions(folder):
    """The functions that a folder's headers mark with GMM_API, in the order of the headers; one name a mark."""
    names = []
    for header in sorted(folder.glob("*.h")):
        text = re.sub(r"/\*.*?\*/|//[^\n]*|^\s*#[^\n]*", "", header.read_text(encoding="utf-8"),
                      flags=re.DOTALL | re.MULTILINE)
        for statement in text.split("GMM_API")[1:]:
            names.append(re.match(r"[^;(]*?\b(gmm_\w+)\s*\(", statement).group(1))
    return names
