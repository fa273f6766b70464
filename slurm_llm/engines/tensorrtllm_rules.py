"""What the engine path's values mean together: decoding, KV cache, guided decoding, and who runs on which GPU."""

from __future__ import annotations

from slurm_llm.engines.tensorrtllm_arguments import DRAFT, Arguments, LlmModel
from slurm_llm.engines.tensorrtllm_parameters import BLS, ENSEMBLE, LOOKAHEAD, MULTIMODAL, POSTPROCESSING, PREPROCESSING
from slurm_llm.engines.tensorrtllm_values import split_ids
from slurm_llm.errors import Problem
from slurm_llm.spec import JobSpec

ORCHESTRATOR_VARIABLES = ("TRTLLM_ORCHESTRATOR", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES")
MISSING = "missing"
SAMPLING = ("top_k", "top_p", "top_k_top_p")
_ENGINES_OWN = {"medusa_choices": "medusa", "eagle_choices": "eagle"}


def check_rules(arguments: Arguments, spec: JobSpec, world: int, *, orchestrator: bool) -> list[Problem]:
    """Return every contradiction within the values; `world` is the number of ranks of one engine."""
    problems = _check_paths(arguments) + _check_models(arguments, spec)
    for llm in arguments.llms:
        problems += [*_decoding(llm), *_cache(llm, arguments), *_guided(llm), *_batching(llm)]
        problems += _orchestrated(llm, world, arguments) if orchestrator else _led(llm, world)
    if not orchestrator:
        problems += _one_world(arguments, world)
    problems += [
        Problem(f"env.{name}", "the launch sets it", todo="choose with `launch`: leader or orchestrator")
        for name in spec.env
        if name in ORCHESTRATOR_VARIABLES
    ]
    return problems


def _check_paths(arguments: Arguments) -> list[Problem]:
    problems = []
    for llm in arguments.llms:
        if "engine_dir" not in llm.values and "encoder_engine_dir" not in llm.values:
            todo = "give the folder that trtllm-build wrote, as the ranks see it"
            problems.append(Problem(f"{llm.where}.engine_dir", MISSING, "an absolute path", todo))
    tokenizing = (arguments.sections[PREPROCESSING], arguments.sections[POSTPROCESSING])
    if not all("tokenizer_dir" in section for section in tokenizing):
        todo = "give the folder with the tokenizer, as the ranks see it, or a path as `model`"
        problems.append(Problem("engine_args.tokenizer_dir", MISSING, "an absolute path", todo))
    encoders = arguments.sections.get(MULTIMODAL)
    if encoders is not None and "multimodal_model_path" not in encoders:
        where, todo = f"engine_args.{MULTIMODAL}.multimodal_model_path", "give the folder of the vision engine"
        problems.append(Problem(where, MISSING, "an absolute path", todo))
    return problems


def _check_models(arguments: Arguments, spec: JobSpec) -> list[Problem]:
    problems, served = [], [model for model in (ENSEMBLE, BLS) if model in arguments.sections]
    if not served:
        what, todo = "both are left out, and clients send text to one of them", "leave one of them in"
        problems.append(Problem("engine_args.ensemble, engine_args.tensorrt_llm_bls", what, todo=todo))
    asked = spec.triton.model_name
    named = (*served, *(f"{ENSEMBLE}_{llm.name}" for llm in arguments.others if ENSEMBLE in served))
    if asked is not None and served and asked not in named:
        what = f"'{asked}' is not a model of the repository that takes text"
        problems.append(Problem("triton.model_name", what, ", ".join(named), "choose one: clients are told this name"))
    if arguments.draft is not None and BLS not in arguments.sections:
        what = "a draft model is used by the tensorrt_llm_bls model, which is left out"
        problems.append(Problem("engine_args.draft_model", what, todo="remove `tensorrt_llm_bls: false`"))
    names = [llm.name for llm in arguments.llms]
    bls = arguments.sections.get(BLS, {})
    for key in ("tensorrt_llm_model_name", "tensorrt_llm_draft_model_name"):
        if key in bls and bls[key] not in names:
            where, what = f"engine_args.{BLS}.{key}", f"the repository has no tensorrt_llm model '{bls[key]}'"
            hint = "add engine_args.draft_model" if bls[key] == DRAFT or "draft" in key else "correct it"
            problems.append(Problem(where, what, ", ".join(names), hint))
    return problems


def _decoding(llm: LlmModel) -> list[Problem]:
    values, where = llm.values, llm.where
    mode, beams = values.get("decoding_mode"), int(values.get("max_beam_width", "1"))
    problems = []
    if mode in SAMPLING and beams > 1:
        what = f"{mode} samples one sequence, max_beam_width is {beams}"
        todo = "set decoding_mode: beam_search, or max_beam_width: 1"
        problems.append(Problem(f"{where}.decoding_mode", what, "beam_search with more than one beam", todo))
    if mode == "beam_search" and beams == 1:
        what, allowed = "beam_search with max_beam_width 1", "at least 2 beams"
        problems.append(Problem(f"{where}.max_beam_width", what, allowed, "set it, or choose another decoding_mode"))
    given = [key for key in LOOKAHEAD if key in values]
    missing = [key for key in LOOKAHEAD if key not in values]
    if mode == "lookahead" and missing:
        what, todo = f"lookahead decoding needs {', '.join(missing)} too", "set them"
        problems.append(Problem(f"{where}.decoding_mode", what, todo=todo))
    if mode != "lookahead" and given:
        what = f"{', '.join(given)} given without lookahead decoding"
        problems.append(Problem(f"{where}.{given[0]}", what, todo="set decoding_mode: lookahead, or remove them"))
    for key, own in _ENGINES_OWN.items():
        if key in values and mode not in (None, own):
            what, todo = f"{key} with decoding_mode {mode}", f"set decoding_mode: {own}, or remove it"
            problems.append(Problem(f"{where}.{key}", what, todo=todo))
    return problems


def _cache(llm: LlmModel, arguments: Arguments) -> list[Problem]:
    values, where, problems = llm.values, llm.where, []
    encoder = "encoder_engine_dir" in values
    if "cross_kv_cache_fraction" in values and not encoder and MULTIMODAL not in arguments.sections:
        what, todo = "it is for encoder-decoder models only", "remove it, or give encoder_engine_dir"
        problems.append(Problem(f"{where}.cross_kv_cache_fraction", what, todo=todo))
    if encoder and values.get("enable_chunked_context") == "true":
        what, todo = "encoder-decoder models do not run with chunked context", "set it to false"
        problems.append(Problem(f"{where}.enable_chunked_context", what, "false", todo))
    if values.get("cuda_graph_mode") != "true" and int(values.get("cuda_graph_cache_size", "0")) > 0:
        what, todo = "a cache for CUDA graphs, which are off", "set cuda_graph_mode: true, or remove it"
        problems.append(Problem(f"{where}.cuda_graph_cache_size", what, todo=todo))
    if values.get("speculative_decoding_fast_logits") == "true":
        what = "fast logits need orchestrator mode without spawning, which no launch here is"
        todo = "remove it: the backend would turn it off with a warning"
        problems.append(Problem(f"{where}.speculative_decoding_fast_logits", what, "false", todo))
    return problems


def _guided(llm: LlmModel) -> list[Problem]:
    values, where = llm.values, llm.where
    needs = "tokenizer_dir" if values["triton_backend"] == "python" else "xgrammar_tokenizer_info_path"
    if "guided_decoding_backend" in values and needs not in values:
        runtime = "Python runtime" if needs == "tokenizer_dir" else "C++ backend"
        what = f"guided decoding with the {runtime} needs {needs}"
        made = "give the JSON file that generate_xgrammar_tokenizer_info.py writes"
        todo = "give the tokenizer's folder" if needs == "tokenizer_dir" else made
        return [Problem(f"{where}.guided_decoding_backend", what, todo=todo)]
    if "xgrammar_tokenizer_info_path" in values and "guided_decoding_backend" not in values:
        what, todo = "it is read for guided decoding only", "set guided_decoding_backend: xgrammar"
        return [Problem(f"{where}.xgrammar_tokenizer_info_path", what, todo=todo)]
    return []


def _batching(llm: LlmModel) -> list[Problem]:
    values = llm.values
    if values["batching_strategy"] not in ("V1", "v1"):
        return []
    needing = [key for key in ("enable_chunked_context", "enable_kv_cache_reuse") if values.get(key) == "true"]
    what = f"static batching (V1) with {' and '.join(needing)}"
    todo = "set batching_strategy: inflight_fused_batching"
    return [Problem(f"{llm.where}.batching_strategy", what, "in-flight batching", todo)] if needing else []


def _everybody(sets: tuple[tuple[int, ...], ...], world: int) -> bool:
    return len(sets) == 1 and len(sets[0]) == world and sets[0] == tuple(range(world))


def _led(llm: LlmModel, world: int) -> list[Problem]:
    """Return what does not fit leader mode, in which the job's ranks are the engine's."""
    values, where, problems = llm.values, llm.where, []
    if "participant_ids" in values and not _everybody(split_ids(values["participant_ids"]), world):
        what = f"found {values['participant_ids']} in leader mode"
        allowed = "0" if world == 1 else f"all numbers from 0 to {world - 1}"
        problems.append(Problem(f"{where}.participant_ids", what, allowed, "remove it: every rank takes part"))
    if llm.instances > 1 and world > 1:
        what = f"{llm.instances} instances of {world} ranks each in leader mode, which has one MPI world"
        todo = f"set replicas: {llm.instances}, or launch: orchestrator with gpu_device_ids"
        problems.append(Problem(f"{where}.instance_count", what, "1", todo))
    if "gpu_device_ids" in values:
        sets, nodes = split_ids(values["gpu_device_ids"]), int(values.get("num_nodes", "1"))
        each = {len(ids) * nodes for ids in sets}
        if each != {world}:
            counts = ", ".join(str(len(ids)) for ids in sets)
            what = f"{counts} ids × {nodes} nodes (num_nodes), the engine has {world} ranks"
            todo = "remove it: without it each rank takes the GPU of its place on the node"
            problems.append(Problem(f"{where}.gpu_device_ids", what, f"ids × nodes = {world}", todo))
    return problems


def _one_world(arguments: Arguments, world: int) -> list[Problem]:
    if world == 1 or not arguments.others:
        return []
    names = ", ".join(llm.name for llm in arguments.others)
    what = f"further models ({names}) with {world} ranks each in leader mode, which has one MPI world"
    return [Problem("engine_args.models", what, todo="set launch: orchestrator, and gpu_device_ids for each model")]


def _orchestrated(llm: LlmModel, world: int, arguments: Arguments) -> list[Problem]:
    values, where, problems = llm.values, llm.where, []
    if arguments.spawn and "participant_ids" in values:
        what, todo = "not possible where the orchestrator spawns its workers", "remove it, use gpu_device_ids"
        problems.append(Problem(f"{where}.participant_ids", what, todo=todo))
    if "num_nodes" in values and values["num_nodes"] != "1":
        what = f"num_nodes {values['num_nodes']}: spawned workers stay on one node"
        problems.append(Problem(f"{where}.num_nodes", what, "1", "remove it"))
    sets = split_ids(values["gpu_device_ids"]) if "gpu_device_ids" in values else ()
    several = len(arguments.llms) > 1 or llm.instances > 1
    if not sets and several:
        what, allowed = "missing: several models or instances share this server's GPUs", "as '0,1;2,3'"
        problems.append(Problem(f"{where}.gpu_device_ids", what, allowed, "say which GPUs each one has"))
    if sets and len(sets) != llm.instances:
        what = f"{len(sets)} sets of GPUs for {llm.instances} instances (instance_count)"
        problems.append(Problem(f"{where}.gpu_device_ids", what, "one set an instance", "make them equal"))
    main = where == "engine_args"
    wrong = [len(ids) for ids in sets if main and len(ids) != world]
    if wrong:
        what, allowed = f"a set of {wrong[0]} GPUs, the engine has {world} ranks", f"{world} ids a set"
        problems.append(Problem(f"{where}.gpu_device_ids", what, allowed, "make them equal"))
    return problems
