# SPDX-License-Identifier: Apache-2.0
"""Compiles an assembly for netstandard2.0 with Mono's compiler: build.py MCS OUTPUT ARGUMENT_OF_MCS...

Mono has no reference assembly of netstandard, so mcs compiles against Mono's mscorlib, System and System.Core. Then the
assembly's references to these become references to netstandard 2.0.0.0, which has all of the types that gmm uses. The
script fails where an assembly has another reference. Standard.cs has the name that must be in the file already.
"""
import pathlib
import struct
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
TOKEN = bytes.fromhex("cc7b13ffcd2ddd51")  # of netstandard's public key
MONO = struct.pack("<4HI", 4, 0, 0, 0, 0)  # version and flags, at the begin of a row of the table AssemblyRef
NAMES = (b"mscorlib", b"System", b"System.Core")
NETSTANDARD = struct.pack("<4HI", 2, 0, 0, 0, 0)


def fail(text):
    sys.exit(f"{sys.argv[2]}: {text}")


def streams_of(data):
    """The metadata's streams by name: (offset in the file, bytes). ECMA-335, II.24.2.1."""
    root = data.index(b"BSJB\1\0\1\0")
    at = root + 16 + struct.unpack_from("<I", data, root + 12)[0]
    found = {}
    for _ in range(struct.unpack_from("<H", data, at + 2)[0]):
        offset, size = struct.unpack_from("<2I", data, at + 4)
        end = data.index(b"\0", at + 12)
        found[data[at + 12:end].decode()] = (root + offset, size)
        at += ((end - at - 12) // 4 + 1) * 4 + 8
    return found


def retarget(data):
    """The assembly with references to netstandard instead of Mono's assemblies."""
    streams = streams_of(data)
    tables, size = streams["#~"]
    wide_strings, _, wide_blobs = (data[tables + 6] >> bit & 1 for bit in range(3))
    # Behind version and flags: key, name, culture, hash. An index into a heap of more than 64 KiB has four bytes.
    text, blob = "HI"[wide_strings], "HI"[wide_blobs]
    row_of = struct.Struct(f"<12s{blob}{text}{text}{blob}")
    name_at = struct.calcsize(f"<12s{blob}")
    valid, = struct.unpack_from("<Q", data, tables + 8)
    counts = struct.unpack_from(f"<{bin(valid).count('1')}I", data, tables + 24)
    references = counts[bin(valid & ((1 << 0x23) - 1)).count("1")] if valid >> 0x23 & 1 else 0
    strings, length = streams["#Strings"]
    heap = data[strings:strings + length]

    def is_reference(at):
        begin, _, name, culture, hashed = row_of.unpack_from(data, at)
        return begin == MONO and heap[name:].partition(b"\0")[0] in NAMES and (culture, hashed) == (0, 0)

    rows = [at for at in range(tables, tables + size - row_of.size + 1)
            if data[at:at + 12] == MONO and is_reference(at)]
    if len(rows) != references or references == 0:
        fail(f"of its {references} references to other assemblies {len(rows)} are to mscorlib, System or System.Core")
    made = bytearray(data)
    for row in rows:
        key = streams["#Blob"][0] + row_of.unpack_from(data, row)[1]
        if data[key] != len(TOKEN):
            fail("a reference has no token of a public key")
        made[row:row + 12] = NETSTANDARD
        struct.pack_into(f"<{text}", made, row + name_at, heap.index(b"\0netstandard\0") + 1)
        made[key + 1:key + 1 + len(TOKEN)] = TOKEN
    return bytes(made)


def main():
    mcs, output, *arguments = sys.argv[1:]
    subprocess.run([mcs, f"-out:{output}", *arguments, str(HERE / "Standard.cs")], check=True)
    file = pathlib.Path(output)
    file.write_bytes(retarget(file.read_bytes()))


if __name__ == "__main__":
    main()
