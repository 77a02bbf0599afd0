"""Mutation testing of the PURE modules: a change that no test notices means a missing test.

    python tests/mutants.py [--modules M ...] [--sample N] [--seed S] [--part i/n] [--jobs J]

Makes one small change after the other in the functions of the PURE modules (a comparison, an
operator, a constant, a condition, a statement left out), each in a copy of the source, and runs
the module's own test file against it. A change in the core that this file does not notice is tried
with the other tests of the core too. Prints the survivors and the score of each module. Changes
that make no difference are listed in docs/simulation.md.
"""

import argparse
import ast
import copy
import multiprocessing
import os
import queue
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
LIMIT_SECONDS, LIMIT_FACTOR = 20.0, 10.0  # of a test run: the least, and times its usual duration
SWAPS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["hypothesis.stateful", "msgspec", "psutil", "pytest", "uvloop"])


Suites = dict[str, list[tuple[list[str], float]]]  # module -> tests and how long they may take


class Mutant(NamedTuple):
    """One changed module.

    Args:
        module: its path below the package.
        line: where it was changed.
        what: how.
        source: the whole module, changed.
    """

    module: str
    line: int
    what: str
    source: str


def changes_of(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield how a node can be changed, and what it becomes."""
    new = copy.deepcopy(node)
    match new:
        case ast.Compare(ops=[op, *_]) if type(op) in SWAPS:
            new.ops[0] = SWAPS[type(op)]()
        case ast.BoolOp(op=ast.And()):
            new.op = ast.Or()
        case ast.BoolOp(op=ast.Or()):
            new.op = ast.And()
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            new = inner
        case ast.BinOp(op=ast.Add()):
            new.op = ast.Sub()
        case ast.BinOp(op=ast.Sub()):
            new.op = ast.Add()
        case ast.AugAssign(op=ast.Add()):
            new.op = ast.Sub()
        case ast.Constant(value=bool(value)):
            new.value = not value
        case ast.Constant(value=int(value)):
            new.value = value + 1
        case ast.If() | ast.IfExp():
            for value in (True, False):
                other = copy.deepcopy(node)
                other.test = ast.Constant(value)  # type: ignore[attr-defined] # both kinds have one
                yield f"condition of {ast.unparse(node.test)[:60]} is {value}", other  # type: ignore[attr-defined]
            return
        case ast.Expr(value=ast.Call()) | ast.Assign() | ast.Delete():
            new = ast.Pass()
        case _:
            return
    yield f"{ast.unparse(node)[:60]} -> {ast.unparse(new)[:60]}", new


class _Replace(ast.NodeTransformer):
    def __init__(self, index: int, new: ast.AST) -> None:
        self.index, self.new, self.seen = index, new, -1

    def visit(self, node: ast.AST) -> ast.AST:
        """Replace the node of the index, counted in order of visits."""
        self.seen += 1
        return self.new if self.seen == self.index else self.generic_visit(node)


class _Number(ast.NodeVisitor):
    def __init__(self) -> None:
        self.nodes: list[ast.AST] = []

    def visit(self, node: ast.AST) -> None:
        """Remember the node."""
        self.nodes.append(node)
        self.generic_visit(node)


def mirrors() -> dict[str, str]:
    """Return the PURE modules that have a test file, with that file."""
    sys.path.insert(0, str(ROOT))
    from tests.test_architecture import PURE_FILES, mirror_of, name_of  # slow: not in each child

    files = {name_of(path): mirror_of(path) for path in PURE_FILES}
    return {name: str(file.relative_to(ROOT)) for name, file in files.items() if file.exists()}


def mutants(module: str) -> Iterator[Mutant]:
    """Yield every mutant of a module."""
    tree = ast.parse((ROOT / "src" / "rallypoint" / module).read_text("utf-8"))
    numbered = _Number()
    numbered.visit(tree)
    inside = [
        (node.lineno, node.end_lineno or 0)
        for node in numbered.nodes
        if isinstance(node, ast.FunctionDef)
    ]
    for index, node in enumerate(numbered.nodes):
        line = getattr(node, "lineno", 0)
        if not any(first < line <= last for first, last in inside):
            continue  # outside of functions: type checks cover that
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        for what, new in changes_of(node):
            changed = _Replace(index, new).visit(copy.deepcopy(tree))
            yield Mutant(module, line, what, ast.unparse(ast.fix_missing_locations(changed)))


def sampled(module: str, count: int | None, seed: int) -> list[Mutant]:
    """Return a module's mutants, or a sample of them that depends on the seed and the module."""
    every = list(mutants(module))
    if count is None or count >= len(every):
        return every
    return random.Random(f"{seed} {module}").sample(every, count)


def suites_of(module: str, own: str) -> list[list[str]]:
    """Return the tests to run against a module's mutants, one list after the other."""
    machine = "tests/core/test_machine.py"
    if not module.startswith("core/"):
        return [[own]]
    others = ["tests/core", "tests/transcripts", f"--ignore={own}", f"--ignore={machine}"]
    return [[own], others, [machine]]


def run_tests(which: list[str], source: str) -> None:
    """Run tests against a copy of the source; the process ends with their exit code."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.chdir(ROOT)
    sys.dont_write_bytecode = True
    sys.path[:] = [source, *(path for path in sys.path if Path(path) != ROOT / "src")]
    ours = "ignore::pytest.PytestAssertRewriteWarning"  # the tools were imported before
    options = ["-xq", "--assert=plain", "-p", "no:cacheprovider", "--hypothesis-seed=1", "-W", ours]
    os._exit(int(pytest.main([*options, *which])))


def passes(which: list[str], source: Path, limit: float) -> bool:
    """Return whether tests pass against a copy of the source, within a time in seconds."""
    process = FORKED.Process(target=run_tests, args=(which, str(source)))
    process.start()
    process.join(limit)
    process.kill()
    process.join()
    return process.exitcode == 0


def survives(mutant: Mutant, source: Path, suites: Suites) -> bool:
    """Return whether all tests pass with a mutant in a copy of the source."""
    path = source / "rallypoint" / mutant.module
    whole = path.read_text("utf-8")
    path.write_text(mutant.source, "utf-8")
    try:
        return all(passes(which, source, limit) for which, limit in suites[mutant.module])
    finally:
        path.write_text(whole, "utf-8")


def timed(mirrored: dict[str, str], source: Path) -> Suites:
    """Return the tests of each module with their time limits; SystemExit if one fails unchanged."""
    limits: dict[tuple[str, ...], float] = {}
    suites: Suites = {}
    for module, own in mirrored.items():
        for which in suites_of(module, own):
            if tuple(which) not in limits:
                start = time.monotonic()
                if not passes(which, source, LIMIT_SECONDS * LIMIT_FACTOR):
                    raise SystemExit(f"fails without any change: {' '.join(which)}")
                took = time.monotonic() - start
                limits[tuple(which)] = max(LIMIT_SECONDS, took * LIMIT_FACTOR)
            suites.setdefault(module, []).append((which, limits[tuple(which)]))
    return suites


def judge(every: list[Mutant], mirrored: dict[str, str], jobs: int) -> list[Mutant]:
    """Test the mutants, several at a time, and return those that survive."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as threads:
        copies: queue.Queue[Path] = queue.Queue()
        for number in range(jobs):
            source = Path(folder) / str(number)
            shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
            copies.put(source)
        suites = timed({mutant.module: mirrored[mutant.module] for mutant in every}, source)

        def look(mutant: Mutant) -> bool:
            source = copies.get()
            try:
                return survives(mutant, source, suites)
            finally:
                copies.put(source)

        left = []
        for mutant, alive in zip(every, threads.map(look, every), strict=True):
            if alive:
                left.append(mutant)
                print(f"SURVIVES {mutant.module}:{mutant.line}: {mutant.what}", flush=True)
    return left


def main() -> int:
    """Test the mutants and print the scores."""
    mirrored = mirrors()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--modules", nargs="+", default=list(mirrored), help="such as core/ranks.py"
    )
    parser.add_argument("--sample", type=int, help="so many of each module, chosen at random")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", default="0/1", help="i/n: every n-th one, from the i-th on")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time")
    parser.add_argument("--list", action="store_true", help="only count them")
    given = parser.parse_args()
    every = [m for name in given.modules for m in sampled(name, given.sample, given.seed)]
    print(f"{len(every)} mutants of {len(given.modules)} modules", flush=True)
    first, step = map(int, given.part.split("/"))
    every = every[first::step]
    tried = Counter(mutant.module for mutant in every)
    if given.list:
        for name, count in tried.items():
            print(f"{name}: {count}")
        return 0
    missed = Counter(mutant.module for mutant in judge(every, mirrored, given.jobs))
    for name, count in tried.items():
        print(f"{name}: {count - missed[name]} of {count} noticed")
    left = missed.total()
    print(f"score {1 - left / len(every):.1%}: {len(every) - left} of {len(every)} were noticed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
