#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fetches some files of a wheel on PyPI without the rest, by ranges of its zip archive.

    wheel_headers.py PACKAGE VERSION FOLDER PREFIX...

VERSION: a version, the start of one ("2.5": the newest release that starts so), or "newest". The files whose names
start with a PREFIX go into FOLDER/PACKAGE-x.y.z, which is complete when it has a file "ready". Prints that folder.
Where PyPI cannot be reached, a folder from before serves; without one the exit code is 77.
"""
import http.client
import io
import json
import pathlib
import re
import sys
import urllib.parse
import urllib.request
import zipfile

INDEX = "https://pypi.org"
CHUNK = 4 << 20


class Ranges(io.RawIOBase):
    """A file of a web server, read by ranges. The last range stays in memory."""

    def __init__(self, url):
        super().__init__()
        self._url, self._at, self._begin, self._bytes = url, 0, 0, b""
        self._size = int(self._ask(0, 1).headers["Content-Range"].rpartition("/")[2])

    def _ask(self, begin, end):
        request = urllib.request.Request(self._url, headers={"Range": f"bytes={begin}-{end - 1}"})
        answer = urllib.request.urlopen(request, timeout=60)  # nosec: the index's own addresses
        if answer.status != 206:
            raise OSError(f"{self._url}: the server sends no ranges")
        return answer

    def seekable(self):
        return True

    def readable(self):
        return True

    def tell(self):
        return self._at

    def seek(self, offset, whence=io.SEEK_SET):
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def readinto(self, buffer):
        end = min(self._size, self._at + len(buffer))
        if end <= self._at:
            return 0
        if not self._begin <= self._at < self._begin + len(self._bytes):
            with self._ask(self._at, min(self._size, max(end, self._at + CHUNK))) as answer:
                self._begin, self._bytes = self._at, answer.read()
        start = self._at - self._begin
        part = self._bytes[start:start + end - self._at]
        buffer[:len(part)] = part
        self._at += len(part)
        return len(part)


def _numbers(version):
    return tuple(int(part) for part in version.split("."))


def find(package, version):
    """(version, address of a wheel for Linux on x86-64) of a release."""
    page = f"{INDEX}/pypi/{package}/json"
    with urllib.request.urlopen(page, timeout=60) as answer:  # nosec
        releases = json.load(answer)["releases"]
    final = [name for name in releases if re.fullmatch(r"\d+(\.\d+)*", name) and
             (version == "newest" or name == version or name.startswith(version + "."))]
    for name in sorted(final, key=_numbers, reverse=True):
        for file in releases[name]:
            if re.search(r"(manylinux.*x86_64|none-any)\.whl$", file["filename"]):
                return name, urllib.parse.urljoin(page, file["url"])
    raise LookupError(f"{package} {version}: PyPI has no such wheel for Linux on x86-64")


def fetch(url, folder, prefixes):
    """Writes the files of a wheel whose names start with a prefix."""
    folder = pathlib.Path(folder)
    with zipfile.ZipFile(io.BufferedReader(Ranges(url), CHUNK)) as wheel:
        # In the archive's order, so that one range brings many files.
        for entry in sorted(wheel.infolist(), key=lambda entry: entry.header_offset):
            if entry.filename.startswith(tuple(prefixes)) and not entry.is_dir():
                wheel.extract(entry, folder)


def before(package, version, folder):
    """The folder of the newest such version that an earlier call fetched; else None."""
    ready = [path.parent for path in pathlib.Path(folder).glob(f"{package}-*/ready")]
    fitting = [path for path in ready if version == "newest" or
               (path.name + ".").startswith(f"{package}-{version}.")]
    return max(fitting, key=lambda path: _numbers(path.name.rpartition("-")[2]), default=None)


def folder_of(package, version, folder, prefixes):
    """The folder with the files. OSError: PyPI cannot be reached, and there is no folder from before."""
    known = before(package, version, folder)
    if known is not None and version != "newest":
        return known
    try:
        found, url = find(package, version)
        target = pathlib.Path(folder) / f"{package}-{found}"
        if not (target / "ready").is_file():
            fetch(url, target, prefixes)
            (target / "ready").write_text("", encoding="utf-8")
        return target
    except (OSError, http.client.HTTPException) as error:  # URLError and TimeoutError are OSErrors
        if known is not None:
            return known
        raise OSError(f"PyPI cannot be reached: {error}") from error


def main():
    package, version, folder, *prefixes = sys.argv[1:]
    try:
        print(folder_of(package, version, folder, prefixes))
    except OSError as error:
        print(error, file=sys.stderr)
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main())
