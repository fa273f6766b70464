"""Why families are not on a metrics page, and why figures are zero that should not be. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slurm_llm.observe.metrics import Row, restarted

COUNTING_RELEASE = (23, 12)
"""Before it Triton counted nothing for TensorRT-LLM's own model (triton-inference-server/tensorrtllm_backend #238)."""
_LLMAPI = (
    "the LLM API's model has no families of its own: its load is seen in Triton's; a request gets figures of its own "
    "by the sampling parameter return_perf_metrics"
)
_TRTLLM = "no nv_trt_llm_* and nv_llm_*: only the C++ backend of TensorRT-LLM writes them, and this server does not"
_VLLM = (
    "no vllm:* families: they need the model's parameter REPORT_CUSTOM_METRICS (as slurm_llm sets it) and "
    "`disable_log_stats: false` in engine_args"
)


def build_notes(rows: Sequence[Row], engine: str, release: tuple[int, ...] = ()) -> list[str]:
    """Return what to know beside the rows, a sentence each; `release` is the image's, as in (23, 10), where known."""
    return [*_engine(rows, engine), *_zeros(rows, engine, release), *_triton(rows), *_looks(rows)]


def _engine(rows: Sequence[Row], engine: str) -> Iterator[str]:
    own = {"llmapi": _LLMAPI, "rehearsal": f"{_LLMAPI}. A rehearsal is the same", "tensorrtllm": _TRTLLM, "vllm": _VLLM}
    if rows and engine in own and not _has(rows, "nv_trt_llm_", "nv_llm_", "vllm:"):
        yield own[engine]


def _zeros(rows: Sequence[Row], engine: str, release: tuple[int, ...]) -> Iterator[str]:
    if engine != "tensorrtllm" or not release or release >= COUNTING_RELEASE:
        return
    own = [row for row in rows if row.family.startswith("nv_inference_") and row.model == "tensorrt_llm"]
    if own and all(cell.value == 0 for row in own for cell in row.cells.values()):
        name = ".".join(f"{part:02d}" for part in release)
        yield f"model tensorrt_llm counts nothing in release {name}, 23.12 is the first that does; see model ensemble"


def _triton(rows: Sequence[Row]) -> Iterator[str]:
    if rows and not _has(rows, "nv_gpu_", "nv_energy_"):
        yield "no nv_gpu_*: this Triton sees no GPU, or may not ask it"
    extra = "`triton.extra_args: [--metrics-config=%s=true]`"
    lacks = (
        ("nv_inference_first_response_", "histogram_latencies"),
        ("nv_inference_request_summary", "summary_latencies"),
    )
    named = [f"{name}* ({extra % option})" for name, option in lacks if rows and not _has(rows, name)]
    if named:
        yield f"off unless asked for: {', '.join(named)}"


def _looks(rows: Sequence[Row]) -> Iterator[str]:
    if any(row.kind == "histogram" for row in rows):
        yield (
            "p50 and p99 are estimated from buckets, no nearer than one is wide; > is beyond the last. They are since "
            "the server's start"
        )
    if again := restarted(rows):
        which = ", ".join(map(str, again))
        yield f"instance {which}: counters went backwards, its server was started again between the two looks"


def _has(rows: Sequence[Row], *beginnings: str) -> bool:
    return any(row.family.startswith(beginnings) for row in rows)
