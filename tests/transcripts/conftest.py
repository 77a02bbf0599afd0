"""`pytest tests/transcripts --refresh` writes the expected transcripts anew."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--refresh",
        action="store_true",
        help="write tests/transcripts/expected anew instead of comparing with it",
    )
