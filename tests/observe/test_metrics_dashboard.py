"""The dashboard and the alert rules in docs/grafana ask for families that there are, and hold together as files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from slurm_llm.agent.exposition import OWN
from slurm_llm.agent.runfamilies import FAMILIES
from slurm_llm.observe.metricsknown import KNOWN

GRAFANA = Path(__file__).parents[2] / "docs" / "grafana"
DASHBOARD: dict[str, Any] = json.loads((GRAFANA / "slurm_llm.json").read_text(encoding="utf-8"))
WORDS = frozenset({"and", "by", "on", "or", "unless", "without"})
ENDINGS = ("_bucket", "_sum", "_count")


def panels() -> list[dict[str, Any]]:
    """Return the dashboard's panels."""
    found: list[dict[str, Any]] = DASHBOARD["panels"]
    return found


def expressions() -> Iterator[str]:
    """Return every expression of the dashboard, its variables filled in, and of the alert rules."""
    for panel in panels():
        for target in panel.get("targets", ()):
            text = target["expr"].replace("$__rate_interval", "1m")
            yield re.sub(r"\$(run|instance|rank)\b", ".*", text)
    for variable in DASHBOARD["templating"]["list"]:
        found = re.fullmatch(r"label_values\((.*), \w+\)", variable.get("definition", ""))
        if found:
            yield re.sub(r"\$\w+", ".*", found[1])
    for group in yaml.safe_load((GRAFANA / "alerts.yaml").read_text(encoding="utf-8"))["groups"]:
        yield from (rule["expr"] for rule in group["rules"])


def metric_names(expression: str) -> set[str]:
    """Return the metrics that an expression names."""
    bare = re.sub(
        r'"[^"]*"|\{[^}]*\}|\[[^]]*\]|\b(?:by|on|without) \([^)]*\)', " ", re.sub(r'"[^"]*"', '""', expression)
    )
    found = re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*(?!\w)(?!\s*\()", bare)
    return {name for name in found if name not in WORDS and not re.fullmatch(r"e\d+", name)}


def is_known(name: str) -> bool:
    """Tell whether a page can have that metric."""
    if name.startswith(OWN):
        return name.removeprefix(OWN) in FAMILIES
    return name == "up" or any(name.removesuffix(end) in KNOWN for end in ("", *ENDINGS))


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_every_expression_names_known_families(expression: str) -> None:
    """A misspelt family would be an empty panel, for ever."""
    names = metric_names(expression)
    assert names
    assert [name for name in names if not is_known(name)] == []


def test_names_are_found_in_expressions() -> None:
    """The test above would see a wrong one."""
    text = 'sum by (le, x) (rate(vllm:a_bucket{b="c"}[1m])) / 1e6 and on (run) up == 1 or topk(20, d{e=~"f|g"})'
    assert metric_names(text) == {"vllm:a_bucket", "up", "d"}
    assert not is_known("slurm_llm_rank_upp") and not is_known("nv_inference_counts")


def test_the_dashboard_can_be_imported() -> None:
    """Its data source is asked for, its ids are its panels' own, nothing overlaps, all lies below one of its rows."""
    assert DASHBOARD.get("id") is None and DASHBOARD["templating"]["list"][0]["type"] == "datasource"
    assert [one["name"] for one in DASHBOARD["templating"]["list"]] == ["datasource", "run", "instance", "rank"]
    rows = [panel["title"] for panel in panels() if panel["type"] == "row"]
    assert rows == ["Run", "Ranks", "Latency", "Throughput", "KV cache", "GPU"]
    assert len({panel["id"] for panel in panels()}) == len(panels())
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken and max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
        sources = {
            json.dumps(part["datasource"]) for part in (panel, *panel.get("targets", ())) if "datasource" in part
        }
        assert sources <= {'{"type": "prometheus", "uid": "${datasource}"}'}


def test_what_is_counted_is_asked_for_as_a_rate() -> None:
    """A counter by itself says how old its server is."""
    counters = [OWN + name for name, (kind, _) in FAMILIES.items() if kind == "counter"]
    counters += ["nv_inference_request_success", "vllm:generation_tokens_total"]
    told = [text for text in expressions() for name in counters if re.search(rf"{name}\b", text)]
    bare = [text for text in told if not re.search(r"\b(rate|increase)\(", text)]
    assert bare == [f'{OWN}xid_errors_total{{run=~".*"}}']


def test_the_page_of_docs_lists_our_families() -> None:
    """Each with its meaning, in the order of the page."""
    text = (GRAFANA.parent / "metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\| (.+) \|$", text, re.MULTILINE)
    assert rows == [(name, meaning) for name, (_, meaning) in FAMILIES.items()]
