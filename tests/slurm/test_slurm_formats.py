"""Slurm's small text formats are read in every form and written so that reading gives the value back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_llm.slurm import formats
from slurm_llm.slurm.formats import JobId

WORDS = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("30", 1800),
        ("1:30", 90),
        ("90:00", 5400),
        ("04:00:00", 14400),
        ("0:00:01", 1),
        ("1-00", 86400),
        ("1-02", 93600),
        ("1-02:03", 93780),
        ("1-02:03:04", 93784),
        ("365-00:00:00", 31536000),
        (" 10 ", 600),
        ("UNLIMITED", None),
        ("unlimited", None),
        ("INFINITE", None),
        ("infinite", None),
        ("-1", None),
    ],
)
def test_every_time_form_is_read(text: str, seconds: int | None) -> None:
    """Each form that sbatch documents, and the words for no limit, have their meaning."""
    assert formats.parse_time(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "4h",
        "1:2:3:4",
        "1-2-3",
        "-5",
        "1.5",
        "01:",
        ":30",
        "1-",
        "-",
        "NOT_SET",
        "INVALID",
        "Partition_Limit",
    ],
)
def test_other_texts_are_no_times(text: str) -> None:
    """A text that is no time is an error that shows it, also one that Slurm prints for 'no number'."""
    with pytest.raises(ValueError, match="is not a Slurm time") as caught:
        formats.parse_time(text)
    assert f"'{text}'" in str(caught.value)


def test_arabic_digits_are_no_time() -> None:
    """Digits outside of ASCII, which int() would take, are refused: Slurm does not read them."""
    with pytest.raises(ValueError, match="not a Slurm time"):
        formats.parse_time("٣٠")


@pytest.mark.parametrize("text", ["NOT_SET", "INVALID", "Partition_Limit", "N/A", "", "UNLIMITED", "Unknown"])
def test_reported_times_without_a_number_are_none(text: str) -> None:
    """squeue's and sacct's words in the place of a time give None."""
    assert formats.parse_reported_time(text) is None


def test_only_unlimited_is_unlimited() -> None:
    """A time that is not known is told from one without a limit."""
    assert formats.is_unlimited("UNLIMITED")
    assert not formats.is_unlimited("NOT_SET")


@given(st.one_of(st.none(), st.integers(0, 10**9)))
def test_times_come_back(seconds: int | None) -> None:
    """parse_time undoes format_time."""
    assert formats.parse_time(formats.format_time(seconds)) == seconds


@given(st.integers(0, 400), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_long_time_form_adds_up(days: int, hours: int, minutes: int, seconds: int) -> None:
    """D-HH:MM:SS is the sum of its parts."""
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    assert formats.parse_time(f"{days}-{hours:02}:{minutes:02}:{seconds:02}") == total


def test_negative_durations_have_no_text() -> None:
    """format_time refuses what no Slurm time is."""
    with pytest.raises(ValueError, match="not a duration"):
        formats.format_time(-1)


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("16G", 16384),
        ("1500M", 1500),
        ("2T", 2097152),
        ("1024", 1024),
        ("0", 0),
        ("1K", 1),
        ("2048K", 2),
        ("2049k", 3),
        ("16GB", 16384),
        ("1.50G", 1536),
        ("0.5M", 1),
        ("1P", 1073741824),
    ],
)
def test_memory_sizes_are_read(text: str, mib: int) -> None:
    """Units are powers of 1024, no unit is M, a part of a MiB counts whole."""
    assert formats.parse_mem_mib(text) == mib


@pytest.mark.parametrize("text", ["", "G", "16 G", "-1", "1,5G", "16X", "16GiB", "1e3"])
def test_other_texts_are_no_memory_sizes(text: str) -> None:
    """A text that is no size is an error that shows it."""
    with pytest.raises(ValueError, match="is not a Slurm memory size"):
        formats.parse_mem_mib(text)


@given(st.integers(0, 10**9))
def test_memory_sizes_come_back(mib: int) -> None:
    """parse_mem_mib undoes format_mem."""
    assert formats.parse_mem_mib(formats.format_mem(mib)) == mib


@pytest.mark.parametrize(
    ("text", "job_id"),
    [
        ("123", JobId(123)),
        ("123;alpha", JobId(123, cluster="alpha")),
        ("123_4", JobId(123, array_task="4")),
        ("123_[1-5%2]", JobId(123, array_task="[1-5%2]")),
        ("123+1", JobId(123, het_offset=1)),
        ("123.0", JobId(123, step="0")),
        ("123.batch", JobId(123, step="batch")),
        ("123.extern", JobId(123, step="extern")),
        ("123_4.0", JobId(123, array_task="4", step="0")),
        ("123.0+1", JobId(123, step="0+1")),
        (" 123\n", JobId(123)),
    ],
)
def test_job_ids_are_read(text: str, job_id: JobId) -> None:
    """Every form of an id that Slurm's commands print is taken apart."""
    assert formats.parse_job_id(text) == job_id


@pytest.mark.parametrize("text", ["", "0", "-1", "abc", "123;", "123.", "123_", "1 2", "123;a b", "123 456", "$(id)"])
def test_other_texts_are_no_job_ids(text: str) -> None:
    """Nothing else passes for a job id."""
    with pytest.raises(ValueError, match="is not a Slurm job id"):
        formats.parse_job_id(text)


@given(
    st.builds(
        JobId,
        number=st.integers(1, 10**9),
        array_task=st.one_of(st.none(), st.integers(0, 10**6).map(str)),
        het_offset=st.none(),
        step=st.one_of(st.none(), st.integers(0, 10**4).map(str), st.sampled_from(["batch", "extern"])),
        cluster=st.one_of(st.none(), WORDS),
    )
)
def test_job_ids_come_back(job_id: JobId) -> None:
    """parse_job_id undoes str() and the cluster behind `;`; the argument form never holds the cluster."""
    whole = str(job_id) if job_id.cluster is None else f"{job_id};{job_id.cluster}"
    assert formats.parse_job_id(whole) == job_id
    assert ";" not in str(job_id)


def test_a_step_names_its_job() -> None:
    """The job of a step keeps the cluster and loses the step."""
    assert formats.parse_job_id("12_3.0;alpha").job == JobId(12, array_task="3", cluster="alpha")


@pytest.mark.parametrize(
    ("text", "code"), [("0:0", (0, 0)), ("0:53", (0, 53)), ("143:0", (143, 0)), ("1", (1, 0)), ("", None)]
)
def test_exit_codes_are_read(text: str, code: tuple[int, int] | None) -> None:
    """Slurm's exit:signal gives both numbers."""
    assert formats.parse_exit_code(text) == code


@pytest.mark.parametrize("text", ["a:b", "1:", ":9", "-1:0", "1:2:3"])
def test_other_texts_are_no_exit_codes(text: str) -> None:
    """Anything else is an error that shows it."""
    with pytest.raises(ValueError, match="is not a Slurm exit code"):
        formats.parse_exit_code(text)
