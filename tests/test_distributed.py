from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed

import fastdata
from fastdata import distributed
from fastdata.errors import ArgumentError

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_RANK")


@pytest.fixture(autouse=True)
def outside_of_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def test_without_a_launcher_a_process_is_rank_0_of_1() -> None:
    assert (distributed.rank(), distributed.world_size(), distributed.local_world_size()) == (0, 1, 1)


def test_a_launcher_says_so_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "5"), ("WORLD_SIZE", "8"), ("LOCAL_WORLD_SIZE", "4")):
        monkeypatch.setenv(name, value)
    assert (distributed.rank(), distributed.world_size(), distributed.local_world_size()) == (5, 8, 4)


def test_without_a_word_about_machines_all_ranks_are_on_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert distributed.local_world_size() == 8


@pytest.mark.parametrize("value", ["", "0"])
def test_nothing_and_nought_are_one_process(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("WORLD_SIZE", value)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", value)
    assert (distributed.world_size(), distributed.local_world_size()) == (1, 1)


@pytest.mark.parametrize("value", ["two", "-1", "1.5", "0x2"])
@pytest.mark.parametrize(("name", "ask"), [("RANK", distributed.rank), ("WORLD_SIZE", distributed.world_size)])
def test_what_is_no_number_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, name: str, ask: object, value: str) -> None:
    assert callable(ask)
    monkeypatch.setenv(name, value)
    with pytest.raises(ArgumentError, match=rf"expected a whole number, got '{value}', at the environment variable {name}"):
        ask()


@pytest.mark.parametrize(("rank", "world_size"), [("1", None), ("2", "2"), ("7", "4")])
def test_a_rank_beyond_the_world_is_refused(monkeypatch: pytest.MonkeyPatch, rank: str, world_size: str | None) -> None:
    """Such a rank would take its share from behind the end of each global batch."""
    monkeypatch.setenv("RANK", rank)
    if world_size:
        monkeypatch.setenv("WORLD_SIZE", world_size)
    with pytest.raises(ArgumentError, match=rf"expected a rank under {world_size or 1}, got {rank}, at the environment variable RANK"):
        distributed.rank()


def test_a_process_group_stands_over_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        monkeypatch.setenv("RANK", "3")
        monkeypatch.setenv("WORLD_SIZE", "4")
        assert (distributed.rank(), distributed.world_size()) == (0, 1)
    finally:
        torch.distributed.destroy_process_group()
    assert (distributed.rank(), distributed.world_size()) == (3, 4)


def test_asking_loads_no_torch() -> None:
    code = "import sys\nfrom fastdata import distributed\nprint(distributed.rank(), distributed.world_size(), 'torch' in sys.modules)"
    root = str(Path(fastdata.__file__).parents[1])
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert found.stdout == "0 1 False\n"


def test_a_world_without_a_rank_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ArgumentError, match="expected a rank beside WORLD_SIZE=2, got none"):
        distributed.rank()
