"""Tests that need another program are collected where that is installed.

The other tests of this folder need nothing. `.ci/run` installs what is needed and names each
of these folders, so that something missing is an error there, and not less tests.
"""

import shutil
from importlib.util import find_spec

PACKAGES = {
    "torch": ["torchrun/test_handler.py", "torchrun/test_store.py"],
    "tensorplay": ["tensorplay/test_handler.py", "tensorplay/test_store.py"],
    "jax": ["test_train_jax.py"],
    "kubernetes_validate": ["test_manifests.py"],
}
PROGRAMS = {"sbatch": ["schedulers/test_slurm.py"], "mpirun": ["schedulers/test_mpi.py"]}

collect_ignore = [
    file
    for there, needs in ((find_spec, PACKAGES), (shutil.which, PROGRAMS))
    for name, files in needs.items()
    if there(name) is None
    for file in files
]
