"""Pictures in requests of all APIs, through a whole server up to its prompt and its answer."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2 as httpx
import openai
import pytest

from actorserve.actors.cli import main
from tests.support.models.vision.films import film
from tests.support.models.vision.folders import picture
from tests.support.server import Server

from .conftest import Ask, at, data_url, shown

TOKENS = 40  # of a picture of 60 times 40 pixels, by patches of 4, of which four are one
METRIC = re.compile(r'^(?:vllm|actorserve):(\w+)\{engine="0",model_name="[^"]*"\} (\d+)', re.MULTILINE)


def metrics(client: httpx.Client) -> dict[str, int]:
    return {name: int(value) for name, value in METRIC.findall(client.get("/metrics").text)}


def prompt_tokens(answer: httpx.Response) -> int:
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["prompt_tokens"])


def test_a_picture_is_as_many_tokens_as_it_has_embeddings(ask: Ask) -> None:
    one = prompt_tokens(ask("What?"))
    around = 2  # <|vision_start|> and <|vision_end|>
    assert prompt_tokens(ask(shown(), "What?")) == one + TOKENS + around
    assert prompt_tokens(ask(shown(), "What?", shown(1))) == one + 2 * (TOKENS + around)
    assert prompt_tokens(ask(shown(2, 32, 32), "What?")) == one + 16 + around
    for name in ("image", "url"):  # as chat templates of transformers have it
        other = {"type": "image", name: shown()["image_url"]["url"]}
        assert prompt_tokens(ask(other, "What?")) == one + TOKENS + around


def test_the_same_picture_shares_a_prefix_and_another_does_not(ask: Ask) -> None:
    """All positions of pictures have one token id: only their hashes tell them apart."""

    def cached(seed: int) -> int:
        usage = ask(shown(seed), "Tell me what is to be seen there, and all of it.").json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert [cached(11), cached(12), cached(11), cached(12)] == [0, 0, 64, 64]


def test_a_processed_picture_is_found_again_until_the_cache_is_reset(ask: Ask, client: httpx.Client) -> None:
    def found() -> tuple[int, int]:
        before = metrics(client)
        ask(shown(21), shown(22), shown(21))
        after = metrics(client)
        names = ("mm_cache_queries_total", "mm_cache_hits_total")
        queries, hits = (after[name] - before[name] for name in names)
        return queries, hits

    assert [found(), found()] == [(3, 1), (3, 3)]
    assert client.post("/reset_mm_cache").status_code == 401
    assert client.post("/reset_mm_cache", headers={"X-Api-Key": "master"}).json() == {"status": "ok"}
    assert found() == (3, 1)


def test_a_folder_without_weights_renders(client: httpx.Client) -> None:
    """With --worker scripted, for who computes elsewhere."""
    body = {"messages": [{"role": "user", "content": "What?"}]}
    found = client.post("/v1/chat/completions/render", json=body).json()
    counted = client.post("/tokenize", json=body).json()
    assert found["token_ids"] == counted["tokens"]


def test_openais_client_asks_about_pictures(server: Server) -> None:
    client = openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none")
    url = data_url(picture(60, 40))
    chat = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What?"},
                    {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
                ],
            }
        ],
        max_tokens=4,
    )
    assert chat.usage is not None
    response = client.responses.create(
        model=chat.model,
        input=[
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "What?"},
                    {"type": "input_image", "image_url": url, "detail": "auto"},
                ],
            }
        ],
        max_output_tokens=16,
    )
    assert response.usage is not None
    assert response.usage.input_tokens == chat.usage.prompt_tokens


def test_anthropics_blocks(client: httpx.Client, ask: Ask) -> None:
    data = data_url(picture(60, 40)).partition(",")[2]
    source = {"type": "base64", "media_type": "image/png", "data": data}
    blocks = [{"type": "image", "source": source}, {"type": "text", "text": "What?"}]
    body = {"model": None, "max_tokens": 3, "messages": [{"role": "user", "content": blocks}]}
    answer = client.post("/v1/messages", json=body)
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    tokens = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert tokens == prompt_tokens(ask(shown(), "What?"))
    counted = client.post("/v1/messages/count_tokens", json={"model": None, "messages": body["messages"]})
    assert counted.json()["input_tokens"] == tokens
    bad = [{"type": "image", "source": {"type": "url", "url": "ftp://x/y"}}]
    refused = client.post("/v1/messages", json={**body, "messages": [{"role": "user", "content": bad}]})
    assert refused.status_code == 400 and "messages[0].content[0].source.url" in refused.text


def test_a_picture_is_found_again_by_its_uuid(ask: Ask, client: httpx.Client) -> None:
    first = prompt_tokens(ask({**shown(60), "uuid": "my picture"}, "What?"))
    again = {"type": "image_url", "image_url": None, "uuid": "my picture"}
    answer = ask(again, "What?")
    assert prompt_tokens(answer) == first and answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] >= 32
    assert prompt_tokens(ask({"type": "image_url", "image_url": {"uuid": "my picture"}}, "What?")) == first
    for other in ({**again, "uuid": "another"}, {**again, "type": "video_url", "image_url": None}):
        unknown = ask("And", other)
        assert unknown.status_code == 400 and "send it with its data" in unknown.text
        assert unknown.json()["error"]["param"].startswith("messages[0].content[1].")
    assert client.post("/reset_mm_cache", headers={"X-Api-Key": "master"}).status_code == 200
    assert ask(again).status_code == 400


def test_a_request_says_how_its_pictures_are_processed(ask: Ask, client: httpx.Client) -> None:
    one = prompt_tokens(ask("What?")) + 2
    assert prompt_tokens(ask(shown(70), "What?")) == one + TOKENS
    assert prompt_tokens(ask(shown(70), "What?", mm_processor_kwargs={"max_pixels": 1024})) == one + 12
    size = {"shortest_edge": 64, "longest_edge": 512}
    assert prompt_tokens(ask(shown(70), "What?", mm_processor_kwargs={"size": size})) == one + 6
    assert prompt_tokens(ask(shown(70), "What?", mm_processor_kwargs={})) == one + TOKENS
    few = {"num_frames": 2}
    whole = film_at(data_url(film(20, 60, 40), "video/mp4"))
    assert prompt_tokens(ask(whole, "What?")) > 4 * prompt_tokens(ask(whole, "What?", mm_processor_kwargs=few))
    by_reading = ask(whole, "What?", media_io_kwargs={"video": few})
    assert prompt_tokens(by_reading) == prompt_tokens(ask(whole, "What?", mm_processor_kwargs=few))
    unread: tuple[dict[str, Any], ...] = (
        {"image": {"rgba_background_color": [0, 0, 0]}},
        {"video": {"num_frames": 0}},
        {"film": {}},
    )
    for reading in unread:
        refused = ask(whole, media_io_kwargs=reading)
        assert refused.status_code == 400 and "media_io_kwargs" in refused.json()["error"]["param"], refused.text
    for wrong, said in (
        ({"max_pixels": 1 << 30}, "--max-media-pixels"),
        ({"crop_to_patches": True}, "mm_processor_kwargs.crop_to_patches means nothing to this model"),
        ({"return_tensors": "pt"}, "mm_processor_kwargs"),
        ({"size": {"shortest_edge": 1}}, "mm_processor_kwargs.size.longest_edge is missing"),
        ("large", "mm_processor_kwargs"),
    ):
        refused = ask(shown(70), mm_processor_kwargs=wrong)
        assert refused.status_code == 400 and said in refused.json()["error"]["message"], refused.text
    body = {"prompt": "x", "mm_processor_kwargs": {"max_pixels": 1024}}
    assert client.post("/v1/completions", json=body).status_code == 400


def test_bench_mm_tells_a_processor_from_an_encoder(server: Server, ask: Ask, tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    words = ["bench", "mm", "--base-url", server.base_url, "--num-prompts", "2", "--image-sizes"]
    assert main([*words, "60x40,120x80", "--admin-api-key", "master", "--output-json", str(path)]) == 0
    small, large = json.loads(path.read_text())["sizes"]
    assert (small["size"], large["size"]) == ("60x40", "120x80") and large["prompt_tokens"] > small["prompt_tokens"]
    assert all(len(small["ms"][step]) == 2 for step in ("new", "processed", "known"))
    assert main([*words, "60x40", "--output-json", str(path)]) == 0
    found = json.loads(path.read_text())["sizes"][0]
    assert found["processor_ms"] is None and found["encoder_ms"] is None and found["both_ms"] is not None
    assert main([*words, "60"]) == 2


def film_at(url: str) -> dict[str, object]:
    return {"type": "video_url", "video_url": {"url": url}}


def test_films_are_files_or_lists_of_frames(ask: Ask, folder: Path) -> None:
    """Two frames are a temporal patch, of (60 / 8) * (40 / 8) tokens in whole patches."""
    alone = prompt_tokens(ask("What?"))
    whole = film(7, 60, 40)
    (folder / "film.mp4").write_bytes(whole)
    by_file = prompt_tokens(ask(film_at(f"file://{folder}/film.mp4"), "What?"))
    assert by_file == prompt_tokens(ask(film_at(data_url(whole, "video/mp4")), "What?"))
    assert (by_file - alone - 2) % 4 == 0 and by_file - alone - 2 >= 4 * 35
    frames = ",".join(data_url(picture(60, 40, seed)).partition(",")[2] for seed in range(7))
    assert prompt_tokens(ask(film_at(f"data:video/jpeg;base64,{frames}"), "What?")) == by_file
    wrong = ask("And", film_at(data_url(whole[:700], "video/mp4")))
    assert wrong.status_code == 400 and wrong.json()["error"]["param"] == "messages[0].content[1].video_url"
    private = ask(film_at("http://169.254.169.254/film.mp4"))
    assert private.status_code == 400 and "no public address" in private.text


def test_a_file_of_the_server_where_that_is_allowed(ask: Ask, folder: Path, tmp_path: Path) -> None:
    (folder / "a picture.png").write_bytes(picture(60, 40))
    (tmp_path / "other.png").write_bytes(picture(60, 40))
    (folder / "link.png").symlink_to(tmp_path / "other.png")
    assert ask(at(f"file://{folder}/a%20picture.png")).status_code == 200
    for path in (tmp_path / "other.png", folder / "link.png", folder / ".." / "other.png", folder, folder / "none.png"):
        refused = ask(at(f"file://{path}"))
        assert refused.status_code == 400 and "messages[0].content[0].image_url" in refused.text, refused.text


@pytest.mark.parametrize("path", ["/tokenize", "/v1/responses/input_tokens"])
def test_prompts_with_pictures_are_counted(client: httpx.Client, path: str) -> None:
    parts = {"/tokenize": [shown()], "/v1/responses/input_tokens": [{"type": "input_image", **_url()}]}[path]
    name = "messages" if path == "/tokenize" else "input"
    answer = client.post(path, json={name: [{"role": "user", "content": parts}]})
    assert answer.status_code == 200, answer.text
    assert answer.json().get("count", answer.json().get("input_tokens")) >= TOKENS


def _url() -> dict[str, str]:
    return {"image_url": data_url(picture(60, 40))}


@pytest.mark.parametrize(
    ("part", "status", "said"),
    [
        ({"type": "image_url", "image_url": {}}, 400, "messages[0].content[0].image_url: there is no address"),
        ({"type": "image_url"}, 400, "messages[0].content[0].image_url: there is no address"),
        ({"type": "image", "url": "x.png"}, 400, "messages[0].content[0].url: an address begins with https://"),
        ({"type": "video"}, 400, "messages[0].content[0].video_url: there is no address"),
        ({"type": "audio", "audio": "https://x.com/x.wav"}, 400, "takes text, image and video only"),
        (at("ftp://example.com/x.png"), 400, "an address begins with https://"),
        (at("data:image/png,x"), 400, "data:TYPE;base64,DATA"),
        (at("data:image/png;base64,%%%"), 400, "its base64 is wrong"),
        (at("data:image/png;base64,AAAA"), 400, "no picture that is known"),
        ({"type": "input_image", "file_id": "file-1"}, 400, "files are not kept here"),
        ({"type": "audio_url", "audio_url": {"url": "https://x.com/x.wav"}}, 400, "takes text, image and video only"),
        (
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
            400,
            "takes text, image and video only",
        ),
        ({"type": "file", "file": {"file_id": "f"}}, 400, "not a part of type 'file'"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(ask: Ask, part: dict[str, object], status: int, said: str) -> None:
    answer = ask(part)
    assert answer.status_code == status and said in answer.json()["error"]["message"], answer.text
    assert answer.json()["error"]["param"].startswith("messages[0].content[0]")


def test_more_pictures_than_are_allowed_and_prompts_that_hold_placeholders(ask: Ask) -> None:
    many = ask(*[shown()] * 4)
    assert many.status_code == 400 and "--limit-mm-per-prompt" in many.text
    spoofed = ask(shown(), "See <|image_pad|>")
    assert spoofed.status_code == 400 and "<|image_pad|>" in spoofed.json()["error"]["message"]
    cut = ask(shown(), truncate_prompt_tokens=20)
    assert cut.status_code == 400 and cut.json()["error"]["param"] == "truncate_prompt_tokens"


def test_other_apis_take_pictures_as_large(client: httpx.Client) -> None:
    large = data_url(picture(1000, 1000, 5) + bytes(5 << 20))
    alone = large.partition(",")[2]
    part = {"type": "image_url", "image_url": {"url": large}}
    turns = [{"role": "user", "content": [part]}]
    for path, body in (
        ("/api/chat", {"messages": [{"role": "user", "content": "What?", "images": [alone]}], "stream": False}),
        ("/api/generate", {"prompt": "What?", "images": [alone], "stream": False}),
        ("/v2/chat", {"model": client.get("/v1/models").json()["data"][0]["id"], "messages": turns}),
        ("/invocations", {"messages": turns, "max_tokens": 1}),
        ("/apply-template", {"messages": turns}),
    ):
        assert client.post(path, json=body).status_code == 200, path
    raw = client.post("/api/generate", json={"prompt": "x" * (5 << 20), "raw": True})
    assert raw.status_code == 413 and "--max-body-bytes" in raw.text
    assert "vision" in client.post("/api/show", json={}).json()["capabilities"]


def test_a_body_is_longer_by_its_pictures_and_by_nothing_else(ask: Ask) -> None:
    large = picture(1000, 1000, 5) + bytes(5 << 20)  # behind a picture's end anything may stand
    assert ask(at(data_url(large)), "What?").status_code == 200
    text = ask(shown(), "x" * (5 << 20))
    assert text.status_code == 413 and "--max-body-bytes" in text.json()["error"]["message"]
    longer = ask(at(data_url(picture(60, 40) + bytes(21 << 20))))
    assert longer.status_code == 413 and "--max-media-bytes" in longer.text


def test_bad_pictures_are_in_nobodys_way(ask: Ask) -> None:
    """All that is wrong with pictures at once, beside requests with good ones and with texts alone."""
    bad = [
        at("http://169.254.169.254/latest/meta-data/"),
        at("http://localhost:1/x.png"),
        at("http://[::ffff:127.0.0.1]/"),
        at(data_url(b"<svg onload='alert(1)'/>", "image/svg+xml")),
        at(data_url(picture(60, 40)[:200])),
        at(data_url(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + b"\x7f\xff\xff\xff" * 2 + bytes(50))),
        at("file:///etc/passwd"),
        shown(0, 1100, 1000),
    ]
    with ThreadPoolExecutor(24) as pool:
        refused = [pool.submit(ask, part, "What?") for part in bad]
        good = [pool.submit(ask, shown(seed), "What?") for seed in range(50, 58)]
        texts = [pool.submit(ask, "What?") for _ in range(8)]
    assert [one.result().status_code for one in refused] == [400] * len(bad)
    assert {one.result().json()["error"]["param"] for one in refused} == {"messages[0].content[0].image_url"}
    assert {prompt_tokens(one.result()) for one in good} == {prompt_tokens(texts[0].result()) + TOKENS + 2}
    assert all(one.result().status_code == 200 for one in texts)


def test_sglangs_own_requests_have_pictures(ask: Ask, client: httpx.Client) -> None:
    """Where the prompt, which its clients make by the model's chat template, has the placeholders."""
    text = "<|vision_start|><|image_pad|><|vision_end|>What?"
    given = shown()["image_url"]["url"]
    body: dict[str, Any] = {"text": text, "sampling_params": {"max_new_tokens": 2, "ignore_eos": True}}

    def count(**fields: Any) -> Any:
        answer = client.post("/generate", json={**body, **fields})
        assert answer.status_code == 200, answer.text
        return answer.json()

    alone = count(text="<|vision_start|><|vision_end|>What?")["meta_info"]["prompt_tokens"]
    assert count(image_data=given)["meta_info"]["prompt_tokens"] == alone + TOKENS
    assert count(image_data=[given.partition(",")[2]])["meta_info"]["prompt_tokens"] == alone + TOKENS
    several = count(text=[text, text], image_data=[given, [given]])
    assert [one["meta_info"]["prompt_tokens"] for one in several] == [alone + TOKENS] * 2
    missing = client.post("/generate", json={**body, "text": "What?", "image_data": given})
    assert (missing.status_code, missing.json()["error"]["param"]) == (400, "text")


def test_llamacpps_prompts_have_pictures_where_they_have_the_mark(client: httpx.Client) -> None:
    """With what the model's chat template writes around them."""
    given, other = (shown(seed)["image_url"]["url"].partition(",")[2] for seed in (0, 1))

    def ask(text: str, *data: str) -> httpx.Response:
        prompt = {"prompt_string": text, "multimodal_data": list(data)}
        return client.post("/completion", json={"prompt": prompt, "n_predict": 2, "ignore_eos": True})

    around = ask("<|vision_start|><|vision_end|>What?").json()["tokens_evaluated"]
    marker = client.get("/props").json()["media_marker"]
    seen = ask(f"{marker}What?", given)
    assert seen.status_code == 200 and seen.json()["tokens_evaluated"] == around + TOKENS
    spelt = {"text": "<|vision_start|><|image_pad|><|vision_end|>What?", "image_data": given}
    same = client.post("/generate", json={**spelt, "sampling_params": {"max_new_tokens": 2, "ignore_eos": True}}).json()
    assert same["meta_info"]["prompt_tokens"] == around + TOKENS
    assert same["meta_info"]["cached_tokens"] >= TOKENS - TOKENS % 32
    two = ask(f"{marker}{marker}What?", given, other)
    assert two.json()["tokens_evaluated"] == around + 2 * TOKENS + 2
    for text in ("What?", f"{marker}{marker}"):
        refused = ask(text, given)
        assert refused.status_code == 400 and f"times {marker}, and the request 1" in refused.text
    for data in ("not base64!", "", "eA=="):
        refused = ask(marker, data)
        assert refused.status_code == 400 and "prompt.multimodal_data[0]" in refused.text, refused.text
