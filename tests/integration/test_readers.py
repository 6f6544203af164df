"""Each publisher's layout, built in miniature, is read as it is; what is wrong is reported."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from PIL import Image

from crsbench.config.load import load_config
from crsbench.config.model import Config, DatasetEntry
from crsbench.config.sources import image_root
from crsbench.core.errors import UserError
from crsbench.core.hashing import sha256_number
from crsbench.data.manifest import read_manifest, write_manifest
from crsbench.data.readers import READERS, read_images, source_tables
from worlds.publishers import (
    Entry,
    write_chexpert,
    write_chexpert_batches,
    write_csv,
    write_image,
    write_mimic,
)

ISIC_CLASSES = ["MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC", "UNK"]
NIH_COLUMNS = [
    *("Image Index", "Finding Labels", "Follow-up #", "Patient ID", "Patient Age"),
    *("Patient Gender", "View Position", "OriginalImage[Width", "Height]"),
    *("OriginalImagePixelSpacing[x", "y]"),
]


def labels_of(entry: DatasetEntry, frame: pd.DataFrame) -> dict[str, set[str]]:
    """The names of each image's labels."""
    return {
        row.image_id: {entry.classes[k] for k in np.flatnonzero(row.labels)}
        for row in frame.itertuples()
    }


def column_of(frame: pd.DataFrame, name: str) -> dict[str, str]:
    return dict(zip(frame["image_id"], frame[name], strict=True))


def all_images_exist(frame: pd.DataFrame, root: Path) -> bool:
    return all((root / path).is_file() for path in frame["path"])


# CheXpert


def test_chexpert_has_its_frontal_images_by_patient(entry_of: Entry, tmp_path: Path) -> None:
    entry, root = entry_of("chexpert"), write_chexpert(tmp_path / "CheXpert-v1.0")
    found = read_images(entry, root)
    assert labels_of(entry, found.frame) == {
        "train/patient00001/study1/view1_frontal": {"Edema"},
        "train/patient21513/study1/view1_frontal": {"No Finding"},
        "train/patient21514/study2/view1_frontal": set(),
        "train/patient43018/study1/view1_frontal": set(),
        "train/patient64540/study1/view1_frontal": {"Fracture"},
        "valid/patient64541/study1/view1_frontal": {"Support Devices"},
    }
    assert found.left_out == {"lateral view": 2}
    assert found.frame["group"].tolist()[0] == "group:patient00001"
    assert found.frame["sex"].tolist() == ["female", "male", "male", "", "male", "male"]
    assert found.frame["age_band"].tolist()[:3] == ["0-17", "0-17", "80+"]
    assert found.frame["view"].tolist() == ["AP", "AP", "PA", "AP", "LL", "AP"]
    assert all_images_exist(found.frame, root)


def test_every_layout_of_chexpert_gives_the_same_images(entry_of: Entry, tmp_path: Path) -> None:
    entry = entry_of("chexpert")
    roots = [
        write_chexpert(tmp_path / "full" / "CheXpert-v1.0"),
        write_chexpert(tmp_path / "renamed folder", "CheXpert-v1.0-small"),
        write_chexpert_batches(tmp_path / "chexpertchestxrays-u20210408"),
    ]
    frames = [read_images(entry, root).frame for root in roots]
    for frame, root in zip(frames, roots, strict=True):
        assert all_images_exist(frame, root)
        rest = frame.drop(columns="path")
        pd.testing.assert_frame_equal(rest, frames[0].drop(columns="path"))
    by_patient = column_of(frames[2], "path")
    assert by_patient["train/patient21513/study1/view1_frontal"].startswith(
        "CheXpert-v1.0 batch 2 (train 1)/patient21513/"
    )
    assert by_patient["train/patient21514/study2/view1_frontal"].startswith(
        "CheXpert-v1.0 batch 3 (train 2)/patient21514/"
    )


@pytest.mark.parametrize(
    ("uncertain", "positive", "unknown"),
    [
        (None, 0, 0),
        ("zeros", 0, 0),
        ("ones", 3, 0),
        ("ignore", 0, 3),
        ({"Atelectasis": "ones", "Edema": "ones", "Consolidation": "zeros"}, 2, 0),
        ({"Atelectasis": "ones", "Edema": "ignore"}, 1, 1),
    ],
)
def test_uncertain_findings_follow_the_rule(
    uncertain: Any, positive: int, unknown: int, entry_of: Entry, tmp_path: Path
) -> None:
    entry = entry_of("chexpert", uncertain=uncertain)
    frame = read_images(entry, write_chexpert(tmp_path)).frame
    certain = 4  # one Edema, No Finding, Fracture and Support Devices
    labels = np.stack(frame["labels"])
    assert (labels == 1).sum() == certain + positive
    assert (labels == -1).sum() == unknown


def test_unknown_labels_are_carried_and_counted(entry_of: Entry, tmp_path: Path) -> None:
    from crsbench.data.audit import _labels

    entry, root = entry_of("chexpert", uncertain="ignore"), write_chexpert(tmp_path / "release")
    files = tmp_path / "manifest.parquet", tmp_path / "images.parquet"
    write_manifest(*files, entry, root, max_pixels=10**6, workers=1)
    manifest = read_manifest(files[0])
    assert (manifest.truth == np.stack(read_images(entry, root).frame["labels"])).all()
    counts = _labels(manifest)
    ignored = {name for name, n in counts["unknown"].items() if n}
    assert ignored == {"Pneumonia", "Edema", "Atelectasis"}
    assert counts["classes"]["Edema"] == 1
    assert counts["classes"]["Pneumonia"] == 0
    assert counts["without_any"] == (manifest.truth != 1).all(axis=1).sum()


# ISIC 2019


def write_isic(root: Path) -> Path:
    images = {  # id: class, age, site, lesion, sex
        "ISIC_0000001": ("NV", 55, "anterior torso", "HAM_0000002", "female"),
        "ISIC_0000002": ("NV", 55, "anterior torso", "HAM_0000002", "female"),
        "ISIC_0000003_downsampled": ("MEL", 0, None, "MSK4_0011169", None),
        "ISIC_0000004": ("SCC", 85, "head/neck", "BCN_0000550", "male"),
        "ISIC_0000005_downsampled": ("BKL", None, "lower extremity", None, "male"),
    }
    write_csv(
        root / "ISIC_2019_Training_GroundTruth.csv",
        ["image", *ISIC_CLASSES],
        [[name, *(float(c == row[0]) for c in ISIC_CLASSES)] for name, row in images.items()],
    )
    write_csv(
        root / "ISIC_2019_Training_Metadata.csv",
        ["image", "age_approx", "anatom_site_general", "lesion_id", "sex"],
        [[name, *row[1:]] for name, row in reversed(images.items())],
    )
    for name in images:
        write_image(root / "ISIC_2019_Training_Input" / f"{name}.jpg")
    return root


def test_isic_is_grouped_by_lesion_and_keeps_downsampled_in_its_ids(
    entry_of: Entry, tmp_path: Path
) -> None:
    entry = entry_of("isic2019")
    frame = read_images(entry, write_isic(tmp_path)).frame
    assert column_of(frame, "group") == {
        "ISIC_0000001": "group:HAM_0000002",
        "ISIC_0000002": "group:HAM_0000002",
        "ISIC_0000003_downsampled": "group:MSK4_0011169",
        "ISIC_0000004": "group:BCN_0000550",
        "ISIC_0000005_downsampled": "image:ISIC_0000005_downsampled",
    }
    assert [labels.pop() for labels in labels_of(entry, frame).values()] == [
        *("NV", "NV", "MEL", "SCC", "BKL")
    ]
    assert frame["source"].tolist() == ["HAM", "HAM", "MSK", "BCN", "unknown"]
    assert frame["age_band"].tolist() == ["40-59", "40-59", "0-17", "80+", ""]
    assert frame["sex"].tolist() == ["female", "female", "", "male", "male"]
    assert all_images_exist(frame, tmp_path)


def test_leaving_one_source_out_divides_isic(entry_of: Entry, tmp_path: Path) -> None:
    root = write_isic(tmp_path)
    ids = {
        name: set(read_images(entry_of(f"isic2019_{name}"), root).frame["image_id"])
        for name in ("bcn", "ham", "msk", "without_bcn", "without_ham", "without_msk")
    }
    everything = set(read_images(entry_of("isic2019"), root).frame["image_id"])
    for source in ("bcn", "ham"):
        assert ids[source] | ids[f"without_{source}"] == everything
        assert not ids[source] & ids[f"without_{source}"]
    assert everything - ids["without_msk"] == ids["msk"] | {"ISIC_0000005_downsampled"}


# APTOS 2019 and its shift targets


def test_aptos_has_a_grade_an_image_and_no_groups(entry_of: Entry, tmp_path: Path) -> None:
    entry = entry_of("aptos2019")
    write_csv(tmp_path / "train.csv", ["id_code", "diagnosis"], [["000c1434d8d7", 2], ["ffff", 0]])
    for name in ("000c1434d8d7", "ffff"):
        write_image(tmp_path / "train_images" / f"{name}.png")
    frame = read_images(entry, tmp_path).frame
    assert labels_of(entry, frame) == {"000c1434d8d7": {"2"}, "ffff": {"0"}}
    assert frame["group"].tolist() == ["image:000c1434d8d7", "image:ffff"]
    assert all_images_exist(frame, tmp_path)


def write_idrid(root: Path) -> Path:
    columns = ["Image name", "Retinopathy grade", "Risk of macular edema "]
    empty = ["Unnamed: 3", "Unnamed: 4"]
    parts = {"a. Training Set": [3, 0], "b. Testing Set": [4]}
    tables = [
        "a. IDRiD_Disease Grading_Training Labels.csv",
        "b. IDRiD_Disease Grading_Testing Labels.csv",
    ]
    for (folder, grades), table in zip(parts.items(), tables, strict=True):
        rows = [[f"IDRiD_{k:03d}", grade, 1, None, None] for k, grade in enumerate(grades, 1)]
        write_csv(root / "2. Groundtruths" / table, [*columns, *empty], rows)
        for row in rows:
            write_image(root / "1. Original Images" / folder / f"{row[0]}.jpg")
    return root


def test_idrid_distinguishes_the_parts_whose_numbers_start_anew(
    entry_of: Entry, tmp_path: Path
) -> None:
    entry, root = entry_of("idrid"), write_idrid(tmp_path / "B. Disease Grading")
    frame = read_images(entry, root).frame
    assert labels_of(entry, frame) == {
        "train/IDRiD_001": {"3"},
        "train/IDRiD_002": {"0"},
        "test/IDRiD_001": {"4"},
    }
    assert frame["macular_oedema"].tolist() == ["1", "1", "1"]
    assert all_images_exist(frame, root)


def test_messidor_leaves_ungradable_images_out_and_forgives_the_case_of_names(
    entry_of: Entry, tmp_path: Path
) -> None:
    write_csv(
        tmp_path / "messidor_data.csv",
        ["image_id", "adjudicated_dr_grade", "adjudicated_dme", "adjudicated_gradable"],
        [["20051020_1_PP.png", 0, 0, 1], ["IM1.jpg", 2, 1, 1], ["IM2.jpg", None, None, 0]],
    )
    for name in ("20051020_1_PP.png", "IM1.JPG", "IM2.JPG"):
        write_image(tmp_path / "IMAGES" / name)
    entry = entry_of("messidor2")
    found = read_images(entry, tmp_path)
    assert labels_of(entry, found.frame) == {"20051020_1_PP": {"0"}, "IM1": {"2"}}
    assert found.left_out == {"ungradable": 1}
    assert all_images_exist(found.frame, tmp_path)


def test_eyepacs_has_both_eyes_of_a_patient_in_a_group(entry_of: Entry, tmp_path: Path) -> None:
    write_csv(
        tmp_path / "trainLabels.csv",
        ["image", "level"],
        [["10_left", 0], ["10_right", 1], ["13_left", 4]],
    )
    for name in ("10_left", "10_right", "13_left"):
        write_image(tmp_path / "train" / f"{name}.jpeg")
    frame = read_images(entry_of("eyepacs"), tmp_path).frame
    assert frame["group"].tolist() == ["group:10", "group:10", "group:13"]
    assert frame["eye"].tolist() == ["left", "right", "left"]
    assert all_images_exist(frame, tmp_path)


# MIMIC-CXR-JPG


@pytest.mark.parametrize("suffix", [".gz", ""])
def test_mimic_takes_frontal_images_and_labels_by_name(
    suffix: str, entry_of: Entry, tmp_path: Path
) -> None:
    entry, root = entry_of("mimic", patient_share=1), write_mimic(tmp_path, suffix)
    found = read_images(entry, root)
    assert labels_of(entry, found.frame) == {
        "d1": {"Atelectasis"},
        "d3": {"No Finding"},
        "d5": set(),
    }
    assert found.left_out == {"other view": 1, "no view stated": 1, "study without labels": 1}
    assert found.frame["view"].tolist() == ["PA", "AP", "AP"]
    assert found.frame["publisher_split"].tolist() == ["train", "train", "test"]
    assert found.frame["group"].tolist() == ["group:10000032", "group:10000764", "group:19999987"]
    assert all_images_exist(found.frame, root)


def test_mimics_patients_are_chosen_by_their_hash(entry_of: Entry, tmp_path: Path) -> None:
    root = write_mimic(tmp_path)
    everyone = read_images(entry_of("mimic", patient_share=1), root).frame
    positions = {
        subject: sha256_number("patients", subject) / 2**64
        for subject in ("10000032", "10000764", "19999987")
    }
    low, middle, _ = sorted(positions.values())
    share = (low + middle) / 2
    chosen = read_images(entry_of("mimic", patient_share=share), root)
    lowest = min(positions, key=positions.__getitem__)
    assert set(chosen.frame["group"]) == {f"group:{lowest}"}
    assert set(chosen.frame["image_id"]) < set(everyone["image_id"])
    assert chosen.left_out["patient not chosen"] == 4


def test_about_a_fifth_of_many_patients_is_chosen() -> None:
    from crsbench.data.readers.mimic import _chosen

    subjects = pd.Series([str(10_000_000 + k) for k in range(20_000)])
    assert abs(_chosen(subjects, 0.2).mean() - 0.2) < 0.01
    assert _chosen(subjects, 1).all()
    assert (_chosen(subjects, 0.2) <= _chosen(subjects, 0.3)).all()


# NIH and PAD-UFES-20


@pytest.mark.parametrize("folders", [("images",), ("images_001/images", "images_012/images")])
def test_nih_maps_its_findings_to_chexperts(
    folders: tuple[str, ...], entry_of: Entry, tmp_path: Path
) -> None:
    rows = [
        ["00000001_000.png", "Cardiomegaly|Emphysema", 0, 1, 58, "M", "PA", 1, 1, 0.1, 0.1],
        ["00000001_001.png", "Effusion", 1, 1, 58, "M", "AP", 1, 1, 0.1, 0.1],
        ["00000002_000.png", "No Finding", 0, 2, 81, "F", "PA", 1, 1, 0.1, 0.1],
        ["00000003_000.png", "Hernia", 0, 3, 75, "F", "PA", 1, 1, 0.1, 0.1],
    ]
    write_csv(tmp_path / "Data_Entry_2017_v2020.csv", NIH_COLUMNS, rows)
    for number, row in enumerate(rows):
        write_image(tmp_path / folders[number % len(folders)] / row[0])
    entry = entry_of("nih")
    frame = read_images(entry, tmp_path).frame
    assert labels_of(entry, frame) == {
        "00000001_000": {"Cardiomegaly"},
        "00000001_001": {"Pleural Effusion"},
        "00000002_000": {"No Finding"},
        "00000003_000": set(),
    }
    assert frame["group"].tolist()[:2] == ["group:1", "group:1"]
    assert frame["sex"].tolist() == ["male", "male", "female", "female"]
    assert all_images_exist(frame, tmp_path)


def test_pad_ufes_maps_its_diagnoses_to_isics(entry_of: Entry, tmp_path: Path) -> None:
    columns = ["patient_id", "lesion_id", "age", "gender", "fitspatrick", "region", "diagnostic"]
    rows = [
        ["PAT_1", 1, 62, "MALE", 3.0, "ARM", "ACK", "PAT_1_1_1.png"],
        ["PAT_1", 2, 62, "MALE", 3.0, "FACE", "SEK", "PAT_1_2_2.png"],
        ["PAT_2", 3, 40, None, None, "NECK", "SCC", "PAT_2_3_3.png"],
    ]
    write_csv(tmp_path / "metadata.csv", [*columns, "img_id"], rows)
    for number, row in enumerate(rows, 1):
        write_image(tmp_path / "images" / f"imgs_part_{number}" / row[-1])
    entry = entry_of("pad_ufes")
    frame = read_images(entry, tmp_path).frame
    assert [labels.pop() for labels in labels_of(entry, frame).values()] == ["AK", "BKL", "SCC"]
    assert frame["group"].tolist() == ["group:PAT_1", "group:PAT_1", "group:PAT_2"]
    assert frame["skin_type"].tolist() == ["3", "3", ""]
    assert all_images_exist(frame, tmp_path)


# What all have in common


def test_every_reader_of_the_schema_is_there(home: Path) -> None:
    schema = yaml.safe_load((home / "workflow/schemas/datasets.schema.yaml").read_text("utf-8"))
    assert set(schema["additionalProperties"]["properties"]["reader"]["enum"]) == set(READERS)


def test_the_published_panel_can_be_run_and_expects_the_published_counts(
    published: Config,
) -> None:
    every = {**published.datasets, **published.targets}
    assert {name: entry.spec["reader"] for name, entry in every.items()} == {
        name: name for name in ("isic2019", "aptos2019", "chexpert", "mimic")
    }
    expected = {name: entry.spec.get("expected_images") for name, entry in every.items()}
    assert expected == {
        "isic2019": 25_331,
        "aptos2019": 3_662,
        "chexpert": {"train": 191_027, "valid": 202},
        "mimic": None,
    }
    assert sum(expected["chexpert"].values()) == 191_229


def test_a_linked_read_only_root_with_odd_letters_is_read_and_not_written_to(
    entry_of: Entry, tmp_path: Path
) -> None:
    real = write_idrid(tmp_path / "Daten über Augen 眼" / "B. Disease Grading")
    link = tmp_path / "link"
    link.symlink_to(real, target_is_directory=True)
    folders = [real, *(path for path in real.rglob("*") if path.is_dir())]
    before = sorted(real.rglob("*"))
    for folder in folders:
        folder.chmod(0o555)
    try:
        out = tmp_path / "out"
        write_manifest(
            out / "manifest.parquet",
            out / "images.parquet",
            entry_of("idrid"),
            link,
            max_pixels=10**6,
            workers=1,
        )
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert sorted(real.rglob("*")) == before
    assert read_manifest(out / "manifest.parquet").image_ids.tolist() == [
        *("test/IDRiD_001", "train/IDRiD_001", "train/IDRiD_002")
    ]


def test_the_manifest_depends_on_the_tables_that_are_there(entry_of: Entry, tmp_path: Path) -> None:
    plain, zipped = write_mimic(tmp_path / "plain", ""), write_mimic(tmp_path / "zipped")
    entry = entry_of("mimic")
    assert [file.name for file in source_tables(entry, plain)] == [
        f"mimic-cxr-2.0.0-{name}.csv" for name in ("metadata", "chexpert", "split")
    ]
    assert all(file.suffix == ".gz" for file in source_tables(entry, zipped))
    assert len(source_tables(entry, zipped)) == 3
    assert source_tables(entry, tmp_path / "nowhere") == []


def test_a_data_set_lies_below_the_data_root(
    settings: Callable[[str], dict[str, Any]], home: Path
) -> None:
    config = load_config(settings("config") | {"data_root": "some where"}, home)
    assert image_root(config, "chexpert") == Path("some where/CheXpert-v1.0")


# PadChest and VinDr-CXR

PADCHEST_TABLE = "PADCHEST_chest_x_ray_images_labels_160K_01.02.19.csv"
PADCHEST_COLUMNS = [
    *("", "ImageID", "ImageDir", "StudyDate_DICOM", "StudyID", "PatientID", "PatientBirth"),
    *("PatientSex_DICOM", "ViewPosition_DICOM", "Projection", "MethodProjection", "MethodLabel"),
    *("Labels", "Localizations"),
]


def padchest_row(
    number: int,
    labels: str,
    *,
    view: str = "PA",
    patient: int = 1,
    birth: float | None = 1950.0,
    sex: str | None = "F",
) -> list[Any]:
    study = [20140915, f"s{number}", patient, birth, sex]
    shown = [None, view, "Manual review of DICOM fields", "Physician", labels, "['loc right']"]
    return [number, f"{number}_02-094-102.png", number % 3, *study, *shown]


def write_padchest(root: Path, folder: str = "") -> Path:
    """Sixteen-bit images in folders by `ImageDir`, as their archives are called."""
    rows = [
        padchest_row(1, "['cardiomegaly', ' pleural effusion', 'aortic elongation']"),
        padchest_row(2, "['laminar atelectasis', 'hydropneumothorax']", view="AP"),
        padchest_row(3, "['normal']", patient=2, birth=None, sex=None),
        padchest_row(4, "['abnormal foreign body', 'unchanged']", view="AP_horizontal", patient=3),
        padchest_row(5, "['pneumonia']", view="L"),
        padchest_row(6, "['exclude', 'pneumonia']"),
        padchest_row(7, "['unchanged']"),
        padchest_row(8, "[]"),
        padchest_row(9, ""),
        padchest_row(10, "['atypical pneumonia', 'pulmonary edema', 'consolidation']", sex="M"),
    ]
    write_csv(root / PADCHEST_TABLE, PADCHEST_COLUMNS, rows)
    for row in rows:
        file = root / folder / str(row[2]) / row[1]
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(row[0]).integers(0, 65536, (24, 32), dtype=np.uint16)
        Image.fromarray(pixels).save(file)
    return root


@pytest.mark.parametrize("folder", ["", "images", "image_zips"])
def test_padchest_takes_frontal_images_and_findings_below_its_names(
    folder: str, entry_of: Entry, tmp_path: Path
) -> None:
    entry, root = entry_of("padchest"), write_padchest(tmp_path, folder)
    found = read_images(entry, root)
    assert labels_of(entry, found.frame) == {
        "1_02-094-102": {"Cardiomegaly", "Pleural Effusion"},
        "2_02-094-102": {"Atelectasis", "Pneumothorax", "Pleural Effusion"},
        "3_02-094-102": {"No Finding"},
        "4_02-094-102": set(),
        "10_02-094-102": {"Pneumonia", "Edema", "Consolidation"},
    }
    assert found.left_out == {"other view": 1, "marked exclude": 1, "report says nothing": 3}
    assert found.frame["view"].tolist() == ["PA", "AP", "PA", "AP_horizontal", "PA"]
    assert found.frame["age"].tolist() == ["64", "64", "", "64", "64"]
    assert found.frame["sex"].tolist() == ["female", "female", "", "female", "male"]
    assert found.frame["group"].tolist() == [f"group:{k}" for k in (1, 1, 2, 3, 1)]
    assert all_images_exist(found.frame, root)


def test_padchests_missing_files_are_left_out_by_its_entry(entry_of: Entry, tmp_path: Path) -> None:
    root = write_padchest(tmp_path / "padchest")
    (root / "0" / "3_02-094-102.png").unlink()
    files = tmp_path / "manifest.parquet", tmp_path / "images.parquet"
    write_manifest(*files, entry_of("padchest"), root, max_pixels=10**6, workers=1)
    assert len(read_manifest(files[0]).image_ids) == 4
    assert set(pd.read_parquet(files[1])["mode"]) == {"I;16", ""}


VINDR_LABELS = [
    *("Aortic enlargement", "Atelectasis", "Calcification", "Cardiomegaly", "Clavicle fracture"),
    *("Consolidation", "Edema", "Emphysema", "Enlarged PA", "ILD", "Infiltration"),
    *("Lung Opacity", "Lung cavity", "Lung cyst", "Mediastinal shift", "Nodule/Mass"),
    *("Pleural effusion", "Pleural thickening", "Pneumothorax", "Pulmonary fibrosis"),
    *("Rib fracture", "Other lesion", "COPD", "Lung tumor", "Pneumonia", "Tuberculosis"),
    *("Other disease", "No finding"),
]


def write_vindr(root: Path) -> Path:
    images = {
        "aa01": {"Pleural effusion", "Rib fracture", "Lung Opacity"},
        "bb02": {"No finding"},
        "cc03": {"Nodule/Mass", "Pneumonia"},
    }
    rows = [[name, *(int(label in of) for label in VINDR_LABELS)] for name, of in images.items()]
    write_csv(root / "annotations/image_labels_test.csv", ["image_id", *VINDR_LABELS], rows)
    (root / "test").mkdir()
    for name in images:
        (root / "test" / f"{name}.dicom").touch()
    return root


def test_vindr_takes_the_consensus_of_its_test_part(entry_of: Entry, tmp_path: Path) -> None:
    entry, root = entry_of("vindr_cxr"), write_vindr(tmp_path)
    found = read_images(entry, root)
    assert labels_of(entry, found.frame) == {
        "aa01": {"Pleural Effusion", "Lung Opacity"},
        "bb02": {"No Finding"},
        "cc03": {"Pneumonia"},
    }
    assert set(found.frame["publisher_split"]) == {"test"}
    assert found.left_out == {}
    assert all_images_exist(found.frame, root)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        *(("chexpert", name) for name in ("mimic", "nih", "padchest", "vindr_cxr")),
        *(("aptos2019", name) for name in ("idrid", "messidor2", "eyepacs")),
        ("isic2019", "pad_ufes"),
    ],
)
def test_every_ready_target_fits_its_source(
    source: str,
    target: str,
    settings: Callable[[str], dict[str, Any]],
    home: Path,
    tmp_path: Path,
) -> None:
    registry = yaml.safe_load((home / "config" / "datasets.yaml").read_text("utf-8"))
    registry[source]["shift"] = [target]
    file = tmp_path / "registry.yaml"
    file.write_text(yaml.safe_dump(registry), "utf-8")
    content = settings("config") | {"dataset_registry": str(file), "datasets": [source]}
    assert list(load_config(content, home).targets) == [target]


Harm = Callable[[Path], Any]


def replace_in(name: str, old: str, new: str) -> Harm:
    def change(root: Path) -> None:
        file = root / name
        content = file.read_text("utf-8")
        assert old in content
        file.write_text(content.replace(old, new, 1), "utf-8")

    return change


def unlink(name: str) -> Harm:
    return lambda root: (root / name).unlink()


def rename(old: str, new: str) -> Harm:
    return lambda root: os.rename(root / old, root / new)


TRUTH, METADATA = "ISIC_2019_Training_GroundTruth.csv", "ISIC_2019_Training_Metadata.csv"


@pytest.mark.parametrize(
    ("name", "write", "harm", "reported"),
    [
        ("chexpert", write_chexpert, unlink("valid.csv"), r"holds no 'valid.csv' or .*batch 1"),
        ("chexpert", write_chexpert, rename("train", "trian"), r"holds neither train/ nor .*batch"),
        (
            "chexpert",
            write_chexpert,
            replace_in("train.csv", "CheXpert-v1.0/train", "train"),
            r"'Path' has the value 'train/.*allowed is the form CheXpert-v1.0/train/patient",
        ),
        (
            "chexpert",
            write_chexpert,
            replace_in("train.csv", "Pleural Other", "Pleural Others"),
            r"no column 'Pleural Other' \(did you mean 'Pleural Others'\?\)",
        ),
        (
            "chexpert",
            write_chexpert,
            replace_in("train.csv", "-1.0", "-2.0"),
            r"label column 'Pneumonia' has the value '-2'; allowed: 1, 0, -1 and an empty cell",
        ),
        (
            "chexpert",
            write_chexpert,
            replace_in("train.csv", ",Lateral,", ",Oblique,"),
            r"'Frontal/Lateral' has the value 'Oblique'; allowed: Frontal, Lateral",
        ),
        (
            "chexpert",
            write_chexpert_batches,
            replace_in(
                "CheXpert-v1.0 batch 1 (validate & csv)/train.csv", "patient64540", "patient64541"
            ),
            r"train patient 64541 belongs to no batch folder",
        ),
        (
            "isic2019",
            write_isic,
            replace_in(METADATA, ",sex", ",gender"),
            r"Metadata.csv has no column 'sex'",
        ),
        (
            "isic2019",
            write_isic,
            replace_in(METADATA, "ISIC_0000003_downsampled", "ISIC_0000003"),
            r"must hold the same images once each; check 'ISIC_0000003'",
        ),
        (
            "isic2019",
            write_isic,
            replace_in(TRUTH, "ISIC_0000001,0.0,1.0", "ISIC_0000001,1.0,1.0"),
            r"the image 'ISIC_0000001' has 2 of the classes MEL, .*exactly one is allowed",
        ),
        (
            "isic2019",
            write_isic,
            replace_in(METADATA, ",85.0,", ",unknown,"),
            r"column 'age_approx' has the value 'unknown'; allowed: years and an empty cell",
        ),
        ("mimic", write_mimic, unlink("mimic-cxr-2.0.0-split.csv.gz"), r"no '.*split.csv'"),
        (
            "mimic",
            write_mimic,
            lambda root: (root / "mimic-cxr-2.0.0-chexpert.csv.gz").write_bytes(
                gzip.compress(b"subject_id,study_id\n1,2\n" * 99)[:30]
            ),
            r"chexpert.csv.gz cannot be read as a table",
        ),
        ("idrid", write_idrid, lambda root: os.rename(root, root.with_name("x")), r"not a folder"),
        (
            "padchest",
            write_padchest,
            replace_in(PADCHEST_TABLE, "['normal']", "normal"),
            r"'Labels' has the value 'normal'; allowed is a list like",
        ),
        (
            "padchest",
            write_padchest,
            replace_in(PADCHEST_TABLE, "Projection", "View"),
            r"no column 'Projection'",
        ),
        (
            "vindr_cxr",
            write_vindr,
            replace_in("annotations/image_labels_test.csv", "No finding", "Normal"),
            r"no column 'No finding'",
        ),
    ],
)
def test_a_broken_release_is_reported_in_one_sentence(
    name: str,
    write: Callable[[Path], Path],
    harm: Harm,
    reported: str,
    entry_of: Entry,
    tmp_path: Path,
) -> None:
    root = write(tmp_path / "release")
    harm(root)
    with pytest.raises(UserError, match=reported) as error:
        read_images(entry_of(name), root)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "changes", "reported"),
    [
        ("chexpert", {"uncertain": "drop"}, r"uncertain is \"drop\".*allowed: zeros, ones, ignore"),
        ("chexpert", {"uncertain": {"Edema": "one"}}, r"uncertain.Edema is \"one\""),
        ("chexpert", {"uncertain": {"Oedema": "ones"}}, r"names 'Oedema', which is none of its"),
        ("chexpert", {"patient_share": 0.2}, r"'patient_share' of chexpert has no meaning"),
        ("chexpert", {"root": None}, r"chexpert lacks the key 'root'"),
        ("chexpert", {"task": "multiclass"}, r"chexpert.task is \"multiclass\""),
        ("mimic", {"patient_share": 0}, r"mimic.patient_share is 0"),
        ("isic2019", {"uncertain": "ones"}, r"'uncertain' of isic2019 has no meaning"),
        ("isic2019", {"table": "x.csv"}, r"'table' of isic2019 has no meaning"),
        (
            "isic2019",
            {"damaged_images": "skip"},
            r"damaged_images is \"skip\".*allowed: stop",
        ),
        ("nih", {"label_map": {"Effusion": "Effusion"}}, r"label_map .* names 'Effusion', which"),
        (
            "pad_ufes",
            {"label_map": {"ACK": "AK", "SEK": "AK"}},
            r"must be one to one; 'AK' has more than one name",
        ),
    ],
)
def test_a_wrong_key_of_a_reader_is_reported(
    name: str,
    changes: dict[str, Any],
    reported: str,
    entry_of: Entry,
    settings: Callable[[str], dict[str, Any]],
    home: Path,
    tmp_path: Path,
) -> None:
    file = tmp_path / "registry.yaml"
    spec = {k: v for k, v in entry_of(name, **changes).spec.items() if k != "shift"}
    file.write_text(yaml.safe_dump({name: dict(spec)}), "utf-8")
    content = settings("config") | {
        "dataset_registry": str(file),
        "datasets": [name],
        "encoders": ["resnet50"],
    }
    with pytest.raises(UserError, match=reported):
        load_config(content, home)
