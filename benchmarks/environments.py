"""A virtual environment for each contender, made when first needed, under .envs/.

Packages are installed by name. torch is installed first and by exact version, so that no
other package installs another one; packages that depend on torch or CUDA are installed without
dependencies. An environment that cannot be made raises `Missing`: the benchmark continues without
that contender and says so in the table, the JSON and the docs.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = ROOT / "benchmarks" / ".envs"
INSTALL_SECONDS = 900
# BENCH_SRC=DIR measures another source tree than this one's src/, such as an older version.
TORCH = "torch==2.13.0"
# Steps of pip for each environment: (packages, extra options).
STEPS: dict[str, list[tuple[list[str], list[str]]]] = {
    "torch": [([TORCH, "numpy"], [])],
    "torchft": [
        ([TORCH], []),
        (["torchft==0.2.0"], ["--no-deps"]),
        (["numpy", "opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"], []),
    ],
    "tensorplay": [(["tensorplay==1.0.0"], [])],
    "jax": [(["jax==0.10.2", "jaxlib==0.10.2"], [])],
    # Its wheels are tagged for a newer C library; the rendezvous is pure Python and runs.
    "nvrx": [
        ([TORCH], []),
        (
            ["numpy", "pyyaml", "psutil", "defusedxml", "httpx", "packaging", "protobuf", "grpcio"],
            [],
        ),
        (
            ["nvidia-resiliency-ext==0.6.0"],
            [
                "--no-deps",
                "--only-binary=:all:",
                "--platform=manylinux_2_39_x86_64",
                "--target=SITE",
            ],
        ),
    ],
    "redis": [(["redis>=5", "hiredis"], [])],
    "etcd": [(["grpcio"], [])],
}


class Missing(Exception):
    """A contender is not available on this machine; the text says why."""


def python(name: str) -> Path:
    """Return the interpreter of an environment; make the environment if necessary.

    Raises Missing with the last lines of what failed.
    """
    place = ENVIRONMENTS / name
    stamp, interpreter = place / ".ready", place / "bin" / "python"
    steps = _own_steps() if name == "rallypoint" else STEPS[name]
    wanted = repr(steps)
    if stamp.exists() and stamp.read_text() == wanted:
        return interpreter
    print(f"making the environment {name} ...", file=sys.stderr, flush=True)
    if not interpreter.exists():
        _run([_base_python(), "-m", "venv", str(place)])
    pip = [str(interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    site = next((place / "lib").glob("python3*")) / "site-packages"
    for packages, options in steps:
        _run([*pip, *(o.replace("SITE", str(site)) for o in options), *packages])
    stamp.write_text(wanted)
    return interpreter


def program(name: str, package: str) -> str:
    """Return the path of an installed server program; Missing says how to install it."""
    found = shutil.which(name)
    if found is None:
        raise Missing(f"{name} is not installed: apt-get install {package}")
    return found


def environ() -> dict[str, str]:
    """Return the environment variables of child processes: our source tree is importable."""
    chosen = {k: v for k, v in os.environ.items() if not k.startswith("RALLYPOINT_")}
    source = os.environ.get("BENCH_SRC") or str(ROOT / "src")
    chosen["PYTHONPATH"] = os.pathsep.join([source, str(ROOT / "benchmarks")])
    chosen["PYTHONUNBUFFERED"] = "1"
    return chosen


def enter() -> None:
    """Continue in our own environment, with the source tree on the path."""
    interpreter = python("rallypoint")
    if Path(sys.prefix).resolve() != (ENVIRONMENTS / "rallypoint").resolve():
        os.execve(interpreter, [str(interpreter), *sys.argv], environ())  # noqa: S606


def _own_steps() -> list[tuple[list[str], list[str]]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [([*project["dependencies"], "matplotlib"], [])]


def _base_python() -> str:
    return os.path.realpath(sys.executable)


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Missing(f"{' '.join(command)} took more than {INSTALL_SECONDS} s") from error
    if done.returncode:
        last = " | ".join((done.stderr or done.stdout).strip().splitlines()[-3:])
        raise Missing(f"{' '.join(command)}: {last}")
