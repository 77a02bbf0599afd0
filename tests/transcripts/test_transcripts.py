"""Golden transcripts: each script in scripts/ gives the text in expected/.

A changed transcript is a changed rule: read the difference, then run with `--refresh`.
"""

from pathlib import Path

import pytest
from tests.transcripts.interpreter import Interpreter

HERE = Path(__file__).parent
SCRIPTS = sorted((HERE / "scripts").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path, pytestconfig: pytest.Config) -> None:
    transcript = Interpreter().play(path.read_text(encoding="utf-8"))
    assert "BROKEN" not in transcript
    expected = HERE / "expected" / path.name
    if pytestconfig.getoption("--refresh", default=False):
        expected.write_text(transcript, encoding="utf-8")
    assert transcript == expected.read_text(encoding="utf-8"), "see --refresh"


def test_every_expected_transcript_has_its_script() -> None:
    names = [path.name for path in SCRIPTS]
    assert len(names) >= 12
    assert sorted(path.name for path in (HERE / "expected").glob("*.txt")) == names


@pytest.mark.parametrize(
    "line", ["dance node1", "join", "lost node1 boredom", "timer tea", "fail node1 code=x"]
)
def test_invalid_line_is_named(line: str) -> None:
    with pytest.raises(ValueError, match=f"line 2, '{line}'"):
        Interpreter().play(f"run min=1 max=2\n{line}")
