# SPDX-License-Identifier: Apache-2.0
"""Pages of HTML that show who holds memory. The command gmm reads traces and writes the pages."""
from __future__ import annotations

import json
import os
import pathlib
import sys
from typing import TYPE_CHECKING

from gmm import _default
from gmm._core.ticket import Scope

if TYPE_CHECKING:
    from gmm._core.typing import Context, OnProgress, Path


class Profile(Scope):
    """Records its with block into a temporary file, whose path is `trace`, and says who held the most memory.

    stacks: True: each allocation has its stack, of Python and of C; a number: one in so many bytes; False: none.
    context: None: the default context, which records one trace at a time.
    """

    def __init__(self, *, stacks: bool | int = True, context: Context | None = None) -> None:
        import tempfile
        self._file = tempfile.NamedTemporaryFile(suffix=".trace")  # pylint: disable=consider-using-with
        self.trace = self._file.name
        trace = (context or _default.context()).trace(self.trace, stack_bytes=int(stacks))
        super().__init__(*trace._scope[:-1], None)

    def save(self, path: Path | None = None) -> str:
        """Writes a page: the timeline, the peak and who held it, pauses, leaks. See gmm.report()."""
        return report(path, trace=self.trace)

    def top(self, count: int = 10) -> list[tuple[int, int, str]]:
        """The largest holders at the peak: bytes, blocks, and a stack, or without stacks the tag and name."""
        page = _page(self.trace)
        data, _ = json.JSONDecoder().raw_decode(page, page.index('{"process"'))
        return [(nbytes, blocks, "\n".join(frames)) for nbytes, blocks, frames in data["peak"]["stacks"][:count]] or [
            (nbytes, blocks, ", ".join(map(str, words))) for *words, nbytes, blocks in data["peak"]["holders"][:count]]


def progress(label: str = "gmm") -> OnProgress:
    """A function for `progress=` that shows how far a pause or resume is: a bar in a notebook, or a line."""
    import time
    due, handle = time.monotonic(), None

    def show(done, total):
        nonlocal due, handle
        if done < total and time.monotonic() < due:
            return
        due = time.monotonic() + 0.1  # ten times a second at most
        text = f"{label}: {done / 2**20:.1f} of {total / 2**20:.1f} MiB"
        if "ipykernel" not in sys.modules:
            print(text, end="\n" if done == total else "\r", file=sys.stderr, flush=True)
            return
        from IPython.display import HTML, display
        bar = HTML(f'<progress value="{done}" max="{total}"></progress> {text}')
        if handle is None:
            handle = display(bar, display_id=True)
        else:
            handle.update(bar)
    return show


def _page(*words):
    """The page that `gmm trace --view html` writes. The package's main finds the command."""
    import subprocess
    main = pathlib.Path(__file__).with_name("__main__.py")
    done = subprocess.run([sys.executable, "-I", "-S", main, "trace", "--view", "html", *words], capture_output=True,
                          text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())
    return done.stdout


def report(path: Path | None = None, *, trace: Path | None = None, context: Context | None = None) -> str:
    """Writes a page about the memory of a context now, or about a trace. Returns the path of the page.

    path: None: a temporary file, which the notebook or the browser shows, if there is one. context: None: the default.
    """
    if trace is None:
        with Profile(stacks=False, context=context) as moment:
            pass
        return moment.save(path)
    import html
    import tempfile
    import webbrowser
    page = os.fsdecode(path or os.path.join(tempfile.mkdtemp(prefix="gmm-"), "report.html"))
    _page("--output", page, os.fsdecode(trace))
    if path is None and "ipykernel" in sys.modules:
        from IPython.display import HTML, display
        text = html.escape(pathlib.Path(page).read_text(encoding="utf-8"))
        display(HTML(f'<div><iframe srcdoc="{text}" width="100%" height="700"></iframe></div>'))
    elif path is None and any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))):
        webbrowser.open(pathlib.Path(page).as_uri())  # without a screen a browser would take the terminal
    return page
