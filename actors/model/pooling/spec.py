"""What a pooling model makes of hidden states, as every actor needs to know it."""

from __future__ import annotations

import msgspec

CLS, LAST, MEAN = "cls", "last", "mean"
MAX, MEAN_SQRT, WEIGHTED_MEAN = "max", "mean_sqrt_len", "weighted_mean"
METHODS = (CLS, LAST, MEAN, MAX, MEAN_SQRT, WEIGHTED_MEAN)
SEQUENCE, TOKEN = "sequence", "token"  # what a head classifies


class DenseSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A linear layer behind the pooling."""

    folder: str  # empty: its numbers are random
    inputs: int
    outputs: int
    bias: bool
    activation: str  # of ACTIVATIONS (sentence_transformers.py)


class HeadLayer(msgspec.Struct, frozen=True, kw_only=True):
    """A linear layer of a head, by its tensors' names in the checkpoint."""

    weight: str
    bias: str = ""
    activation: str = ""  # "relu", or none


class PairForm(msgspec.Struct, frozen=True, kw_only=True):
    """What a generating model is asked of two texts; `before` and `after` stay where the rest is cut."""

    before: str
    form: str  # with {instruction}, {query} and {document}
    after: str
    instruction: str  # where a request names none


class DualEncoderSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Of a model that makes vectors of texts and of pictures, by an encoder each."""

    longest: int  # tokens of a text
    padded: int  # to which all texts are filled up; 0: they are not
    picture: int  # patches of a picture, at most
    lower_case: bool = False
    without_punctuation: bool = False


class PoolingSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Of one model."""

    tasks: list[str]  # of POOLING_TASKS
    base: str  # the architecture in whose layers hidden states are computed, if this server has them; "": transformers'
    methods: list[str]  # of METHODS; the vectors of several are put one behind the other
    normalize: bool
    hidden: int  # numbers of a token's hidden state
    width: int  # numbers of a vector
    dense: list[DenseSpec] = []
    dimensions: int = 0  # what a vector is cut to if a request does not say; 0: it is not
    may_cut: bool = True  # requests may ask for `dimensions`
    cuts: list[int] = []  # of these alone, if there are any
    head: str = ""  # SEQUENCE or TOKEN
    labels: list[str] = []
    layers: list[HeadLayer] = []  # of the head, by a decoder of this server
    tokens: list[str | int] = []  # of whose logits the head is made instead
    rows: list[str] = []  # tokens whose rows of what makes logits are the checkpoint's head, in its order
    difference: bool = False  # one label: the second token's less the first's
    step_tag: int = -1  # scores by token are those of this token alone; -1: of all
    pair: PairForm | None = None
    templated: bool = False  # the chat template that the operator names makes one text of two
    logit_mean: float = 0.0  # taken away from scores of labels before the activation
    logit_sigma: float = 1.0  # by which they are divided then
    activation: str = ""  # of labels' scores in classification: as Pooling has it
    score_activation: str = ""  # of the score of a pair
    prompts: dict[str, str] = {}
    default_prompt: str = ""  # the name of one
    lower_case: bool = False
    dual: DualEncoderSpec | None = None  # a prompt is a text or a picture
    longest_joined: int = 0  # tokens of a text of whose parts vectors are joined, where it is too long; 0: of none

    @property
    def chunked(self) -> bool:
        """Is a vector that of the last token, so that prompts can be computed in parts and behind a cached prefix?"""
        return bool(self.base) and self.methods == [LAST]

    @property
    def numbers(self) -> int:
        """Of one row of an answer, at most."""
        return max(self.width, self.hidden, len(self.labels))
