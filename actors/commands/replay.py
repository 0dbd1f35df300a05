"""`actorserve replay FILE`: the real scheduler once more, on what a server with --record has kept."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from ..options.config import ConfigError
from ..options.fields import integer

if TYPE_CHECKING:
    from ..scheduler.replay.replayer import Replay
    from ..scheduler.replay.summary import ReplaySummary

DESCRIPTION = """Run the real scheduler again, without a worker, on what a server with --record FILE has kept.

Every plan has to be the recorded one; the exit status is 1 and the first difference is told if one is not. With other
options than the recorded ones it is then simulated what they would have made of the same requests: a step takes as long
as those of the recording did by their tokens, and nothing else takes any time. Plans are counted from 1 over the file,
over the lives of all its schedulers."""
DIFFERENT = 1
OPTIONS = ("scheduling_policy", "max_num_seqs", "max_num_batched_tokens", "enable_prefix_caching")
LABELS = {
    "requests": ("requests", "{:,}"),
    "seconds": ("seconds", "{:.2f}"),
    "steps": ("steps", "{:,}"),
    "tokens": ("tokens computed", "{:,}"),
    "tokens_a_step": ("tokens a step", "{:.2f}"),
    "preemptions": ("preemptions", "{:,}"),
    "mean_queue_s": ("queue time, mean (s)", "{:.4f}"),
    "p99_queue_s": ("queue time, p99 (s)", "{:.4f}"),
    "mean_ttft_s": ("time to first token, mean (s)", "{:.4f}"),
    "p99_ttft_s": ("time to first token, p99 (s)", "{:.4f}"),
    "mean_kv_use": ("KV use, mean", "{:.1%}"),
    "most_kv_use": ("KV use, most", "{:.1%}"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to replay, how far, and with which other options."""
    parser.add_argument("file", metavar="FILE", help="what --record has written")
    other = parser.add_argument_group("other options than the recorded ones")
    other.add_argument("--policy", "--scheduling-policy", dest="scheduling_policy", choices=("fcfs", "priority"))
    other.add_argument("--max-num-seqs", type=integer, metavar="N", help="sequences that run at once")
    other.add_argument("--max-num-batched-tokens", type=integer, metavar="TOKENS", help="the token budget of one step")
    help_text = "use KV blocks of earlier requests again"
    other.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction, default=None, help=help_text)
    other.add_argument("--blocks", type=integer, metavar="N", help="KV blocks of the worker")
    parser.add_argument("--until", type=integer, metavar="STEP", help="end after this plan")
    parser.add_argument("--break", dest="stop_at", type=integer, metavar="STEP", help="start pdb before this plan")
    parser.add_argument("--print-plans", action="store_true", help="a line for each plan: rows with their tokens")
    parser.add_argument("--json", action="store_true", help="all of it as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """0 if all plans are equal."""
    import logging

    from ..scheduler.replay.file import Reading, RecordedPlan
    from ..scheduler.replay.replayer import Difference, Replay, ReplayOptions, describe_plan

    def tell(number: int, plan: RecordedPlan) -> None:
        print(f"plan {number}: {describe_plan(plan)}", file=sys.stderr if arguments.json else sys.stdout)

    logging.getLogger("actorserve.actors.scheduler").addHandler(logging.NullHandler())  # it has said all that once
    reading = Reading(arguments.file)
    replay = Replay(ReplayOptions(arguments.until, arguments.stop_at, tell if arguments.print_plans else None))
    answer: dict[str, Any] = {"equal": True}
    try:
        replay.run(reading)
        answer |= _summary(replay, reading.cut)
        answer |= _compare(replay, arguments)
    except Difference as difference:
        answer |= _summary(replay, reading.cut) | {"equal": False, "difference": str(difference)}
    except OSError as error:
        raise ConfigError(f"{arguments.file}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(str(error)) from None
    _print(answer, arguments.json)
    return 0 if answer["equal"] else DIFFERENT


def _summary(replay: Replay, cut: bool) -> dict[str, Any]:
    counts = {"sections": replay.sections, "turns": replay.turns, "plans": replay.plans}
    return counts | {"cut": cut, "deaths": replay.deaths, "recorded": replay.statistics.summary()}


def _compare(replay: Replay, arguments: argparse.Namespace) -> dict[str, Any]:
    """Both simulated, with the recorded options and with others; nothing where there are no others."""
    from ..scheduler.replay.simulator import Simulation, StepTime, with_options

    head, blocks = replay.head, replay.blocks
    if arguments.blocks is not None and arguments.blocks < 1:
        raise ValueError(f"--blocks: {arguments.blocks} is not at least 1")
    if head is None:
        raise ValueError(f"{arguments.file} holds nothing")
    other = with_options(head.config, **{name: getattr(arguments, name) for name in OPTIONS})
    if other == head.config and arguments.blocks in (None, blocks):
        return {}
    histories = list(replay.statistics.histories.values())
    step_time = StepTime.fitted(replay.statistics.measured)
    answer: dict[str, Any] = {"step_time": {"base_s": step_time.base, "token_s": step_time.token}}
    for name, config, count in (("simulated", head.config, blocks), ("other", other, arguments.blocks or blocks)):
        simulation = Simulation(head, config, histories, step_time, count)
        simulation.run()
        answer[name] = simulation.statistics.summary()
        answer["left_out"] = simulation.left_out
    return answer


def _print(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        import msgspec

        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(answer)) + b"\n")
        return
    print(f"{answer['plans']:,} plans in {answer['turns']:,} turns of {answer['sections']} schedulers are equal")
    for death in answer["deaths"]:
        print(f"a scheduler died of it then and dies of it now: {death}")
    if answer["cut"]:
        print("the end of the file is missing")
    if not answer["equal"]:
        print(answer["difference"])
        return
    columns: dict[str, ReplaySummary] = {
        name: answer[name] for name in ("recorded", "simulated", "other") if name in answer
    }
    print("\n".join(_table(columns)))
    if times := answer.get("step_time"):
        print(f"simulated: a step takes {times['base_s'] * 1e3:.3f} ms + {times['token_s'] * 1e6:.2f} µs a token")
        if answer["left_out"]:
            print(f"{answer['left_out']} requests are left out, as the recording knows too little of them")


def _table(columns: dict[str, ReplaySummary]) -> list[str]:
    lines = [" " * 30 + "".join(f"{name:>14}" for name in columns)]
    for field, (label, form) in LABELS.items():
        values = [getattr(figures, field) for figures in columns.values()]
        lines.append(f"{label:<30}" + "".join(f"{'-' if v is None else form.format(v):>14}" for v in values))
    return lines
