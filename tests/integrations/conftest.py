"""Tests of other programs are collected where their package is installed.

With RALLYPOINT_INTEGRATIONS=1 all are, those of schedulers too: so `.ci/run` calls this
folder after installing what is needed, and something missing is an error, not less tests.
"""

import os
from importlib.util import find_spec

PACKAGES = {
    "accelerate": ["test_train_accelerate.py"],
    "jax": ["test_train_jax.py"],
    "kubernetes_validate": ["test_manifests.py"],
    "tensorplay": ["tensorplay/test_handler.py"],
    "torch": [
        "torchrun/test_handler.py",
        "torchrun/test_local_agent.py",
        "torchrun/test_store.py",
    ],
}
SCHEDULERS = ["schedulers/test_mpi.py", "schedulers/test_slurm.py"]

collect_ignore: list[str] = []
if os.environ.get("RALLYPOINT_INTEGRATIONS") != "1":
    missing = [package for package in PACKAGES if find_spec(package) is None]
    collect_ignore += [file for package in missing for file in PACKAGES[package]]
    collect_ignore += SCHEDULERS
