"""What the interpreter patches of Triton's language is patched once."""

from tests.support.gpu.triton_interpreter import (
    language_is_patched_once,
    operands_alike_are_not_compared,
    operations_are_wrapped_once,
    products_sum_in_one_order,
    shapes_are_made_once,
    sums_are_not_computed_twice,
    types_are_looked_up_once,
)

__all__ = [  # fixtures
    "language_is_patched_once",
    "operands_alike_are_not_compared",
    "operations_are_wrapped_once",
    "products_sum_in_one_order",
    "shapes_are_made_once",
    "sums_are_not_computed_twice",
    "types_are_looked_up_once",
]
