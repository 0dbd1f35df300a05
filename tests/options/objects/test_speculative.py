"""--speculative-config: what may be said, and what follows from it."""

from __future__ import annotations

import pytest

from actorserve.actors.options.config import ConfigError, make_config
from actorserve.actors.options.objects.speculative import count_drafts, is_by_itself, most_drafts, read_speculative


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("{", "is no JSON"),
        ("[]", "Expected `object`"),
        (
            '{"method": "lookup", "num_speculative_tokens": 3}',
            "method: lookup is none of ngram, suffix, draft_model, eagle",
        ),
        ('{"method": "eagle3", "num_speculative_tokens": 3}', "missing required field `model`"),
        ('{"method": "medusa", "model": "x", "num_speculative_tokens": 40}', "tokens: Expected `int` <= 32"),
        ('{"method": "dflash", "num_speculative_tokens": 15}', "missing required field `model`"),
        ('{"method": "deepseek_mtp", "num_speculative_tokens": 1}', "method: deepseek_mtp: models with such layers"),
        ('{"method": "mtp", "model": "x", "num_speculative_tokens": 1}', "model is none of method, num_speculative"),
        (
            '{"method": "eagle", "model": "x", "num_speculative_tokens": 1, "draft_tensor_parallel_size": 2}',
            "draft_tensor_parallel_size: Expected `int` <= 1",
        ),
        ('{"num_speculative_tokens": 3}', "method"),
        ('{"method": "ngram", "num_speculative_tokens": 0}', "num_speculative_tokens: Expected `int` >= 1"),
        ('{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup": 1}', "; did you mean prompt_lookup_m"),
        (
            '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 3, "prompt_lookup_max": 2}',
            "prompt_lookup_min: 3 is more",
        ),
        ('{"method": "draft_model", "num_speculative_tokens": 3}', "model"),
    ],
)
def test_what_cannot_be_is_named(value: str, text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--speculative-config: ") as raised:
        make_config({"speculative_config": value})
    assert text in str(raised.value)


@pytest.mark.parametrize(
    ("value", "own", "drafts"),
    [
        (None, None, 4),
        ("auto", None, 4),
        ("none", "none", 0),
        ("OFF", "none", 0),
        (False, "none", 0),  # YAML's off
        ({"method": None}, "none", 0),
        ('{"method":"NONE"}', "none", 0),
        ('{"method": "ngram", "num_speculative_tokens": 7}', ..., 7),
    ],
)
def test_whether_there_are_any(value: object, own: object, drafts: int) -> None:
    config = make_config({"speculative_config": value})
    assert config.speculative_config == (value if own is ... else own)
    assert most_drafts(config) == drafts and is_by_itself(config) == (own is None)
    assert count_drafts(config) == (drafts if own is ... else 0)
    assert (read_speculative(config) is None) == (own is not ...)


def test_what_is_read() -> None:
    config = make_config({"speculative_config": {"method": "ngram", "num_speculative_tokens": 4}})  # as YAML has it
    found = read_speculative(config)
    assert found is not None and count_drafts(config) == 4 and found.lookup == (5, 5)  # type: ignore[union-attr]
    assert count_drafts(make_config({})) == 0
    config = make_config({"speculative_config": '{"model": "x", "num_speculative_tokens": 2}'})
    assert type(read_speculative(config)).__name__ == "DraftModelOptions"
    config = make_config({"speculative_config": '{"method": "mimo_mtp", "num_speculative_tokens": 2}'})
    assert type(read_speculative(config)).__name__ == "MtpOptions"
