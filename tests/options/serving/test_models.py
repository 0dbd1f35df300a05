"""--models-dir and --models-preset: which models they name, with which options, and what they say of what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actorserve.actors.options.also import loaded_at_start, model_configs, without
from actorserve.actors.options.config import Config, ConfigError, make_config
from actorserve.actors.options.serving.models import names_of, with_models
from actorserve.actors.options.sources import warn


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What llama-server's documentation shows, and a model of the hub's form."""
    made = tmp_path / "models"
    for name in (
        *("small-Q4_K_M.gguf", "mmproj-small.gguf", "notes.txt", "sees/sees-Q8_0.gguf", "sees/mmproj-F16.gguf"),
        *("parts/parts-Q4-00001-of-00002.gguf", "parts/parts-Q4-00002-of-00002.gguf", "hub/config.json"),
        *("loose-00001-of-00002.gguf", "loose-00002-of-00002.gguf", "two/a.gguf", "two/b.gguf", "empty/readme"),
    ):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).touch()
    return made


def read(**values: Any) -> list[Config]:
    return model_configs(make_config(with_models(values, warn)))


def preset(tmp_path: Path, text: str) -> str:
    (tmp_path / "models.ini").write_text(text)
    return str(tmp_path / "models.ini")


def test_a_folders_models(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configs = read(models_dir=str(folder))
    assert {one.served_names()[0]: Path(str(one.model)).relative_to(folder).as_posix() for one in configs} == {
        "hub": "hub",
        "loose": "loose-00001-of-00002.gguf",
        "parts": "parts/parts-Q4-00001-of-00002.gguf",
        "sees": "sees/sees-Q8_0.gguf",
        "small-Q4_K_M": "small-Q4_K_M.gguf",
    }
    assert "two has several models, and is passed over" in capsys.readouterr().err
    assert loaded_at_start(configs[0]) == [] and configs[0].models_max == 4
    assert {one.kv_cache_memory_fraction for one in configs} == {0.25, 0.25 / 4}


def test_of_two_with_one_name_the_second_is_passed_over(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "sees.gguf").touch()
    assert len(read(models_dir=str(folder))) == 5
    assert "sees.gguf is passed over: " in capsys.readouterr().err


def test_a_preset_says_more_of_them_and_names_others(folder: Path, tmp_path: Path) -> None:
    text = f"""version = 1
; a comment
[*]
c = 8192
np = 2
[small-Q4_K_M]
c = 4096
jinja = true
n-gpu-layers = 99
LLAMA_ARG_N_PARALLEL = 3
alias = other
load-on-startup = true
[mine]
model = {folder}/two/a.gguf
chat-template-kwargs = {{"enable_thinking": false, "x": [1, 2]}}
stop-timeout = 5
[ggml-org/some-GGUF:Q8_0]
"""
    found = {one.served_names()[0]: one for one in read(models_dir=str(folder), models_preset=preset(tmp_path, text))}
    small, mine, hub = found["small-Q4_K_M"], found["mine"], found["ggml-org/some-GGUF:Q8_0"]
    assert (small.max_model_len, small.max_num_seqs, small.served_names()) == (4096, 3, ["small-Q4_K_M", "other"])
    assert (mine.max_model_len, mine.max_num_seqs, mine.model) == (8192, 2, f"{folder}/two/a.gguf")
    assert mine.json_object("default_chat_template_kwargs") == {"enable_thinking": False, "x": [1, 2]}
    assert hub.model == "ggml-org/some-GGUF:Q8_0"
    first, *_ = found.values()
    assert [list(found)[number] for number in loaded_at_start(first)] == ["small-Q4_K_M"]


def test_a_value_or_a_name_may_look_like_a_further_option(tmp_path: Path) -> None:
    text = "[x,threads=3]\nmodel = /a,b=c.gguf\nchat-template = {{ messages }},seed=5\nalias = other\nthreads = auto\n"
    (one,) = read(models_preset=preset(tmp_path, text))
    assert one.served_names() == ["x,threads=3", "other"] and one.model == "/a,b=c.gguf"
    assert one.chat_template == "{{ messages }},seed=5" and (one.seed, one.threads) == (Config().seed, None)


def test_what_the_command_line_says_goes_before_and_a_model_of_it_is_the_first(folder: Path, tmp_path: Path) -> None:
    text = f"[mine]\nmodel = {folder}/two/a.gguf\nc = 100\nthreads = 3\n"
    given = {"model": "org/first", "max_model_len": 50, "served_model_name": ["one"]}
    first, second, third = read(**given, also=["org/second"], models_preset=preset(tmp_path, text), models_max=1)
    assert [one.served_names() for one in (first, second, third)] == [["one"], ["org/second"], ["mine"]]
    assert (third.max_model_len, third.threads, second.max_model_len) == (50, 3, None)
    assert loaded_at_start(first) == [0], "of two that are to be, one may"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[x]\nc = 5\n", r"--models-preset: \[x\] is no model of --models-dir; model = FILE says where it is"),
        ("[x]\nmodel = /a\nnonsense = 5\n", r"\[x\] nonsense: there is no such option"),
        ("[x]\nmodel = /a\nport = 5\n", r"\[x\] port: --port: an option of the server, not of a model"),
        ("[x]\nmodel = /a\nc = far\n", r"\[x\] max_model_len: far is not a whole number"),
        ("c = 5\n", r"c stands before the first section; \[\*\] is for all"),
        ("[x]\nmodel = /a\nmodel = /b\n", r"\[line 3\]: .*already exists"),
        ("[x\n", r"models.ini.*\[line 1\]"),
    ],
)
def test_what_cannot_be_of_a_preset_is_told(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        read(models_preset=preset(tmp_path, text))
    assert "\n" not in str(error.value)


def test_the_first_that_is_served_is_model_where_others_are_left_out(folder: Path, tmp_path: Path) -> None:
    """With the options that it has itself; what is of the server, or of MODEL wherever it is, stays."""
    text = "[hub]\nc = 100\n[parts]\nc = 200\nthreads = 3\nspec-type = ngram-simple\n"
    given = {"models_dir": str(folder), "models_preset": preset(tmp_path, text), "frontends": 2, "enable_lora": True}
    config = make_config(with_models(given, warn))
    assert config.models_found == 5 and config.served_names() == ["hub"]
    left = without(config, {0: "it is bad", 1: "so is this"})
    assert left.unserved == {"hub": "it is bad", "loose": "so is this"}
    assert [one.served_names() for one in model_configs(left)] == [["parts"], ["sees"], ["small-Q4_K_M"]]
    assert (left.max_model_len, left.threads, left.frontends, left.enable_lora) == (200, 3, 2, True)
    assert left.speculative_config == model_configs(config)[2].speculative_config is not None
    assert left.kv_cache_memory_fraction == 0.25 and left.models_found == 3
    assert without(config, {4: "why"}).served_names() == ["hub"]


def test_the_names_that_there_are_now(folder: Path, tmp_path: Path) -> None:
    found = preset(tmp_path, "[*]\nc = 5\n[hub]\nc = 100\n[mine]\nmodel = /a\n")
    assert names_of(str(folder), None) == ["hub", "loose", "parts", "sees", "small-Q4_K_M"]
    assert names_of(str(folder), found)[-1] == "mine" and names_of(None, found) == ["hub", "mine"]
    assert names_of(None, None) == []


def test_what_may_not_be_read_is_passed_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder that may not be entered, or a link into one, beside models that can be had."""
    stat = Path.stat

    def refused(path: Path, **options: Any) -> Any:
        if path in (folder / "sees", folder / "hub" / "config.json"):
            raise PermissionError(13, "Permission denied")
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", refused)
    assert names_of(str(folder), None) == ["loose", "parts", "small-Q4_K_M"]
    assert len(read(models_dir=str(folder))) == 3
    told = capsys.readouterr().err
    assert all(
        f"{folder / name} is passed over: it cannot be read: Permission denied" in told for name in ("sees", "hub")
    )


def test_a_preset_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (config,) = read(models_preset=preset(tmp_path, "\ufeffversion = 1\n[x]\nmodel = /a\n"))
    assert config.served_names() == ["x"]


def test_what_cannot_be_is_told(tmp_path: Path, folder: Path) -> None:
    for values, words in (
        ({"models_dir": str(tmp_path / "none")}, "--models-dir: .*none cannot be read: No such file"),
        ({"models_dir": str(folder / "empty")}, "--models-dir: there is no model in it: a GGUF file"),
        ({"models_preset": str(tmp_path / "none")}, "--models-preset: .*none cannot be read: No such file"),
        ({"models_dir": str(folder), "served_model_name": ["x"]}, "--served-model-name: it names MODEL"),
        ({"models_max": 1, "steward": "127.0.0.1:1"}, "--models-max: not with --steward"),
        (
            {"load_on_startup": False, "nnodes": 2, "pipeline_parallel_size": 2},
            "--no-load-on-startup: not with --nnodes",
        ),
        ({"models_autoload": False, "sleep_idle_seconds": 3}, "--no-models-autoload: not with --sleep-idle-seconds"),
    ):
        with pytest.raises(ConfigError, match=words):
            read(**values)
