"""What the interpreter patches of Triton's language is patched once."""

from tests.support.triton_interpreter import language_is_patched_once, types_are_looked_up_once

__all__ = ["language_is_patched_once", "types_are_looked_up_once"]  # fixtures
