# SPDX-License-Identifier: Apache-2.0
"""Sphinx's settings for docs/build.sh. The pages are the guides of the tree, where they stand, and the docstrings of
the built package. The search also finds what doxygen and javadoc wrote beside the pages.
"""
import builtins
import json
import os
import pathlib
import re
from xml.etree import ElementTree

import gmm
from gmm._core import values
from sphinx.addnodes import pending_xref

SITE = pathlib.Path(os.environ["site"])
project = html_title = "gmm"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
include_patterns = ["*.md", *(f"{folder}/**" for folder in ("docs", "bindings", "examples", "lib", "tests"))]
root_doc = "README"
myst_heading_anchors = 4
html_theme = "furo"
html_copy_source = html_show_copyright = False
autodoc_mock_imports = ["cuda", "cupy", "numba", "rmm", "torch"]
autodoc_default_options = {"members": True, "undoc-members": True, "show-inheritance": True,
                           "member-order": "bysource", "inherited-members": "int, tuple, BaseException, OSError"}
python_maximum_signature_line_length = 100

#: Room for code of 110 columns, where the screen has it beside furo's other columns.
WIDE = "<style>@media (min-width: 90em) { .main .content { width: 58em } }</style>"
#: The contents of the site, behind the README.
CONTENTS = "".join(f"\n```{{toctree}}\n:hidden:\n:glob:\n:caption: {caption}\n{pages}\n```\n" for caption, pages in (
    ("Guides", "docs/[!r]*\nbindings/*/README\nexamples/README\nexamples/*/README\nlib/preload/README"),
    ("Reference", "docs/reference\nCHANGELOG"),
    ("Inside", "lib/README\nlib/[!p]*/**\nbindings/README\ntests/**")))
for found in vars(values).values():
    if getattr(found, "__module__", None) == "gmm":
        found.__module__ = values.__name__  # Sphinx reads the fields' texts there

#: {name: (language, kind, page, anchor)} of all that doxygen and javadoc describe.
NAMES = {}
for part, language, dot in (("c", "C and C++", "::"), ("csharp", "C#", ".")):
    for compound in ElementTree.parse(SITE / part / "tags.xml").iter("compound"):
        scope = compound.findtext("name").replace("::", dot)
        if scope.endswith((".hpp", ".cs")):
            continue  # its names stand in a namespace, too
        NAMES[scope] = language, compound.get("kind"), f"{part}/{compound.findtext('filename')}", ""
        for member in compound.iter("member"):
            name = member.findtext("name") if scope.endswith(".h") else scope + dot + member.findtext("name")
            page, anchor = member.findtext("anchorfile"), member.findtext("anchor")
            NAMES.setdefault(name, (language, member.get("kind"), f"{part}/{page}", anchor))
for member in json.loads(re.search(r"\[.*\]", (SITE / "java/member-search-index.js").read_text(encoding="utf-8"))[0]):
    name, anchor = f"{member['c']}.{member['l'].split('(')[0]}", member.get("u", member["l"])
    NAMES.setdefault(name, ("Java", "member", f"java/{member['p'].replace('.', '/')}/{member['c']}.html", anchor))


def read_source(_, name, source):
    if name == root_doc:
        source[0] += CONTENTS
    elif name == "docs/reference":
        for module in ["gmm", *sorted(f"gmm.{path.stem}" for path in pathlib.Path(gmm.__path__[0]).glob("[a-z]*.py"))]:
            source[0] += f"\n{module}\n{'-' * len(module)}\n\n.. automodule:: {module}\n"


def to_rst(_, kind, name, found, options, lines):
    """Docstrings have `code` and indented code as Markdown has them."""
    if kind == "module":
        lines[:] = found.__doc__.splitlines()  # Sphinx takes the indentation of code that ends it for the text's own
    text = re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", "\n".join(lines))
    lines[:] = re.sub(r"\n\n((?: {4}.*\n|\n)+)", r"\n\n::\n\n\1\n", text + "\n").split("\n")


def keep_builtins(_, doctree):
    """Sphinx takes the type bytes for a field of that name."""
    for node in list(doctree.findall(pending_xref)):
        if node["reftarget"] in dir(builtins):
            node.replace_self(node.children)


def extend_search(app, error):
    """Adds the names of the other languages to Sphinx's index, by its format in sphinx/search/__init__.py."""
    if error:
        return
    file = SITE / "searchindex.js"
    index = json.loads(file.read_text(encoding="utf-8").removeprefix("Search.setIndex(").removesuffix(")"))
    for name, (language, kind, page, anchor) in NAMES.items():
        if page not in index["filenames"]:
            for column, value in (("docnames", page.removesuffix(".html")), ("filenames", page), ("titles", language)):
                index[column].append(value)
        index["objnames"][kind] = ["gmm", kind, kind]
        index["objects"].setdefault("", []).append([index["filenames"].index(page), kind, 1, anchor, name])
    file.write_text(f"Search.setIndex({json.dumps(index)})", encoding="utf-8")


def setup(app):
    app.connect("source-read", read_source)
    app.connect("autodoc-process-docstring", to_rst)
    app.connect("doctree-read", keep_builtins)
    app.connect("html-page-context", lambda *given: given[3].update(metatags=given[3].get("metatags", "") + WIDE))
    app.connect("build-finished", extend_search)
