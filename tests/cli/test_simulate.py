import json

from click.testing import CliRunner

from rallypoint.cli.simulate import command, seconds, spread


def test_table_for_people() -> None:
    done = CliRunner().invoke(command, ["--nodes", "8", "--mtbf", "2h", "--hours", "12"])
    assert done.exit_code == 0, done.output
    assert "8 nodes, 12 hours" in done.output
    for row in ("failures", "rounds", "time to detect", "time lost", "false losses"):
        assert row in done.output


def test_json_figures_depend_only_on_the_seed() -> None:
    given = ["--nodes", "4", "--mtbf", "1h", "--hours", "6", "--json", "--seed", "3"]
    one, two = (CliRunner().invoke(command, given).output for _ in range(2))
    assert one == two
    assert json.loads(one)["failures"] > 0


def test_invalid_duration_is_refused() -> None:
    done = CliRunner().invoke(command, ["--mtbf", "soon"])
    assert done.exit_code == 2
    assert "write 30, 90s, 5m, 6h or 1d" in done.output


def test_format_of_figures() -> None:
    assert (seconds(1.234), seconds(1200.0)) == ("1.23 s", "20.0 min")
    assert (spread([]), spread([1.0, 2.0, 9.0])) == ("-", "2.00 s (9.00 s)")
