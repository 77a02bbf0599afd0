"""Checks of the architecture by reading the source: layers, purity, sizes, docstrings, mirror.

The rules are those of docs/architecture.md. Each exception stands in a table here, with its
reason; an exception that is no longer needed fails too.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "rallypoint"
FILES = sorted(SOURCE.rglob("*.py"))

# Imports go down only: a package may import itself and packages of a lower level.
LEVELS = {
    "errors": 0,
    "deadline": 0,
    "backoff": 0,
    "version": 0,
    "wallclock": 0,
    "core": 1,
    "net": 2,
    "hosting": 3,
    "store": 4,
    "engines": 5,
    "rendezvous": 6,
    "worker": 7,
    "agent": 8,
    "server": 8,
    "doctor": 8,
    "web": 9,
    "cli": 10,
    "testing": 11,
    "integrations": 11,
    "__main__": 11,
}
NEVER_IMPORTED = {"testing", "integrations", "__main__", "cli"}
COMPOSES = {"__init__"}  # the package's own file gives the public names, lazily

# (importing module, imported package) -> why it may import up or sideways
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("__main__", "cli"): "`python -m rallypoint` is the command line",
    ("cli.simulate", "testing"): "the simulator is shipped, and this command shows it to users",
}

# These modules must say PURE in their docstring; every module that says so must be pure.
PURE = [
    "agent/policy/*.py",
    "agent/reporting/messages.py",
    "agent/reporting/records.py",
    "agent/workers/environment.py",
    "backoff.py",
    "cli/demo_facts.py",
    "core/*.py",
    "engines/etcd/messages.py",
    "engines/redis/scripts.py",
    "doctor/fitness.py",
    "integrations/kubernetes.py",
    "integrations/mpi.py",
    "integrations/slurm.py",
    "net/certificate.py",
    "net/handshake.py",
    "net/protocol.py",
    "net/tokens.py",
    "rendezvous/client/session.py",
    "rendezvous/timing.py",
    "rendezvous/reports/*.py",
    "rendezvous/view.py",
    "rendezvous/wire.py",
    "server/journal/log_compaction.py",
    "server/limits.py",
    "store/groups.py",
    "store/keyspace.py",
    "store/table.py",
    "testing/simulator/history.py",
]
IMPURE_MODULES = {
    "asyncio", "datetime", "io", "logging", "multiprocessing", "os", "pathlib", "random",
    "secrets", "select", "signal", "socket", "subprocess", "sys", "tempfile", "threading",
    "time", "uuid",
}  # fmt: skip
IMPURE_CALLS = {"open", "print", "input", "exec", "eval"}

# source file -> why no test file mirrors it
NO_MIRROR: dict[str, str] = {}

FORBIDDEN_MODULES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle"}
FORBIDDEN_NAMES = {
    "getfqdn": "asks the name service about ourselves, which hangs without one",
    "gethostbyaddr": "reverse name look-ups hang or lie",
    "getnameinfo": "reverse name look-ups hang or lie",
}
# source file -> why it may sleep; other modules wait for an event
SLEEPS = {
    "store/file.py": "a file shared between machines tells nobody that it changed",
    "store/record_log.py": "the same",
}
FILE_LINES, FUNCTION_LINES = 700, 50


def name_of(path: Path) -> str:
    """Return a source file's path as it is written in the tables."""
    return path.relative_to(SOURCE).as_posix()


def module_of(path: Path) -> str:
    """Return a source file's dotted name below the package."""
    return name_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def part_of(module: str) -> str:
    """Return the package (of the level table) that a dotted name belongs to."""
    return module.split(".")[0]


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imported(path: Path) -> Iterator[str]:
    """Yield the dotted name of every import of a file, those inside functions included."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno}: relative import"
            for alias in node.names:
                yield f"{node.module}.{alias.name}"


def imported_parts(path: Path) -> set[str]:
    """Return the packages that a file imports."""
    parts = set()
    for name in imported(path):
        top, _, rest = name.partition(".")
        if top == "rallypoint":
            parts.add(part_of(rest) if rest else "__init__")
    return parts


def upward(path: Path) -> Iterator[tuple[str, str]]:
    module = module_of(path)
    own = part_of(module)
    if own in COMPOSES:
        return
    for part in imported_parts(path) - {own}:
        level = LEVELS.get(part)
        if level is None or level >= LEVELS[own] or part in NEVER_IMPORTED:
            yield module, part


def file_of(name: str) -> Path | None:
    """Return the source file of an imported dotted name, None if it is not ours."""
    parts = name.split(".")
    if parts[0] != SOURCE.name:
        return None
    for end in range(len(parts), 0, -1):
        base = SOURCE.joinpath(*parts[1:end])
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.is_file():
                return path
    return None


def import_graph() -> dict[str, set[str]]:
    """Return which modules each module imports, without `rallypoint/__init__.py`."""
    graph = {}
    for path in FILES:
        targets = {file_of(name) for name in imported(path)} - {None, path, SOURCE / "__init__.py"}
        graph[module_of(path)] = {module_of(target) for target in targets if target}
    return graph


def in_cycles(graph: dict[str, set[str]]) -> set[str]:
    """Return the modules that can be reached from themselves."""
    found = set()
    for start in graph:
        seen: set[str] = set()
        ahead = [start]
        while ahead:
            new = graph[ahead.pop()] - seen
            seen |= new
            ahead += new
        if start in seen:
            found.add(start)
    return found


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Type-only imports and those inside functions count too."""
    assert not in_cycles(import_graph())


def every(paths: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", paths, ids=name_of)


def test_every_package_has_a_level() -> None:
    parts = {part_of(module_of(path)) for path in FILES} - COMPOSES
    assert parts <= set(LEVELS), f"give these a level: {sorted(parts - set(LEVELS))}"


@every(FILES)
def test_imports_go_down(path: Path) -> None:
    wrong = sorted(set(upward(path)) - set(EXCEPTIONS))
    assert not wrong, f"{name_of(path)} imports up or sideways: {[part for _, part in wrong]}"


def test_exceptions_to_the_direction_are_needed() -> None:
    used = {pair for path in FILES for pair in upward(path)}
    assert set(EXCEPTIONS) <= used, f"not needed any more: {sorted(set(EXCEPTIONS) - used)}"


SAYS_PURE = re.compile(r"\bPURE\b")
PURE_FILES = [path for path in FILES if SAYS_PURE.search(ast.get_docstring(tree_of(path)) or "")]


@pytest.mark.parametrize("pattern", PURE)
def test_what_must_be_pure_says_so(pattern: str) -> None:
    found = set(SOURCE.glob(pattern))
    assert found, f"no such file: {pattern}"
    silent = found - set(PURE_FILES) - set(SOURCE.rglob("__init__.py"))
    assert not silent, f"the head must say PURE: {sorted(map(name_of, silent))}"


@every(PURE_FILES)
def test_pure_modules_touch_nothing(path: Path) -> None:
    modules = {name.split(".")[0] for name in imported(path)} & IMPURE_MODULES
    assert not modules, f"{name_of(path)} is PURE but imports {sorted(modules)}"
    calls = {
        f"{node.func.id} in line {node.lineno}"
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in IMPURE_CALLS
    }
    assert not calls, f"{name_of(path)} is PURE but calls {sorted(calls)}"


def defines_something(path: Path) -> bool:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return any(isinstance(node, kinds) for node in tree_of(path).body)


def mirror_of(path: Path) -> Path:
    relative = path.relative_to(SOURCE)
    stem = "init" if path.stem == "__init__" else path.stem
    return ROOT / "tests" / relative.parent / f"test_{stem}.py"


def without_mirror() -> list[str]:
    return [
        name_of(path)
        for path in FILES
        if not mirror_of(path).exists()
        and (path.name not in ("__init__.py", "__main__.py") or defines_something(path))
    ]


def test_every_module_has_its_test_file() -> None:
    missing = sorted(set(without_mirror()) - set(NO_MIRROR))
    assert not missing, "no test file for:\n" + "\n".join(missing)


def test_exceptions_to_the_mirror_are_needed() -> None:
    extra = sorted(set(NO_MIRROR) - set(without_mirror()))
    assert not extra, f"not needed any more: {extra}"


@every(FILES)
def test_files_hold_one_idea(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    hint = "one idea per file; split by idea, not by number"
    assert lines <= FILE_LINES, f"{name_of(path)}: {lines} lines, at most {FILE_LINES}: {hint}"


@every(FILES)
def test_functions_are_short(path: Path) -> None:
    long = [
        f"{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES
    ]
    assert not long, f"{name_of(path)}: {long}, at most {FUNCTION_LINES} lines"


Function = ast.FunctionDef | ast.AsyncFunctionDef
CLASSES: dict[str, list[ast.ClassDef]] = {}
for _path in FILES:
    for _node in ast.walk(tree_of(_path)):
        if isinstance(_node, ast.ClassDef):
            CLASSES.setdefault(_node.name, []).append(_node)


def bases(of: ast.ClassDef) -> Iterator[ast.ClassDef]:
    """Yield the classes of the package that a class is derived from, directly or not."""
    for base in of.bases:
        name = ast.unparse(base).partition("[")[0].rpartition(".")[2]
        for found in CLASSES.get(name, []) if name != of.name else []:
            yield found
            yield from bases(found)


def methods(of: ast.ClassDef) -> dict[str, Function]:
    return {node.name: node for node in of.body if isinstance(node, Function)}


PROTOCOLS = [
    found
    for each in CLASSES.values()
    for found in each
    if "Protocol" in [ast.unparse(base) for base in found.bases]
]


def contracts(of: ast.ClassDef) -> Iterator[ast.ClassDef]:
    """Yield what a class implements: its bases, and each protocol whose methods it has."""
    inherited = list(bases(of))
    yield from inherited
    names = {name for each in (of, *inherited) for name in methods(each)}
    yield from (found for found in PROTOCOLS if found is not of and set(methods(found)) <= names)


def undocumented(
    body: list[ast.stmt], within: str = "", contract: frozenset[str] = frozenset()
) -> Iterator[str]:
    for node in body:
        if not isinstance(node, Function | ast.ClassDef):
            continue
        if node.name.startswith("_"):
            continue
        inherited = node.name in contract or any(
            ast.unparse(decorator).endswith(("overload", "setter", "override"))
            for decorator in node.decorator_list
        )
        if ast.get_docstring(node) is None and not inherited:
            yield within + node.name
        if isinstance(node, ast.ClassDef):
            documented = {
                name
                for each in contracts(node)
                for name, method in methods(each).items()
                if ast.get_docstring(method)
            }
            yield from undocumented(node.body, f"{within}{node.name}.", frozenset(documented))


@every(FILES)
def test_public_names_have_docstrings(path: Path) -> None:
    """A method that overrides a documented one of ours needs no docstring."""
    tree = tree_of(path)
    assert ast.get_docstring(tree), f"{name_of(path)}: the module has no docstring"
    missing = list(undocumented(tree.body))
    assert not missing, f"{name_of(path)}: no docstring on {missing}"


@every(FILES)
def test_no_docstring_only_refers_to_another(path: Path) -> None:
    referring = [
        node.name
        for node in ast.walk(tree_of(path))
        if isinstance(node, Function | ast.ClassDef)
        and (ast.get_docstring(node) or "").startswith("See ")
    ]
    assert not referring, f"{name_of(path)}: say it, or say nothing where it overrides: {referring}"


def forbidden(path: Path) -> Iterator[str]:
    modules = {name.split(".")[0] for name in imported(path)} & FORBIDDEN_MODULES
    yield from (f"imports {module}" for module in sorted(modules))
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Attribute):
            if node.attr in FORBIDDEN_NAMES:
                yield f"line {node.lineno}: {node.attr} ({FORBIDDEN_NAMES[node.attr]})"
            if ast.unparse(node) == "time.sleep" and name_of(path) not in SLEEPS:
                yield f"line {node.lineno}: time.sleep (wait for an event instead)"
        elif isinstance(node, ast.ExceptHandler) and swallows(node):
            yield f"line {node.lineno}: an error is swallowed"
    if {"time.sleep", *(f"socket.{name}" for name in FORBIDDEN_NAMES)} & set(imported(path)):
        yield "imports a forbidden name"


def swallows(handler: ast.ExceptHandler) -> bool:
    """Return whether a handler catches everything and does nothing."""
    broad = handler.type is None or ast.unparse(handler.type) in ("Exception", "BaseException")
    empty = all(
        isinstance(node, ast.Pass | ast.Continue)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in handler.body
    )
    return broad and empty


@every(FILES)
def test_nothing_forbidden(path: Path) -> None:
    found = list(forbidden(path))
    assert not found, f"{name_of(path)}: {found}"
