"""What the KV memory of a CPU worker is divided into: blocks, of one table or several, states of rows, and snapshots.

Which layers lie in which table says windows.py. Knows no torch.
"""

from __future__ import annotations

from typing import NamedTuple

from ...options.config import Config, ConfigError
from ...options.objects.speculative import DFlashOptions, is_wanted, read_speculative
from .kv import GROUP, KVSpec, KVType
from .windows import WindowPlan, plan_windows

SHARE_OF_SNAPSHOTS = 0.25  # of the memory that rows' states leave
MAX_SNAPSHOTS = 1024
MOST_DRAFTING = 32  # rows whose blocks of drafts are made in one pass
ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "int32": 4, "int8": 1, "bool": 1}


class KVMemory(NamedTuple):
    """All of that for one model and these options."""

    block_bytes: int
    sequence_blocks: int  # that the longest sequence needs, in all tables
    windows: WindowPlan | None
    row_bytes: int  # of one row's states, or of one snapshot
    spare_bytes: int = 0  # of blocks that drafts are made in, or of states that are nobody's
    by_token: bool = False  # see KVSpec

    def snapshots(self, config: Config, room: int) -> int:
        """For how many there is a place in so many bytes, which rows' states come out of first. None where rows go on
        by token: a prompt is cut where one is wanted, and behind its first cut each token is a pass."""
        left = room - config.max_num_seqs * self.row_bytes - (self.spare_bytes if self.row_bytes else 0)
        if left <= 0:
            raise ConfigError(
                f"--max-num-seqs: the states of {config.max_num_seqs} sequences take {room - left:,} bytes of the "
                f"{room:,} that there are for KV memory; give more, or set it lower"
            )
        if not self.row_bytes or self.by_token or not config.enable_prefix_caching:
            return 0
        return min(MAX_SNAPSHOTS, int(left * SHARE_OF_SNAPSHOTS) // self.row_bytes)

    def state_bytes(self, config: Config, room: int) -> int:
        """What states and snapshots take of that, or blocks that drafts are made in."""
        rows = config.max_num_seqs + self.snapshots(config, room) if self.row_bytes else 0
        return rows * self.row_bytes + self.spare_bytes

    def tokens(self, config: Config, max_length: int, blocks: int) -> int:
        """How many tokens so many blocks hold, of sequences as long as may be."""
        if self.windows is None:
            return blocks * config.block_size
        return int(blocks / self.sequence_blocks * max_length)

    def words(self, config: Config, max_length: int, blocks: int, room: int) -> str:
        """What the log says of it."""
        size, held = blocks * self.block_bytes / 2**30, self.tokens(config, max_length, blocks)
        parts = [f"{size:.2f} GiB, holds {held:,} tokens in {blocks:,} blocks of {config.block_size}"]
        if self.windows is not None:
            parts.append(
                f"of sequences of {max_length:,}, as {len(self.windows.tables) - 1} of {len(self.windows.tables)}"
                f" block tables keep {self.windows.window} tokens"
            )
        if self.row_bytes:
            own = self.state_bytes(config, room) / 2**30
            count = self.snapshots(config, room)
            parts.append(f"and {own:.2f} GiB for states of {config.max_num_seqs} sequences and {count} snapshots")
        return ", ".join(parts)


def plan_kv_memory(
    kv: KVSpec,
    config: Config,
    max_length: int,
    itemsize: int,
    beside: int = 0,
    may_free: bool = True,
    kind: KVType | None = None,
) -> KVMemory:
    """`itemsize` is that of the model's numbers, and of keys and values unless `kind` says it; `beside`: bytes of a
    block in a draft model; `may_free`: of layers that see a window nothing else is read.
    """
    check_drafts_of_states(kv, config)
    sequence = -(-max_length // config.block_size)
    windows = plan_windows(kv, config, sequence) if may_free and not beside else None
    row = kv.row_bytes({None: itemsize} | ITEM_BYTES)
    kept = KVType.of_floats(itemsize) if kind is None else kind
    check_kept(kv, kept)
    if windows is None:
        rows, own = spare_blocks(config)
        size = kv.block_bytes(config.block_size, kept) + beside
        return KVMemory(size, sequence, None, row, rows * own * beside, kv.by_token)
    block = windows.block_bytes(kv, config.block_size, kept)
    sequence += (len(windows.tables) - 1) * windows.blocks
    return KVMemory(block, sequence, windows, row, by_token=kv.by_token)


def check_drafts_of_states(kv: KVSpec, config: Config) -> None:
    """ConfigError if a model with states is to have drafts."""
    if kv.states and is_wanted(config):
        raise ConfigError(
            "--speculative-config: the model keeps states of its sequences, from which a rejected draft cannot be taken"
            " back; leave the option out"
        )


def nothing_offloaded(states: bool, plan: KVMemory) -> str:
    """What is said where a prefix needs more than its blocks; `states`: the model keeps such of its sequences."""
    if states:
        what = "a model that keeps states of its sequences"
    elif plan.windows is not None:
        what = "block tables that let go of what windows do not see"
    else:
        what = "a draft model, or heads that make drafts"
    return f"--kv-offload: it has no effect with {what}"


def spare_blocks(config: Config) -> tuple[int, int]:
    """(rows, blocks of each) that blocks of drafts are made in, beside all that hold what was computed; such a block
    may begin with the last token of one. (0, 0) where drafts are made otherwise.
    """
    given = read_speculative(config)
    if not isinstance(given, DFlashOptions):
        return 0, 0
    own = -(-(config.block_size + given.num_speculative_tokens) // config.block_size)
    return min(config.max_num_seqs, MOST_DRAFTING), own


def check_kept(kv: KVSpec, kind: KVType) -> None:
    """ConfigError if what this model keeps cannot be kept so."""
    option = f"--kv-cache-dtype {kind.name}"
    for pool in kv.pools():
        if pool.values_in_keys and kind.keys.scale_bytes:
            other = "latents (MLA), or other numbers than keys and values"
            raise ConfigError(f"{option}: the model keeps {other}; float16 keeps half of float32's bytes")
        for width, kept in ((pool.key_dim, kind.keys), (pool.value_dim, kind.values)):
            if not kept.takes(width):
                raise ConfigError(
                    f"{option}: its heads are {width} numbers wide, and {GROUP} are kept together; int8 takes any width"
                )
