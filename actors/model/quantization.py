"""Which weight formats there are (`--quantization`), and what all must know of one who do not compute with it.

What a format does with tensors is a module of the worker, which its record here names; what such a module has, says
worker/quantization/base.py. So a format is such a file and a record in METHODS. Knows no torch and no files.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from .layers import LinearSpec, TensorSpec

IMPLEMENTATIONS = "actorserve.actors.worker.quantization"
FLAGS = {"cpu": "on a CPU only (--device cpu)", "cuda": "on a GPU only (--device cuda)"}


class QuantMethod(msgspec.Struct, frozen=True, kw_only=True):
    """How the weights of linear layers are kept; embeddings, norms and biases are of the type that is computed in."""

    name: str
    implementation: str  # the module with its linear layers
    about: str = ""  # in the help of the option
    devices: tuple[str, ...] = ("cpu", "cuda")
    computes_in: str | None = None  # on a CPU, the type of all that is not quantised; None: as --dtype says
    bytes_per_weight: float | None = None  # in memory, of a linear layer; None: as the type that is computed in
    with_head: bool = True  # what makes logits is quantised, too
    with_experts: bool = True  # and so are experts
    gpu_bytes_per_weight: float | None = None  # bytes_per_weight on a GPU
    gpu_experts: bool = True  # with_experts there
    rounds_inputs: bool = False  # there: with e4m3, steps of many tokens multiply numbers of 8 bits on both sides
    batch_invariant: bool = False  # a row has the same bits in every batch: attention must keep to that, as well
    stored_as: str | None = None  # its quant_method in config.json, if checkpoints have it; None: it is made at load
    tensors: Callable[[LinearSpec], dict[str, TensorSpec]] = LinearSpec.tensors  # that a checkpoint has of a linear

    def refusal(self, dtype: str, on_gpu: bool) -> str | None:
        """Why this device cannot have it with this --dtype."""
        device = "cuda" if on_gpu else "cpu"
        if device not in self.devices:
            return FLAGS[self.devices[0]]
        if self.computes_in and not on_gpu and dtype not in ("auto", self.computes_in):
            return f"what is not quantised is {self.computes_in} on a CPU, not {dtype}"
        return None

    def on_gpu(self) -> QuantMethod:
        """The same of weights that are made so at load, there."""
        own, experts = self.gpu_bytes_per_weight, self.gpu_experts
        return msgspec.structs.replace(self, computes_in=None, bytes_per_weight=own, with_experts=experts)


NONE = QuantMethod(name="none", implementation=f"{IMPLEMENTATIONS}.none")
INT8 = QuantMethod(
    name="int8",
    implementation=f"{IMPLEMENTATIONS}.int8",
    about="int8 makes weights of 8 bits at load: quicker, smaller, less exact; auto is int8 on a CPU for checkpoints "
    "that are quantised, which stay in their bits on a GPU, and none makes floats of them",
    computes_in="float32",
    bytes_per_weight=1,
    gpu_bytes_per_weight=1,
    batch_invariant=True,
)
GGUF = msgspec.structs.replace(  # types of 2 to 8 bits
    INT8, name="gguf", stored_as="gguf", about="gguf is the same of a GGUF file, which has it by itself"
)
INT4 = QuantMethod(
    name="int4",
    implementation=f"{IMPLEMENTATIONS}.int4",
    about="int4 makes weights of 4 bits: smaller still, quicker for one client, less exact than int8",
    computes_in="float32",
    bytes_per_weight=0.5 + 4 / 32,
    gpu_bytes_per_weight=0.5 + 4 / 32,
)
FP8 = QuantMethod(
    name="fp8",
    implementation=f"{IMPLEMENTATIONS}.fp8",
    about="fp8 makes floats of 8 bits (e4m3, a scale for each output), which a CPU keeps in 16 bits or more",
    gpu_bytes_per_weight=1,
    gpu_experts=False,
)
W8A8_FP8 = msgspec.structs.replace(
    FP8,
    name="w8a8_fp8",
    about="w8a8_fp8 is fp8, or an FP8 checkpoint, on a GPU, with inputs of products rounded to e4m3 by row in steps of "
    "over 64 tokens: for quicker prompts, less exact",
    devices=("cuda",),
    rounds_inputs=True,
)
AUTO = "auto"
METHODS = {method.name: method for method in (NONE, INT8, INT4, FP8, W8A8_FP8, GGUF)}
CHECKPOINTS = (  # what config.json may say of weights: the same as auto, where it says so; fp8 of floats makes them
    *("auto-round", "awq", "bitsandbytes", "compressed-tensors", "fbgemm_fp8", "fp8", "gptq", "metal", "mlx"),
    *("modelopt", "modelopt_fp4", "mxfp4", "mxfp8", "quark", "torchao"),
)
SAME = {
    "intel/auto-round": "auto-round",
    "modelopt_fp4": "modelopt",
    "modelopt_mixed": "modelopt",
    "modelopt_mxfp8": "modelopt",
}  # other names for one
NAMES = tuple(dict.fromkeys((AUTO, *METHODS, *CHECKPOINTS)))
ABOUT = "; ".join(method.about for method in METHODS.values() if method.about) + (
    "; a checkpoint's own format may be named, and is refused where it is another"
)


def is_auto(option: str) -> bool:
    """Does the checkpoint, if it is quantised, say what is to be done?"""
    return option == AUTO or option in CHECKPOINTS
