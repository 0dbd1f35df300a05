"""From a folder to a head: what its config.json and the tensors in its files say, compared with the model's.

Formats are read as their authors write them: EAGLE's own and those of SpecForge, speculators and vLLM, which differ in
the names of tensors and in where config.json has what. Knows files; no torch.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ...options.config import ConfigError
from ..architecture import Architecture
from ..config_json import LARGEST
from ..families.family import ROPES
from ..layers import HEAD, LayerSpec, LinearSpec
from ..rope import read_rope
from ..values import Values, read_json
from ..weights.places import weight_files
from ..weights.weight_files import StoredTensor, check_tensors, read_files, read_weights
from .formats import (
    EAGLE,
    EAGLE3,
    EMBEDDING,
    MTP,
    TO_TARGET,
    DraftShape,
    MedusaShape,
    RecurrentFormat,
    RecurrentShape,
    Shape,
    TargetStates,
    block_name,
    out_name,
)

MEDUSA_FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt", "medusa_head.safetensors", "medusa_head.pt")
LAYERS = ("Llama", "Qwen2")  # whose layers are alike, but for biases
SPECULATORS = ("Eagle3Speculator", "Eagle3DraftModel")  # whose config.json has the layer's sizes in an object
MTP_LAYER = "model.mtp_layers.0."  # of MiMo
NOT_THERE = ("fc_norm", "norm_output", "parallel_drafting")  # variants of EAGLE-3 that are computed otherwise
MEDUSA_BLOCK = re.compile(
    r"(?:medusa_heads?\.|heads\.)?(?:blocks\.)?(\d+)\.(?:layers\.)?(\d+)\.(?:linear\.)?(weight|bias)"
)
MEDUSA_OUT = re.compile(r"(?:medusa_heads\.)?lm_heads\.(\d+)\.weight")

Tensors = dict[str, StoredTensor]


class Head(NamedTuple):
    """A head, and where its tensors are."""

    shape: Shape
    homes: dict[str, tuple[Path, str]]  # file and name there, by the names of formats.py


def read_eagle(folder: Path, target: Architecture, three: bool) -> Head:
    """EAGLE-3, or EAGLE-1 and -2, which differ in how they draft alone. ConfigError says what does not fit."""
    given = head_config(folder, "Llama", LAYERS, SPECULATORS)
    found, names = renamed(folder, read_weights(folder))
    if three != any(name.endswith("hidden_norm.weight") for name in found):
        raise ConfigError(f"model: {folder} holds a head of EAGLE-{'1' if three else '3'}: {_other(three)}")
    if (layers := given.whole("num_hidden_layers", 1)) not in (None, 1):
        raise ConfigError(f"model: {given.file} says num_hidden_layers = {layers}; heads of 1 layer are supported")
    if wrong := next((name for name in NOT_THERE if given[name]), None):
        raise ConfigError(f"model: {given.file} says {wrong}, which is not supported")
    own_states = given.object("eagle_config")
    if three and own_states is not None and own_states["use_aux_hidden_state"] is False:
        raise ConfigError(f"model: {given.file} says use_aux_hidden_state = false; heads that read three are supported")
    states = TargetStates(_aux_layers(given, target)) if three else TargetStates(normed=True)
    shape = _recurrent_shape(given, target, EAGLE3 if three else EAGLE, states, found)
    shape = msgspec.structs.replace(shape, hidden_norm_stays=three and given.flag("norm_before_residual"))
    return checked(folder, shape, found, names)


def read_mtp(folder: Path, target: Architecture) -> Head:
    """The layer that a model brings along in its own files."""
    given = Values(folder / "config.json", read_json(folder / "config.json"))
    if MTP_LAYER.removesuffix("0.") not in target.beside:
        named = (given["architectures"] or ["it"])[0]
        raise ConfigError(f"model: {named} has no layers for it that could be computed; MiMoForCausalLM has")
    own = {name: tensor for name, tensor in read_weights(folder).items() if name.startswith(MTP_LAYER)}
    if not own:
        raise ConfigError(f"model: the weights in {folder} have no {MTP_LAYER}*")
    names = {name.replace(MTP_LAYER, "layers.0."): name for name in own}
    found = {ours: own[theirs] for ours, theirs in names.items()}
    shape = _recurrent_shape(given, target, MTP, TargetStates(), found)
    return checked(folder, shape, found, names)


def read_medusa(folder: Path, target: Architecture, wanted: int) -> Head:
    """Medusa's own format and vLLM's; `wanted` are the heads that will be used."""
    files = [folder / name for name in MEDUSA_FILES if (folder / name).exists()][:1] or weight_files(folder)
    stored = read_files(files)
    if "token_map" in stored:
        raise ConfigError(f"model: {folder} has a token_map, which is not supported")
    names = _medusa_names(stored)
    heads = 1 + max((int(name.split(".")[1]) for name in names), default=-1)
    if wanted > heads:
        raise ConfigError(f"num_speculative_tokens: {wanted} is more than the {heads} heads in {folder}")
    found = {ours: stored[theirs] for ours, theirs in names.items()}
    shape = MedusaShape(
        heads=heads,
        blocks=len({name for name in found if name.startswith("heads.0.blocks.") and name.endswith("weight")}),
        biased=any(name.endswith("bias") for name in found),
        own_outs=out_name(0) in found,
        hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
    )
    if strange := sorted(stored.keys() - set(names.values()) - {f"{HEAD}.weight"}):
        raise ConfigError(f"model: {folder} holds {strange[0]}, which is no tensor of Medusa's heads")
    _check_medusa(folder, shape, found)
    return Head(shape, {ours: (stored[theirs].file, theirs) for ours, theirs in names.items()})


def _other(three: bool) -> str:
    return f"for it, method is {'eagle' if three else 'eagle3'}"


def head_config(folder: Path, of: str, parts: Collection[str], wholes: Collection[str]) -> Values:
    """Its values; where the layers' stand in an object of their own, these count as well. `parts` of names of
    architectures are supported, and `wholes`; these are those `of` whom is told."""
    path = folder / "config.json"
    whole = Values(path, read_json(path))
    names = whole["architectures"] or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise whole.wrong("architectures", "a list of names")
    if names and not any(kind in names[0] for kind in parts) and names[0] not in wholes:
        raise ConfigError(f"model: heads of the architecture {names[0]} are not supported; those of {of} are ({path})")
    inner = whole.object("transformer_layer_config")
    return whole if inner is None else Values(path, {**whole.values, **inner.values})


def _aux_layers(given: Values, target: Architecture) -> tuple[int, ...]:
    """Before which layers a head of EAGLE-3 reads.

    In `eagle_config` numbers are of layers whose output is read, at the top those whose input is; both are in use.
    """
    own = given.object("eagle_config")
    key, back = "eagle_aux_hidden_state_layer_ids", 0
    holder = given
    if own is not None and own[key] is not None:
        holder, back = own, 1
    ids: Any = holder[key]
    if ids is None:
        return tuple(sorted((min(2, target.layers), target.layers // 2, max(0, target.layers - 3))))
    if not isinstance(ids, list) or not ids or not all(type(one) is int for one in ids):
        raise holder.wrong(key, "a list of layers")
    layers = tuple(sorted(one + back for one in ids))
    if layers[0] < 0 or layers[-1] > target.layers:
        raise holder.wrong(key, f"layers of the model, which has {target.layers},")
    return layers


def _recurrent_shape(
    given: Values, target: Architecture, form: RecurrentFormat, states: TargetStates, found: Tensors
) -> RecurrentShape:
    check_sizes(given, target, f"{EMBEDDING}.weight" in found and form.fuse is not None)
    return RecurrentShape(
        **own_sizes(given, target, found),
        windows=(None,),
        format=_with_biases(form, found),
        states=states,
    )


def own_sizes(given: Values, target: Architecture, found: Tensors) -> dict[str, Any]:
    """Fields of a DraftShape that all formats have alike."""
    heads, hidden = given.needed("num_attention_heads", LARGEST), given.needed("hidden_size", LARGEST)
    head_dim = given.whole("head_dim", 1, LARGEST) or hidden // heads
    drafted = given.whole("draft_vocab_size", 1, LARGEST) or target.vocab_size
    if drafted > target.vocab_size:
        raise given.wrong("draft_vocab_size", f"a number up to {target.vocab_size}, the words of the model,")
    return {
        "vocab_size": target.vocab_size,
        "hidden_size": hidden,
        "intermediate_size": given.needed("intermediate_size", LARGEST),
        "heads": heads,
        "kv_heads": given.whole("num_key_value_heads", 1, LARGEST) or heads,
        "head_dim": head_dim,
        "norm_eps": given.real("rms_norm_eps", 0, 1) or 1e-6,
        "rope": read_rope(given, ROPES, head_dim, False),
        "target_hidden": target.hidden_size,
        "draft_vocabulary": drafted,
        "own_embeddings": f"{EMBEDDING}.weight" in found,
        "own_head": f"{HEAD}.weight" in found or drafted != target.vocab_size,
        "mapped": drafted != target.vocab_size or TO_TARGET in found,
    }


def check_sizes(given: Values, target: Architecture, own_size: bool) -> None:
    """What has to be the model's is; with `own_size` a head may have another hidden size."""
    vocabulary = given.whole("vocab_size", 1, LARGEST) or given.whole("target_vocab_size", 1, LARGEST)
    states = given.whole("target_hidden_size", 1, LARGEST)
    hidden = None if own_size else given.whole("hidden_size", 1, LARGEST)
    for name, own, whole in (
        ("vocab_size", vocabulary, target.vocab_size),
        ("target_hidden_size", states, target.hidden_size),
        ("hidden_size", hidden, target.hidden_size),
    ):
        if own not in (None, whole):
            raise ConfigError(f"model: {given.file} says {name} = {own}, and the model that it drafts for has {whole}")


def _with_biases(form: RecurrentFormat, found: Tensors) -> RecurrentFormat:
    """Those that are in the files: config.json names them in many ways, or not at all."""

    def known(*linears: LinearSpec) -> tuple[LinearSpec, ...]:
        biased = any(f"{linear.name}.bias" in found for linear in linears)  # of one product all have one, or none
        return tuple(msgspec.structs.replace(linear, bias=biased) for linear in linears)

    layer: LayerSpec = msgspec.structs.replace(
        form.layer,
        qkv=known(*form.layer.qkv),
        out=known(form.layer.out)[0],
        gate_up=known(*form.layer.gate_up),
        down=known(form.layer.down)[0],
    )
    others = {name: known(own)[0] for name in ("fuse", "join") if (own := getattr(form, name)) is not None}
    return msgspec.structs.replace(form, layer=layer, **others)


def renamed(folder: Path, stored: Tensors) -> tuple[Tensors, dict[str, str]]:
    """The same by the names of formats.py, and which name each has in its file."""
    names: dict[str, str] = {}
    for name in stored:
        ours = name.removeprefix("model.").removeprefix("draft_model.").replace("midlayer.", "layers.0.")
        if ours.startswith(("verifier_", "target_")):  # copies of the model's own that speculators writes
            continue
        if ours in names:
            raise ConfigError(f"model: {folder} holds both {names[ours]} and {name}, which mean the same")
        names[ours] = name
    return {ours: stored[theirs] for ours, theirs in names.items()}, names


def _medusa_names(stored: Iterable[str]) -> dict[str, str]:
    """The names that formats.py has for tensors of the files, and theirs.

    Medusa's own are head.block.linear.weight, and head.blocks.weight of what makes logits, which has no linear.
    """
    names: dict[str, str] = {}
    for name in stored:
        if (match := MEDUSA_OUT.fullmatch(name)) is not None:
            names[out_name(int(match[1]))] = name
        elif (match := MEDUSA_BLOCK.fullmatch(name)) is not None:
            is_block = ".linear." in name or ".layers." in name
            block = block_name(int(match[1]), int(match[2])).replace("weight", match[3])
            names[block if is_block else out_name(int(match[1]))] = name
    return names


def checked(folder: Path, shape: DraftShape, found: Tensors, names: dict[str, str]) -> Head:
    check_tensors(folder, shape, found)
    return Head(shape, {ours: (found[ours].file, theirs) for ours, theirs in names.items()})


def _check_medusa(folder: Path, shape: MedusaShape, found: Tensors) -> None:
    for name, spec in shape.stored_specs().items():
        if name not in found:
            raise ConfigError(f"model: {folder} lacks {name}, as other heads have it")
        if found[name].shape != spec.shape:
            sizes = f"{list(found[name].shape)}, and the model that it drafts for takes {list(spec.shape or ())}"
            raise ConfigError(f"model: {folder}: {name} has the shape {sizes}")
        if found[name].dtype not in spec.types:
            raise ConfigError(f"model: {name} is stored as {found[name].dtype}; supported are {', '.join(spec.types)}")
