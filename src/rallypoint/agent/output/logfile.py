"""A log file that is turned over when it is full: stdout.log, stdout.log.1, stdout.log.2 ..."""

from pathlib import Path
from typing import IO


class LogFile:
    """A file that bytes are added to.

    Args:
        path: of the newest file; its folder is made.
        max_bytes: size at which it is turned over, at the end of the line that reaches it, or in a
            line at twice the size; 0 for never.
        keep: older files that stay.
    """

    def __init__(self, path: Path, max_bytes: int = 0, keep: int = 0) -> None:
        """Open it. Raises OSError."""
        self.path = path
        self._max_bytes = max_bytes
        self._keep = keep
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = path.open("ab", buffering=0)
        self._size = self._file.tell()

    def write(self, data: bytes) -> None:
        """Add bytes. Raises OSError."""
        while data:
            end = self._end_of_part(data)
            self._file.write(data[:end])
            self._size += end
            full = self._max_bytes and self._size >= self._max_bytes
            if full and (data[:end].endswith(b"\n") or self._size >= 2 * self._max_bytes):
                self._turn_over()
            data = data[end:]

    def _end_of_part(self, data: bytes) -> int:
        """Return how much belongs to this file: up to the end of the line that fills it."""
        if not self._max_bytes:
            return len(data)
        room = max(self._max_bytes - self._size, 1)
        line_end = data.find(b"\n", room - 1) + 1
        return min(line_end or len(data), max(2 * self._max_bytes - self._size, 1))

    def _turn_over(self) -> None:
        self._file.close()
        for number in range(self._keep - 1, 0, -1):
            if self._older(number).exists():
                self._older(number).replace(self._older(number + 1))
        if self._keep:
            self.path.replace(self._older(1))
        self._file = self.path.open("wb", buffering=0)
        self._size = 0

    def _older(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def close(self) -> None:
        """Close it."""
        self._file.close()
