"""Kernels are interpreted quickly."""

from tests.support.gpu.triton_interpreter import quick_interpreter

__all__ = ["quick_interpreter"]  # a fixture
