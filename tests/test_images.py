"""Crops and resizes: torchvision's algorithm, written as a loop over one sample, is the reference."""

import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastdata.errors import ArgumentError
from fastdata.images import CenterCrop, Like, Normalize, RandomResizedCrop, Resize, like

sides = st.integers(1, 20_000)


def numbers(count, seed=0):
    return lambda n: np.random.default_rng(seed).random((count, n))


def no_numbers(n):
    raise AssertionError("this crop is not random")


def sizes(*pairs):
    return np.array([w for w, _ in pairs], np.int64), np.array([h for _, h in pairs], np.int64)


def torchvision_box(width, height, scale, ratio, random):
    """make_params of torchvision.transforms.v2.RandomResizedCrop, with its ten tries, one sample at a time."""
    for area, aspect, x, y in random:
        target = height * width * (scale[0] + (scale[1] - scale[0]) * area)
        shape = math.exp(math.log(ratio[0]) + (math.log(ratio[1]) - math.log(ratio[0])) * aspect)
        w, h = round(math.sqrt(target * shape)), round(math.sqrt(target / shape))
        if 0 < w <= width and 0 < h <= height:
            return int(x * (width - w + 1)), int(y * (height - h + 1)), w, h
    in_ratio = width / height
    if in_ratio < min(ratio):
        w, h = width, round(width / min(ratio))
    elif in_ratio > max(ratio):
        w, h = round(height * max(ratio)), height
    else:
        w, h = width, height
    return (width - w) // 2, (height - h) // 2, w, h


@pytest.mark.parametrize("size", [(500, 375), (100, 1000), (37, 8)])
def test_random_crops_are_those_of_torchvision_given_the_same_numbers(size):
    crop = RandomResizedCrop(224, scale=(0.2, 1.0), ratio=(0.5, 1.25))
    drawn = np.random.default_rng(3).random((400, 23))
    boxes = crop.draw(*sizes(*[size] * 400), lambda n: drawn[:, :n]).boxes
    for box, row in zip(boxes, drawn, strict=True):
        tries = [(row[i], row[10 + i], row[20], row[21]) for i in range(10)]
        assert tuple(box) == torchvision_box(*size, crop.scale, crop.ratio, tries)


@pytest.mark.parametrize("size", [(500, 375), (90, 640)])
def test_random_crops_follow_the_law_of_torchvision(size):
    """Independent numbers for both: the distributions of area, aspect ratio and centre differ by less than Kolmogorov and Smirnov allow."""
    count = 20_000
    boxes = RandomResizedCrop(224).draw(*sizes(*[size] * count), numbers(count)).boxes
    random = np.random.default_rng(1).random((count, 10, 4))
    reference = np.array([torchvision_box(*size, (0.08, 1.0), (3 / 4, 4 / 3), tries) for tries in random])
    bound = 1.95 * math.sqrt(2 / count)  # exceeded once in a thousand
    for feature in (lambda b: b[:, 2] * b[:, 3], lambda b: b[:, 2] / b[:, 3], lambda b: b[:, 0] + b[:, 2] / 2, lambda b: b[:, 1]):
        ours, theirs = np.sort(feature(boxes)), np.sort(feature(reference))
        grid = np.unique(np.concatenate([ours, theirs]))
        gap = np.searchsorted(ours, grid, "right") - np.searchsorted(theirs, grid, "right")
        assert np.abs(gap).max() / count < bound


@given(
    st.lists(st.tuples(sides, sides), min_size=1, max_size=20),
    st.sampled_from(
        [
            RandomResizedCrop(224),
            RandomResizedCrop(7, scale=(1e-6, 1e-6)),
            RandomResizedCrop(7, scale=(1, 1), ratio=(0.01, 0.01)),
            RandomResizedCrop(7, ratio=(50, 60), flip=True),
            CenterCrop((224, 100)),
            CenterCrop(224, resize=256),
            CenterCrop((1, 3000), resize=1),
            Resize((3, 4)),
        ]
    ),
    st.integers(0, 2**32),
    st.sampled_from([0.0, None, np.nextafter(1, 0)]),
)
def test_boxes_lie_inside_their_pictures_and_are_never_empty(pairs, crop, seed, constant):
    uniform = numbers(len(pairs), seed) if constant is None else lambda n: np.full((len(pairs), n), constant)
    widths, heights = sizes(*pairs)
    boxes, flips = crop.draw(widths, heights, uniform)
    x, y, w, h = boxes.T
    assert boxes.dtype == np.int64
    assert flips.dtype == bool
    assert (x >= 0).all()
    assert (y >= 0).all()
    assert (w > 0).all()
    assert (h > 0).all()
    assert (x + w <= widths).all()
    assert (y + h <= heights).all()


def test_a_region_depends_on_its_own_numbers_alone():
    crop = RandomResizedCrop(224, flip=True)
    widths, heights = np.random.default_rng(0).integers(1, 900, (2, 100))
    drawn = np.random.default_rng(1).random((100, 23))
    together = crop.draw(widths, heights, lambda n: drawn)
    some = np.array([7, 99, 3])
    alone = crop.draw(widths[some], heights[some], lambda n: drawn[some])
    assert np.array_equal(together.boxes[some], alone.boxes)
    assert np.array_equal(together.flips[some], alone.flips)


def test_random_numbers_are_asked_for_once():
    asked = []
    RandomResizedCrop(224).draw(*sizes((5, 5), (9, 1)), lambda n: asked.append(n) or np.zeros((2, n)))
    assert len(asked) == 1


def test_half_of_the_samples_are_flipped_whatever_their_box():
    count = 40_000
    crop = RandomResizedCrop(224, flip=True)
    boxes, flips = crop.draw(*sizes(*[(500, 375)] * count), numbers(count))
    assert abs(flips.mean() - 0.5) < 4 * 0.5 / math.sqrt(count)
    for column in boxes.T:
        assert abs(np.corrcoef(column, flips)[0, 1]) < 4 / math.sqrt(count)
    unflipped = RandomResizedCrop(224).draw(*sizes(*[(500, 375)] * count), numbers(count))
    assert not unflipped.flips.any()
    assert np.array_equal(unflipped.boxes, boxes)


def test_a_centre_crop_without_resize_is_that_of_torchvision():
    crop = CenterCrop((100, 60))
    widths, heights = np.random.default_rng(0).integers(100, 900, (2, 200))
    for (x, y, w, h), width, height in zip(crop.draw(widths, heights, no_numbers).boxes, widths, heights, strict=True):
        assert (w, h) == (60, 100)
        assert (x, y) == (round((width - 60) / 2.0), round((height - 100) / 2.0))


def test_a_centre_crop_after_a_resize_is_within_a_pixel_of_torchvision():
    crop = CenterCrop(224, resize=256)
    widths, heights = np.random.default_rng(0).integers(256, 2000, (2, 300))
    for (x, y, w, h), width, height in zip(crop.draw(widths, heights, no_numbers).boxes, widths, heights, strict=True):
        scale = min(width, height) / 256
        assert abs(w - 224 * scale) <= 1
        assert abs(h - 224 * scale) <= 1
        assert abs(x + w / 2 - width / 2) <= 1
        assert abs(y + h / 2 - height / 2) <= 1


def test_a_picture_smaller_than_the_centre_crop_gives_its_largest_box_of_that_shape():
    assert CenterCrop((100, 200)).draw(*sizes((50, 400), (400, 40), (20, 10)), no_numbers).boxes.tolist() == [
        [0, 188, 50, 25],
        [160, 0, 80, 40],
        [0, 0, 20, 10],
    ]


def test_resize_takes_the_whole_picture():
    boxes, flips = Resize((10, 20)).draw(*sizes((7, 9), (300, 1)), no_numbers)
    assert boxes.tolist() == [[0, 0, 7, 9], [0, 0, 300, 1]]
    assert not flips.any()


def test_one_number_means_a_square_and_the_interpolation_follows_antialias():
    for kind in (RandomResizedCrop, CenterCrop, Resize):
        assert kind(5).size == (5, 5)
        assert kind((5, 6)).size == kind([5, 6]).size == (5, 6)
        assert kind(5).interpolation == "antialias"
        assert kind(5, antialias=False).interpolation == "bilinear"
    assert like("image").interpolation == "nearest"


def test_configurations_are_values():
    for crop in (RandomResizedCrop(224, flip=True), CenterCrop(224, resize=256), Resize(3), like("image"), Normalize((0, 0, 0), (1, 1, 1))):
        assert pickle.loads(pickle.dumps(crop)) == crop
        assert hash(crop) == hash(pickle.loads(pickle.dumps(crop)))
        with pytest.raises(AttributeError):
            crop.size = (1, 1)
    assert repr(Resize(3)) == "Resize(size=(3, 3), antialias=True)"
    assert CenterCrop(3) != Resize(3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: RandomResizedCrop(0),
        lambda: RandomResizedCrop(2.5),
        lambda: RandomResizedCrop(True),
        lambda: RandomResizedCrop((1, 2, 3)),
        lambda: RandomResizedCrop("224"),
        lambda: RandomResizedCrop(224, scale=(0, 1)),
        lambda: RandomResizedCrop(224, scale=(0.5, 0.1)),
        lambda: RandomResizedCrop(224, scale=(0.5, 1.5)),
        lambda: RandomResizedCrop(224, scale=0.5),
        lambda: RandomResizedCrop(224, ratio=(1, math.nan)),
        lambda: RandomResizedCrop(224, ratio=(-1, 1)),
        lambda: RandomResizedCrop(224, flip=0.5),
        lambda: CenterCrop(224, resize=0),
        lambda: Resize((3, -1)),
        lambda: Normalize((0, 0), (1, 1, 1)),
        lambda: Normalize(0.5, 0.5),
        lambda: Normalize((124, 116, 104), (58, 57, 57)),
        lambda: Normalize((0, 0, 0), (1, 0, 1)),
        lambda: Normalize((0, math.nan, 0), (1, 1, 1)),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(make):
    with pytest.raises(ArgumentError, match=r"expected .*, got .*, at"):
        make()


def test_a_mask_names_the_picture_that_it_is_cropped_like():
    assert like("image") == Like("image")


def test_normalize_subtracts_the_mean_and_divides_by_the_deviation():
    images = np.random.default_rng(0).integers(0, 256, (5, 7, 9, 3), np.uint8)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    batch = {"view": images, "label": np.arange(5)}
    result = Normalize(mean, std, field="view")(batch, np.random.default_rng(0))
    assert result["view"].dtype == np.float32
    assert result["view"].shape == images.shape
    assert np.abs(result["view"] - (images / 255 - np.array(mean)) / np.array(std)).max() < 1e-6
    assert result["label"] is batch["label"]
    assert batch["view"] is images


def test_normalize_takes_a_part_of_an_array():
    images = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), np.uint8)
    normalize = Normalize((0, 0, 0), (1, 1, 1))
    assert np.array_equal(normalize({"image": images[::2, 1:5, 2:]})["image"], normalize({"image": images})["image"][::2, 1:5, 2:])


@pytest.mark.parametrize(
    "batch",
    [
        {"label": np.zeros(3)},
        {"image": np.zeros((2, 4, 4, 3), np.float32)},
        {"image": np.zeros((2, 3, 4, 4), np.uint8)},
        {"image": [np.zeros((4, 4, 3), np.uint8)]},
    ],
)
def test_normalize_refuses_what_is_not_a_batch_of_images(batch):
    with pytest.raises(ArgumentError, match=r"expected a (field|uint8 array \[B, H, W, 3\])"):
        Normalize((0, 0, 0), (1, 1, 1))(batch)
