"""The two texts of /metrics, as Prometheus' own parsers read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from actorserve.http.metrics import Distribution, Exporter, Family, Labels

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
ODD = 'a "model"\\ of\nours'
TOKENS = Distribution([0.5, 1, 20], [1, 0, 2, 4], 99.5)
FAMILIES = [
    Family("gauge", "vllm:num_requests_running", "Running", [({"model_name": ODD}, 3)]),
    Family("counter", "vllm:request_success", "Ended", [({"reason": "stop"}, 5), ({"reason": "length"}, 0)]),
    Family("histogram", "vllm:iteration_tokens_total", "Tokens", [({"a": "b"}, TOKENS)]),
    Family("gauge", "actorserve:nothing", "Of nobody"),
]  # fmt: skip
Parser = Callable[[str], Iterable[Metric]]


@pytest.mark.parametrize(
    ("accept", "kind", "parse"),
    [
        ("", "text/plain; version=0.0.4", parse_text),
        ("text/plain;version=1.0.0;escaping=allow-utf-8", "text/plain; version=1.0.0", parse_text),
        ("text/plain;version=1.0.0", "text/plain; version=1.0.0", parse_text),
        (OPENMETRICS, OPENMETRICS, parse_openmetrics),
        (OPENMETRICS + ";escaping=allow-utf-8", OPENMETRICS, parse_openmetrics),
        ("application/openmetrics-text", OPENMETRICS, parse_openmetrics),
    ],
)
def test_what_parsers_read(accept: str, kind: str, parse: Parser) -> None:
    parts, content_type = Exporter(lambda: FAMILIES).parts(accept)
    body = b"".join(parts)
    assert content_type.startswith(kind)
    samples = [sample for family in parse(body.decode()) for sample in family.samples]
    seen = {(sample.name, *sample.labels.values()): sample.value for sample in samples}
    assert seen == {
        ("vllm:num_requests_running", ODD): 3,
        ("vllm:request_success_total", "stop"): 5,
        ("vllm:request_success_total", "length"): 0,
        ("vllm:iteration_tokens_total_bucket", "b", "0.5"): 1,
        ("vllm:iteration_tokens_total_bucket", "b", "1.0"): 1,
        ("vllm:iteration_tokens_total_bucket", "b", "20.0"): 3,
        ("vllm:iteration_tokens_total_bucket", "b", "+Inf"): 7,
        ("vllm:iteration_tokens_total_count", "b"): 7,
        ("vllm:iteration_tokens_total_sum", "b"): 99.5,
    }


def test_each_sample_has_its_own_labels() -> None:
    """As what is of no engine has, beside the engines' own."""
    samples: list[tuple[Labels, float | Distribution]] = [({"engine": "0", "why": "a"}, 1.0), ({"why": "b"}, 2.0)]
    parts, _ = Exporter(lambda: [Family("counter", "refused", "b", samples)]).parts()
    lines = b"".join(parts).decode().splitlines()
    assert lines[-2:] == ['refused_total{engine="0",why="a"} 1.0', 'refused_total{why="b"} 2.0']


def test_each_scrape_looks_again() -> None:
    values = iter([1.0, 2.0])
    exporter = Exporter(lambda: [Family("gauge", "a", "b", [({}, next(values))])])
    assert [b"".join(exporter.parts()[0]).decode().splitlines()[-1] for _ in range(2)] == ["a 1.0", "a 2.0"]


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_all_parts_are_of_one_moment(accept: str) -> None:
    values = [1.0, 2.0]
    families = (Family("gauge", f"a{index}", "b", [({}, values[index])]) for index in range(2))
    parts, _ = Exporter(lambda: families).parts(accept)
    values[:] = [3.0, 4.0]
    lines = b"".join(parts).decode().splitlines()
    assert [line for line in lines if line[0] != "#"] == ["a0 1.0", "a1 2.0"]
    assert lines.count("# EOF") == (lines[-1] == "# EOF") == bool(accept)
