# SPDX-License-Identifier: Apache-2.0
"""C++ that gmm compiles against another package's headers."""
import shutil
import subprocess

import pytest

from gmm._core import compiled

SOURCE = """
#include <sstream>
extern "C" int length_of(long number) { std::ostringstream text; text << number; return (int)text.str().size(); }
"""


def test_the_cxx_library_is_the_process_s_own(tmp_path, monkeypatch):
    """Also where the linker has libstdc++.a alone, which the option stands for."""
    if not shutil.which("c++") or not shutil.which("readelf"):
        pytest.skip("no c++ or no readelf")
    monkeypatch.setenv("CXX", "c++ -static-libstdc++")
    source = tmp_path / "length.cpp"
    source.write_text(SOURCE, encoding="utf-8")
    made = compiled.shared_library((source,), "length", "1", tuple, key="", folder=tmp_path / "cache")
    needed = subprocess.run(["readelf", "-d", made], capture_output=True, text=True, check=True).stdout
    assert "libstdc++.so.6" in needed, needed
