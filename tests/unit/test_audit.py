"""The audit finds what is wrong with a data set, and what it finds has its consequence."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance

from crsbench.config.model import DatasetEntry
from crsbench.core.errors import UserError
from crsbench.core.files import read_table
from crsbench.data.audit import NEAR_BITS, write_audit
from crsbench.data.manifest import read_manifest, write_manifest
from crsbench.data.near_duplicates import BITS, near_pairs, perceptual_hash
from crsbench.data.scan import ScannedImage, scan_image, scan_images
from crsbench.data.splits import (
    DROPPED,
    TEST,
    TRAIN,
    choose_test,
    make_split,
    read_split,
    write_split,
    write_test,
)

Entry = Callable[..., DatasetEntry]
FRACTIONS = (1, 5, 10, 25, 100)
LIMIT = 10**6


def scene(seed: int, size: tuple[int, int] = (80, 60), knots: int = 9) -> Image.Image:
    """A smooth coloured picture with some structure in it, as photographs have."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (knots, knots * 4 // 3, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


def write_set(root: Path, rows: list[tuple[str, str, str, Image.Image]]) -> None:
    """A table of id, label, patient with its PNG images."""
    root.mkdir(parents=True, exist_ok=True)
    for name, _, _, image in rows:
        image.save(root / f"{name}.png")
    table = pd.DataFrame([row[:3] for row in rows], columns=["id", "label", "patient"])
    table.assign(path=table["id"] + ".png").to_csv(root / "table.csv", index=False)


@pytest.fixture
def entry(table_entry: Entry) -> Entry:
    columns = {"id": "id", "path": "path", "label": "label", "group": "patient"}
    return lambda **changes: table_entry(columns=columns | {"subgroups": ["patient"]}, **changes)


def prepare(
    entry: DatasetEntry,
    root: Path,
    out: Path,
    workers: int = 1,
    targets: dict[str, Path] | None = None,
) -> dict[str, Any]:
    """The data rules of the workflow: manifest, test set, two splits, audit."""
    manifest, images = out / "manifest.parquet", out / "images.parquet"
    write_manifest(manifest, images, entry, root, max_pixels=LIMIT, workers=workers)
    write_test(out / "test.parquet", manifest, 0.2)
    splits = {seed: out / f"seed{seed}.parquet" for seed in (0, 1)}
    for seed, file in splits.items():
        write_split(file, manifest, out / "test.parquet", seed, FRACTIONS, 0.125)
    write_audit(out / "audit.json", entry, manifest, images, splits, targets or {})
    return json.loads((out / "audit.json").read_text("utf-8"))


def plain_rows(n: int = 60) -> list[tuple[str, str, str, Image.Image]]:
    """Images i000, i001, …, labels a and b in turn, two images a patient."""
    return [(f"i{k:03d}", "ab"[k % 2], f"p{k // 2}", scene(k)) for k in range(n)]


# Files


def test_a_clean_set_is_found_clean_and_counted(entry: Entry, tmp_path: Path) -> None:
    write_set(tmp_path / "small", plain_rows())
    audit = prepare(entry(expected_images=60), tmp_path / "small", tmp_path / "out")
    assert audit["images"] == 60
    assert audit["rows"] == {"expected": 60, "found": 60, "as_expected": True, "left_out": {}}
    assert audit["files"]["damaged"] == {"count": 0, "listed": []}
    assert audit["files"]["modes"] == {"RGB": 60}
    assert audit["labels"] == {
        "classes": {"a": 30, "b": 30},
        "unknown": {"a": 0, "b": 0},
        "without_any": 0,
    }
    assert audit["groups"]["count"] == 30
    assert audit["groups"]["crossing_parts"] == {"0": 0, "1": 0}
    for kind in ("exact", "conflicting"):
        assert audit["duplicates"][kind]["pairs"] == 0
    split = audit["splits"]["0"]
    assert sum(part["images"] for part in split["parts"].values()) == 60
    train, whole = split["parts"]["train"], split["fractions"]["100"]
    assert {name: whole[name] for name in train} == train


def test_a_count_that_is_not_the_publishers_is_reported(entry: Entry, tmp_path: Path) -> None:
    write_set(tmp_path / "small", plain_rows())
    audit = prepare(entry(expected_images=61), tmp_path / "small", tmp_path / "out")
    assert audit["rows"]["as_expected"] is False
    assert (audit["rows"]["expected"], audit["rows"]["found"]) == (61, 60)


def harm_three(root: Path) -> None:
    (root / "i001.png").unlink()
    (root / "i003.png").write_bytes((root / "i003.png").read_bytes()[:900])
    (root / "i004.png").write_bytes(b"no image")


def test_damaged_images_stop_the_run(entry: Entry, tmp_path: Path) -> None:
    write_set(tmp_path / "small", plain_rows())
    harm_three(tmp_path / "small")
    with pytest.raises(UserError, match=r"3 of 60 images .* the first is 'i001.png' .*missing"):
        prepare(entry(), tmp_path / "small", tmp_path / "out")
    assert not list(tmp_path.glob("out/*.parquet"))


def test_quarantined_images_are_left_out_for_all_and_named(entry: Entry, tmp_path: Path) -> None:
    write_set(tmp_path / "small", plain_rows())
    harm_three(tmp_path / "small")
    audit = prepare(
        entry(damaged_images="quarantine", expected_images=60),
        tmp_path / "small",
        tmp_path / "out",
    )
    damaged = audit["files"]["damaged"]
    assert [example["image_id"] for example in damaged["listed"]] == ["i001", "i003", "i004"]
    assert damaged["count"] == 3
    assert str(tmp_path) not in json.dumps(damaged)
    assert audit["images"] == 57
    assert audit["rows"]["as_expected"] is True
    assert not {"i001", "i003", "i004"} & {
        *read_manifest(tmp_path / "out/manifest.parquet").image_ids
    }


def test_a_set_of_damaged_images_only_is_refused(entry: Entry, tmp_path: Path) -> None:
    write_set(tmp_path / "small", plain_rows(2))
    for name in ("i000", "i001"):
        (tmp_path / "small" / f"{name}.png").write_bytes(b"")
    with pytest.raises(UserError, match="2 of 2 images"):
        prepare(entry(damaged_images="quarantine"), tmp_path / "small", tmp_path / "out")


def test_constant_and_oddly_stored_images_are_named(entry: Entry, tmp_path: Path) -> None:
    rows = plain_rows()
    rows[7] = (*rows[7][:3], Image.new("RGB", (30, 30), (9, 9, 200)))
    rows[8] = (*rows[8][:3], scene(8).convert("RGBA"))
    rows[9] = (*rows[9][:3], scene(9).convert("P"))
    rows[10] = (*rows[10][:3], scene(10).convert("L"))
    write_set(tmp_path / "small", rows)
    files = prepare(entry(), tmp_path / "small", tmp_path / "out")["files"]
    assert files["constant_colour"] == {"count": 1, "listed": ["i007"]}
    assert files["modes"] == {"L": 1, "P": 1, "RGB": 57, "RGBA": 1}
    assert files["odd_mode"] == {"count": 3, "listed": ["i008", "i009", "i010"]}
    assert files["short_side"] == {"smallest": 30, "largest": 60}


# Duplicates


def clashing_rows() -> list[tuple[str, str, str, Image.Image]]:
    """Ten pairs of equal files with different labels, two pairs with equal ones, and others."""
    rows = [
        (f"clash{k}{side}", label, f"clash{k}{side}", scene(1000 + k))
        for k in range(10)
        for side, label in (("x", "a"), ("y", "b"))
    ]
    agreeing = [
        (f"same{k}{side}", "a", f"same{k}{side}", scene(2000 + k))
        for k in range(2)
        for side in "xy"
    ]
    return [*plain_rows(), *rows, *agreeing]


def test_duplicates_share_a_group_and_conflicting_ones_are_not_fitted_on(
    entry: Entry, tmp_path: Path
) -> None:
    write_set(tmp_path / "small", clashing_rows())
    duplicates = prepare(entry(), tmp_path / "small", tmp_path / "out")["duplicates"]
    assert (duplicates["exact"]["pairs"], duplicates["exact"]["images"]) == (12, 24)
    assert duplicates["conflicting"]["pairs"] == 10
    assert duplicates["conflicting"]["dropped_from_fitting"] == 20
    manifest = read_manifest(tmp_path / "out/manifest.parquet")
    clashing = np.char.startswith(manifest.image_ids, "clash")
    assert (manifest.dropped == clashing).all()
    split = read_split(tmp_path / "out/seed0.parquet", manifest)
    assert set(split.part[clashing]) == {DROPPED, TEST}
    assert DROPPED not in split.part[~clashing]
    assert (split.percent[clashing] == 0).all()
    assert (
        duplicates["conflicting"]["kept_in_test"]["0"] == (split.part[clashing] == TEST).sum() > 0
    )


def test_conflicting_duplicates_can_be_kept(entry: Entry, tmp_path: Path) -> None:
    write_set(tmp_path / "small", clashing_rows())
    kept = entry(conflicting_duplicates="keep")
    duplicates = prepare(kept, tmp_path / "small", tmp_path / "out")["duplicates"]
    assert duplicates["conflicting"]["pairs"] == 10
    assert duplicates["conflicting"]["policy"] == "keep"
    assert duplicates["conflicting"]["dropped_from_fitting"] == 0
    manifest = read_manifest(tmp_path / "out/manifest.parquet")
    assert DROPPED not in read_split(tmp_path / "out/seed0.parquet", manifest).part


def test_a_group_with_a_dropped_image_is_still_trained_on(entry: Entry, tmp_path: Path) -> None:
    rows = plain_rows(200)
    rows += [(f"x{k}", "a", f"p{k}", scene(5000 + k)) for k in range(60)]
    rows += [(f"y{k}", "b", f"p{k}", scene(5000 + k)) for k in range(60)]
    write_set(tmp_path / "small", rows)
    prepare(entry(), tmp_path / "small", tmp_path / "out")
    manifest = read_manifest(tmp_path / "out/manifest.parquet")
    split = make_split(manifest, choose_test(manifest, 0.2), 0, FRACTIONS, 0.125)
    dropped_groups = set(manifest.groups[split.part == DROPPED])
    assert dropped_groups & set(manifest.groups[split.part == TRAIN])


def test_a_class_of_dropped_images_only_gets_no_floor(entry: Entry, tmp_path: Path) -> None:
    rows = [(f"i{k:03d}", "ab"[k % 2], f"p{k}", scene(k)) for k in range(60)]
    rows += [(f"c{k}", "c", f"c{k}", scene(k)) for k in range(0, 60, 3)]  # copies of i000, i003 …
    write_set(tmp_path / "small", rows)
    out = tmp_path / "out"
    audit = prepare(entry(classes=["a", "b", "c"]), tmp_path / "small", out)
    for split in audit["splits"].values():
        assert split["parts"]["train"]["classes"]["c"] == 0
        assert all("c" not in part["given_one_group"] for part in split["fractions"].values())


def test_images_of_a_shift_target_that_the_source_has_too_are_counted(
    entry: Entry, tmp_path: Path
) -> None:
    write_set(tmp_path / "elsewhere", [("x0", "a", "q", scene(0)), ("x1", "b", "q", scene(9000))])
    prepare_target = tmp_path / "elsewhere.parquet", tmp_path / "elsewhere-images.parquet"
    write_manifest(*prepare_target, entry(), tmp_path / "elsewhere", max_pixels=LIMIT, workers=1)
    write_set(tmp_path / "small", plain_rows())
    targets = {"elsewhere": prepare_target[0]}
    audit = prepare(entry(), tmp_path / "small", tmp_path / "out", targets=targets)
    found = audit["shift_targets"]["elsewhere"]
    assert found["images"] == 2
    assert found["also_in_source"] == {"count": 1, "listed": ["x0"]}
    manifest = read_manifest(tmp_path / "out/manifest.parquet")
    for seed in (0, 1):
        part = read_split(tmp_path / f"out/seed{seed}.parquet", manifest).part
        fitted = part[manifest.image_ids == "i000"] != TEST
        assert found["also_fitted_on"][str(seed)] == fitted.sum()


def test_near_duplicates_of_one_patient_are_distinguished_from_those_across_patients(
    entry: Entry, tmp_path: Path
) -> None:
    rows = plain_rows(40)
    rows += [("same", "a", "p0", ImageEnhance.Contrast(scene(0)).enhance(0.9))]
    rows += [("other", "a", "else", ImageEnhance.Contrast(scene(4)).enhance(0.9))]
    write_set(tmp_path / "small", rows)
    near = prepare(entry(), tmp_path / "small", tmp_path / "out")["duplicates"]["near"]
    assert (near["pairs"], near["across_groups"]) == (2, 1)
    assert [pair["images"] for pair in near["listed"]] == [["i004", "other"]]


def test_near_duplicates_are_found_and_counted_across_the_test_set(
    entry: Entry, tmp_path: Path
) -> None:
    rows = plain_rows(40)
    rows += [
        (
            f"copy{k:03d}",
            "ab"[(k + 1) % 2],
            f"copy{k}",
            ImageEnhance.Contrast(scene(k)).enhance(0.9),
        )
        for k in range(40)
    ]
    write_set(tmp_path / "small", rows)
    duplicates = prepare(entry(), tmp_path / "small", tmp_path / "out")["duplicates"]
    assert duplicates["exact"]["pairs"] == 0
    near = duplicates["near"]
    assert near["pairs"] == near["with_other_labels"] == 40
    assert ["copy000", "i000"] in [pair["images"] for pair in near["listed"]]
    assert len(near["listed"]) == near["across_groups"] == 40
    manifest = read_manifest(tmp_path / "out/manifest.parquet")
    part = dict(
        zip(
            manifest.image_ids,
            read_split(tmp_path / "out/seed0.parquet", manifest).part,
            strict=True,
        )
    )
    crossing = sum((part[f"i{k:03d}"] == TEST) != (part[f"copy{k:03d}"] == TEST) for k in range(40))
    assert near["crossing_parts"]["0"] == crossing > 0


def test_a_resized_recompressed_copy_has_nearly_the_same_hash_and_others_have_not(
    tmp_path: Path,
) -> None:
    def distance(one: Image.Image, other: Image.Image) -> int:
        bits = [int(perceptual_hash(image), 16) for image in (one, other)]
        return (bits[0] ^ bits[1]).bit_count()

    for seed in range(10):
        image = scene(seed, (400, 300), 24)
        image.resize((280, 210)).save(tmp_path / "copy.jpg", quality=70)
        with Image.open(tmp_path / "copy.jpg") as copy:
            assert distance(image, copy) <= NEAR_BITS
        assert distance(image, scene(seed + 100, (400, 300), 24)) > 5 * NEAR_BITS


@given(st.integers(0, 10_000), st.integers(3, 20))
def test_near_pairs_are_those_of_comparing_all_with_all(seed: int, most: int) -> None:
    random = np.random.default_rng(seed)
    bits = random.integers(0, 2, (40, BITS), dtype=np.uint8)
    for row in range(20, 40):  # each a copy with up to 24 bits flipped
        bits[row] = bits[row - 20]
        bits[row, random.permutation(BITS)[: random.integers(0, 25)]] ^= 1
    hashes = np.array([row.tobytes().hex() for row in np.packbits(bits, axis=1)])
    distance = (bits[:, None] != bits[None]).sum(axis=2)
    first, second = np.nonzero(np.triu(distance <= most, 1))
    wanted = np.stack([first, second, distance[first, second]], axis=1)
    assert near_pairs(hashes, most).tolist() == wanted.tolist()


def test_near_pairs_of_nothing_are_none() -> None:
    assert near_pairs(np.array([], dtype=str), NEAR_BITS).shape == (0, 3)
    with pytest.raises(ValueError, match="most is 2"):
        near_pairs(np.array(["00" * 32]), 2)


# The scan


def test_a_scan_is_the_same_whatever_the_workers_and_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_set(tmp_path / "small", plain_rows(20))
    paths = [f"i{k:03d}.png" for k in range(20)]

    def scan(cache: str, workers: int, n: int = 20) -> pd.DataFrame:
        return scan_images(
            tmp_path / "small",
            paths[:n],
            label="small",
            max_pixels=LIMIT,
            cache_file=tmp_path / cache,
            workers=workers,
        )

    whole = scan("one", 1)
    pd.testing.assert_frame_equal(scan("two", 2), whole)
    scan("three", 1, n=12)
    with (tmp_path / "three").open("a") as cache:
        cache.write('["123 456 1000000", {"path": "i0')  # what a kill leaves
    scanned = []

    def counting(root: Path, path: str, **limits: Any) -> ScannedImage:
        scanned.append(path)
        return scan_image(root, path, **limits)

    monkeypatch.setattr("crsbench.data.scan.scan_image", counting)
    pd.testing.assert_frame_equal(scan("three", 1), whole)
    assert scanned == paths[12:]
    lines = (tmp_path / "one").read_text().splitlines(keepends=True)
    lines[5] = lines[5].replace('"constant": false', '"constant": true')
    (tmp_path / "one").write_text("".join(lines))
    scanned.clear()
    pd.testing.assert_frame_equal(scan("one", 1), whole)
    assert scanned == [paths[5]]


def test_a_changed_file_is_scanned_anew(entry: Entry, tmp_path: Path) -> None:
    write_set(tmp_path / "small", plain_rows())
    before = prepare(entry(), tmp_path / "small", tmp_path / "out")
    scene(77).save(tmp_path / "small" / "i002.png")
    scene(77).save(tmp_path / "small" / "i005.png")
    after = prepare(entry(), tmp_path / "small", tmp_path / "out")
    assert before["duplicates"]["exact"]["pairs"] == 0
    assert after["duplicates"]["exact"]["listed"] == [["i002", "i005"]]


def test_an_image_beyond_the_pixel_limit_is_damaged(entry: Entry, tmp_path: Path) -> None:
    rows = [*plain_rows(), ("huge", "a", "p0", Image.new("L", (1001, 1000)))]
    write_set(tmp_path / "small", rows)
    with pytest.raises(UserError, match=r"'huge.png' .*1001 × 1000 pixels, more than .*1000000"):
        prepare(entry(), tmp_path / "small", tmp_path / "out")


def test_an_audit_is_the_same_bytes_for_shuffled_rows_and_two_workers(
    entry: Entry, tmp_path: Path
) -> None:
    rows = clashing_rows()
    for number, order in enumerate((rows, rows[::-1])):
        write_set(tmp_path / "small", order)
        prepare(entry(), tmp_path / "small", tmp_path / f"out{number}", workers=number + 1)
    for name in ("audit.json", "manifest.parquet", "images.parquet", "seed1.parquet"):
        assert (tmp_path / "out0" / name).read_bytes() == (tmp_path / "out1" / name).read_bytes()


# The real samples


@pytest.fixture(scope="session")
def sample(home: Path) -> Callable[[str], tuple[DatasetEntry, Path]]:
    """A sample entry of the registry and its folder; skips where the samples are not there."""
    samples = Path(os.environ.get("CRSBENCH_SAMPLES", home.parent / "shared" / "data"))
    registry = yaml.safe_load((home / "config" / "datasets.yaml").read_text("utf-8"))

    def find(name: str) -> tuple[DatasetEntry, Path]:
        spec = registry[name]
        root = samples / spec["root"]
        if not root.is_dir():
            pytest.skip(f"no sample images in {root} (set CRSBENCH_SAMPLES)")
        return DatasetEntry(name, name, spec["task"], tuple(spec["classes"]), (), spec), root

    return find


Sample = Callable[[str], tuple[DatasetEntry, Path]]


def test_idrid_has_six_duplicate_pairs_three_with_other_grades(
    sample: Sample, tmp_path: Path
) -> None:
    audit = prepare(*sample("sample_idrid"), tmp_path)
    assert audit["images"] == 516
    assert audit["labels"]["classes"] == {"0": 168, "1": 25, "2": 168, "3": 93, "4": 62}
    assert audit["duplicates"]["exact"]["listed"] == [
        ["test_IDRiD_064", "train_IDRiD_118"],
        ["train_IDRiD_021", "train_IDRiD_391"],
        ["train_IDRiD_028", "train_IDRiD_327"],
        ["train_IDRiD_045", "train_IDRiD_333"],
        ["train_IDRiD_073", "train_IDRiD_375"],
        ["train_IDRiD_079", "train_IDRiD_279"],
    ]
    assert audit["duplicates"]["conflicting"]["pairs"] == 3
    assert audit["groups"]["crossing_parts"] == {"0": 0, "1": 0}


def test_no_patient_of_nih_crosses_and_its_rgba_images_decode(
    sample: Sample, tmp_path: Path
) -> None:
    entry, root = sample("sample_nih_pa")
    spec = {key: value for key, value in entry.spec.items() if key != "where"}
    both_views = DatasetEntry("nih", "NIH", entry.task, entry.classes, (), spec)
    audit = prepare(both_views, root, tmp_path)
    assert audit["images"] == 1000
    assert audit["files"]["modes"] == {"RGB": 979, "RGBA": 21}
    assert audit["files"]["damaged"]["count"] == 0
    assert audit["groups"]["count"] == 264
    assert audit["groups"]["crossing_parts"] == {"0": 0, "1": 0}


def test_no_lesion_of_isic_2017_crosses(sample: Sample, tmp_path: Path) -> None:
    entry, root = sample("sample_isic2017")
    audit = prepare(entry, root, tmp_path)
    assert audit["images"] == 1036
    assert audit["labels"]["classes"] == {"MEL": 300, "NV": 350, "BKL": 386}
    assert audit["groups"]["largest"] > 1
    lesions = pd.read_csv(root / "table.csv")["lesion_id"]
    assert audit["groups"]["images_of_unknown_group"] == lesions.isna().sum() > 600
    assert audit["groups"]["crossing_parts"] == {"0": 0, "1": 0}
    _, metadata = read_table(tmp_path / "manifest.parquet")
    assert metadata["left_out"] == {}
