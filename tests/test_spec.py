"""A job spec is read whole: what is accepted, what is refused in which words, and that it can be written and read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_llm.assets import templates_dir
from slurm_llm.errors import SpecError
from slurm_llm.fields import READ_ONLY_VARIABLES, SCRIPT_VARIABLES
from slurm_llm.spec import JobSpec, load_spec, spec_from_mapping, spec_from_text
from slurm_llm.yamlio import Tree, dump

BASE = "name: demo\nengine: rehearsal\n"


def _fault(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        spec_from_text(BASE + text, "f.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "meta-llama/Llama-3.1-8B",
        "two words",
        'it\'s "quoted" `here` $(id) ${x}',
        "100% %j %%",
        "-leading --dash",
        "x" * 300,
        "模型-é-😀",
        "///***",
        " ",
        "back\\slash",
        "#SBATCH",
    ],
)
def test_every_printable_name_is_taken(name: str) -> None:
    """Slashes, spaces, quotes, percent signs, dashes, 300 characters and other scripts are names."""
    assert spec_from_mapping({"name": name, "engine": "rehearsal"}).name == name


@pytest.mark.parametrize("character", ["\n", "\r", "\t", "\0", "\x1b", "\x7f", "\x85", "\u2028"])
def test_a_control_character_in_a_name_is_refused(character: str) -> None:
    """What would end a line or move a terminal's cursor is no part of a name."""
    with pytest.raises(SpecError, match="name: must hold no line break or control character"):
        spec_from_mapping({"name": f"a{character}b", "engine": "rehearsal"})


@pytest.mark.parametrize(
    ("name", "message"),
    [("", "must not be empty"), ("é" * 600, "must have at most 1024 bytes"), ("\udc80", "that UTF-8 can write")],
)
def test_a_name_that_slurm_cannot_take_is_refused(name: str, message: str) -> None:
    """An empty name, one above Slurm's limit of bytes, and one that is no text are refused."""
    with pytest.raises(SpecError, match=message):
        spec_from_mapping({"name": name, "engine": "rehearsal"})


@pytest.mark.parametrize(
    ("line", "time", "memory"),
    [
        ("{time: 04:00:00, mem_per_node: 16G}", "04:00:00", "16G"),
        ("{time: 60, mem_per_node: 1024}", "60", "1024"),
        ("{time: 1-12, mem_per_node: 0}", "1-12", "0"),
        ("{time: ' 10 ', mem_per_node: ' 2T '}", "10", "2T"),
        ("{time: UNLIMITED}", "UNLIMITED", None),
    ],
)
def test_times_and_sizes_are_slurms_own(line: str, time: str, memory: str | None) -> None:
    """Slurm's forms are kept as text; a bare number means minutes and MiB, as it does to Slurm."""
    resources = spec_from_text(f"{BASE}resources: {line}\n").resources
    assert (resources.time, resources.mem_per_node) == (time, memory)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "tensor_parallel_size: '4'\n",
            "f.yaml:3: tensor_parallel_size: must be a whole number (found: '4'): write it",
        ),
        ("pipeline_parallel_size: 0\n", "f.yaml:3: pipeline_parallel_size: must be at least 1 (found: 0)"),
        ("resources: {time: 4h}\n", "f.yaml:3: resources.time: '4h' is not a Slurm time: minutes, MM:SS, HH:MM:SS,"),
        ("resources: {time: 1.5}\n", "f.yaml:3: resources.time: must be text (found: 1.5)"),
        ("resources: {mem_per_node: 1.5G}\n", "must be a whole number with K, M, G or T: sbatch takes no fraction"),
        ("resources: {mem_per_node: 16 GB!}\n", "'16 GB!' is not a Slurm memory size"),
        ("triton: {http_port: 70000}\n", "f.yaml:3: triton.http_port: must be at most 65535 (found: 70000)"),
        ("triton: {model_name: a/b}\n", "triton.model_name: must be letters, digits, '.', '_' and '-', and start with"),
        (
            "triton: {extra_args: [--http-port=1]}\n",
            "triton.extra_args: these are set by slurm_llm itself: --http-port",
        ),
        ("env: {a-b: x}\n", "f.yaml:3: env.a-b: not the name of an environment variable: 'a-b': correct the value"),
        ("env: {UID: 1}\n", "f.yaml:3: env.UID: bash lets nobody set UID"),
        ("env: {rank: 1}\n", "f.yaml:3: env.rank: rank is a variable of the job's own scripts"),
        ("env: {LLMRUN_TAG: 1}\n", "f.yaml:3: env.LLMRUN_TAG: LLMRUN_TAG is a variable of the job's own scripts"),
        ('env: {A: "x\\ny"}\n', "f.yaml:3: env.A: must hold no line break or control character (found: 'x\\ny')"),
        ("env: {A: null}\n", "f.yaml:3: env.A: must be text or a whole number or a number or true or false"),
        ("sbatch_extra: [-p debug]\n", "f.yaml:3: sbatch_extra[0]: must be one option, as --name, --name=value or"),
        ("sbatch_extra: [--output=x]\n", "f.yaml:3: sbatch_extra[0]: is set by slurm_llm itself (found: '--output=x')"),
        ("sbatch_extra: [-N4]\n", "f.yaml:3: sbatch_extra[0]: is set by slurm_llm itself: use the parallel sizes"),
        ("sbatch_extra: [--outpu=x]\n", "sbatch_extra[0]: sbatch and srun would read it as --output: write options in"),
        ("sbatch_extra: [-Hn4]\n", "sbatch_extra[0]: -H takes no value: write each option by itself"),
        ("tensor_parallel_size: 100001\n", "f.yaml:3: tensor_parallel_size: must be at most 100000"),
        ('prologue: "\\ud800"\n', "f.yaml:3: not readable as YAML: half a character (a surrogate)"),
        ("sbatch_extra: [echo]\n", "f.yaml:3: sbatch_extra[0]: must be one option"),
        ("container: {image: ''}\n", "f.yaml:3: container.image: must not be empty (found: '')"),
        ("partition: ''\n", "f.yaml:3: partition: must not be empty (found: '')"),
        ("partition: 7\n", "f.yaml:3: partition: must be text (found: 7): put it in quotes"),
        ('prologue: "a\\r"\n', "prologue: must hold no NUL and no carriage return (DOS line ends)"),
        ("tensor_paralel_size: 2\n", "did you mean 'tensor_parallel_size'?"),
    ],
)
def test_a_bad_value_is_refused_in_plain_words(text: str, message: str) -> None:
    """Every kind of bad value names its key, its line where there is one, and the rule that it breaks."""
    assert message in _fault(text)


def test_several_faults_are_named_at_once() -> None:
    """One run shows everything that is wrong with the file."""
    fault = _fault("tensor_parallel_size: x\nreplicas: 0\nresurces: {}\nenv: {UID: 1, rank: 2}\n")
    assert [line.split(":")[1] for line in fault.splitlines()] == ["3", "4", "6", "6", "5"]


def test_an_unknown_engine_gets_a_suggestion() -> None:
    """A typing error in the engine names the one that was meant."""
    with pytest.raises(SpecError, match="did you mean 'rehearsal'"):
        spec_from_text("name: a\nengine: rehersal\n")


def test_variables_of_every_type_are_taken() -> None:
    """Numbers and booleans of the environment stay what they are until they are written."""
    spec = spec_from_text(BASE + "env: {A: 1, B: true, C: text, D: 1.5, http_proxy: 'http://p:1'}\n")
    assert spec.env == {"A": 1, "B": True, "C": "text", "D": 1.5, "http_proxy": "http://p:1"}


def test_sbatch_options_of_every_form_are_taken() -> None:
    """Long and short options, with spaces and quotes in a long one's value, pass."""
    options = ["--spread-job", '--comment=it\'s a "test"', "-k", "--mail-type=END"]
    value: dict[str, Tree] = {"name": "a", "engine": "rehearsal", "sbatch_extra": [*options]}
    assert spec_from_mapping(value).sbatch_extra == tuple(options)


def test_every_variable_that_the_scripts_assign_is_reserved() -> None:
    """A user's variable of the same name would be lost, or break the script."""
    assigned: set[str] = set()
    for path in (*templates_dir().glob("*.sub.j2"), *templates_dir().glob("*.sh.j2")):
        text = re.sub(r"{%.*?%}", "", path.read_text())
        text = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
        assigned |= set(re.findall(r"^ *(?:local |export |read -r )?([a-z_]\w*)=", text, re.MULTILINE))
        assigned |= set(re.findall(r"\bfor \(?\(?([a-z_]\w*)\b", text))
        assigned |= {word for words in re.findall(r"\bread -r ([a-z_ ]+)", text) for word in words.split()}
        assigned |= {word for words in re.findall(r"\blocal ([a-z_ ]+)(?:$|=)", text, re.M) for word in words.split()}
    assert {"run", "rank"} <= assigned, "the scripts changed their form: correct this test"
    # bash gives `_` another value with every command.
    assert assigned - {"_"} <= SCRIPT_VARIABLES
    assert not READ_ONLY_VARIABLES & SCRIPT_VARIABLES


def test_a_spec_is_loaded_from_a_file_with_settings(tmp_path: Path) -> None:
    """The file and the flags become one spec."""
    path = tmp_path / "spec.yaml"
    path.write_text(BASE + "tensor_parallel_size: 2\n")
    spec = load_spec(path, ["tensor_parallel_size=4", "resources.nodes=2", "resources.time=04:00:00"])
    assert (spec.tensor_parallel_size, spec.resources.nodes, spec.resources.time) == (4, 2, "04:00:00")


NAMES = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=40)
SIZES = st.integers(min_value=1, max_value=64)


@given(
    NAMES,
    SIZES,
    st.none() | st.sampled_from(["10", "04:00:00", "1-00", "1e3", "010"]) | NAMES,
    st.dictionaries(st.from_regex(r"[A-Z]{1,4}", fullmatch=True).filter(lambda k: k not in READ_ONLY_VARIABLES), NAMES),
)
def test_a_spec_that_is_written_is_the_same_spec(
    name: str, size: int, account: str | None, env: dict[str, Tree]
) -> None:
    """The spec.yaml of a run directory gives the spec of that run."""
    sizes: dict[str, Tree] = {"tensor_parallel_size": size, "account": account, "env": env}
    spec = spec_from_mapping({"name": name, "engine": "rehearsal", **sizes})
    written = dump(spec.model_dump(mode="json", exclude_defaults=True))
    assert spec_from_text(written) == spec


def test_a_spec_cannot_be_changed() -> None:
    """Specs are values."""
    spec: JobSpec = spec_from_text(BASE)
    with pytest.raises(ValueError, match="frozen"):
        spec.name = "other"
