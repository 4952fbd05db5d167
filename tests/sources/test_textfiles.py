from __future__ import annotations

import tempfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fastdata.errors import ArgumentError, DataError
from fastdata.sources import base, open_source, textfiles
from fastdata.sources.textfiles import Source as TextFiles


def draw(source: base.Source) -> list[base.Drawn]:
    return [drawn for part in source.parts() for drawn in source.read(part)]


def texts(path: Path, documents: str = "file") -> list[str | DataError]:
    return [d.sample if isinstance(d.sample, DataError) else d.sample["text"] for d in draw(TextFiles(path, documents))]


def test_a_document_is_a_file_and_its_key_the_path(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for name in ("z.txt", "b/a.TXT", "b.txt", "notes.md"):
        (tmp_path / name).write_text(name)
    source = open_source(tmp_path)
    drawn = [drawn for part in source.parts() for drawn in source.read(part)]
    assert [d.key for d in drawn] == ["b.txt", "b/a.TXT", "z.txt"]
    assert [d.sample for d in drawn] == [{"text": d.key} for d in drawn]
    assert drawn[1].origin == str(tmp_path / "b/a.TXT")
    assert source.ignored == {"files that are not .txt": 1}


def test_one_txt_is_one_document(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("Once.\n")
    source = open_source(tmp_path / "book.txt")
    assert [(d.key, d.sample) for part in source.parts() for d in source.read(part)] == [("book.txt", {"text": "Once.\n"})]


def test_case_43_a_byte_order_mark_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "1.txt").write_bytes("naïve".encode("utf-8-sig"))
    (tmp_path / "2.txt").write_bytes("naïve".encode())
    assert texts(tmp_path) == ["naïve", "naïve"]


def test_case_45_nul_survives_and_other_encodings_are_named_with_their_place(tmp_path: Path) -> None:
    (tmp_path / "1.txt").write_bytes(b"a\0b\r\n")
    (tmp_path / "2.txt").write_bytes("naïve".encode("latin-1"))
    (tmp_path / "3.txt").write_bytes("你好，世界".encode("gbk"))
    first, latin, gbk = texts(tmp_path)
    assert first == "a\0b\r\n"
    assert str(latin) == "expected UTF-8, got the byte 0xef at position 2 of the file"
    assert isinstance(gbk, DataError)


def test_case_47_white_space_is_kept_and_nothing_at_all_is_an_error(tmp_path: Path) -> None:
    for name, data in {"1": b"", "2": b" \n", "3": b"\xef\xbb\xbf", "4": b"x"}.items():
        (tmp_path / f"{name}.txt").write_bytes(data)
    empty, blank, mark, last = texts(tmp_path)
    assert (blank, last) == (" \n", "x")
    assert "empty file" in str(empty)
    assert "empty file" in str(mark)


@pytest.mark.parametrize("picture", ["a.jpg", "z/z.png"])
def test_a_folder_with_a_picture_is_no_folder_of_text(tmp_path: Path, picture: str) -> None:
    (tmp_path / picture).parent.mkdir(exist_ok=True)
    (tmp_path / picture).write_bytes(b"x")
    (tmp_path / "caption.txt").write_text("x")
    assert not TextFiles.recognises(tmp_path)


def test_case_24_hidden_files_are_taken_when_asked_for(tmp_path: Path) -> None:
    for name in (".a.txt", "b.txt"):
        (tmp_path / name).write_text("x")
    assert [d.key for d in draw(TextFiles(tmp_path))] == ["b.txt"]
    assert [d.key for d in draw(TextFiles(tmp_path, hidden=True))] == [".a.txt", "b.txt"]


def test_another_kind_of_document_is_refused_by_the_list(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ArgumentError, match=r"expected one of \['block', 'file', 'line'\], got 'word', at --documents"):
        open_source(tmp_path, "textfiles", {"documents": "word"})


def test_lines_are_documents_named_by_the_byte_where_they_start(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "a.txt").write_bytes("\ufeffnaïve \r\n\n \t\r\n two\0\r\rthree\nlast\r".encode())
    (tmp_path / "b/empty.txt").touch()
    (tmp_path / "b/one.txt").write_text("one\n")
    drawn = draw(TextFiles(tmp_path, "line"))
    assert [(d.key, d.sample, d.nbytes) for d in drawn] == [
        ("a.txt:3", {"text": "naïve "}, 9),
        ("a.txt:17", {"text": " two\0\r\rthree"}, 13),
        ("a.txt:30", {"text": "last\r"}, 5),
        ("b/one.txt:0", {"text": "one"}, 4),
    ]
    assert drawn[1].origin == f"{tmp_path}/a.txt, byte 17"


def test_blocks_are_documents_between_blank_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\n \nfirst\r\n  line\r\n\t\r\n\r\nsecond\nblock\n")
    assert [(d.key, d.sample) for d in draw(TextFiles(tmp_path, "block"))] == [
        ("a.txt:3", {"text": "first\r\n  line"}),
        ("a.txt:23", {"text": "second\nblock"}),
    ]


@pytest.mark.parametrize("documents", ["line", "block"])
def test_case_45_a_document_that_is_no_utf8_is_an_error_at_its_place_and_the_next_ones_follow(tmp_path: Path, documents: str) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\n\nna\xefve\n\nthree\n")
    first, second, third = draw(TextFiles(tmp_path, documents))
    assert (first.sample, third.sample) == ({"text": "one"}, {"text": "three"})
    assert str(second.sample) == "expected UTF-8, got the byte 0xef at position 2 of the document"
    assert second.origin == f"{tmp_path}/a.txt, byte 5"


@pytest.mark.parametrize("documents", ["line", "block"])
def test_case_47_white_space_is_no_document_where_it_separates(tmp_path: Path, documents: str) -> None:
    for name, data in {"1": b"", "2": b" \n\n\t\r\n", "3": b"\xef\xbb\xbf", "4": b"x"}.items():
        (tmp_path / f"{name}.txt").write_bytes(data)
    assert texts(tmp_path, documents) == ["x"]


@pytest.mark.parametrize("documents", ["line", "block"])
def test_case_30_a_link_to_nothing_is_an_error_of_its_sample(tmp_path: Path, documents: str) -> None:
    (tmp_path / "a.txt").symlink_to("nowhere")
    (tmp_path / "b.txt").write_text("x")
    broken, good = draw(TextFiles(tmp_path, documents))
    assert (broken.key, str(broken.sample)) == ("a.txt:0", "expected a file, got a link to nothing")
    assert good.sample == {"text": "x"}


@pytest.mark.parametrize("documents", ["line", "block"])
def test_a_file_that_changes_after_it_was_listed_is_refused(tmp_path: Path, documents: str) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    source = TextFiles(tmp_path, documents)
    (part,) = source.parts()
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    with pytest.raises(DataError, match=f"expected the file that was listed, 4 bytes, got one of 9, at {tmp_path}/a.txt"):
        next(source.read(part))


def test_parts_of_lines_are_about_a_mebibyte_and_count_no_samples(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"".join(b"%d " % i + b"x" * 1000 + b"\n" for i in range(3000)))
    (tmp_path / "b.txt").write_text("x")
    source = TextFiles(tmp_path, "line")
    parts = list(source.parts())
    assert [part.number for part in parts] == [0, 1, 2, 3]
    assert all(textfiles.PART_NBYTES <= part.nbytes < textfiles.PART_NBYTES + 1100 for part in parts[:2])
    assert sum(part.nbytes for part in parts) == (tmp_path / "a.txt").stat().st_size + 1
    assert {part.num_samples for part in parts} == {None}
    assert len({part.name for part in [*parts, *TextFiles(tmp_path, "block").parts()]}) == 6, "a part says what its documents are"


@pytest.mark.parametrize("documents", ["line", "block"])
def test_a_line_longer_than_parts_belongs_to_the_one_where_it_starts(tmp_path: Path, documents: str) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\n\n" + b"x" * 5 * textfiles.PART_NBYTES + b"\n\nthree\n\n")
    source = TextFiles(tmp_path, documents)
    assert [[len(d.sample["text"]) for d in source.read(part) if isinstance(d.sample, dict)] for part in source.parts()] == [
        [3, 5 * textfiles.PART_NBYTES],
        [5],
    ]


def test_a_huge_file_without_line_ends_is_listed_in_bounded_memory(tmp_path: Path) -> None:
    with open(tmp_path / "a.txt", "wb") as file:
        file.truncate(100 << 20)
    source = TextFiles(tmp_path, "line")
    tracemalloc.start()
    parts = list(source.parts())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [part.nbytes for part in parts] == [100 << 20]
    assert peak < 1 << 20


def test_case_40_places_in_a_file_go_beyond_32_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(textfiles, "PART_NBYTES", 1 << 31)
    with open(tmp_path / "a.txt", "wb") as file:
        for place, data in {0: b"first\n", 2**31 - 2: b"a\nb\n", 2**32 - 1: b"\nc\n", 2**32 + 2: b"last\n"}.items():
            file.seek(place)
            file.write(data)
    source = TextFiles(tmp_path, "line")
    parts = list(source.parts())
    assert [part.detail[2:] for part in parts] == [(0, 2**31), (2**31, 2**32), (2**32, 2**32 + 7)]
    assert [(d.key, d.sample) for d in source.read(parts[2])] == [
        (f"a.txt:{2**32}", {"text": "c"}),
        (f"a.txt:{2**32 + 2}", {"text": "last"}),
    ]


pieces = st.lists(
    st.sampled_from([b"\n", b"\r\n", b"\r", b" ", b"\t", b"a", "é".encode(), b"\xff", b"\0", b"\xef\xbb\xbf"]) | st.binary(max_size=3)
)


@settings(deadline=None)
@given(pieces.map(b"".join), st.integers(1, 20), st.integers(1, 5), st.sampled_from(["line", "block"]))
@example(b"a\n \n\nb\n", 2, 1, "block")
@example(b"a  \nb\n", 2, 5, "block")
def test_documents_of_any_parts_are_those_of_the_whole_file(data: bytes, part_nbytes: int, piece_nbytes: int, documents: str) -> None:
    expected: list[tuple[int, bytes]] = []
    position, last_blank = 0, True
    for line in data.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        start = position + (3 if data.startswith(b"\xef\xbb\xbf") else 0)
        position += len(line) + 1
        if line.strip():
            if documents == "line" or last_blank:
                expected.append((start, line))
            else:
                expected[-1] = (expected[-1][0], expected[-1][1] + b"\n" + line)
        last_blank = not line.strip()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(textfiles, "PART_NBYTES", part_nbytes)
        patch.setattr(textfiles, "PIECE_NBYTES", piece_nbytes)
        Path(folder, "a.txt").write_bytes(data)
        source = TextFiles(Path(folder, "a.txt"), documents)
        drawn = [d for part in reversed(list(source.parts())) for d in reversed(list(source.read(part)))][::-1]
        ranges = [part.detail[2:] for part in source.parts()]
    assert [start for start, _ in ranges] == [0, *(stop for _, stop in ranges[:-1])]
    assert ranges[-1][1] == len(data)
    assert [d.key for d in drawn] == [f"a.txt:{start}" for start, _ in expected]
    for d, (start, document) in zip(drawn, expected, strict=True):
        ended = start + len(document) < len(data)  # by a line feed
        try:
            text = (document.removesuffix(b"\r") if ended else document).decode()
        except UnicodeDecodeError:
            assert isinstance(d.sample, DataError)
        else:
            assert d.sample == {"text": text}
