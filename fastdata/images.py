"""Crops and resizes of a batch: boxes are drawn first, for all samples at once; the codec then decodes just those.

    crop = RandomResizedCrop(224, flip=True)
    regions = crop.draw(widths, heights, uniform)      # int64 [B, 4] and bool [B]: no pixel is touched
    for i in range(B):
        codec.decode_region(data[i], info[i], regions.boxes[i], out[i], flip=regions.flips[i], interpolation=crop.interpolation)

Since a crop is known before anything is decoded, two fields can share one (`like`), and the draw does not depend on who decodes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata.errors import ArgumentError
from fastdata.types import Array, Batch, Int64Array

Size: TypeAlias = int | tuple[int, int]
"""Height and width in pixels; one number means a square."""

Uniform: TypeAlias = Callable[[int], npt.NDArray[np.float64]]
"""n -> float64 [B, n] in [0, 1): the random numbers of B samples for one output."""

_TRIES = 10
"""Boxes drawn before falling back to the centre, as torchvision does."""


class Regions(NamedTuple):
    """What to decode of each picture of a batch.

    Attributes:
        boxes: int64 [B, 4]: x, y, width, height in upright pixels, inside the picture, at least 1 x 1.
        flips: bool [B]: mirrored left-right.
    """

    boxes: Int64Array
    flips: npt.NDArray[np.bool_]


@dataclass(frozen=True, init=False)
class Resample(ABC):
    """A box of each picture, resized to one size.

    Attributes:
        size: (height, width) of the result in pixels.
        antialias: average areas where a box shrinks much; False: bilinear, faster.
    """

    size: tuple[int, int]
    antialias: bool

    @property
    def interpolation(self) -> Literal["antialias", "bilinear"]:
        """What the codec's `decode_region` is told."""
        return "antialias" if self.antialias else "bilinear"

    @abstractmethod
    def draw(self, widths: Int64Array, heights: Int64Array, uniform: Uniform) -> Regions:
        """Choose the regions of a batch.

        Args:
            widths: int64 [B], of the upright pictures, at least 1.
            heights: int64 [B].
            uniform: random numbers; called once or not at all, so a sample's region depends on its own size and numbers alone.
        """


@dataclass(frozen=True, init=False)
class RandomResizedCrop(Resample):
    """A box of random area and aspect ratio, anywhere in the picture: the algorithm and the arguments of torchvision.

    Ten boxes are drawn, area uniform in `scale` and aspect ratio log-uniform in `ratio`; the first that fits is placed uniformly. If none
    fits: the largest box in the centre whose ratio is inside `ratio`. (torchvision.transforms.v2.RandomResizedCrop.make_params)

    Attributes:
        scale: least and greatest area of the box, as a share of the picture's.
        ratio: least and greatest width / height of the box.
        flip: mirror half of the samples left-right.
    """

    scale: tuple[float, float]
    ratio: tuple[float, float]
    flip: bool

    def __init__(
        self,
        size: Size,
        *,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        flip: bool = False,
        antialias: bool = True,
    ) -> None:
        where = type(self).__name__
        scale, ratio = _range(scale, f"scale of {where}"), _range(ratio, f"ratio of {where}")
        if scale[1] > 1:
            raise ArgumentError(f"expected a share of the picture of at most 1, got {scale[1]!r}, at scale of {where}")
        if not isinstance(flip, bool):
            raise ArgumentError(f"expected True or False, got {flip!r}, at flip of {where}")
        self.__dict__.update(size=_size(size, where), antialias=bool(antialias), scale=scale, ratio=ratio, flip=flip)

    def draw(self, widths: Int64Array, heights: Int64Array, uniform: Uniform) -> Regions:
        rows, (low, high) = np.arange(len(widths)), self.ratio
        numbers = uniform(2 * _TRIES + 3)
        x, y, coin = numbers[:, -3:].T

        area = (widths * heights)[:, None] * _between(*self.scale, numbers[:, :_TRIES])
        aspect = np.exp(_between(math.log(low), math.log(high), numbers[:, _TRIES : 2 * _TRIES]))
        w, h = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
        fits = (w > 0) & (w <= widths[:, None]) & (h > 0) & (h <= heights[:, None])
        first = fits.argmax(axis=1)
        w, h, found = w[rows, first], h[rows, first], fits[rows, first]

        w = np.where(found, w, np.minimum(widths, np.rint(heights * high)).clip(1))
        h = np.where(found, h, np.minimum(heights, np.rint(widths / low)).clip(1))
        left, top = widths - w, heights - h
        x = np.where(found, np.minimum(np.floor(x * (left + 1)), left), left // 2)
        y = np.where(found, np.minimum(np.floor(y * (top + 1)), top), top // 2)
        return Regions(np.stack([x, y, w, h], axis=1).astype(np.int64), (coin < 0.5) & self.flip)


@dataclass(frozen=True, init=False)
class CenterCrop(Resample):
    """The middle of the picture, as torchvision's `Resize(resize)` then `CenterCrop(size)`, but as one box and one resize.

    The box is in whole pixels of the picture, so each side lies within a pixel of torchvision's. Where the picture is too small for the
    crop, it is neither padded nor distorted: the largest box in its centre with the crop's aspect ratio is enlarged.

    Attributes:
        resize: length in pixels that the picture's short side is thought to be resized to; None: as it is.
    """

    resize: int | None

    def __init__(self, size: Size, *, resize: int | None = None, antialias: bool = True) -> None:
        if resize is not None and not _is_length(resize):
            raise ArgumentError(f"expected a length in pixels or None, got {resize!r}, at resize of CenterCrop")
        self.__dict__.update(size=_size(size, type(self).__name__), antialias=bool(antialias), resize=resize)

    def draw(self, widths: Int64Array, heights: Int64Array, uniform: Uniform) -> Regions:
        height, width = self.size
        scale = np.ones(len(widths)) if self.resize is None else np.minimum(widths, heights) / self.resize
        scale = np.minimum(scale, np.minimum(widths / width, heights / height))
        w = np.rint(width * scale).clip(1, widths)
        h = np.rint(height * scale).clip(1, heights)
        x, y = np.rint((widths - w) / 2), np.rint((heights - h) / 2)
        return Regions(np.stack([x, y, w, h], axis=1).astype(np.int64), np.zeros(len(widths), bool))


@dataclass(frozen=True, init=False)
class Resize(Resample):
    """The whole picture, resized to exactly `size`, whatever its aspect ratio. One number means a square, not the short side."""

    def __init__(self, size: Size, *, antialias: bool = True) -> None:
        self.__dict__.update(size=_size(size, type(self).__name__), antialias=bool(antialias))

    def draw(self, widths: Int64Array, heights: Int64Array, uniform: Uniform) -> Regions:
        zero = np.zeros(len(widths), np.int64)
        return Regions(np.stack([zero, zero, widths, heights], axis=1).astype(np.int64), zero.astype(bool))


@dataclass(frozen=True)
class Like:
    """The regions and the size of another output, with nearest interpolation: for masks. Made by `like`.

    Attributes:
        field: name of the output whose crop is taken.
    """

    field: str

    @property
    def interpolation(self) -> Literal["nearest"]:
        """What the codec's `decode_region` is told."""
        return "nearest"


def like(field: str) -> Like:
    """Give an output the crop of another one.

    decode={"image": crop, "mask": like("image")} cuts picture and mask alike, and resizes the mask to the nearest.
    """
    return Like(field)


@dataclass(frozen=True, init=False)
class Normalize:
    """A batch transform: uint8 pixels to float32 (x / 255 - mean) / std, the formula of torchvision's `ToTensor` and `Normalize`.

    For who has no device to do it on: the batch is four times as large afterwards.

    Attributes:
        mean: per channel, of pixels in [0, 1].
        std: per channel, positive.
        field: name of the images in the batch, uint8 [B, H, W, 3].
    """

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    field: str

    def __init__(self, mean: Sequence[float], std: Sequence[float], field: str = "image") -> None:
        for name, values in (("mean", mean), ("std", std)):
            if (
                not hasattr(values, "__len__")
                or len(values) != 3
                or not all(math.isfinite(v) and (v > 0 or name == "mean") for v in values)
            ):
                kind = "finite" if name == "mean" else "positive"
                raise ArgumentError(f"expected three {kind} numbers, got {values!r}, at {name} of Normalize")
        if max(mean) > 1:
            raise ArgumentError(f"expected means of pixels in [0, 1], got {mean!r}, at mean of Normalize; divide mean and std by 255")
        self.__dict__.update(mean=tuple(map(float, mean)), std=tuple(map(float, std)), field=field)

    def __call__(self, batch: Batch, rng: np.random.Generator | None = None) -> Batch:
        """Return the batch with `field` as float32 [B, H, W, 3], a new array; the batch itself is left as it is.

        Raises:
            ArgumentError: the batch has no such field, or it is not uint8 [B, H, W, 3].
        """
        if self.field not in batch:
            raise ArgumentError(f"expected a field {self.field!r}, got {sorted(batch)}, at Normalize")
        images: Any = batch[self.field]
        if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3:
            got = f"{images.dtype} {list(images.shape)}" if isinstance(images, np.ndarray) else type(images).__name__
            raise ArgumentError(f"expected a uint8 array [B, H, W, 3], got {got}, at field {self.field!r} of Normalize")
        return {**batch, self.field: self._normalized(images)}

    def _normalized(self, images: Array) -> Array:
        # One multiplication and one addition over whole rows of pixels; numpy is slow where the last dimension is 3.
        num, height, width, _ = images.shape
        std = np.array(self.std)
        scale = np.tile(1 / (255 * std), width).astype(np.float32)
        shift = np.tile(-np.array(self.mean) / std, width).astype(np.float32)
        result = np.multiply(images.reshape(num, height, width * 3), scale, dtype=np.float32)
        result += shift
        return result.reshape(images.shape)


def _is_length(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and int(value) > 0


def _size(size: Any, where: str) -> tuple[int, int]:
    pair = (size, size) if _is_length(size) else size
    if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not all(_is_length(v) for v in pair):
        raise ArgumentError(f"expected a size in pixels or (height, width), got {size!r}, at size of {where}")
    return int(pair[0]), int(pair[1])


def _range(values: Any, where: str) -> tuple[float, float]:
    try:
        low, high = (float(v) for v in values)
    except (TypeError, ValueError):
        low = high = math.nan
    if not 0 < low <= high < math.inf:
        raise ArgumentError(f"expected two numbers 0 < low <= high, got {values!r}, at {where}")
    return low, high


def _between(low: float, high: float, uniform: Array) -> Array:
    return low + (high - low) * uniform
