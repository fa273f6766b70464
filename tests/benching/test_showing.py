"""What `bench`, `bench list` and `bench diff` print: all that was measured, in 80 columns, nothing that steers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from slurm_llm.benching.comparing import compare
from slurm_llm.cli import cli
from slurm_llm.cli.bench import bench
from slurm_llm.cli.benchview import bar, diff_text, list_text, load_words, number_text, results_text, short_text
from slurm_llm.observe.benchresults import BenchResult, Fault, Figure, Load, Series, result_to_json
from tests.benching.cases import LOAD, result

BIG = {
    "request_throughput": Figure("requests/s", 12345.6),
    "output_token_throughput": Figure("tokens/s", 1234567.8),
    **{
        name: Figure("ms", 12345.6, p50=11111.1, p99=99999.9, max=123456.7)
        for name in ("request_latency", "time_to_first_token", "inter_token_latency")
    },
    "output_tokens": Figure("tokens", 1024.0, p50=1024.0, p99=2048.0, max=4096.0),
}


def sweep() -> list[BenchResult]:
    """Two levels with two repeats, the last one invalid."""
    made = []
    for number, (level, repeat) in enumerate([(1, 1), (1, 2), (16, 1), (16, 2)], 1):
        series = Series(1, (1, 16), repeat, 2)
        made.append(result(number, load=replace(LOAD, concurrency=level), series=series, figures=BIG))
    made[-1] = replace(made[-1], valid=False, reasons=("it \x1b[31mbroke\x07",))
    return made


def test_one_is_shown_in_full() -> None:
    """Every figure with its unit; what a tool said of an error cannot steer the terminal."""
    one = result(figures=BIG, valid=False, reasons=("a reason " * 20,), errors=(Fault("bad \x1b]0;title\x07", 3),))
    text = results_text([one], "/runs/demo")
    for words in ("INVALID", "because", "3 × bad", "12,346", "requests/s", "first token", "between tokens", "a note"):
        assert words in text
    plain = text.replace("\x1b[31m\x1b[1m", "").replace("\x1b[0m", "")
    assert "\x1b" not in plain and "\x07" not in plain
    assert max(map(len, plain.splitlines())) <= 80
    assert text.splitlines()[-1].endswith("/runs/demo/bench/1")


def test_a_sweep_has_a_plot() -> None:
    """A bar for each level: repeats as their mean, invalid ones left out; reasons below."""
    text = results_text(sweep(), "/runs/demo")
    assert max(map(len, text.splitlines())) <= 80
    bars = [line for line in text.splitlines() if line.strip().startswith(("1 ", "16 ")) and "1,234,568" in line]
    assert len([line for line in bars if bar(1, 1)[0] in line]) == 2
    assert "bench 4" in text and "invalid: it" in text and "\x07" not in text


def test_repeats_without_a_sweep_have_no_plot() -> None:
    """There is nothing to draw them over."""
    pair = [result(number, series=Series(1, (), number, 2)) for number in (1, 2)]
    assert bar(1, 1)[0] not in results_text(pair, "/runs/demo")


def test_a_list_fits_eighty_columns() -> None:
    """With the largest figures, too; one that was not told is a dash."""
    text = list_text([*sweep(), result(1000)])
    assert max(map(len, text.splitlines())) <= 80
    assert text.splitlines()[5].split()[:7] == ["1000", *text.splitlines()[5].split()[1:3], "c2", "10.0", "-", "50.0"]
    assert text.splitlines()[4].startswith("4!") and text.splitlines()[-1].startswith("! is invalid")
    assert "invalid" not in list_text([result()])


def test_a_comparison_fits_eighty_columns() -> None:
    """Means, changes, other conditions; that noise is not known is said once."""
    first, second = result(1), result(2, rate=12.0, served=replace(result().served, triton="2.60.0"))
    text = diff_text(compare([first], [second]), [[first], [second]])
    assert "+20.0%" in text and "Triton: 2.51.0 | 2.60.0" in text
    assert text.count("nobody knows what is noise") == 1
    assert max(map(len, text.splitlines())) <= 80


WORDS = [
    (LOAD, "2 in flight, 10 requests, 32 → 16 tokens"),
    (replace(LOAD, concurrency=None, request_rate=2.5, arrival="poisson"), "2.5 requests/s (poisson), 10 requests"),
    (replace(LOAD, requests=None, duration_s=5.0, input_tokens=(64.0, 8.0)), "2 in flight, 5 s, 64 ± 8 → 16 tokens"),
    (replace(LOAD, dataset="/a/b.jsonl"), "b.jsonl"),
]


@pytest.mark.parametrize(("load", "words"), WORDS)
def test_a_load_in_words(load: Load, words: str) -> None:
    """One sentence says all of it."""
    assert words in load_words(load)


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.0, "0.00"), (9.876, "9.88"), (98.76, "98.8"), (987.6, "988"), (98765.4, "98,765")],
)
def test_figures_have_the_digits_that_count(value: float | None, text: str) -> None:
    """Three or four; in a table never more than six characters."""
    assert number_text(value) == text
    assert len(short_text(value)) <= 6
    assert (short_text(98765.4), short_text(1234567.8), short_text(1234.5)) == ("98.77k", "1.235M", "1234")


def test_whatever_is_no_command_is_a_run() -> None:
    """`bench RUN -c 2` is `bench run RUN -c 2`; `list` and `diff` are themselves."""
    runner = CliRunner()
    assert "no such run" not in runner.invoke(bench, ["--help"]).output
    for words in (
        ["nosuch", "-c", "2"],
        ["-c", "2", "nosuch"],
        ["run", "nosuch"],
        ["list", "nosuch"],
        ["diff", "nosuch:1", "2"],
    ):
        done = runner.invoke(cli, ["bench", *words])
        assert done.exit_code == 7, (words, done.output)
        assert "no run 'nosuch'" in done.output


def test_kept_results_are_listed_and_compared(tmp_path: Path) -> None:
    """From a run directory alone; one of repeats stands for all of them."""
    (tmp_path / "plan.json").write_text("{}")
    for one in sweep():
        folder = tmp_path / "bench" / str(one.number)
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(result_to_json(replace(one, valid=True, reasons=())))
    runner = CliRunner()
    listed = runner.invoke(cli, ["bench", "list", str(tmp_path), "--json"])
    assert [one["number"] for one in json.loads(listed.output)] == [1, 2, 3, 4]
    made = runner.invoke(cli, ["bench", "diff", f"{tmp_path}:2", f"{tmp_path}:1", "--json"])
    assert made.exit_code == 0, made.output
    value = json.loads(made.output)
    assert (value["first"], value["second"], value["hindrances"]) == ([1, 2], [1, 2], [])
    other = runner.invoke(cli, ["bench", "diff", f"{tmp_path}:1", f"{tmp_path}:3"])
    assert other.exit_code == 11
    none = runner.invoke(cli, ["bench", "diff", f"{tmp_path}:1", f"{tmp_path}:9"])
    assert (none.exit_code, "has no measurement '9': 1, 2, 3, 4" in none.output) == (7, True)
