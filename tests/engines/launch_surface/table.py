"""How TensorRT-LLM starts and serves, as far as a job sees it: each behaviour, where it is documented, and its test.

Nothing here was seen on a GPU: the table is what the public sources say, and the stand-ins beside it behave like that.
"""

from __future__ import annotations

from typing import NamedTuple

LAUNCHER = "NVIDIA/TensorRT-LLM tensorrt_llm/llmapi/trtllm-llmapi-launch"
MODEL = "NVIDIA/TensorRT-LLM triton_backend/all_models/llmapi/tensorrt_llm/1/model.py"
SESSION = "NVIDIA/TensorRT-LLM tensorrt_llm/llmapi/mpi_session.py"
GUIDE = "triton-inference-server/tensorrtllm_backend docs/llmapi.md"


class Behaviour(NamedTuple):
    """One documented behaviour; `test` is the function of test_llmapi_surface.py that fails when it is broken."""

    what: str
    source: str
    test: str


BEHAVIOURS = (
    Behaviour("the rank is SLURM_PROCID, then OMPI_COMM_WORLD_RANK, PMI_RANK, PMI_ID, 0", LAUNCHER, "test_rank"),
    Behaviour("tllm_mpi_size is SLURM_NTASKS, then OMPI_COMM_WORLD_SIZE, 1", LAUNCHER, "test_size"),
    Behaviour("the task runs on rank 0 only; other ranks run a worker node", LAUNCHER, "test_task_on_rank_0_only"),
    Behaviour("twelve prefixes are unset for the task: SLURM_, PMIX_, UCX_, …", LAUNCHER, "test_stripped"),
    Behaviour("TLLM_SPAWN_PROXY_PROCESS, its address and its key are set for it", LAUNCHER, "test_proxy_variables"),
    Behaviour("the new edition keeps a preset address", LAUNCHER, "test_preset_address"),
    Behaviour("old editions join the command unquoted: blanks split", LAUNCHER, "test_blanks"),
    Behaviour("the new edition exits with the task's code, old ones with 0", LAUNCHER, "test_exit_code"),
    Behaviour("the oldest edition stays alive when its task has ended", LAUNCHER, "test_oldest_stays"),
    Behaviour("a session of another size than the MPI world is refused", SESSION, "test_world_size"),
    Behaviour("under the launcher, one tritonserver serves for all ranks", GUIDE, "test_launcher_serves"),
    Behaviour("in leader mode ranks above 0 block in initialize and never serve", MODEL, "test_leader_serves"),
    Behaviour("model.yaml is read from the version's folder; triton_config is not LLM()'s", MODEL, "test_model_yaml"),
    Behaviour("an unknown argument fails the load, and tritonserver exits with 1", MODEL, "test_unknown_argument"),
    Behaviour("copies take their GPUs from gpu_device_ids, by the number in their name", GUIDE, "test_copies"),
)
