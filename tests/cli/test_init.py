import subprocess
import sys

from click.testing import CliRunner

from rallypoint.cli import COMMANDS, main


def test_help_lists_the_commands_without_loading_them() -> None:
    program = (
        "import sys; from click.testing import CliRunner; from rallypoint.cli import main;"
        "print(CliRunner().invoke(main, ['--help']).output);"
        "heavy = {'rallypoint.agent', 'rallypoint.server', 'rich', 'psutil'};"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert all(f"  {name} " in done.stdout for name in COMMANDS)


def test_unknown_command_is_a_usage_error() -> None:
    result = CliRunner().invoke(main, ["nope"])
    assert result.exit_code == 2
    assert "nope" in result.output


def test_unknown_command_suggests_the_nearest() -> None:
    result = CliRunner().invoke(main, ["statsu"])
    assert result.exit_code == 2
    assert "No such command 'statsu'. (Did you mean 'status'?)" in result.stderr
    result = CliRunner().invoke(main, ["xyz"])
    assert result.exit_code == 2
    assert "No such command 'xyz'." in result.stderr


def test_suggested_options_begin_alike_and_are_never_hidden() -> None:
    result = CliRunner().invoke(main, ["serve", "--fd2", "1"])
    assert result.exit_code == 2
    assert "No such option '--fd2'." in result.stderr
    assert "--fd'" not in result.stderr
    result = CliRunner().invoke(main, ["run", "--nod-rank", "1", "x"])
    assert "Did you mean '--node-rank'?" in result.stderr
