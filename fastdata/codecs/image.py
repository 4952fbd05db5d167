"""Pictures: a file of any common format, told by its first bytes, or raw pixels.

Decoded pixels are uint8 RGB [H, W, 3], upright, whatever the file holds: 16 bit grey is scaled to 8 (v / 257, rounded), alpha is laid over
`background`, CMYK is converted as Pillow does it, of several frames the first is taken.

Orientation is honoured exactly once. Bytes that are stored as they came keep their EXIF, its orientation becomes a column, and `decode`
applies it; where the library that decodes has done so already (TIFF), and where the picture is encoded anew, the column is 1. What counts
as orientation is what Pillow's `exif_transpose` goes by. A damaged tag counts as 1.

A JPEG is decoded by PyTurboJPEG where the system has libturbojpeg, else by simplejpeg, which brings its own. Both are libjpeg-turbo, so
they give the same pixels; the verdict on a damaged file is ours, see `decode_jpeg`.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from fastdata.codecs import base
from fastdata.errors import ArgumentError, DataError
from fastdata.pictures import FORMATS, HEAD_NBYTES, MAX_PIXELS, picture_format
from fastdata.types import Array, Encoded, Field

if TYPE_CHECKING:
    from PIL import Image

Interpolation = Literal["antialias", "bilinear", "nearest"]

AREA_ABOVE = 1.75
"""Shrinking by more than this is done by area, less by bilinear interpolation: 47.8 dB against Pillow's antialiased resize, where area
everywhere gives 47.9 and bilinear everywhere 47.1, at less than half of area's time over random crops to 224."""

QUALITY = 90
"""JPEG quality where none is asked for."""

_PILLOW = {"jp2": "JPEG2000"}
_EXTENSIONS = {"jpeg": "jpg", "tiff": "tif", "raw": "npy"}

# A PNG's text chunks with EXIF and XMP.
_PNG_KEYWORDS = (b"Raw profile type exif\0", b"XML:com.adobe.xmp\0")
_PNG_KEYWORD_NBYTES = max(map(len, _PNG_KEYWORDS))

# EXIF orientation -> how a stored picture becomes upright: transposed or not, then flipped, by cv2's code
# (1 left-right, 0 top-bottom, -1 both).
_TURNS = {1: (False, None), 2: (False, 1), 3: (False, -1), 4: (False, 0), 5: (True, None), 6: (True, 1), 7: (True, -1), 8: (True, 0)}


class Codec(base.Codec):
    """A picture file or an array <-> its bytes.

    Options of the field, all of which may be missing:
        image: "keep" (default; bytes stay as they are, arrays are stored raw, PIL images become PNG), "jpeg", "png" or "raw".
        resize: None, {"short": PX} or {"long": PX} (both only shrink and keep the aspect ratio), or {"height": PX, "width": PX} (exactly).
        quality: of JPEG, 1 to 100. None: 90, and a JPEG that needs no resize is never encoded again.
        subsampling: of JPEG, "4:4:4", "4:2:2" or "4:2:0" (default).
        background: RGB that transparent pixels are laid over; white by default.
        mask: the pixels are codes, not light: those of grey and palette pictures come as they are in the file, the same in all three channels,
            whatever colours or transparency the palette has; resized to the nearest, and never encoded as JPEG but as PNG.

    Under "keep", a picture that must be resized stays JPEG if it was one, else becomes PNG. The field is dense where options say "raw"
    and fix height and width. JPEGs are written by the libjpeg-turbo in simplejpeg's wheel and PNGs by Pillow, never by the system's
    libraries.
    """

    columns: Mapping[str, str] = {"width": "int32", "height": "int32", "orientation": "uint8", "encoding": "str"}

    def __init__(self, field: Field) -> None:
        super().__init__(field)
        options, where = field.options, f"field {field.name!r}"
        self._image: str = _one_of(options.get("image", "keep"), ("keep", "jpeg", "png", "raw"), f"option image of {where}")
        self._resize = _checked_resize(options.get("resize"), where)
        self._quality: int | None = options.get("quality")
        if self._quality is not None and not (isinstance(self._quality, int) and 1 <= self._quality <= 100):
            raise ArgumentError(f"expected a JPEG quality of 1 to 100, got {self._quality!r}, at option quality of {where}")
        subsampling = options.get("subsampling", "4:2:0")
        self._subsampling = _one_of(subsampling, ("4:4:4", "4:2:2", "4:2:0"), f"option subsampling of {where}").replace(":", "")
        self._background = tuple(options.get("background", (255, 255, 255)))
        if len(self._background) != 3 or not all(isinstance(v, int) and 0 <= v <= 255 for v in self._background):
            raise ArgumentError(f"expected three integers of 0 to 255, got {self._background!r}, at option background of {where}")
        self._mask = bool(options.get("mask", False))
        if self._mask and self._image == "jpeg":
            self._image = "png"

    def load_libraries(self, validate: bool) -> None:
        from PIL import Image  # noqa: F401

        if validate or self._resize or self._image != "keep":
            import cv2  # noqa: F401
            import simplejpeg  # noqa: F401

            _turbojpeg()

    def encode(self, value: Any, *, validate: bool = True) -> Encoded:
        """Encode one picture, decoding all of it to be sure that it can be.

        Args:
            value: bytes of a picture file, a PIL image, or uint8 [H, W, 3], [H, W, 1] or [H, W].
            validate: False: of a file that is kept as it is, only the header is read, and what decoding could note is not.

        Returns:
            `pixels` are those that `decode` will give, but for the loss of a JPEG that was made of them. `data` of raw pixels is uint8 [H, W, 3].

        Raises:
            DataError: empty, of no known format, damaged, or larger than `MAX_PIXELS`.
        """
        if not validate and isinstance(value, (bytes, bytearray, memoryview)):
            encoding, size, orientation = _header(np.frombuffer(value, np.uint8))
            if self._keeps(encoding, size):
                return self._encoded(value, encoding, orientation, size, (), None)
        stored, encoding, orientation, notes = self._read(value)
        pixels = _upright(stored, orientation)
        height, width = pixels.shape[:2]
        if isinstance(value, (bytes, bytearray, memoryview)) and self._keeps(encoding, (width, height)):
            return self._encoded(value, encoding, orientation, (width, height), notes, pixels)
        size = _resized(width, height, self._resize)
        if size != (width, height):
            _check_size(*size)
            pixels = _resize_to_store(pixels, size, self._mask)
        target = self._image
        if target == "keep":
            target = "raw" if encoding == "raw" else "jpeg" if encoding == "jpeg" and not self._mask else "png"
        with _refusing(f"a picture that can be stored as {target}", pixels.nbytes):
            if target == "jpeg":
                import simplejpeg

                quality = QUALITY if self._quality is None else self._quality
                data = simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality, "RGB", self._subsampling, fastdct=False)
            elif target == "png":
                data = _png(pixels)
            else:
                data = pixels = np.ascontiguousarray(pixels)
        return self._encoded(data, target, 1, size, notes, pixels if validate else None)

    def decode(self, data: Array, info: Mapping[str, Any]) -> Array:
        """Decode one picture to uint8 RGB [H, W, 3], upright; perhaps read-only, perhaps a view of `data` (raw)."""
        pixels = _upright(self._stored(data, info), int(info["orientation"]))
        return _of_shape(pixels, self.shape(data, info))

    def decode_region(
        self,
        data: Array,
        info: Mapping[str, Any],
        box: tuple[int, int, int, int],
        out: Array,
        *,
        flip: bool = False,
        interpolation: Interpolation = "antialias",
    ) -> None:
        """Decode what a box needs and resize it into `out`.

        Args:
            data: as in `decode`; raw pixels are read inside the box only.
            info: as in `decode`.
            box: x, y, width, height in upright pixels, inside the picture.
            out: uint8 [h, w, 3], C-contiguous and writable, such as one row of the batch's array.
            flip: mirror left-right, after the resize.
            interpolation: "antialias" averages areas where the box shrinks by more than `AREA_ABOVE`, and else is "bilinear"; "nearest"
                is for masks.

        Raises:
            ArgumentError: the box is not inside the picture, or `out` is not such an array.
            DataError: damaged bytes, or a picture of another size than `info` says.
        """
        import cv2

        height, width, _ = self.shape(data, info)
        x, y, w, h = (int(v) for v in box)
        if not (0 <= x < x + w <= width and 0 <= y < y + h <= height):
            raise ArgumentError(f"expected a box (x, y, w, h) inside {width} x {height} pixels, got {(x, y, w, h)}, at decode_region")
        if out.dtype != np.uint8 or out.ndim != 3 or out.shape[2] != 3 or not (out.flags.c_contiguous and out.flags.writeable):
            raise ArgumentError(f"expected a writable C-contiguous uint8 [h, w, 3], got {out.dtype} {list(out.shape)}, at decode_region")

        stored, orientation = self._stored(data, info), int(info["orientation"])
        transposed, code = _turn(orientation)
        _of_shape(stored, (width, height, 3) if transposed else (height, width, 3))
        if code in (1, -1):
            x = width - x - w
        if code in (0, -1):
            y = height - y - h
        crop = stored[x : x + w, y : y + h] if transposed else stored[y : y + h, x : x + w]
        crop = _upright(crop, orientation)

        if crop.shape == out.shape:
            np.copyto(out, crop)
        else:
            shrink = max(w / out.shape[1], h / out.shape[0])
            area = interpolation == "antialias" and shrink > AREA_ABOVE
            how = cv2.INTER_NEAREST_EXACT if interpolation == "nearest" else cv2.INTER_AREA if area else cv2.INTER_LINEAR
            _written(out, cv2.resize(crop, (out.shape[1], out.shape[0]), dst=out, interpolation=how))
        if flip:
            _written(out, cv2.flip(out, 1, dst=out))

    def shape(self, data: Array, info: Mapping[str, Any]) -> tuple[int, ...]:
        """Shape of the decoded picture, (height, width, 3), from the columns alone."""
        return int(info["height"]), int(info["width"]), 3

    def _read(self, value: Any) -> tuple[Array, str, int, tuple[str, ...]]:
        """Decode a value to pack: pixels as they are stored, encoding, orientation, notes."""
        from PIL import Image

        if isinstance(value, np.ndarray):
            return _pixels_of(value), "raw", 1, ()
        if isinstance(value, Image.Image):
            with _refusing("a PIL image that loads", 0):
                pixels, notes = self._rgb(value)
                return pixels, "png", _orientation(value), notes
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise DataError(f"expected bytes of a picture file, a PIL image or a uint8 array, got {type(value).__name__}")
        data = np.frombuffer(value, np.uint8)
        encoding = recognise(data)
        if encoding == "jpeg":
            # Both libraries give the same; a call of this one costs 17 us less (benchmarks.pack).
            pixels, notes = decode_jpeg(data, library="simplejpeg")
            return pixels, encoding, _jpeg_orientation(data), notes
        with _refusing(f"a {encoding} picture that decodes", data.size):
            image = _open(data, encoding)
            pixels, notes = self._rgb(image)
            orientation = _orientation(image)
            return pixels, encoding, orientation, (*notes, *_frames(image))

    def _stored(self, data: Array, info: Mapping[str, Any]) -> Array:
        """Decode to uint8 [H, W, 3], not turned yet."""
        encoding = info["encoding"]
        if encoding == "raw":
            shape = self.shape(data, info)
            if data.size != np.prod(shape):
                raise DataError(f"expected raw pixels {list(shape)}, got {data.size} bytes")
            return data.reshape(shape)
        if encoding == "jpeg":
            return decode_jpeg(data)[0]
        with _refusing(f"a {encoding} picture that decodes", data.size):
            return self._rgb(_open(data, encoding))[0]

    def _rgb(self, image: Image.Image) -> tuple[Array, tuple[str, ...]]:
        """Convert Pillow's first frame: colours, or of a mask the codes."""
        codes = _codes(image) if self._mask else None
        return _rgb(image, self._background) if codes is None else (np.repeat(codes[:, :, None], 3, axis=2), ())

    def _keeps(self, encoding: str, size: tuple[int, int]) -> bool:
        """Tell whether a file is stored as it came; `size` is width and height of the upright picture."""
        again = encoding == "jpeg" and self._quality is not None
        return _resized(*size, self._resize) == size and (self._image == "keep" or (self._image == encoding and not again))

    def _encoded(
        self, data: Any, encoding: str, orientation: int, size: tuple[int, int], notes: tuple[str, ...], pixels: Array | None
    ) -> Encoded:
        columns: dict[str, int | str] = {"width": size[0], "height": size[1], "orientation": orientation, "encoding": encoding}
        return Encoded(data, _EXTENSIONS.get(encoding, encoding), columns, notes, pixels)


def recognise(data: Array) -> str:
    """Tell the format of a picture file, uint8 [n], by its first bytes.

    Raises:
        DataError: it is empty, or none that is known.
    """
    if not data.size:
        raise DataError("expected a picture, got an empty file")
    head = data[:HEAD_NBYTES].tobytes()
    found = picture_format(head)
    if found is None:
        raise DataError(f"expected a picture ({', '.join(FORMATS)}), got {data.size} bytes starting {head[:8].hex(' ')}")
    return found


def _header(data: Array) -> tuple[str, tuple[int, int], int]:
    """Encoding, upright width and height, and orientation, as decoding would find them, from the header of a picture file."""
    encoding = recognise(data)
    if encoding == "jpeg":
        width, height, _, _ = _jpeg_header(data)
        _check_size(width, height)
        orientation = _jpeg_orientation(data)
    else:
        with _refusing(f"a {encoding} picture whose header can be read", data.size):
            image = _open(data, encoding)
            # To look behind the pixels of a PNG, Pillow decodes them.
            orientation = 1 if encoding == "png" and not _png_may_turn(data) else _orientation(image)
            # Of a turned TIFF, some versions of Pillow give the size in the file and some the upright one.
            width, height = (cast(Any, image).tag_v2[tag] for tag in (256, 257)) if encoding == "tiff" else image.size
    size = (height, width) if _TURNS[orientation][0] else (width, height)
    return encoding, size, 1 if encoding == "tiff" else orientation


def decode_jpeg(data: Array, *, library: Literal["turbojpeg", "simplejpeg"] | None = None) -> tuple[Array, tuple[str, ...]]:
    """Decode a JPEG to uint8 RGB [H, W, 3], as it is stored: its EXIF orientation is not applied.

    The verdict on a damaged file is the same with either library, and goes by libjpeg's message. Bytes that do not belong there, before the
    end marker or between segments of the header, are passed over with a note. All else (a premature end, if only by the last two bytes; bad
    Huffman codes; garbage between scans) is refused. What the libraries lack (arithmetic coding, odd subsampling) goes to Pillow.

    Args:
        data: uint8 [n], perhaps read-only.
        library: which of the two decodes; None: turbojpeg where the system has it. Pixels, notes and errors are the same.

    Returns:
        Pixels, and notes such as "extraneous bytes in a JPEG".

    Raises:
        DataError: not a JPEG that decodes whole, or one of more than `MAX_PIXELS`.
    """
    width, height, components, plain = _jpeg_header(data)
    _check_size(width, height)
    if not plain:
        return _jpeg_by_pillow(data)
    cmyk = components == 4
    notes: tuple[str, ...] = ()
    pixels = None if library == "simplejpeg" else _by_turbojpeg(data, cmyk, must=library is not None)
    if pixels is None:
        try:
            pixels = _by_simplejpeg(data, cmyk, strict=True)
        except ValueError as error:
            message = str(error)
            if "determine subsampling" in message:
                return _jpeg_by_pillow(data)
            garbage = re.search(r"extraneous bytes before marker 0x(\w\w)", message)
            if garbage is None:
                raise _damaged(data, message) from error
            notes = ("extraneous bytes in a JPEG",)
            if garbage[1] == "d9":
                # Nothing is read behind the end marker, so this was the only message.
                pixels = _by_simplejpeg(data, cmyk, strict=False)
            else:
                # libjpeg keeps its first message only: what may come after it shows once the garbage is gone.
                clean = _without_garbage(data)
                if clean.size == data.size:
                    raise _damaged(data, message) from error
                pixels, more = decode_jpeg(clean, library="simplejpeg")
                return pixels, tuple(dict.fromkeys((*notes, *more)))
    if cmyk:
        from PIL import Image

        # Inverted inks, as Adobe writes them and Pillow takes for granted.
        image = Image.frombuffer("CMYK", (width, height), pixels, "raw", "CMYK;I", 0, 1)
        return np.asarray(image.convert("RGB")), (*notes, "CMYK converted to RGB")
    return pixels, notes


# --- JPEG ---


@cache
def _turbojpeg() -> Any:
    """PyTurboJPEG, raising where it would warn; None without libturbojpeg. It holds functions only: threads and forks may share it."""
    try:
        from turbojpeg import TurboJPEG

        class Strict(TurboJPEG):  # type: ignore[misc]
            # Python's warnings are process-wide: by them, one thread could not tell its own damaged picture from another's.
            def _TurboJPEG__report_error(self, handle: Any) -> None:
                raise OSError("libjpeg has something to say")

        return Strict() if hasattr(TurboJPEG, "_TurboJPEG__report_error") else None
    except (ImportError, RuntimeError, OSError, AttributeError, KeyError):
        return None


def _by_turbojpeg(data: Array, cmyk: bool, must: bool) -> Array | None:
    """Decode to RGB or CMYK; None where the library is missing, or has the least complaint: then simplejpeg judges."""
    turbojpeg = _turbojpeg()
    if turbojpeg is None:
        if must:
            raise ArgumentError("expected PyTurboJPEG and libturbojpeg on this system, got neither, at library='turbojpeg'")
        return None
    from turbojpeg import TJPF_CMYK, TJPF_RGB

    try:
        pixels: Array = turbojpeg.decode(data, TJPF_CMYK if cmyk else TJPF_RGB)
    except OSError:
        return None
    return pixels


def _by_simplejpeg(data: Array, cmyk: bool, strict: bool) -> Array:
    """Decode to RGB or CMYK; ValueError with libjpeg's first message if it has any, or if not strict, if it gave up."""
    import simplejpeg

    pixels: Array = simplejpeg.decode_jpeg(data, "CMYK" if cmyk else "RGB", strict=strict)
    return pixels


def _jpeg_by_pillow(data: Array) -> tuple[Array, tuple[str, ...]]:
    with _refusing("a JPEG that decodes", data.size):
        return _rgb(_open(data, "jpeg"), (255, 255, 255))


_MARKER = re.compile(rb"\xff[\x01-\xfe]")


def _segments(data: Array) -> Iterator[tuple[int, int, int]]:
    """Walk a JPEG's header: (marker, where it starts, where its segment ends), up to the first scan."""
    view = data.data
    at = 2
    while match := _MARKER.search(view, at):
        start = match.start()
        marker = view[start + 1]
        at = start + 2
        if not (0xD0 <= marker <= 0xD9 or marker == 0x01):
            at += int.from_bytes(view[at : at + 2], "big")
        yield marker, start, at
        if marker in (0xDA, 0xD9):
            return


def _jpeg_header(data: Array) -> tuple[int, int, int, bool]:
    """Width, height, components, and whether it is 8 bit and Huffman coded, not lossless: what both libraries decode."""
    if data[:2].tobytes() == b"\xff\xd8":
        for marker, start, _ in _segments(data):
            frame = data[start + 4 : start + 10].tobytes()
            if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC) and len(frame) == 6:
                height, width = int.from_bytes(frame[1:3], "big"), int.from_bytes(frame[3:5], "big")
                return width, height, frame[5], marker <= 0xC2 and frame[0] == 8
    raise _damaged(data, "no picture in it")


def _without_garbage(data: Array) -> Array:
    """Leave out what lies between the segments of the header."""
    parts, end = [data[:2]], 2
    for _, start, end in _segments(data):
        parts.append(data[start:end])
    return np.concatenate([*parts, data[end:]])


def _damaged(data: Array, message: str) -> DataError:
    reason = message.split("(): ")[-1].removeprefix("Corrupt JPEG data: ")
    return DataError(f"expected a JPEG that decodes, got {reason[:1].lower()}{reason[1:]} ({data.size} bytes)")


def _jpeg_orientation(data: Array) -> int:
    if not any(marker == 0xE1 for marker, _, _ in _segments(data)):
        return 1  # neither EXIF nor XMP
    try:
        with _refusing("a JPEG header", data.size):
            return _orientation(_open(data, "jpeg"))
    except DataError:
        return 1  # Pillow knows fewer odd headers than libjpeg: no tag that anybody reads


# --- everything else, by Pillow ---


def _open(data: Array, encoding: str) -> Image.Image:
    from PIL import Image

    image = Image.open(io.BytesIO(data.tobytes()), formats=[_PILLOW.get(encoding, encoding.upper())])
    _check_size(*image.size)
    return image


def _png_may_turn(data: Array) -> bool:
    """Whether a PNG has a chunk that Pillow finds an orientation in."""
    view, at = data.data, 8
    while at < len(view):
        if bytes(view[at + 4 : at + 8]) == b"eXIf" or bytes(view[at + 8 : at + 8 + _PNG_KEYWORD_NBYTES]).startswith(_PNG_KEYWORDS):
            return True
        at += 12 + int.from_bytes(view[at : at + 4], "big")
    return False


def _orientation(image: Image.Image) -> int:
    try:
        value = image.getexif().get(0x0112, 1)
    except MemoryError:
        raise
    except Exception:  # whatever Pillow stumbles over in a damaged tag
        return 1
    return value if isinstance(value, int) and value in _TURNS else 1


def _frames(image: Image.Image) -> tuple[str, ...]:
    try:
        return ("animated: first frame taken",) if getattr(image, "is_animated", False) else ()
    except MemoryError:
        raise
    except Exception:  # the second frame is damaged; the first, which is all we take, was decoded
        return ()


def _rgb(image: Image.Image, background: tuple[int, ...]) -> tuple[Array, tuple[str, ...]]:
    """Convert Pillow's first frame to uint8 RGB [H, W, 3]; notes say what was lost."""
    from PIL import Image

    image.load()
    notes: tuple[str, ...] = ()
    transparent = image.info.get("transparency")
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM", "TIFF")):
        values = np.asarray(image).astype(np.int64)
        grey = Image.fromarray(((values.clip(0, 65535) + 128) // 257).astype(np.uint8))
        alpha = Image.fromarray(np.where(values == transparent, 0, 255).astype(np.uint8))
        image = Image.merge("LA", (grey, alpha))
        notes = ("16 bit scaled to 8",)
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or transparent is not None:
        layer = image.convert("LA" if image.mode == "La" else "RGBA").convert("RGBA")
        if np.asarray(layer)[:, :, 3].min() < 255:
            notes += ("transparent pixels laid over the background",)
            layer = Image.alpha_composite(Image.new("RGBA", layer.size, (*background, 255)), layer)
        image = layer
    elif image.mode == "CMYK":
        notes += ("CMYK converted to RGB",)
    return np.asarray(image.convert("RGB")), notes


def _codes(image: Image.Image) -> Array | None:
    """The codes of a grey or palette picture, uint8 [H, W]; None where it has colours of its own."""
    image.load()
    if image.mode in ("1", "L", "P"):
        codes = np.asarray(image)
        return codes.astype(np.uint8)
    if image.mode in ("LA", "PA"):
        return np.asarray(image)[:, :, 0]
    if image.mode.startswith("I"):
        codes = np.asarray(image)
        if codes.size and not 0 <= codes.min() <= codes.max() <= 255:
            raise DataError(f"expected a mask of codes from 0 to 255, got {codes.min()} to {codes.max()}")
        return codes.astype(np.uint8)
    return None


def _png(pixels: Array) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@contextmanager
def _refusing(expected: str, nbytes: int) -> Iterator[None]:
    """Make a library's exceptions DataErrors, and keep Pillow's warnings from anybody, even where warnings are errors."""
    # Not warnings.catch_warnings, which would also undo what other threads did meanwhile.
    filters: Any = warnings.filters
    ignore = ("ignore", None, Warning, re.compile(r"PIL\."), 0)
    filters.insert(0, ignore)
    try:
        yield
    except (DataError, MemoryError):
        raise
    except Exception as error:
        reason = str(error) or type(error).__name__
        if type(error).__name__ == "UnidentifiedImageError":
            reason = "a header that Pillow cannot read"  # its own words hold an address in memory, another one each time
        raise DataError(f"expected {expected}, got {reason} ({nbytes} bytes)") from error
    finally:
        filters.remove(ignore)


# --- pixels ---


def _pixels_of(array: Array) -> Array:
    """An array given as a picture, as uint8 [H, W, 3]."""
    image = array[:, :, None] if array.ndim == 2 else array
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] not in (1, 3) or not image.size:
        raise DataError(f"expected a uint8 array [H, W, 3], [H, W, 1] or [H, W], got {array.dtype} {list(array.shape)}")
    _check_size(image.shape[1], image.shape[0])
    return np.repeat(image, 3, axis=2) if image.shape[2] == 1 else image


def _check_size(width: int, height: int) -> None:
    if not 0 < width * height <= MAX_PIXELS:
        raise DataError(f"expected a picture of 1 to {MAX_PIXELS} pixels, got {width} x {height}")


def _of_shape(pixels: Array, shape: tuple[int, ...]) -> Array:
    if pixels.shape != shape:
        raise DataError(f"expected a picture of {shape[1]} x {shape[0]} pixels, got {pixels.shape[1]} x {pixels.shape[0]}")
    return pixels


def _turn(orientation: int) -> tuple[bool, int | None]:
    if orientation not in _TURNS:
        raise DataError(f"expected an orientation from 1 to 8, got {orientation}")
    return _TURNS[orientation]


def _upright(pixels: Array, orientation: int) -> Array:
    """Apply an EXIF orientation; 1 copies nothing."""
    transposed, code = _turn(orientation)
    if orientation != 1:
        import cv2

        pixels = cv2.transpose(pixels) if transposed else pixels
        pixels = pixels if code is None else cv2.flip(pixels, code)
    return pixels


def _written(out: Array, result: Array) -> None:
    """Make sure of `out`: OpenCV allocates another array where it does not like the one it was given."""
    if result is not out:
        np.copyto(out, result)


def _resized(width: int, height: int, resize: Mapping[str, int] | None) -> tuple[int, int]:
    """Width and height to store."""
    if resize is None:
        return width, height
    if "height" in resize:
        return resize["width"], resize["height"]
    now, goal = (min(width, height), resize["short"]) if "short" in resize else (max(width, height), resize["long"])
    if now <= goal:
        return width, height
    scaled: Callable[[int], int] = lambda side: max(1, (2 * side * goal + now) // (2 * now))  # noqa: E731  rounded half up, in whole numbers
    return scaled(width), scaled(height)


def _resize_to_store(pixels: Array, size: tuple[int, int], mask: bool) -> Array:
    import cv2

    # The EXACT variants are in whole numbers, the same on every machine.
    area = max(pixels.shape[1] / size[0], pixels.shape[0] / size[1]) > AREA_ABOVE
    how = cv2.INTER_NEAREST_EXACT if mask else cv2.INTER_AREA if area else cv2.INTER_LINEAR_EXACT
    resized: Array = cv2.resize(np.ascontiguousarray(pixels), size, interpolation=how)
    return resized


def _one_of(value: Any, known: tuple[str, ...], where: str) -> str:
    if value not in known:
        raise ArgumentError(f"expected one of {list(known)}, got {value!r}, at {where}")
    return str(value)


def _checked_resize(resize: Any, where: str) -> Mapping[str, int] | None:
    if resize is None:
        return None
    fits = isinstance(resize, Mapping) and set(resize) in ({"short"}, {"long"}, {"height", "width"})
    if not fits or not all(isinstance(v, int) and v > 0 for v in resize.values()):
        raise ArgumentError(f"expected short, long, or height and width in pixels, got {resize!r}, at option resize of {where}")
    return dict(resize)
