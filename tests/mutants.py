"""Mutation testing of the pure core: a change that no test notices is a test that is missing.

    python tests/mutants.py [--sample N] [--seed S] [--part i/n] [--list]

Makes one small change after the other in the modules of the core that decide (a comparison, an
operator, a constant, a condition, a statement left out), each in a copy of the source, and runs
the tests of the core against it. Prints the score and each survivor. Those that cannot be told
from the original are listed in docs/simulation.md.
"""

import argparse
import ast
import copy
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import hypothesis.stateful  # noqa: F401 - here once, and not again in each child
import msgspec  # noqa: F401
import pytest

ROOT = Path(__file__).resolve().parent.parent
CORE = Path("src/rallypoint/rendezvous/core")
MODULES = (
    "advance", "membership", "going", "working", "exclusion", "notices", "quarantine", "rounds",
    "ranks",
)  # fmt: skip
LIMIT_SECONDS = 120
SWAPS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


class Mutant(NamedTuple):
    """One changed module.

    Args:
        module: its name.
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
                yield f"condition is {value}", other
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


def mutants() -> Iterator[Mutant]:
    """Yield every mutant of the modules."""
    for module in MODULES:
        tree = ast.parse((ROOT / CORE / f"{module}.py").read_text("utf-8"))
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
                continue  # tables and names: types check those
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                continue
            for what, new in changes_of(node):
                changed = _Replace(index, new).visit(copy.deepcopy(tree))
                yield Mutant(module, line, what, ast.unparse(ast.fix_missing_locations(changed)))


def survives(mutant: Mutant, source: Path) -> bool:
    """Return whether all tests pass with a mutant in a copy of the source."""
    path = source / CORE.relative_to("src") / f"{mutant.module}.py"
    whole = path.read_text("utf-8")
    path.write_text(mutant.source, "utf-8")
    try:
        return run_tests(source, mutant.module)
    finally:
        path.write_text(whole, "utf-8")


def run_tests(source: Path, module: str = "advance") -> bool:
    """Run the tests of the core: the module's own, then all, and the state machine at last."""
    folder = "tests/rendezvous/core"
    own, machine = f"{folder}/test_{module}.py", f"{folder}/test_machine.py"
    every = [folder, f"--ignore={machine}", f"--ignore={own}"]
    return all(run_in_child(source, which) for which in ([own], every, [machine]))


def run_in_child(source: Path, which: list[str]) -> bool:
    """Run tests against a copy of the source in a fork, which has the libraries already."""
    child = os.fork()
    if child == 0:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        signal.alarm(LIMIT_SECONDS)
        os.chdir(ROOT)
        sys.dont_write_bytecode = True
        sys.path.insert(0, str(source))
        os._exit(int(pytest.main(["-xq", "--assert=plain", "-p", "no:cacheprovider", *which])))
    _, status = os.waitpid(child, 0)
    return status == 0


def main() -> int:
    """Test the mutants; 1 if a test of the unchanged source fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, help="only so many, chosen at random")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", default="0/1", help="i/n: every n-th one, from the i-th on")
    parser.add_argument("--list", action="store_true", help="only count them")
    given = parser.parse_args()
    every = list(mutants())
    print(f"{len(every)} mutants of {', '.join(MODULES)}")
    if given.list:
        return 0
    if given.sample:
        every = random.Random(given.seed).sample(every, given.sample)
    first, step = map(int, given.part.split("/"))
    every = every[first::step]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        if not run_tests(source):
            print("the tests fail without any change")
            return 1
        left = 0
        for number, mutant in enumerate(every, 1):
            if survives(mutant, source):
                left += 1
                print(f"SURVIVES {mutant.module}.py:{mutant.line}: {mutant.what}", flush=True)
            if number % 20 == 0:
                print(f"{number} tried, score {1 - left / number:.1%}", flush=True)
    print(f"score {1 - left / len(every):.1%}: {len(every) - left} of {len(every)} were noticed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
