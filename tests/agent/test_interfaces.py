"""Addresses of the network interfaces, read from the kernel."""

from __future__ import annotations

import pytest

from slurm_llm.agent import interfaces


def test_the_loopback_has_its_address() -> None:
    """Every machine has `lo`; a name that is none has no address."""
    assert "lo" in interfaces.names()
    assert interfaces.ipv4("lo") == "127.0.0.1"
    assert (interfaces.ipv4("nope0"), interfaces.ipv6("nope0")) == ("", "")
    assert interfaces.addresses()["lo"] == "127.0.0.1"
    assert set(interfaces.addresses()) == set(interfaces.names())


def test_an_address_is_printed_for_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    """The job's script takes standard output as the address."""
    assert interfaces.main("lo", "ipv4") == 0
    assert capsys.readouterr().out == "127.0.0.1\n"


def test_a_wrong_name_is_told_with_the_right_ones(capsys: pytest.CaptureFixture[str]) -> None:
    """On standard error, with a status that stops the script."""
    assert interfaces.main("nope0", "any") == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "nope0" in captured.err and "lo 127.0.0.1" in captured.err
