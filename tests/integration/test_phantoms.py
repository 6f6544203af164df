"""The phantoms are reproducible, consistent, learnable and written whole or not at all."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from scipy.ndimage import gaussian_filter
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from crsbench import synthetic as phantoms
from crsbench.core.errors import UserError
from crsbench.synthetic import KINDS, check_phantoms, describe, draw, write_phantoms

SETS = [(kind.name, site) for kind in KINDS.values() for site in kind.sites]
DRAWS = 600


@pytest.fixture(scope="module")
def cases():
    """Labels, groups and subgroups of the first images of every set."""
    return {pair: [describe(*pair, index) for index in range(DRAWS)] for pair in SETS}


def test_there_are_three_domains_and_a_second_chest_hospital():
    assert SETS == [
        ("skin", "home"),
        ("fundus", "home"),
        ("chest", "home"),
        ("chest", "foreign"),
    ]
    assert {kind.name: (kind.task, len(kind.classes)) for kind in KINDS.values()} == {
        "skin": ("multiclass", 8),
        "fundus": ("multiclass", 5),
        "chest": ("multilabel", 14),
    }


# Reproducibility


@pytest.mark.parametrize(
    ("kind", "site", "digest"),
    [
        ("skin", "home", "c35b10f84ba06202eaf01d2c3fc3815d2eae2dfecdf88271acbc07d890b3f720"),
        ("fundus", "home", "7af2877805148dcae40cb008e5923646256062b8f5c64bd52fa0b99c31afa5c7"),
        ("chest", "home", "bd77456a62637cfcbd5ca61ab1a144cff4a8fc824c87ad251b462652a174fd98"),
        ("chest", "foreign", "387bc06dda571390b3039c7e6fc21751d8b63cb87a214b34cbbe4893abf73227"),
    ],
)
def test_pixels_are_the_published_ones(kind, site, digest):
    image = draw(kind, site, 7, 96).image
    assert hashlib.sha256(image.tobytes()).hexdigest() == digest


@pytest.mark.parametrize(("kind", "site"), SETS)
def test_a_phantom_depends_on_nothing_but_its_own_name(kind, site):
    forwards = [draw(kind, site, index, 48) for index in range(6)]
    np.random.default_rng().random(3)
    backwards = [draw(kind, site, index, 48) for index in reversed(range(6))][::-1]
    for one, other in zip(forwards, backwards, strict=True):
        assert one.image.tobytes() == other.image.tobytes()
        assert (one.image_id, one.labels, one.group, one.subgroups) == (
            other.image_id,
            other.labels,
            other.group,
            other.subgroups,
        )
    assert len({phantom.image.tobytes() for phantom in forwards}) == 6


@pytest.mark.parametrize(("kind", "site"), SETS)
def test_a_larger_phantom_shows_the_same_picture(kind, site):
    for index in (3, 11):
        small, large = draw(kind, site, index, 96).image, draw(kind, site, index, 192).image
        shrunk = large.resize(small.size, Image.Resampling.BOX)
        difference = np.asarray(small, dtype=float) - np.asarray(shrunk, dtype=float)
        other = np.asarray(draw(kind, site, index + 20, 96).image, dtype=float)
        assert np.abs(difference).mean() < 0.5 * np.abs(other - np.asarray(small)).mean()


# Pictures


@pytest.mark.parametrize("size", [32, 45, 128])
@pytest.mark.parametrize(("kind", "site"), SETS)
def test_image_is_rgb_and_its_short_side_is_the_size(kind, site, size):
    image = draw(kind, site, 0, size).image
    assert image.mode == "RGB"
    assert min(image.size) == size
    assert max(image.size) == (size if kind == "chest" else round(size * 4 / 3))


def test_radiographs_are_grey_and_photographs_are_not():
    for kind, site in SETS:
        pixels = np.asarray(draw(kind, site, 1, 64).image, dtype=int)
        assert (np.ptp(pixels, axis=2).max() == 0) == (kind == "chest")


def test_fundus_photographs_have_a_black_round_border():
    for index in range(10):
        pixels = np.asarray(draw("fundus", "home", index, 96).image, dtype=int)
        assert pixels[:, :6].max() < 30
        assert pixels[40:56, 56:72].mean() > 40


# Labels


@pytest.mark.parametrize(("kind", "site"), SETS)
def test_every_class_has_members_and_the_rarest_are_not_too_rare(cases, kind, site):
    count = Counter(label for case in cases[kind, site] for label in case.labels)
    assert set(count) == set(KINDS[kind].classes)
    shares = {label: number / DRAWS for label, number in count.items()}
    assert min(shares.values()) >= (0.02 if kind == "chest" else 0.03)
    assert max(shares.values()) <= 0.5


@pytest.mark.parametrize("kind", ["skin", "fundus"])
def test_multiclass_phantoms_have_one_label(cases, kind):
    assert {len(case.labels) for case in cases[kind, "home"]} == {1}


def test_naevi_and_healthy_retinas_are_the_most_common(cases):
    for kind, most in (("skin", "NV"), ("fundus", "0")):
        count = Counter(case.labels[0] for case in cases[kind, "home"])
        assert count.most_common(1)[0][0] == most


@pytest.mark.parametrize("site", KINDS["chest"].sites)
def test_no_finding_excludes_every_finding_but_a_device(cases, site):
    beside = set()
    for case in cases["chest", site]:
        assert case.labels, "a radiograph without findings must say No Finding"
        assert list(case.labels) == sorted(set(case.labels), key=KINDS["chest"].classes.index)
        if "No Finding" in case.labels:
            beside |= set(case.labels) - {"No Finding"}
        else:
            assert set(case.labels) != {"Support Devices"}
    assert beside == {"Support Devices"}


def test_only_the_other_hospital_reports_with_errors(cases):
    def errors(site):
        findings = set(KINDS["chest"].classes) - {"No Finding"}
        wrong = [len((set(c.labels) ^ set(c.signs)) & findings) for c in cases["chest", site]]
        return sum(wrong) / (DRAWS * len(findings))

    assert errors("home") == 0
    assert 0.02 < errors("foreign") < 0.08


def test_the_other_hospital_has_other_prevalences(cases):
    def prevalence(site, label):
        return sum(label in case.labels for case in cases["chest", site]) / DRAWS

    assert prevalence("foreign", "Edema") < prevalence("home", "Edema") - 0.03
    assert prevalence("foreign", "Pneumonia") > prevalence("home", "Pneumonia") + 0.03


# Groups and subgroups


@pytest.mark.parametrize(("kind", "site"), SETS)
def test_groups_are_small_and_several_images_share_one(cases, kind, site):
    sizes = Counter(Counter(case.group for case in cases[kind, site]).values())
    assert max(sizes) <= (2 if kind == "fundus" else 4)
    assert sizes[1] > 50
    assert sizes[2] > 20


def _members(cases):
    groups = defaultdict(list)
    for case in cases:
        groups[case.group].append(case)
    return [members for members in groups.values() if len(members) > 1]


def test_images_of_a_lesion_share_class_and_person(cases):
    for members in _members(cases["skin", "home"]):
        assert len({(c.labels, tuple(c.subgroups.items())) for c in members}) == 1


def test_the_eyes_of_a_patient_differ_by_at_most_one_grade(cases):
    steps = set()
    for one, other in _members(cases["fundus", "home"]):
        assert {one.subgroups["eye"], other.subgroups["eye"]} == {"left", "right"}
        assert one.subgroups["age"] == other.subgroups["age"]
        steps.add(abs(int(one.labels[0]) - int(other.labels[0])))
    assert steps == {0, 1}


@pytest.mark.parametrize("site", KINDS["chest"].sites)
def test_radiographs_of_a_patient_share_sex_and_age_not_view(cases, site):
    groups = _members(cases["chest", site])
    for members in groups:
        assert len({(c.subgroups["sex"], c.subgroups["age"]) for c in members}) == 1
    assert any(len({c.subgroups["view"] for c in members}) == 2 for members in groups)


@pytest.mark.parametrize(("kind", "site"), SETS)
def test_every_subgroup_is_filled_and_none_is_rare(cases, kind, site):
    for case in cases[kind, site]:
        assert tuple(case.subgroups) == KINDS[kind].subgroups
    for column in KINDS[kind].subgroups:
        count = Counter(case.subgroups[column] for case in cases[kind, site])
        assert len(count) >= 2
        assert min(count.values()) > 0.08 * DRAWS


def test_skin_tone_is_independent_of_the_lesion(cases):
    naevi = [c.subgroups["skin_tone"] for c in cases["skin", "home"] if c.labels == ("NV",)]
    others = [c.subgroups["skin_tone"] for c in cases["skin", "home"] if c.labels != ("NV",)]
    for tone in set(naevi):
        assert abs(naevi.count(tone) / len(naevi) - others.count(tone) / len(others)) < 0.15


# Learnability


def _simple_features(image: Image.Image) -> np.ndarray:
    """A coarse thumbnail, and how much fine structure there is at three scales."""
    pixels = np.asarray(image, dtype=float) / 255
    left = (pixels.shape[1] - pixels.shape[0]) // 2
    square = pixels[:, left : left + pixels.shape[0]]
    thumbnail = Image.fromarray((square * 255).astype(np.uint8)).resize((10, 10))
    edge = square.shape[0] // 8
    middle = square[edge:-edge, edge:-edge]
    fine = [
        np.percentile(
            middle - gaussian_filter(middle, (sigma, sigma, 0)),
            (0.3, 1, 5, 25, 75, 95, 99, 99.7),
            axis=(0, 1),
        ).ravel()
        for sigma in (1, 2.5, 6)
    ]
    return np.concatenate([np.asarray(thumbnail, dtype=float).ravel() / 255, *fine])


@pytest.mark.parametrize("kind", KINDS)
def test_simple_features_learn_the_classes_but_not_perfectly(kind):
    drawn = [draw(kind, "home", index, 96) for index in range(280)]
    x = np.stack([_simple_features(phantom.image) for phantom in drawn])
    y = np.array([[c in phantom.labels for c in KINDS[kind].classes] for phantom in drawn])
    scores = np.zeros(y.shape)
    for train, test in GroupKFold(4).split(x, groups=[phantom.group for phantom in drawn]):
        for label in range(y.shape[1]):
            probe = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=300))
            scores[test, label] = probe.fit(x[train], y[train, label]).decision_function(x[test])
    macro = np.mean([roc_auc_score(y[:, k], scores[:, k]) for k in range(y.shape[1])])
    assert 0.65 < macro < 0.95


def test_the_other_hospital_has_less_contrast():
    def contrast(site):
        films = [np.asarray(draw("chest", site, i, 64).image, dtype=float) for i in range(40)]
        return np.mean([film[12:52, 12:52].std() for film in films])

    assert contrast("foreign") < 0.9 * contrast("home")


# Files


def _tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize(("kind", "site"), SETS)
def test_written_table_and_images_are_what_is_drawn(tmp_path, kind, site):
    write_phantoms(tmp_path, kind, site, 5, 40)
    table = pd.read_csv(tmp_path / "table.csv", dtype=str, keep_default_na=False)
    assert list(table) == ["image_id", "path", "label", "group", *KINDS[kind].subgroups]
    assert list(table["image_id"]) == [f"{kind}-{site}-{index:05d}" for index in range(5)]
    for index, row in table.iterrows():
        phantom = draw(kind, site, index, 40)
        assert tuple(row["label"].split("|")) == phantom.labels
        assert row["group"] == phantom.group
        assert dict(row[list(KINDS[kind].subgroups)]) == phantom.subgroups
        with Image.open(tmp_path / row["path"]) as image:
            assert image.format == "PNG"
            assert not image.info
            assert image.tobytes() == phantom.image.tobytes()
    assert set(_tree(tmp_path)) == {"table.csv", "digests.json", *table["path"]}
    check_phantoms(tmp_path)


@pytest.mark.parametrize("damaged", ["table.csv", "digests.json", "images/skin-home-00001.png"])
def test_a_changed_phantom_file_is_named(tmp_path, damaged):
    write_phantoms(tmp_path, "skin", "home", 2, 40)
    content = bytearray((tmp_path / damaged).read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / damaged).write_bytes(content)
    with pytest.raises(UserError, match=rf"{damaged} is not .*; delete .* and rerun"):
        check_phantoms(tmp_path)


def test_a_rerun_after_a_kill_gives_the_same_bytes(tmp_path, monkeypatch):
    write_phantoms(tmp_path / "whole", "skin", "home", 6, 40)
    broken = tmp_path / "broken"
    write_phantoms(broken, "skin", "home", 2, 40)

    def killed_at_the_fourth(kind, site, index, size):
        if index == 3:
            raise KeyboardInterrupt
        return draw(kind, site, index, size)

    with monkeypatch.context() as patch:
        patch.setattr(phantoms, "draw", killed_at_the_fourth)
        with pytest.raises(KeyboardInterrupt):
            write_phantoms(broken, "skin", "home", 6, 40)
    assert not (broken / "table.csv").exists(), "a table must not vouch for missing images"
    assert len(list((broken / "images").iterdir())) == 3
    # A harder kill (power, SIGKILL) leaves its temporary files behind.
    (broken / "images/.skin-home-00003.png.0badcafe.part").write_bytes(b"half an ima")
    (broken / ".table.csv.0badcafe.part").write_bytes(b"image_id,pa")
    write_phantoms(broken, "skin", "home", 6, 40)
    assert _tree(broken) == _tree(tmp_path / "whole")


# Errors


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("brain", "home", 1, 64), ("'brain'", "skin, fundus, chest")),
        (("skin", "foreign", 1, 64), ("'foreign'", "'skin'", "home")),
        (("chest", "elsewhere", 1, 64), ("'elsewhere'", "home, foreign")),
        (("chest", "home", 1, 31), ("31", "32")),
        (("chest", "home", 0, 64), ("0", "at least 1")),
    ],
)
def test_a_bad_request_names_the_value_and_what_is_allowed(tmp_path, arguments, parts):
    with pytest.raises(UserError) as error:
        write_phantoms(tmp_path / "phantoms", *arguments)
    assert all(part in str(error.value) for part in parts)
    assert not (tmp_path / "phantoms").exists()


def test_draw_checks_its_request_too():
    for arguments in (
        ("brain", "home", 0, 64),
        ("skin", "elsewhere", 0, 64),
        ("skin", "home", 0, 8),
    ):
        with pytest.raises(UserError):
            draw(*arguments)
    with pytest.raises(ValueError, match="-1"):
        draw("skin", "home", -1, 64)
