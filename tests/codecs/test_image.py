"""The picture codec: Pillow is the reference for pixels, simplejpeg for damage, and the CASES numbers stand beside what covers them."""

import io
import os
import pickle
import threading
import warnings
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from fastdata.codecs.image import AREA_ABOVE, MAX_PIXELS, Codec, decode_jpeg, recognise
from fastdata.errors import ArgumentError, DataError
from fastdata.types import Field

AVIF = pytest.param("AVIF", marks=pytest.mark.skipif(".avif" not in Image.registered_extensions(), reason="Pillow here is older than AVIF"))
FILE_FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "JPEG2000", AVIF)


def codec(**options):
    dense = options.get("image") == "raw" and "height" in (options.get("resize") or {})
    shape = (options["resize"]["height"], options["resize"]["width"], 3) if dense else ()
    return Codec(Field("image", "image", shape=shape, dense=dense, options=options))


def photo(height=48, width=72, seed=0):
    """Something smooth with edges and a little noise, different in every corner and channel."""
    y, x = np.mgrid[:height, :width]
    rgb = np.stack([x * 255 / width, y * 255 / height, 128 + 90 * np.sin(x / 5 + y / 9)], axis=2)
    rgb[: height // 3, : width // 4] = (250, 10, 40)
    return (rgb + np.random.default_rng(seed).normal(0, 4, rgb.shape)).clip(0, 255).astype(np.uint8)


def file(image, kind="PNG", **options):
    target = io.BytesIO()
    (Image.fromarray(image) if isinstance(image, np.ndarray) else image).save(target, kind, **options)
    return target.getvalue()


def opened(data):
    return Image.open(io.BytesIO(data))


def stored(encoded):
    """What a store gives back: read-only memory."""
    data = encoded.data if isinstance(encoded.data, np.ndarray) else np.frombuffer(encoded.data, np.uint8)
    data = data.copy()
    data.flags.writeable = False
    return data


def decoded(the_codec, encoded):
    pixels = the_codec.decode(stored(encoded), encoded.columns)
    assert pixels.dtype == np.uint8
    assert pixels.shape == the_codec.shape(stored(encoded), encoded.columns)
    assert encoded.pixels.shape == pixels.shape
    if encoded.columns["encoding"] != "jpeg":  # one that was made of them has lost a little
        assert np.array_equal(pixels, encoded.pixels)
    return pixels


def turbojpeg_works():
    try:
        decode_jpeg(np.frombuffer(file(photo(), "JPEG"), np.uint8), library="turbojpeg")
    except ArgumentError:
        return False
    return True


needs_turbojpeg = pytest.mark.skipif(not turbojpeg_works(), reason="this system has no libturbojpeg")


# --- formats ---


@pytest.mark.parametrize("kind", FILE_FORMATS)
def test_every_format_is_kept_byte_for_byte_and_decodes_as_pillow_does(kind):
    """Case 17: nothing is encoded anew unless asked for; case 11: the format is told by the first bytes."""
    data = file(photo(), kind)
    encoded = codec().encode(data)
    assert encoded.data is data
    assert encoded.columns == {
        "width": 72,
        "height": 48,
        "orientation": 1,
        "encoding": {"JPEG2000": "jp2"}.get(kind, kind.lower()),
    }
    assert encoded.extension == {"JPEG": "jpg", "TIFF": "tif", "JPEG2000": "jp2"}.get(kind, kind.lower())
    assert np.array_equal(decoded(codec(), encoded), np.asarray(opened(data).convert("RGB")))


def test_an_empty_file_is_refused_as_empty():
    """Case 15."""
    with pytest.raises(DataError, match="got an empty file"):
        codec().encode(b"")


@pytest.mark.parametrize("data", [b"x", b"hello, I am text", bytes(1000), b"%!PS-Adobe-3.0 EPSF-3.0\n", b"\xff\xd8\xff"])
def test_bytes_that_are_no_picture_are_refused(data):
    with pytest.raises(DataError, match="expected a"):
        codec().encode(data)


@pytest.mark.parametrize(
    "value", ["a/path.jpg", 7, None, np.zeros((4, 4, 4), np.uint8), np.zeros((4, 4, 3)), np.zeros((0, 4, 3), np.uint8)]
)
def test_values_that_are_no_picture_are_refused(value):
    with pytest.raises(DataError, match="expected"):
        codec().encode(value)


@pytest.mark.parametrize("kind", FILE_FORMATS)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_truncated_picture_is_refused_or_whole(kind, share):
    """Cases 1 and 2: pixels are decoded, not headers; the size in bytes is named."""
    options = {"compression": "tiff_lzw"} if kind == "TIFF" else {"lossless": True} if kind == "WEBP" else {}
    data = file(photo(), kind, **options)
    cut = data[: int(len(data) * share)]
    with pytest.raises(DataError, match=rf"expected .*\({len(cut)} bytes\)"):
        codec().encode(cut)


def test_a_jpeg_without_its_end_marker_is_refused():
    """Case 1."""
    data = file(photo(), "JPEG")
    with pytest.raises(DataError, match=rf"expected a JPEG that decodes, got premature end of JPEG file \({len(data) - 2} bytes\)"):
        codec().encode(data[:-2])


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_of_several_frames_the_first_is_taken_and_noted(kind):
    """Case 12."""
    first, second = Image.fromarray(photo()).quantize(64).convert("RGB"), Image.fromarray(photo(seed=1)[::-1])
    options = {"lossless": True} if kind == "WEBP" else {}
    data = file(first, kind, save_all=True, append_images=[second], **options)
    encoded = codec().encode(data)
    assert encoded.notes == ("animated: first frame taken",)
    assert np.array_equal(decoded(codec(), encoded), np.asarray(opened(data).convert("RGB")))


# --- colours ---


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_16_bit_grey_is_scaled_to_8_bit(kind):
    """Case 8: v / 257, rounded; more than 200 levels of a gradient stay, in order."""
    values = np.linspace(0, 65535, 64 * 64).round().astype(np.uint16).reshape(64, 64)
    data = b"P5 64 64 65535\n" + values.astype(">u2").tobytes() if kind == "PPM" else file(Image.fromarray(values), kind)
    encoded = codec().encode(data)
    pixels = decoded(codec(), encoded)
    assert encoded.notes == ("16 bit scaled to 8",)
    assert np.array_equal(pixels, np.repeat(np.rint(values / 257.0).astype(np.uint8)[:, :, None], 3, axis=2))
    levels = pixels[:, :, 0].ravel().astype(int)
    assert len(set(levels)) > 200
    assert (np.diff(levels) >= 0).all()


def test_big_endian_16_bit_tiff_is_read_as_such():
    values = np.arange(0, 65536, 64, dtype=np.uint16).reshape(32, 32)
    image = Image.frombytes("I;16B", (32, 32), values.astype(">u2").tobytes())
    assert np.array_equal(codec().encode(file(image, "TIFF")).pixels[:, :, 0], np.rint(values / 257.0))


@pytest.mark.parametrize("background", [(255, 255, 255), (10, 200, 90)])
def test_alpha_is_laid_over_the_background(background):
    """Case 9: the same for RGBA, LA, and a palette with transparency as for the equal RGBA picture."""
    alpha = np.linspace(0, 255, 48 * 72).astype(np.uint8).reshape(48, 72)
    rgba = np.dstack([photo(), alpha])
    weight = alpha[:, :, None] / 255.0
    expected = weight * rgba[:, :, :3] + (1 - weight) * np.array(background)
    the_codec = codec(background=list(background))
    encoded = the_codec.encode(file(rgba))
    assert encoded.notes == ("transparent pixels laid over the background",)
    assert np.abs(decoded(the_codec, encoded) - expected).max() <= 1

    palette = Image.fromarray(rgba).quantize(32)
    equal = palette.convert("RGBA")
    assert np.array_equal(the_codec.encode(file(palette)).pixels, the_codec.encode(file(equal)).pixels)
    grey = Image.fromarray(rgba).convert("LA")
    assert np.array_equal(the_codec.encode(file(grey)).pixels, the_codec.encode(file(grey.convert("RGBA"))).pixels)


@pytest.mark.parametrize("mode", ["L", "RGB", "P"])
def test_one_transparent_colour_is_laid_over_the_background(mode):
    """Case 9: a tRNS chunk."""
    colour, other = {"L": (7, 8), "RGB": ((1, 2, 3), (1, 2, 4)), "P": (1, 0)}[mode]
    image = Image.new(mode, (8, 8), colour)
    if mode == "P":
        image.putpalette([50, 60, 70, 1, 2, 3])
    image.paste(other, (0, 0, 4, 8))
    pixels = codec(background=[9, 99, 199]).encode(file(image, transparency=colour)).pixels
    assert (pixels[:, 4:] == (9, 99, 199)).all()
    assert (pixels[:, :4] != (9, 99, 199)).all()


def test_one_transparent_value_of_16_bit_grey_is_laid_over_the_background():
    """Case 9; the chunk is put in by hand, since not every Pillow writes it."""
    png = file(Image.fromarray(np.array([[700, 701]], np.uint16)))
    at = png.index(b"IDAT") - 4
    chunk = b"tRNS" + (700).to_bytes(2, "big")
    png = png[:at] + (2).to_bytes(4, "big") + chunk + zlib.crc32(chunk).to_bytes(4, "big") + png[at:]
    assert codec(background=[9, 99, 199]).encode(png).pixels.tolist() == [[[9, 99, 199], [3, 3, 3]]]


def test_alpha_that_hides_nothing_is_not_noted():
    encoded = codec().encode(file(np.dstack([photo(), np.full((48, 72), 255, np.uint8)])))
    assert encoded.notes == ()
    assert np.array_equal(encoded.pixels, photo())


@pytest.mark.parametrize("library", ["simplejpeg", pytest.param("turbojpeg", marks=needs_turbojpeg)])
def test_cmyk_and_ycck_jpegs_come_out_as_pillow_converts_them(library):
    """Cases 3 and 4: three channels, and not inverted."""
    cmyk = file(Image.fromarray(photo()).convert("CMYK"), "JPEG", quality=95)
    ycck = as_ycck(cmyk)
    for data in (cmyk, ycck):
        expected = np.asarray(opened(data).convert("RGB"))
        pixels, notes = decode_jpeg(np.frombuffer(data, np.uint8), library=library)
        assert notes == ("CMYK converted to RGB",)
        assert np.array_equal(pixels, expected)
    pixels, _ = decode_jpeg(np.frombuffer(cmyk, np.uint8), library=library)
    assert np.corrcoef(pixels.mean(axis=2).ravel(), photo().mean(axis=2).ravel())[0, 1] > 0.99


def as_ycck(cmyk):
    """Say in the Adobe segment that the four components are YCCK: its last byte, the transform, becomes 2."""
    at = cmyk.index(b"Adobe") + 11
    return cmyk[:at] + b"\x02" + cmyk[at + 1 :]


@pytest.mark.parametrize("library", ["simplejpeg", pytest.param("turbojpeg", marks=needs_turbojpeg)])
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}, {"subsampling": 1}, {"keep_rgb": True}])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_jpegs_decode_as_pillow_does(library, options, mode):
    options = {} if mode == "L" and "keep_rgb" in options else options
    data = file(Image.fromarray(photo(301, 203)).convert(mode), "JPEG", quality=92, **options)
    pixels, notes = decode_jpeg(np.frombuffer(data, np.uint8), library=library)
    assert notes == ()
    assert np.array_equal(pixels, np.asarray(opened(data).convert("RGB")))


# --- orientation ---


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", AVIF])
def test_orientation_is_applied_once_whatever_the_format(kind, orientation):
    """Case 6: kept bytes, new bytes and raw pixels all come out as Pillow's exif_transpose; what is encoded anew has no tag left."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if kind == "WEBP" else {"quality": 100} if kind == "AVIF" else {}
    data = file(photo(40, 64), kind, exif=exif, **options)
    expected = np.asarray(ImageOps.exif_transpose(opened(data)).convert("RGB"))

    for image in ("keep", "raw", "png", "jpeg"):
        the_codec = codec(image=image, quality=100, subsampling="4:4:4")
        encoded = the_codec.encode(data)
        pixels = decoded(the_codec, encoded)
        height, width = expected.shape[:2]
        assert (encoded.columns["width"], encoded.columns["height"]) == (width, height)
        assert pixels.shape == expected.shape
        assert np.abs(pixels - expected.astype(int)).mean() < (1.5 if image == "jpeg" else 0.001)
        if encoded.data is not data:
            assert encoded.columns["orientation"] == 1
        if encoded.data is not data and image != "raw":
            assert 0x0112 not in opened(encoded.data).getexif()
    assert np.array_equal(codec(image="raw").encode(opened(data)).pixels, expected)


@pytest.mark.parametrize(
    "exif", [b"Exif\0\0", b"Exif\0\0garbage", b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12", b"Exif\0\0II*\0\xff\xff\xff\xff"]
)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_a_damaged_exif_block_counts_as_upright(kind, exif):
    """Case 6."""
    encoded = codec().encode(file(photo(), kind, exif=exif))
    assert encoded.columns["orientation"] == 1
    assert encoded.pixels.shape == (48, 72, 3)


@pytest.mark.parametrize("value", [0, 9, 255])
def test_an_orientation_that_does_not_exist_counts_as_upright(value):
    exif = Image.Exif()
    exif[0x0112] = value
    assert codec().encode(file(photo(), "JPEG", exif=exif)).columns["orientation"] == 1


# --- damage: one verdict, whoever decodes ---


def verdict(data, library):
    """Pixels and notes, or the refusal."""
    try:
        pixels, notes = decode_jpeg(np.frombuffer(data, np.uint8), library=library)
    except DataError as error:
        return "refused", str(error)
    return pixels.shape, pixels.tobytes(), notes


def jpegs():
    image = Image.fromarray(photo(67, 91))
    yield file(image, "JPEG", quality=90)
    yield file(image, "JPEG", quality=75, progressive=True)
    yield file(image, "JPEG", quality=90, restart_marker_blocks=2)
    yield file(image.convert("L"), "JPEG", quality=90)
    yield file(image.convert("CMYK"), "JPEG", quality=90)


@needs_turbojpeg
def test_both_libraries_say_the_same_of_truncated_jpegs():
    """Cases 1 and 2: nothing short of the whole file is taken."""
    for data in jpegs():
        assert verdict(data, "turbojpeg") == verdict(data, "simplejpeg")
        for length in {*range(3, len(data), 37), *range(len(data) - 12, len(data))}:
            turbo, simple = verdict(data[:length], "turbojpeg"), verdict(data[:length], "simplejpeg")
            assert turbo == simple
            assert turbo[0] == "refused"


@needs_turbojpeg
@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.integers(0, 4), st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4))
def test_both_libraries_say_the_same_of_corrupted_jpegs(which, changes):
    data = bytearray(list(jpegs())[which])
    for place, value in changes:
        data[2 + int(place * (len(data) - 2))] = value
    assert verdict(bytes(data), "turbojpeg") == verdict(bytes(data), "simplejpeg")


def inserted(data, at, garbage=b"garbage"):
    return data[:at] + garbage + data[at:]


@pytest.mark.parametrize("library", ["simplejpeg", pytest.param("turbojpeg", marks=needs_turbojpeg)])
def test_bytes_that_do_not_belong_in_a_jpeg_are_passed_over_and_noted(library):
    data = file(photo(), "JPEG")
    clean = verdict(data, library)
    end, tables = len(data) - 2, data.index(b"\xff\xdb")
    for damaged in (
        inserted(data, end, bytes(100)),
        inserted(data, 2),
        inserted(data, tables),
        inserted(inserted(data, end, bytes(99)), tables),
    ):
        shape, pixels, notes = verdict(damaged, library)
        assert notes == ("extraneous bytes in a JPEG",)
        assert (shape, pixels) == clean[:2]
    assert verdict(data + b"what comes after the end", library) == clean


@pytest.mark.parametrize("library", ["simplejpeg", pytest.param("turbojpeg", marks=needs_turbojpeg)])
def test_harmless_garbage_does_not_hide_a_premature_end(library):
    """Libjpeg keeps its first message only."""
    data = inserted(file(photo(), "JPEG"), 2)
    assert "premature end" in verdict(data[:-40], library)[1]


def test_no_warning_of_a_library_reaches_other_threads():
    """Warnings are errors in this suite: a damaged picture in one thread must not raise in, or swallow from, another."""
    good, bad = file(photo(), "JPEG"), file(photo(), "JPEG")[:-30]
    odd = file(photo(), "PNG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    caught = []

    def work():
        for _ in range(30):
            assert np.array_equal(codec().encode(good).pixels, np.asarray(opened(good)))
            codec().encode(odd)
            with pytest.raises(DataError):
                codec().encode(bad)
            with pytest.raises(UserWarning, match="mine"):
                warnings.warn("mine", UserWarning, stacklevel=1)
        caught.append(True)

    filters = list(warnings.filters)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(caught) == 4
    assert warnings.filters == filters


def test_a_picture_of_too_many_pixels_is_refused_by_its_header():
    data = bytearray(file(photo(), "JPEG"))
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = b"\xf0\x00\xf0\x00"
    bitmap = bytearray(file(photo(), "BMP"))
    bitmap[18:26] = b"\x00\xf0\x00\x00\x00\xf0\x00\x00"
    for validate in (True, False):
        with pytest.raises(DataError, match=rf"1 to {MAX_PIXELS} pixels, got 61440 x 61440"):
            codec().encode(bytes(data), validate=validate)
        with pytest.raises(DataError, match=str(MAX_PIXELS)):
            codec().encode(bytes(bitmap), validate=validate)


def test_a_large_picture_below_the_limit_does_not_warn():
    """Pillow warns from half the limit on, and warnings are errors here."""
    assert codec().encode(file(Image.new("1", (10000, 9000)))).columns["width"] == 10000


# --- without validation ---


def assert_header_tells_all(data):
    """Bytes and columns are those of a validated picture; `pixels` are nobody's."""
    full, quick = codec().encode(data), codec().encode(data, validate=False)
    assert quick.data is data
    assert (quick.columns, quick.extension, quick.notes, quick.pixels) == (full.columns, full.extension, (), None)


@pytest.mark.parametrize("kind", FILE_FORMATS)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_unvalidated_pictures_have_the_columns_of_validated_ones(kind, mode):
    assert_header_tells_all(file(Image.fromarray(photo()).convert(mode), kind))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", AVIF])
def test_unvalidated_pictures_are_measured_upright(kind, orientation):
    """Case 6."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = file(photo(40, 64), kind, exif=exif)
    assert_header_tells_all(data)
    columns = codec().encode(data, validate=False).columns
    assert (columns["width"], columns["height"]) == ((64, 40) if orientation < 5 else (40, 64))


def png_chunk(kind, data):
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")


@pytest.mark.parametrize("behind", [False, True], ids=["before the pixels", "behind the pixels"])
@pytest.mark.parametrize("how", ["eXIf", "XMP", "raw profile"])
def test_an_orientation_in_any_chunk_of_a_png_is_found_without_validation(how, behind):
    """Case 6: Pillow reads what lies behind the pixels too."""
    exif = Image.Exif()
    exif[0x0112] = 6
    xmp = b"XML:com.adobe.xmp\0\0\0\0\0<rdf tiff:Orientation='6' tiff:Orientation=\"6\"/>"
    profile = b"Raw profile type exif\0\0" + zlib.compress(b"\nexif\n%8d\n%s\n" % (len(exif.tobytes()), exif.tobytes().hex().encode()))
    chunk = {"eXIf": (b"eXIf", exif.tobytes()[6:]), "XMP": (b"iTXt", xmp), "raw profile": (b"zTXt", profile)}[how]
    data = file(photo(40, 64))
    data = inserted(data, data.index(b"IEND" if behind else b"IDAT") - 4, png_chunk(b"tEXt", b"Comment\0none") + png_chunk(*chunk))
    assert_header_tells_all(data)
    assert codec().encode(data, validate=False).columns["orientation"] == 6


def test_an_orientation_in_xmp_of_a_jpeg_is_found_without_validation():
    """Case 6."""
    xmp = b'http://ns.adobe.com/xap/1.0/\0<rdf tiff:Orientation="8"/>'
    data = file(photo(40, 64), "JPEG")
    for at in (2, data.index(b"\xff\xc4")):  # also behind the size
        turned = inserted(data, at, b"\xff\xe1" + (len(xmp) + 2).to_bytes(2, "big") + xmp)
        assert_header_tells_all(turned)
        assert codec().encode(turned, validate=False).columns["orientation"] == 8


def test_nothing_is_decoded_without_validation():
    """Damage behind the header goes unseen, and only there."""
    for kind in ("JPEG", "PNG", "BMP", "PPM"):
        data = file(photo(), kind)
        cut = data[: len(data) // 2]
        assert codec().encode(cut, validate=False).columns == codec().encode(data).columns
        with pytest.raises(DataError):
            codec().encode(cut)


@pytest.mark.parametrize("kind", FILE_FORMATS)
def test_a_header_that_is_cut_short_is_refused_without_validation(kind):
    """Case 15 among them: no data at all."""
    data = file(photo(), kind)
    for length in range(0, 12, 3):
        with pytest.raises(DataError, match=r"^expected .* got "):
            codec().encode(data[:length], validate=False)
    with pytest.raises(DataError, match="bytes starting 68 65 6c 6c 6f"):
        codec().encode(b"hello, I am text", validate=False)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.integers(0, 4), st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=3))
def test_whatever_a_damaged_jpeg_decodes_to_its_header_tells(which, changes):
    """Case 6: also of headers that Pillow stumbles over and libjpeg does not."""
    exif = Image.Exif()
    exif[0x0112] = 5
    payload = exif.tobytes()
    data = bytearray(inserted(list(jpegs())[which], 2, b"\xff\xe1" + (len(payload) + 2).to_bytes(2, "big") + payload))
    for place, value in changes:
        data[2 + int(place * 700)] = value
    try:
        full = codec().encode(bytes(data))
    except DataError:
        return
    assert codec().encode(bytes(data), validate=False).columns == full.columns


@pytest.mark.parametrize("image", ["keep", "jpeg", "png", "raw"])
def test_what_is_encoded_anew_has_the_same_bytes_without_validation(image):
    exif = Image.Exif()
    exif[0x0112] = 6
    for value in (file(photo(), "JPEG", exif=exif), file(photo()), photo(), Image.fromarray(photo())):
        for resize in (None, {"short": 20}):
            the_codec = codec(image=image, resize=resize)
            full, quick = the_codec.encode(value), the_codec.encode(value, validate=False)
            assert bytes(quick.data) == bytes(full.data)
            assert (quick.columns, quick.extension, quick.pixels) == (full.columns, full.extension, None)


# --- what is stored ---


def test_arrays_are_kept_raw_and_grey_ones_get_three_channels():
    grey = photo()[:, :, 0]
    for value in (photo(), photo()[:, ::-1], grey, grey[:, :, None]):
        encoded = codec().encode(value)
        assert (encoded.columns["encoding"], encoded.extension) == ("raw", "npy")
        assert encoded.data.flags.c_contiguous
        rgb = np.dstack([grey] * 3) if value.shape[-1] != 3 else value
        assert np.array_equal(decoded(codec(), encoded), rgb)
        flat = stored(encoded).reshape(-1)
        assert np.array_equal(codec().decode(flat, encoded.columns), rgb)
        with pytest.raises(DataError, match="expected raw pixels"):
            codec().decode(flat[:-1], encoded.columns)


def test_pil_images_become_png_unless_told_otherwise():
    encoded = codec().encode(Image.fromarray(photo()))
    assert encoded.extension == "png"
    assert np.array_equal(decoded(codec(), encoded), photo())
    assert codec(image="jpeg").encode(Image.fromarray(photo())).extension == "jpg"


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({"short": 24}, (36, 24)),
        ({"long": 24}, (24, 16)),
        ({"short": 48}, (72, 48)),
        ({"short": 500}, (72, 48)),
        ({"long": 500}, (72, 48)),
        ({"short": 7}, (11, 7)),  # 10.5, rounded up
        ({"height": 20, "width": 100}, (100, 20)),
        ({"height": 48, "width": 72}, (72, 48)),
    ],
)
def test_short_and_long_only_shrink_and_height_with_width_always_resizes(options, size):
    for image in ("keep", "jpeg", "png", "raw"):
        for data in (file(photo(), "JPEG"), file(photo())):
            the_codec = codec(image=image, resize=options)
            encoded = the_codec.encode(data)
            pixels = decoded(the_codec, encoded)
            assert (encoded.columns["width"], encoded.columns["height"]) == (pixels.shape[1], pixels.shape[0]) == size


def test_a_very_long_picture_keeps_one_pixel():
    assert codec(resize={"long": 10}).encode(file(photo(4, 500))).pixels.shape == (1, 10, 3)


def test_resizing_averages_when_it_shrinks():
    expected = photo().reshape(24, 2, 36, 2, 3).mean(axis=(1, 3))
    assert np.abs(codec(image="raw", resize={"short": 24}).encode(file(photo())).pixels - expected).max() <= 0.5


def test_a_turned_picture_is_measured_upright():
    exif = Image.Exif()
    exif[0x0112] = 6
    encoded = codec(resize={"height": 36, "width": 24}).encode(file(photo(), "JPEG", exif=exif))
    assert (encoded.columns["width"], encoded.columns["height"], encoded.columns["orientation"]) == (24, 36, 1)


def test_what_needs_no_new_encoding_stays_byte_for_byte():
    """Case 17."""
    jpeg, png = file(photo(), "JPEG"), file(photo())
    for options, data in [
        ({"quality": 30}, jpeg),
        ({"resize": {"short": 48}}, jpeg),
        ({"image": "jpeg"}, jpeg),
        ({"image": "png"}, png),
        ({"image": "png", "quality": 30}, png),
        ({"mask": True}, jpeg),
    ]:
        assert codec(**options).encode(data).data is data
    for options, data, extension in [
        ({"image": "jpeg", "quality": 30}, jpeg, "jpg"),
        ({"image": "jpeg"}, png, "jpg"),
        ({"image": "png"}, jpeg, "png"),
        ({"image": "jpeg", "mask": True}, jpeg, "png"),
        ({"resize": {"short": 20}}, jpeg, "jpg"),
        ({"resize": {"short": 20}}, png, "png"),
        ({"resize": {"short": 20}}, file(photo(), "WEBP"), "png"),
        ({"resize": {"short": 20}, "mask": True}, jpeg, "png"),
    ]:
        encoded = codec(**options).encode(data)
        assert encoded.data != data
        assert encoded.extension == extension == {"jpeg": "jpg"}.get(encoded.columns["encoding"], encoded.columns["encoding"])


def test_quality_and_subsampling_are_those_asked_for():
    """Case 17: the quantisation table and the sampling factors in the file tell."""
    for quality, subsampling, factors in [(None, "4:2:0", (2, 2)), (50, "4:4:4", (1, 1)), (75, "4:2:2", (2, 1))]:
        written = opened(codec(image="jpeg", quality=quality, subsampling=subsampling).encode(file(photo())).data)
        reference = opened(file(photo(), "JPEG", quality=quality or 90))
        assert written.quantization == reference.quantization
        assert written.layer[0][1:3] == factors


def test_masks_are_resized_to_the_nearest():
    codes = np.random.default_rng(0).choice([0, 7, 255], (48, 72)).astype(np.uint8)
    for size in ({"short": 19}, {"height": 100, "width": 99}):
        the_codec = codec(mask=True, resize=size)
        assert set(np.unique(decoded(the_codec, the_codec.encode(file(codes))))) == {0, 7, 255}


def test_packing_the_same_picture_twice_gives_the_same_bytes():
    for image in ("jpeg", "png", "raw"):
        once, twice = (codec(image=image, resize={"short": 30}).encode(file(photo())) for _ in range(2))
        assert bytes(once.data) == bytes(twice.data)


@pytest.mark.parametrize(
    "options",
    [
        {"image": "gif"},
        {"resize": {"short": 0}},
        {"resize": {"height": 3}},
        {"resize": 256},
        {"quality": 0},
        {"quality": 101},
        {"quality": "high"},
        {"subsampling": "4:2:1"},
        {"background": [0, 0]},
        {"background": [0, 0, 256]},
    ],
)
def test_options_that_cannot_be_meant_are_refused(options):
    with pytest.raises(ArgumentError, match=r"expected .* got .* at option"):
        codec(**options)


def test_a_codec_pickles():
    the_codec = pickle.loads(pickle.dumps(codec(resize={"short": 20})))
    assert the_codec.encode(file(photo())).pixels.shape == (20, 30, 3)


def test_a_picture_of_another_size_than_its_columns_say_is_refused():
    encoded = codec().encode(file(photo()))
    with pytest.raises(DataError, match="expected a picture of 72 x 47 pixels, got 72 x 48"):
        codec().decode(stored(encoded), {**encoded.columns, "height": 47})


# --- regions ---


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("flip", [False, True])
def test_a_region_is_the_crop_of_the_upright_picture(orientation, flip):
    exif = Image.Exif()
    exif[0x0112] = orientation
    encoded = codec().encode(file(photo(), "JPEG", exif=exif))
    x, y, w, h = 5, 11, 30, 20
    batch = np.zeros((3, 16, 24, 3), np.uint8)
    codec().decode_region(stored(encoded), encoded.columns, (x, y, w, h), batch[1], flip=flip)
    expected = cv2.resize(encoded.pixels[y : y + h, x : x + w].copy(), (24, 16), interpolation=cv2.INTER_LINEAR)
    assert np.array_equal(batch[1], expected[:, ::-1] if flip else expected)
    assert not batch[[0, 2]].any()


@pytest.mark.parametrize("out", [(16, 24), (20, 30), (7, 9), (40, 41), (1, 1), (20, 3)])
@pytest.mark.parametrize(
    ("interpolation", "how"), [("antialias", None), ("bilinear", cv2.INTER_LINEAR), ("nearest", cv2.INTER_NEAREST_EXACT)]
)
def test_a_region_of_raw_pixels_is_cut_from_the_memory_map(tmp_path, out, interpolation, how):
    pixels = photo(60, 80)
    np.save(tmp_path / "raw.npy", pixels)
    mapped = np.load(tmp_path / "raw.npy", mmap_mode="r")
    the_codec = codec(image="raw", resize={"height": 60, "width": 80})
    target = np.zeros((*out, 3), np.uint8)
    info = {"width": 80, "height": 60, "orientation": 1, "encoding": "raw"}
    the_codec.decode_region(mapped, info, np.array([50, 40, 30, 20]), target, interpolation=interpolation)
    shrink = max(30 / out[1], 20 / out[0])
    how = (cv2.INTER_AREA if shrink > AREA_ABOVE else cv2.INTER_LINEAR) if how is None else how
    assert np.array_equal(target, cv2.resize(pixels[40:60, 50:80].copy(), out[::-1], interpolation=how))


def test_a_box_of_the_right_size_is_copied():
    encoded = codec().encode(file(photo()))
    for flip in (False, True):
        out = np.zeros((20, 31, 3), np.uint8)
        codec().decode_region(stored(encoded), encoded.columns, (3, 4, 31, 20), out, flip=flip)
        assert np.array_equal(out[:, ::-1] if flip else out, photo()[4:24, 3:34])


@pytest.mark.parametrize("box", [(-1, 0, 5, 5), (0, 0, 73, 5), (0, 44, 5, 5), (0, 0, 0, 5), (0, 0, 5, -5)])
def test_a_box_outside_the_picture_is_refused(box):
    encoded = codec().encode(file(photo()))
    with pytest.raises(ArgumentError, match="inside 72 x 48 pixels"):
        codec().decode_region(stored(encoded), encoded.columns, box, np.zeros((8, 8, 3), np.uint8))


@pytest.mark.parametrize("out", [np.zeros((8, 8, 3)), np.zeros((8, 8), np.uint8), np.zeros((8, 8, 6), np.uint8)[:, :, ::2]])
def test_an_output_that_opencv_would_not_write_to_is_refused(out):
    encoded = codec().encode(file(photo()))
    with pytest.raises(ArgumentError, match="C-contiguous"):
        codec().decode_region(stored(encoded), encoded.columns, (0, 0, 5, 5), out)


# --- odd files of other projects ---


def files_of(folder):
    root = os.environ.get("FASTDATA_TESTDATA")
    if not root or not (path := Path(root) / folder).is_dir():
        pytest.skip(f"FASTDATA_TESTDATA names no folder with {folder}")
    return sorted(p for p in path.rglob("*") if p.is_file())


def by_pillow(data):
    """RGB by the rules in words: float arithmetic, so off by one at most."""
    image = ImageOps.exif_transpose(opened(data))
    values = np.asarray(image)
    transparency = image.info.get("transparency")
    if image.mode.startswith("I;16") or (image.mode == "I" and recognise(np.frombuffer(data, np.uint8)) in ("ppm", "png", "tiff")):
        grey = np.where(values == transparency, 255, np.rint(values / 257.0))
        return np.repeat(grey[:, :, None], 3, axis=2)
    if transparency is not None or "A" in image.getbands() or "a" in image.getbands():
        rgba = np.asarray(image.convert("RGBA")).astype(float)
        alpha = rgba[:, :, 3:] / 255
        return alpha * rgba[:, :, :3] + (1 - alpha) * 255
    return np.asarray(image.convert("RGB"))


@pytest.mark.parametrize("folder", ["weird/pillow", "weird/jxl"])
def test_odd_files_are_refused_or_decode_as_pillow_does(folder):
    """Cases 1 to 17, as found in the test pictures of Pillow and libjxl: within one level, in a bounded number of ways to fail."""
    taken = 0
    for path in files_of(folder):
        data = path.read_bytes()
        try:
            encoded = codec().encode(data)
        except DataError:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = by_pillow(data)
        assert encoded.pixels.shape == expected.shape, path
        assert np.array_equal(encoded.pixels, expected) or np.abs(encoded.pixels.astype(float) - expected).max() <= 1, path
        taken += 1
    assert taken > 100


def test_real_photos_decode_alike_by_every_library():
    for path in files_of("tiles")[::100]:
        data = np.fromfile(path, np.uint8)
        assert np.array_equal(decode_jpeg(data)[0], simplejpeg.decode_jpeg(data))
        assert np.array_equal(decode_jpeg(data)[0], np.asarray(opened(data.tobytes())))


@pytest.mark.parametrize("folder", ["weird/pillow", "weird/jxl", "photos", "tiles"])
def test_of_real_files_the_header_tells_what_decoding_finds(folder):
    """Case 6: TIFF, WebP, AVIF and JPEG of many makers, upright and turned."""
    taken = 0
    for path in files_of(folder)[:: 20 if folder == "tiles" else 1]:
        data = path.read_bytes()
        try:
            full = codec().encode(data)
        except DataError:
            continue
        assert codec().encode(data, validate=False).columns == full.columns, path
        taken += 1
    assert taken >= 100
