"""The numbers that fields of requests may have. Leaf module."""

from __future__ import annotations

from dataclasses import dataclass

INT31, UINT64 = (1 << 31) - 1, (1 << 64) - 1


@dataclass(frozen=True)
class Range:
    """The numbers that a field may have. As metadata of a struct's field it is checked, and told in /openapi.json."""

    least: float
    most: float = INT31
    above: bool = False  # `least` itself is none of them
    text: str = ""  # where the two numbers would tell less

    def holds(self, value: float) -> bool:
        """Is it one of them? NaN is not."""
        return (self.least < value if self.above else self.least <= value) and value <= self.most

    def __str__(self) -> str:
        """What a number must be."""
        if self.text or self.above:
            return self.text or f"greater than {self.least} and at most {self.most}"
        return f"at least {self.least}" if self.most == INT31 else f"between {self.least} and {self.most}"

    def missed_by(self, value: float) -> str:
        """What a number that is none of them must be."""
        too_large = self.most == INT31 and value > INT31 and not self.text
        return f"{'less than 2**31' if too_large else self}, not {value}"


INT32 = Range(-(1 << 31), INT31, text="a 32-bit integer")
INT64 = Range(-(1 << 63), UINT64, text="a 64-bit integer")
