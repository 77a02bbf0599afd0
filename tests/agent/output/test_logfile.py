from pathlib import Path

from rallypoint.agent.output.logfile import LogFile


def texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.iterdir())}


def test_a_full_file_is_turned_over_at_the_end_of_a_line(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "deep" / "x.log", max_bytes=4, keep=2)
    for text in ("aaaa", "a\n", "b\n", "bb\n", "cccc\n", "d"):
        log.write(text.encode())
    log.close()
    found = texts(tmp_path / "deep")
    assert found == {"x.log": "d", "x.log.1": "cccc\n", "x.log.2": "b\nbb\n"}


def test_a_line_without_end_is_turned_over_at_twice_the_size(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "x.log", max_bytes=4, keep=1)
    for _ in range(9):
        log.write(b"a")
    log.close()
    assert texts(tmp_path) == {"x.log": "a", "x.log.1": "a" * 8}


def test_nothing_old_is_kept_if_nothing_shall(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "x.log", max_bytes=2, keep=0)
    log.write(b"a\n")
    log.close()
    assert texts(tmp_path) == {"x.log": ""}


def test_without_a_limit_it_grows_and_is_added_to(tmp_path: Path) -> None:
    for text in (b"a\n" * 1000, b"b"):
        log = LogFile(tmp_path / "x.log")
        log.write(text)
        log.close()
    assert texts(tmp_path) == {"x.log": "a\n" * 1000 + "b"}


def test_a_chunk_is_split_where_lines_end(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "x.log", max_bytes=6, keep=9)
    log.write(b"aa\nbb\ncccc\nd\n" + b"e" * 15 + b"\nf")
    log.close()
    found = texts(tmp_path)
    assert [found[name] for name in sorted(found, reverse=True)] == [
        "aa\nbb\n", "cccc\nd\n", "e" * 12, "eee\nf",
    ]  # fmt: skip
