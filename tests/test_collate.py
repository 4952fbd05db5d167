from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from PIL import Image

import fastdata
from fastdata.collate import ERRORS, Collate
from fastdata.errors import DataError
from fastdata.seeding import make_tickets
from fastdata.types import Samples


def samples(batch: dict[str, Any], num: int, images: tuple[str, ...] = (), **options: Any) -> Samples:
    return Samples(batch, num, frozenset(images), **options)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five samples with a field of every kind; pictures 1 and 4 are of the same size, and the others are not."""
    target = tmp_path_factory.mktemp("collate") / "out"
    rows = [
        {
            "key": f"k{i}",
            "image": np.full((8 + i % 3, 10, 3), 20 * i, dtype=np.uint8),
            "boxes": np.full((i, 4), i, dtype=np.float32),
            "ids": np.arange(5 - i, dtype=np.int32),
            "text": f"text {i} " * 60,
            "name": f"n{i}",
            "meta": {"a": [i]},
            "raw": bytes([i]) * i,
            "weight": i / 2,
            "flag": i > 2,
            "label": i,
        }
        for i in range(5)
    ]
    fastdata.pack(rows, target, to="lmdb", workers=1)
    return target


def test_every_kind_of_field_has_its_documented_form(packed: Path) -> None:
    """Case 113."""
    dataset = fastdata.Dataset(packed, decode={"image": fastdata.Resize((6, 7))})
    batch = Collate()(dataset.__getitems__([1, 4, 0]))
    assert batch["image"].shape == (3, 3, 6, 7)
    assert batch["image"].dtype == torch.uint8
    assert batch["image"].is_contiguous(memory_format=torch.channels_last)
    assert [int(picture.max()) for picture in batch["image"]] == [20, 80, 0]
    assert (batch["label"].dtype, batch["label"].tolist()) == (torch.int64, [1, 4, 0])
    assert (batch["weight"].dtype, batch["weight"].tolist()) == (torch.float64, [0.5, 2.0, 0.0])
    assert (batch["flag"].dtype, batch["flag"].tolist()) == (torch.bool, [False, True, False])
    assert batch["name"] == ["n1", "n4", "n0"]
    assert batch["text"] == [f"text {i} " * 60 for i in (1, 4, 0)]
    assert batch["meta"] == [{"a": [1]}, {"a": [4]}, {"a": [0]}]
    assert batch["raw"] == [b"\1", b"\4" * 4, b""]


def test_ragged_fields_are_padded_to_the_longest_of_the_batch_with_lengths_and_masks(packed: Path) -> None:
    """Cases 108, 109."""
    dataset = fastdata.Dataset(packed, fields=("boxes", "ids"))
    batch = Collate()(dataset.__getitems__([1, 3, 0]))
    assert list(batch) == ["boxes", "boxes.length", "boxes.mask", "ids", "ids.length", "ids.mask"]
    assert (batch["boxes"].shape, batch["boxes"].dtype) == ((3, 3, 4), torch.float32)
    assert batch["boxes"].tolist() == [[[1.0] * 4, [0.0] * 4, [0.0] * 4], [[3.0] * 4] * 3, [[0.0] * 4] * 3]
    assert (batch["boxes.length"].dtype, batch["boxes.length"].tolist()) == (torch.int64, [1, 3, 0])
    assert (batch["boxes.mask"].dtype, batch["boxes.mask"].tolist()) == (torch.bool, [[True, False, False], [True] * 3, [False] * 3])
    assert batch["ids"].dtype == torch.int32
    assert batch["ids"].tolist() == [[0, 1, 2, 3, 0], [0, 1, 0, 0, 0], [0, 1, 2, 3, 4]]
    assert batch["ids.mask"].sum(1).tolist() == [4, 2, 5]


@pytest.mark.parametrize("indices", [[2], [2, 2], [0], [0, 0]])
def test_ragged_fields_are_padded_alike_where_all_are_of_one_length(packed: Path, indices: list[int]) -> None:
    batch = Collate()(fastdata.Dataset(packed, fields=("boxes",)).__getitems__(indices))
    assert list(batch) == ["boxes", "boxes.length", "boxes.mask"]
    assert batch["boxes"].shape == (len(indices), indices[0], 4)
    assert batch["boxes.mask"].shape == (len(indices), indices[0])


def test_pictures_of_several_sizes_are_refused_by_field_sizes_and_keys_with_the_cure(packed: Path) -> None:
    """Case 108."""
    dataset = fastdata.Dataset(packed, fields=("image", "key"))
    with pytest.raises(DataError) as caught:
        Collate()(dataset.__getitems__([1, 4, 2]))
    for word in ("[9, 10, 3]", "[10, 10, 3]", "'k1'", "'k2'", "field 'image'", "RandomResizedCrop(224)"):
        assert word in str(caught.value)
    assert Collate()(dataset.__getitems__([1, 4]))["image"].shape == (2, 3, 9, 10)
    with pytest.raises(DataError, match=r"sample 0 of the batch and .* at sample 2 of the batch, at field 'image'"):
        Collate()(fastdata.Dataset(packed, fields=("image",)).__getitems__([1, 4, 2]))


def test_ragged_arrays_that_do_not_fit_are_refused_by_field_shapes_and_keys() -> None:
    """Case 108."""
    batch = {"key": ["a", "b"], "x": [np.zeros((1, 2)), np.zeros((1, 3))]}
    with pytest.raises(DataError, match=r"\[1, 2\] at sample 0 of the batch \(key 'a'\) and .*\[1, 3\] at .*\(key 'b'\), at field 'x'"):
        Collate()(samples(batch, 2))


@pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "?", "c8", "u2", "u4", "u8"])
def test_dtypes_stay_as_they_are(dtype: str) -> None:
    """Case 113."""
    array = np.ones((2, 3), dtype=dtype)
    found = Collate()(samples({"x": array}, 2))["x"]
    assert found.numpy().dtype == array.dtype
    assert np.array_equal(found.numpy(), array)


def test_foreign_byte_orders_and_read_only_arrays_are_copied() -> None:
    frozen = np.arange(4)
    frozen.flags.writeable = False
    batch = Collate()(samples({"big": np.arange(4, dtype=">i4"), "frozen": frozen}, 4))
    assert batch["big"].tolist() == batch["frozen"].tolist() == [0, 1, 2, 3]
    batch["frozen"][0] = 9
    assert frozen[0] == 0


def test_a_dense_array_is_not_copied() -> None:
    array = np.zeros((2, 4, 4, 3), dtype=np.uint8)
    batch = Collate()(samples({"image": array}, 2, ("image",)))
    batch["image"][0, 1, 2, 3] = 7
    assert array[0, 2, 3, 1] == 7


def test_only_pictures_have_their_channels_moved() -> None:
    batch = Collate()(samples({"image": np.zeros((2, 4, 5, 3), np.uint8), "other": np.zeros((2, 4, 5, 3), np.uint8)}, 2, ("image",)))
    assert batch["image"].shape == (2, 3, 4, 5)
    assert batch["other"].shape == (2, 4, 5, 3)


def test_valid_is_there_when_asked_for_or_when_something_is_padding() -> None:
    """Case 93."""
    batch = {"x": np.zeros(2)}
    assert "valid" not in Collate()(samples(batch, 2))
    always = Collate(valid=True)(samples(batch, 2))["valid"]
    assert (always.dtype, always.tolist()) == (torch.bool, [True, True])
    assert Collate()(samples(batch, 2, padding=np.array([False, True])))["valid"].tolist() == [True, False]


def test_valid_comes_from_the_tickets(packed: Path) -> None:
    indices = np.array([1, 2, 0])
    tickets = make_tickets(indices, 0, 0, indices, np.array([False, False, True]))
    batch = Collate()(fastdata.Dataset(packed, fields=("label",)).__getitems__(tickets))
    assert batch["label"].tolist() == [1, 2, 0]
    assert batch["valid"].tolist() == [True, True, False]


def test_sentences_about_samples_that_failed_travel_under_a_key_of_their_own() -> None:
    """Case 107."""
    assert Collate()(samples({"x": np.zeros(1)}, 1, errors=["bad"]))[ERRORS] == ["bad"]
    assert ERRORS not in Collate()(samples({"x": np.zeros(1)}, 1))


def test_dicts_of_other_datasets_are_collated_by_the_same_rules() -> None:
    rows = [{"x": i, "y": i / 2, "name": str(i), "ids": np.arange(i), "image": np.zeros((4, 5, 3), np.uint8), "none": None} for i in (1, 2)]
    batch = Collate()(rows)
    assert (batch["x"].dtype, batch["x"].tolist()) == (torch.int64, [1, 2])
    assert (batch["y"].dtype, batch["y"].tolist()) == (torch.float32, [0.5, 1.0])
    assert batch["name"] == ["1", "2"]
    assert batch["none"] == [None, None]
    assert batch["ids"].tolist() == [[0, 0], [0, 1]]
    assert batch["ids.length"].tolist() == [1, 2]
    assert batch["image"].shape == (2, 4, 5, 3)
    with pytest.raises(DataError, match="expected int64 as in sample 0, got float32, at field 'x' of sample 1"):
        Collate()([{"x": 1}, {"x": 0.5}])


def test_samples_that_are_no_dicts_go_to_torchs_collate() -> None:
    pairs = [(torch.ones(2), 1), (torch.zeros(2), 2)]
    found, wanted = Collate()(pairs), torch.utils.data.default_collate(pairs)
    assert torch.equal(found[0], wanted[0])
    assert torch.equal(found[1], wanted[1])


def test_torchs_collate_sees_a_list_of_dicts(packed: Path) -> None:
    dataset = fastdata.Dataset(packed, fields=("image", "label", "name"))
    batch = torch.utils.data.default_collate(dataset.__getitems__([1, 4]))
    assert batch["image"].shape == (2, 9, 10, 3)
    assert (batch["label"].tolist(), batch["name"]) == ([1, 4], ["n1", "n4"])


def test_a_batch_is_a_plain_dict_of_tensors_and_lists_that_pinning_leaves_as_it_is(packed: Path) -> None:
    """Case 111: what torch's pin thread does to a batch, for which it needs no device where a tensor says how to pin itself."""
    from torch.utils.data._utils.pin_memory import pin_memory

    dataset = fastdata.Dataset(packed, fields=("boxes", "label", "meta", "name", "raw"))
    batch = Collate()(dataset.__getitems__([3, 1]))
    assert type(batch) is dict
    kept = {name: value for name, value in batch.items() if not isinstance(value, torch.Tensor)}
    pinned = pin_memory(kept)
    assert type(pinned) is dict
    assert pinned == kept
    if torch.cuda.is_available():
        every = pin_memory(batch)
        assert list(every) == list(batch)
        assert all(value.is_pinned() for value in every.values() if isinstance(value, torch.Tensor))
        assert torch.equal(every["boxes"], batch["boxes"])


def test_collate_pickles() -> None:
    again = pickle.loads(pickle.dumps(Collate(valid=True)))
    assert isinstance(again, Collate)
    assert again.valid


def test_an_object_array_of_strings_becomes_a_list() -> None:
    batch = Collate()(samples({"name": np.array(["a", "b"], dtype=object)}, 2))
    assert batch["name"] == ["a", "b"]


def test_pictures_in_pillows_own_form_stay_a_list() -> None:
    pictures = [Image.new("RGB", (2, 2)), Image.new("RGB", (3, 3))]
    assert Collate()([{"image": picture} for picture in pictures])["image"] == pictures
