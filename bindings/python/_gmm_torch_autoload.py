# SPDX-License-Identifier: Apache-2.0
"""`import torch` calls this at its end where gmm's wheel is installed: PyTorch's entry point torch.backends.

It lies outside of the package, because `import gmm` opens gmm's library. Without the variable nothing is imported.
"""
import os


def load(*steps):
    """Switches unified memory on where PYTORCH_ENABLE_UNIFIED_MEMORY asks for it. A failure is a warning.

    GMM_KVCACHED=1: calls gmm.kvcached.use(). steps: gmm.torch's, which calls this at the end of its import.
    """
    if os.environ.get("GMM_KVCACHED") == "1":
        import gmm.kvcached  # pylint: disable=import-outside-toplevel # kvcached imports PyTorch first

        gmm.kvcached.use()
    if os.environ.get("PYTORCH_ENABLE_UNIFIED_MEMORY", "0").lower() in ("", "0", "false", "off", "no"):
        return
    try:
        import gmm.torch  # noqa: F401 # pylint: disable=import-outside-toplevel,unused-import # it calls this function
        for step in steps:
            step()
    except Exception as error:  # pylint: disable=broad-exception-caught # PyTorch would not be imported
        import warnings  # pylint: disable=import-outside-toplevel # most processes need none

        warnings.warn(f"PYTORCH_ENABLE_UNIFIED_MEMORY: unified memory is not enabled: {error}", RuntimeWarning,
                      stacklevel=2)
