"""Darknet's two files: the .cfg that lists the layers and the .weights with their numbers.

Sources: ``src/parser.c`` and ``src/option_list.c`` of Darknet (J. Redmon, A. Bochkovskiy).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Mapping, Protocol, Sequence

import numpy as np

from dla_perception.errors import DlaPerceptionError

ALIASES = {
    "network": "net",
    "conv": "convolutional",
    "conn": "connected",
    "max": "maxpool",
    "avg": "avgpool",
    "local_avg": "local_avgpool",
    "soft": "softmax",
    "silence": "empty",
    "Gaussian_yolo": "gaussian_yolo",
}
"""Section names that mean the same: ``string_to_layer_type`` in parser.c."""


class DarknetError(DlaPerceptionError):
    """A cfg or weights file cannot be imported."""


@dataclass(frozen=True)
class Section:
    """One ``[section]`` of a cfg file.

    Attributes:
        path: the cfg file.
        kind: the name without brackets, aliases resolved.
        line: where the section begins, counted from 1.
        index: the layer's number; -1 for ``[net]``.
        options: value and line by key; of a key given twice the first counts, as in Darknet.
    """

    path: str
    kind: str
    line: int
    index: int
    options: Mapping[str, tuple[str, int]] = field(default_factory=dict)

    def __str__(self) -> str:
        number = f"layer {self.index} " if self.index >= 0 else ""
        return f"{self.path}: line {self.line}: {number}[{self.kind}]"

    def error(self, message: str) -> DarknetError:
        """An error that names this section."""
        return DarknetError(f"{self}: {message}")

    def text(self, key: str, default: str | None = None) -> str:
        """The value of a key; without ``default`` the key must be there."""
        if key in self.options:
            return self.options[key][0]
        if default is None:
            raise self.error(f"it has no '{key}='")
        return default

    def integer(self, key: str, default: int, least: int | None = None) -> int:
        """A whole number; ``least`` is the smallest that is allowed."""
        value = self.integers(key)[0] if key in self.options else default
        if least is not None and value < least:
            raise self.error(f"{key}={value}: expected {least} or more")
        return value

    def number(self, key: str, default: float) -> float:
        """A number."""
        return self.numbers(key)[0] if key in self.options else default

    def integers(self, key: str) -> list[int]:
        """A list of whole numbers."""
        return [int(value) for value in self._values(key, r"[+-]?\d+", "whole numbers")]

    def numbers(self, key: str) -> list[float]:
        """A list of numbers."""
        pattern = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
        return [float(value) for value in self._values(key, pattern, "numbers")]

    def with_options(self, **changes: int) -> Section:
        """The section with some options replaced."""
        changed = {key: (str(value), self.line) for key, value in changes.items()}
        return replace(self, options={**self.options, **changed})

    def _values(self, key: str, pattern: str, expected: str) -> list[str]:
        text = self.text(key)
        values = text.rstrip(",").split(",")
        if not all(re.fullmatch(pattern, value) for value in values):
            raise DarknetError(
                f"{self.path}: line {self.options[key][1]}: {key}={text}: expected {expected}"
            )
        return values


def read_cfg(path: str | Path) -> list[Section]:
    """The sections of a cfg file; the first is ``[net]``.

    Raises:
        DarknetError: the file cannot be read or is no cfg file.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig", errors="replace").splitlines()
    except OSError as error:
        raise DarknetError(f"{path}: cannot read it: {error.strerror}") from None
    sections: list[Section] = []
    for number, line in enumerate(lines, 1):
        # Darknet removes all white space before it looks at a line
        content = re.split("[#;]", "".join(line.split()))[0]
        if not content:
            continue
        if content.startswith("["):
            if not re.fullmatch(r"\[\w+\]", content):
                raise DarknetError(f"{path}: line {number}: {line.strip()!r}: expected '[name]'")
            kind = ALIASES.get(content[1:-1], content[1:-1])
            sections.append(Section(str(path), kind, number, len(sections) - 1, {}))
            continue
        key, equals, value = content.partition("=")
        if not equals or not key or not sections:
            raise DarknetError(
                f"{path}: line {number}: {line.strip()[:60]!r}: expected '[section]' or 'key=value'"
                + ("" if sections else "; a cfg file begins with [net]")
            )
        options = dict(sections[-1].options)
        options.setdefault(key, (value, number))
        sections[-1] = replace(sections[-1], options=options)
    if not sections or sections[0].kind != "net":
        found = f"it begins with [{sections[0].kind}]" if sections else "it has no section"
        raise DarknetError(f"{path}: {found}; expected a Darknet cfg file that begins with [net]")
    if len(sections) == 1:
        raise DarknetError(f"{path}: it has no layer after [net]")
    return sections


class WeightSource(Protocol):
    """Where the numbers of the layers come from, in the file's order."""

    transposed: bool
    """Whether fully connected weights are stored input by input."""

    def take(self, shape: Sequence[int], what: str, section: Section) -> np.ndarray:
        """The next numbers as ``float32`` of ``shape``; ``what`` they are of which layer."""


class WeightsFile:
    """A .weights file, read in one go and handed out layer by layer.

    The header is major, minor, revision (int32 each) and the number of images seen: 64 bits
    from version 0.2 on, 32 bits before. The rest are little-endian binary32 numbers.
    """

    def __init__(self, path: str | Path) -> None:
        """Read the header.

        Raises:
            DarknetError: the file cannot be read or has no such header.
        """
        self.path = str(path)
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise DarknetError(f"{path}: cannot read it: {error.strerror}") from None
        if len(content) < 16:
            raise DarknetError(
                f"{path}: {len(content)} bytes are too few for a Darknet weights file; "
                "expected a header of 16 or 20 bytes and the layers' numbers"
            )
        major, minor, _ = (int(value) for value in np.frombuffer(content, "<i4", 3))
        if not (0 <= major <= 2000 and 0 <= minor <= 2000):
            raise DarknetError(
                f"{path}: version {major}.{minor} in the first 8 bytes cannot be; "
                "expected a Darknet weights file"
            )
        self.header_bytes = 20 if major * 10 + minor >= 2 else 16
        self.transposed = major > 1000 or minor > 1000
        self._spare_bytes = (len(content) - self.header_bytes) % 4
        end = len(content) - self._spare_bytes
        self._numbers = np.frombuffer(content[self.header_bytes : end], "<f4")
        self._taken = 0

    def take(self, shape: Sequence[int], what: str, section: Section) -> np.ndarray:
        """See :class:`WeightSource`.

        Raises:
            DarknetError: the file ends before, or holds numbers that cannot be these.
        """
        count = int(np.prod(shape))
        left = len(self._numbers) - self._taken
        if count > left:
            raise DarknetError(
                f"{self.path}: it ends in {_short(section)}, which asks for {count:,} {what}: "
                f"{left:,} are left, {count - left:,} are missing; "
                f"the weights are not those of {section.path}"
            )
        numbers = self._numbers[self._taken : self._taken + count]
        if not np.isfinite(numbers).all() or (what == "variances" and (numbers < 0).any()):
            wrong = "negative" if np.isfinite(numbers).all() else "not finite"
            raise DarknetError(
                f"{self.path}: some {what} of {_short(section)} are {wrong}: "
                f"from this layer or one shortly before it on, the weights are not those of "
                f"{section.path}"
            )
        self._taken += count
        return numbers.reshape(shape)

    def check_end(self, last: Section) -> None:
        """Refuse a file that holds more than the layers up to ``last`` take."""
        left = len(self._numbers) - self._taken
        if left or self._spare_bytes:
            extra = f"{left:,} numbers" if left else f"{self._spare_bytes} bytes"
            raise DarknetError(
                f"{self.path}: {extra} are left over after {_short(last)}, the last layer: the "
                f"layers take {self._taken:,} numbers, the file holds {len(self._numbers):,}; "
                f"the weights are not those of {last.path}"
            )


def _short(section: Section) -> str:
    return f"layer {section.index} [{section.kind}] (cfg line {section.line})"
