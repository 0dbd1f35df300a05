"""--also: what it takes, which options its models have, and what it says of what it does not take."""

from __future__ import annotations

from pathlib import Path

import pytest

from actorserve.actors.commands.places import Paths, given_words
from actorserve.actors.options.also import MANY, OWN, model_configs, read_also
from actorserve.actors.options.command_line import add_options
from actorserve.actors.options.config import ConfigError, make_config
from actorserve.actors.options.fields import flag
from actorserve.actors.options.parser import Parser
from actorserve.actors.options.sources import read_environment

POOLER = '{"seq_pooling_type": "MEAN", "normalize": true}'


def test_a_model_and_its_options() -> None:
    model, values = read_also(f"org/bge,runner=pooling,pooler-config={POOLER},served-model-name=a,b,max-model-len=4k")
    assert model == "org/bge"
    assert values == {
        "runner": "pooling",
        "pooler_config": POOLER,
        "served_model_name": ["a", "b"],
        "max_model_len": 4000,
    }


def test_names_of_other_servers_are_understood() -> None:
    assert read_also("org/chat,tp=2,kv_cache_memory_bytes=1Gi,dtype=half,enforce-eager=1")[1] == {
        "tensor_parallel_size": 2,
        "kv_cache_memory_bytes": 1 << 30,
        "dtype": "float16",
        "enforce_eager": True,
    }


def test_as_json_with_values_that_have_commas_and_equals_signs() -> None:
    text = '{"model": "org/a,x=1", "chat-template": "{{ a }},b=c", "served_model_name": ["x", "y,z=1"], "seed": 3}'
    assert read_also(text) == (
        "org/a,x=1",
        {"chat_template": "{{ a }},b=c", "served_model_name": ["x", "y,z=1"], "seed": 3},
    )
    assert read_also('{"model": "m", "threads": null, "enforce-eager": true}')[1] == {
        "threads": None,
        "enforce_eager": True,
    }
    assert read_also('{"model": "m", "chat_template": null, "dtype": null, "seed": 3}')[1] == {"seed": 3}
    assert read_environment({"ACTORSERVE_ALSO": '{"model": "m"}'}) == {"also": ['{"model": "m"}']}


def test_what_is_about_a_model_is_not_taken_over_and_the_rest_is() -> None:
    config = make_config(
        {
            "model": "org/first",
            "also": ["org/second,max-num-seqs=4"],
            "dtype": "bfloat16",
            "max_model_len": 512,
            "chat_template": "text",
            "frontends": 3,
            "block_size": 16,
        }
    )
    first, second = model_configs(config)
    assert first is config
    assert (second.model, second.dtype, second.max_model_len) == ("org/second", "auto", None)
    assert second.chat_template is None
    assert (second.max_num_seqs, second.frontends, second.block_size, second.also) == (4, 3, 16, [])


def test_memory_is_shared() -> None:
    config = make_config({"also": ["a", "b,kv-cache-memory-fraction=0.4"]})
    assert [one.kv_cache_memory_fraction for one in model_configs(config)] == [0.25, pytest.approx(0.25 / 3), 0.4]


def test_the_environment_has_one_or_a_json_list() -> None:
    assert read_environment({"ACTORSERVE_ALSO": "a,dtype=half"}) == {"also": ["a,dtype=half"]}
    both = '["a,dtype=half", "b"]'
    assert read_environment({"ACTORSERVE_ALSO": both}) == {"also": ["a,dtype=half", "b"]}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"also": ["x,runner=poolin"]}, "--also x: runner: poolin is none of auto, generate, pooling"),
        ({"also": ["x,maxlen=3"]}, "--also x: maxlen: there is no such option"),
        ({"also": ["x,max-model-len=far"]}, "--also x: max-model-len: far is not a whole number"),
        ({"also": ["x,frontends=2"]}, "--also x: --frontends: an option of the server, not of a further model"),
        ({"also": ["x,pooling"]}, "--also x,pooling: options are written behind the model as option=value"),
        ({"also": [",dtype=half"]}, "a model comes first"),
        ({"also": ["x,dtype=half,dtype=auto"]}, "an option is there twice"),
        ({"also": ["x,pooler-config={"]}, "--also x: --pooler-config: { is no JSON"),
        ({"also": ['{"model": "x"']}, '--also {"model": "x": no JSON object: '),
        ({"also": ['{"seed": 3}']}, '--also {"seed": 3}: its model, a text, is missing'),
        ({"also": ['{"model": "x", "seed": 1, "seed": 2}']}, "no JSON object: seed is there twice"),
        ({"also": ["x", "x"]}, "--also: two models are served as x; served-model-name=NAME gives one another"),
        ({"model": "x", "also": ["x"]}, "two models are served as x"),
        ({"also": ["x"] * 64}, "--also: at most 64 models are served, not 65"),
        (
            {"also": ["x"] * 64, "models_found": 3},
            "--models-dir and --models-preset: at most 64 models are served, not 65",
        ),
        ({"also": ["x"], "kv_cache_memory_fraction": 0.9}, "--kv-cache-memory-fraction: 0.9 + 0.125 of all models is"),
        ({"also": ["x"], "enable_lora": True, "lora_modules": ["x=/a"]}, "two models are served as x"),
        ({"also": ["x,enable-lora=1"]}, "--also x: --enable-lora: an option of the server, not"),
        ({"also": ["x"], "prefill_engines": 1, "data_parallel_size": 2, "kv_offload": "host:1Gi"}, "not with --also"),
        ({"also": ["x"], "record": "file"}, "--record: not with --also"),
        ({"also": ["x"], "max_data_parallel_size": 2}, "--max-data-parallel-size: not with --also"),
        ({"also": ["x"], "kv_offload": "host:1Gi"}, "--kv-offload: not with --also"),
    ],
)
def test_what_cannot_be_is_told(values: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as error:
        make_config(values)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_all_that_a_model_may_have_is_in_the_documentation() -> None:
    text = (Path(__file__).parents[2] / "tools" / "docs" / "operating.md").read_text()
    section = text.partition("\n## Several models\n")[2].partition("\n## ")[0]
    allowed, _, refused = section.partition("Not with several models:")
    missing = [name for name in OWN if f"`{name.replace('_', '-')}`" not in allowed]
    missing += [name for name in MANY if "plugin" not in name and f"`{flag(name)}`" not in refused]
    assert not missing


def test_another_folder_finds_the_same_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "second").mkdir()
    monkeypatch.chdir(tmp_path)
    parser = Parser()
    add_options(parser)
    arguments = parser.parse_args(["first", "--also", "second,dtype=half", "--also", "org/third"])
    paths = Paths()
    words = given_words(arguments, paths)
    assert words == ["first", f"--also={tmp_path}/second,dtype=half", "--also=org/third"]
    assert paths.read == [tmp_path / "second"]
    assert given_words(arguments) == ["first", "--also=second,dtype=half", "--also=org/third"]


def test_what_fits_one_model_alone_is_not_for_the_others() -> None:
    """Fields of config.json, and code that knows a vocabulary's numbers."""
    given = {
        "hf_overrides": '{"rope_theta": 5}',
        "logits_processors": ["json:JSONDecoder"],
        "logits_processor_pattern": "a.*",
    }
    first, second = model_configs(make_config({**given, "also": ["org/second"]}))
    assert first.changes_logits and not second.changes_logits
    assert second.hf_overrides is None and not second.logits_processors
    own = 'org/second,hf-overrides={"a": 1, "b": {"c": 2}},logits-processors=ast:AST,logits-processor-timeout=3'
    first, second = model_configs(make_config({**given, "also": [own]}))
    assert second.json_object("hf_overrides") == {"a": 1, "b": {"c": 2}}
    assert (first.logits_processors, second.logits_processors) == (["json:JSONDecoder"], ["ast:AST"])
    assert second.logits_processor_timeout == 3 and second.logits_processor_pattern is None
