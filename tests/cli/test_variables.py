import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from rallypoint.cli import COMMANDS, main, variables
from rallypoint.cli.variables import OF_TESTS, OF_WORKERS, SETTINGS, of_options, unread

ROOT = Path(__file__).resolve().parents[2]
CONTEXT = click.Context(main)
MADE_UP = {"NAME", "COMPLETE", "SERVICE_HOST"}  # of a text; click's; Kubernetes'
MENTIONED = re.compile(r"\bRALLYPOINT_([A-Z0-9_]*[A-Z0-9])\b(?!_|\{)")


def command(name: str) -> click.Command:
    found = main.get_command(CONTEXT, name)
    assert found is not None
    return found


def known() -> frozenset[str]:
    options = (of_options(command(name)) for name in COMMANDS)
    return (SETTINGS | OF_WORKERS | OF_TESTS).union(*options)


def mentioned(folder: Path, *kinds: str) -> set[str]:
    texts = (path.read_text("utf-8") for kind in kinds for path in folder.rglob(kind))
    return {name for text in texts for name in MENTIONED.findall(text)}


def test_variables_in_source_and_docs_are_known() -> None:
    names = mentioned(ROOT / "src", "*.py") | mentioned(ROOT / "docs", "*.md")
    names |= mentioned(ROOT / "deploy", "*.yaml", "*.service")
    assert len(names) > 50
    assert {f"RALLYPOINT_{name}" for name in names - MADE_UP} - known() == set()


def test_known_variables_are_used_somewhere() -> None:
    source = " ".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    tests = mentioned(ROOT / "tests", "*.py")
    for name in OF_TESTS:
        assert name.removeprefix("RALLYPOINT_") in tests, name
    for name in OF_WORKERS:
        assert name in source


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("RALLYPOINT_LEESE", "RALLYPOINT_LEASE"),
        ("RALLYPOINT_TOKN", "RALLYPOINT_TOKEN"),
        ("RALLYPOINT_ENDPONT", "RALLYPOINT_ENDPOINT"),
        ("RALLYPOINT_BINDS", "RALLYPOINT_BIND"),  # of another command
    ],
)
def test_unknown_variable_suggests_the_nearest(name: str, nearest: str) -> None:
    told = unread({name: "3", "HOME": "/"}, command("run"))
    assert told == [f"{name} is set, but nothing reads it; did you mean {nearest}?"]


def test_unknown_name_without_a_similar_one() -> None:
    told = unread({"RALLYPOINT_QQQQ": "3"}, command("serve"))
    assert told == ["RALLYPOINT_QQQQ is set, but nothing reads it"]


def test_used_variables_are_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    env = dict.fromkeys(known(), "1")
    env["RALLYPOINT_NOTHING"] = ""
    assert unread(env, command("run")) == []
    monkeypatch.setattr(variables, "COMMANDS", None)  # its own are enough: no other is loaded
    assert unread(dict.fromkeys(of_options(command("run")), "1"), command("run")) == []


def test_kubernetes_service_variables_are_not_reported() -> None:
    names = ["RALLYPOINT_SERVICE_HOST", "RALLYPOINT_WEB_SERVICE_PORT_HTTP",
             "RALLYPOINT_PORT_29400_TCP_ADDR"]  # fmt: skip
    env = {**dict.fromkeys(names, "10.0.0.1"), "RALLYPOINT_WEB_PORT": "tcp://10.0.0.1:80"}
    assert unread(env, command("run")) == []


@pytest.mark.parametrize(
    ("argv", "head"),
    [
        (["run", "--nnodes=0", "--no-python", "true"], "rallypoint: warning: "),
        (["serve", "--bind=h:http"], "rallypoint serve: warning: "),
    ],
)
def test_failed_commands_report_it_too(argv: list[str], head: str) -> None:
    done = CliRunner().invoke(main, argv, env={"RALLYPOINT_LEESE": "3"})
    first, *_ = done.stderr.splitlines()
    words = "RALLYPOINT_LEESE is set, but nothing reads it; did you mean RALLYPOINT_LEASE?"
    assert first == head + words
