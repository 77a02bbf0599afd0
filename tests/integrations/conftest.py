"""Tests that need another program's package are collected where that is installed.

The other tests of this folder need nothing. `.ci/run` names each of these folders in the
environment made for it, so that a missing package is an error there and not less tests.
"""

from importlib.util import find_spec

NEEDS = {
    "torch": ["torchrun/test_handler.py", "torchrun/test_store.py"],
    "tensorplay": ["tensorplay/test_handler.py", "tensorplay/test_store.py"],
}
collect_ignore = [
    file for package, files in NEEDS.items() if find_spec(package) is None for file in files
]
