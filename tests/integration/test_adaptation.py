"""LoRA training: exact resume, one budget, and each thing that can go wrong ends in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from scipy import stats as scipy_stats

from crsbench.adaptation import lora
from crsbench.adaptation.jobs import EvaluationFiles, Training, TrainingFiles, adapt
from crsbench.adaptation.jobs import evaluate_adapted as evaluate
from crsbench.adaptation.settings import Recipe
from crsbench.adaptation.training import Adapted, Labelled, loss_sum, train
from crsbench.config.load import load_config
from crsbench.config.model import Config
from crsbench.core.errors import UserError
from crsbench.core.files import read_json, read_table
from crsbench.core.threads import use_one_thread
from crsbench.data.manifest import read_manifest, write_manifest
from crsbench.data.splits import hold_out, read_split, write_split, write_test
from crsbench.encoders.base import LoadedEncoder
from crsbench.encoders.preprocessing import Preprocessing
from crsbench.features.extraction import ImageViews
from crsbench.features.jobs import extract_features
from crsbench.features.settings import ExtractionSettings
from crsbench.metrics.discrimination import macro_auroc
from crsbench.probes import FittedProbe
from crsbench.studies.adaptation import adaptation, adaptation_axes, states
from crsbench.studies.inputs import Inputs
from worlds.studies import World

CPU = torch.device("cpu")
SMALL = Preprocessing("squash", 8, 8, "bicubic", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
RECIPE = Recipe(
    rank=2,
    alpha=4,
    epochs=4,
    batch_size=8,
    learning_rate_lora=1e-2,
    learning_rate_head=1e-2,
    weight_decay=0.01,
    warmup=0.1,
    validation=0.25,
    flip=False,
    precision="float32",
    checkpoint_activations=False,
)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    use_one_thread()


class Small(torch.nn.Module):
    """Two layers with weights that depend on nothing; `behave` sees each batch before it passes."""

    def __init__(self, behave: Callable[[torch.Tensor], torch.Tensor] = lambda x: x) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.first = torch.nn.Linear(3 * 8 * 8, 16)
            self.second = torch.nn.Linear(16, 12)
        self.behave = behave

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(self.behave(images).flatten(1)).relu())


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Labelled:
    """Forty tinted noise images of three classes, ten of them for validation."""
    folder = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(0)
    files, truth = [], np.zeros((40, 3), dtype=np.int8)
    for index in range(40):
        pixels = random.normal(120, 40, (12, 12, 3))
        pixels[..., index % 3] += 25
        truth[index, index % 3] = 1
        files.append(folder / f"{index}.png")
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(files[-1])
    ids = [f"image{index:02d}" for index in range(40)]
    views = ImageViews(files, ids, [("clean",)] * 40, [SMALL.geometry], {}, 12, 10**6)
    rows = np.arange(40)
    return Labelled(
        "small × set, seed 0", "multiclass", ("r", "g", "b"), views, truth, rows[rows % 4 > 0],
        rows[rows % 4 == 0], ("set", 0, 100),
    )  # fmt: skip


def trained(
    labelled: Labelled, folder: Path, recipe: Recipe = RECIPE, **changes: Any
) -> tuple[Adapted, Any]:
    encode = Small(**{k: v for k, v in changes.items() if k == "behave"})
    for parameter in encode.parameters():
        parameter.requires_grad_(False)
    lora.add_lora(encode, "small", rank=2, alpha=4, targets="first|second", seed=1)
    encoder = LoadedEncoder("small", encode.eval(), SMALL, "0" * 64)
    model = Adapted(encoder, np.zeros(12), np.ones(12), len(labelled.classes))
    identity = changes.get("identity", "x")
    how = {"checkpoint": folder / "checkpoint", "identity": identity, "device": CPU}
    return model, train(model, labelled, recipe, workers=changes.get("workers", 0), **how)


def tensors_of(model: Adapted) -> dict[str, bytes]:
    return {n: p.detach().numpy().tobytes() for n, p in model.trained().items()}


# --- the loop -----------------------------------------------------------------------------------


def test_training_lowers_the_loss_and_keeps_the_best_epoch(
    labelled: Labelled, tmp_path: Path
) -> None:
    model, state = trained(labelled, tmp_path, replace(RECIPE, epochs=12))
    losses = [row["loss"] for row in state.history]
    assert losses[-1] < 0.5 * losses[0]
    assert losses[0] == pytest.approx(np.log(3), rel=0.1)  # a head of zeros knows nothing
    on_validation = [row["validation_log_loss"] for row in state.history]
    assert state.best_epoch == 1 + int(np.argmin(on_validation))
    rows = labelled.validation
    pixels = torch.from_numpy(np.concatenate([labelled.images[row].arrays[0] for row in rows]))
    with torch.no_grad():
        probabilities = model(pixels, "float32").softmax(dim=1).double().numpy()
    wanted = -np.log((probabilities * labelled.truth[rows]).sum(axis=1)).mean()
    assert min(on_validation) == pytest.approx(wanted, rel=1e-5)
    best = state.history[state.best_epoch - 1]["validation_macro_auroc"]
    assert best == pytest.approx(macro_auroc(labelled.truth[rows], probabilities))


class Killed(Exception):
    pass


@pytest.mark.parametrize("calls", [3, 9, 17])
def test_a_killed_training_goes_on_to_the_same_bytes(
    calls: int, labelled: Labelled, tmp_path: Path
) -> None:
    """Six passes make an epoch: four steps and two validation batches."""
    whole, state = trained(labelled, tmp_path / "whole")
    count = iter(range(1000))

    def dies(images: torch.Tensor) -> torch.Tensor:
        if next(count) == calls:
            raise Killed
        return images

    with pytest.raises(Killed):
        trained(labelled, tmp_path / "killed", behave=dies)
    count = iter(range(1000, 2000))
    resumed, after = trained(labelled, tmp_path / "killed", behave=dies)
    assert tensors_of(resumed) == tensors_of(whole)
    assert after.history == state.history
    assert next(count) - 1000 == 6 * (RECIPE.epochs - calls // 6)  # only what was not done yet


def test_a_checkpoint_of_another_training_or_a_damaged_one_is_not_used(
    labelled: Labelled, tmp_path: Path
) -> None:
    whole, _ = trained(labelled, tmp_path / "a", identity="x")
    file = tmp_path / "b" / "checkpoint"
    trained(labelled, tmp_path / "b", replace(RECIPE, learning_rate_lora=1e-3), identity="y")
    again, _ = trained(labelled, tmp_path / "b", identity="x")
    assert tensors_of(again) == tensors_of(whole)
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2] ^= 1  # a tensor's
    for content in (damaged, damaged[:100]):
        file.write_bytes(content)
        again, _ = trained(labelled, tmp_path / "b", identity="x")
        assert tensors_of(again) == tensors_of(whole)


def test_workers_change_no_byte(labelled: Labelled, tmp_path: Path) -> None:
    recipe = replace(RECIPE, epochs=1)
    alone, _ = trained(labelled, tmp_path / "alone", recipe)
    two, _ = trained(labelled, tmp_path / "two", recipe, workers=2)
    assert tensors_of(alone) == tensors_of(two)


def test_half_as_many_images_at_once_where_memory_runs_out(
    labelled: Labelled, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def holds(most: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def behave(images: torch.Tensor) -> torch.Tensor:
            if len(images) > most:
                raise torch.OutOfMemoryError("a test's")
            return images

        return behave

    whole, _ = trained(labelled, tmp_path / "whole")
    parts, state = trained(labelled, tmp_path / "parts", behave=holds(3))
    assert state.micro_batch == 2
    assert "out of memory; now 2 images at once (a step still takes 8)" in capsys.readouterr().out
    for name, parameter in whole.trained().items():
        torch.testing.assert_close(parts.trained()[name], parameter, rtol=1e-3, atol=1e-5)
    with pytest.raises(UserError, match=r"small × set.*does not hold one image"):
        trained(labelled, tmp_path / "none", behave=holds(0))


def test_a_loss_that_is_not_finite_is_reported(labelled: Labelled, tmp_path: Path) -> None:
    recipe = replace(RECIPE, learning_rate_lora=1e30)
    reported = (
        r"The loss of small × set, seed 0 is (nan|inf) in step \d of epoch 1; lower adaptation"
    )
    with pytest.raises(UserError, match=reported):
        trained(labelled, tmp_path, recipe)


def test_without_validation_images_the_last_epoch_counts(
    labelled: Labelled, tmp_path: Path
) -> None:
    everyone = replace(labelled, fit=np.arange(40), validation=np.arange(0))
    _, state = trained(everyone, tmp_path)
    assert state.best_epoch == RECIPE.epochs
    assert state.history[0]["validation_log_loss"] is None


def test_images_are_mirrored_only_if_asked_for(labelled: Labelled, tmp_path: Path) -> None:
    plain, _ = trained(labelled, tmp_path / "plain")
    flipped, _ = trained(labelled, tmp_path / "flipped", replace(RECIPE, flip=True))
    assert tensors_of(plain) != tensors_of(flipped)
    share = np.mean([labelled.mirrored(range(40), epoch) for epoch in range(20)])
    assert 0.4 < share < 0.6


def test_the_order_depends_on_seed_and_epoch_alone(labelled: Labelled) -> None:
    other = replace(labelled, order_key=("set", 1, 100))
    orders = [labelled.order(0), labelled.order(1), other.order(0)]
    assert all(sorted(order) == labelled.fit.tolist() for order in orders)
    assert len(set(map(tuple, orders))) == 3


def test_the_learning_rate_rises_and_falls() -> None:
    rates = [RECIPE.rate(step, 100) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[9] == rates[10] == 1
    assert rates[55] == pytest.approx((1 + np.cos(np.pi / 2)) / 2)
    assert rates[99] < 0.001


def test_the_loss_counts_known_labels_and_fitted_classes(labelled: Labelled) -> None:
    truth = np.array([[1, 0, -1], [0, 0, 1], [1, 0, 0], [0, 0, -1]], dtype=np.int8)
    several = replace(labelled, task="multilabel", truth=truth, fit=np.arange(4))
    assert np.isnan(several.floors).tolist() == [True, False, True]  # no positive of the second
    logits = torch.tensor([[0.3, 9.0, 1.0], [-1.0, 9.0, 0.5], [2.0, 9.0, 0.1], [0.0, 9.0, 7.0]])
    p = 1 / (1 + np.exp(-logits.double().numpy()))
    terms = [p[0, 0], 1 - p[1, 0], p[2, 0], 1 - p[3, 0], p[1, 2], 1 - p[2, 2]]
    assert float(loss_sum(logits, truth, several)) == pytest.approx(-np.log(terms).sum())


# --- the jobs -----------------------------------------------------------------------------------

SECTION = {
    "encoders": ["vit_tiny_untrained"],
    "datasets": ["small"],
    "seeds": [0],
    "fractions": [10, 100],
    "conditions": ["jpeg-1"],
    **{name: getattr(RECIPE, name) for name in RECIPE.__dataclass_fields__},
    "epochs": 2,
    "target_modules": {},
    "in_report": False,
}


@pytest.fixture(scope="module")
def small(
    tmp_path_factory: pytest.TempPathFactory,
    home: Path,
    plain_demo: Callable[[], dict[str, Any]],
    image_set: Callable[..., Path],
) -> tuple[Config, Path]:
    """Twenty-four noise images, their tables, and the clean features of an untrained ViT."""
    folder = tmp_path_factory.mktemp("small")
    rows = [{"id": f"i{n:02d}", "path": f"{n}.png", "label": "ab"[n % 2]} for n in range(24)]
    image_set(folder / "set", rows)
    (folder / "datasets.yaml").write_text(
        "small: {title: Small, licence: CC0-1.0, task: multiclass, classes: [a, b], reader: table,"
        " root: set, table: table.csv, columns: {id: id, path: path, label: label}}\n"
    )
    content = plain_demo() | {
        "data_root": str(folder),
        "dataset_registry": str(folder / "datasets.yaml"),
        "encoders": ["lite0_128px", "vit_tiny_untrained", "image_statistics"],
        "datasets": ["small"],
        "fractions": [1, 10, 100],
        "seeds": [0, 1],
        "adaptation": SECTION,
    }
    config = load_config(content, home)
    manifest, images, test = (folder / f"{name}.parquet" for name in ("manifest", "images", "test"))
    root = folder / "set"
    write_manifest(manifest, images, config.datasets["small"], root, max_pixels=10**6, workers=1)
    write_test(test, manifest, 0.25)
    write_split(folder / "split.parquet", manifest, test, 0, config.fractions, 0.125)
    extract_features(
        settings_of(config),
        manifest_file=manifest,
        test_file=None,
        outputs=[folder / "vit_tiny_untrained" / "small" / "clean.arrow"],
        workers=0,
    )
    return config, folder


def settings_of(config: Config) -> ExtractionSettings:
    return ExtractionSettings.of(config, ["vit_tiny_untrained"], ["small"])


def files_of(data: Path, folder: Path) -> TrainingFiles:
    return TrainingFiles(
        data / "manifest.parquet",
        data / "split.parquet",
        data / "vit_tiny_untrained" / "small" / "clean.arrow",
        folder / "adapter" / lora.WEIGHTS,
        folder / "adapter" / lora.CONFIG,
        folder / "head.npz",
        folder / "training.json",
    )


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def test_a_training_writes_the_same_bytes_again_and_its_runs(
    small: tuple[Config, Path], tmp_path: Path
) -> None:
    config, data = small
    training = Training("vit_tiny_untrained", "small", 0, 100)
    for name in ("once", "again"):
        files = files_of(data, tmp_path / name)
        adapt(settings_of(config), Recipe.from_settings(SECTION), None, training, files, workers=0)
    assert bytes_of(tmp_path / "once") == bytes_of(tmp_path / "again")
    once = tmp_path / "once"
    assert set(bytes_of(once)) == {
        f"adapter/{lora.WEIGHTS}", f"adapter/{lora.CONFIG}", "head.npz", "training.json",
    }  # fmt: skip
    log = read_json(once / "training.json")
    assert log["adapted_projections"] == 24  # qkv and proj of twelve blocks
    assert len(log["history"]) == 2
    manifest = read_manifest(data / "manifest.parquet")
    assert (
        log["n_fit"] + log["n_validation"]
        == read_split(data / "split.parquet", manifest).labelled(100).sum()
    )
    assert all("lora_" in key for key in load_file(once / "adapter" / lora.WEIGHTS))
    assert FittedProbe.load(once / "head.npz").coef_.shape == (2, 192)

    own = [data / f"{name}.parquet" for name in ("manifest", "test", "split")]
    read = EvaluationFiles(*own, once / "adapter", once / "head.npz", once / "training.json", {})
    conditions = ["clean", "jpeg-1"]
    arguments = settings_of(config), training, read, conditions, ()
    evaluate(*arguments, once / "runs.parquet", workers=0)
    runs, _ = read_table(once / "runs.parquet")
    assert runs["condition"].tolist() == conditions
    assert runs["percent"].tolist() == [100, 100]
    assert not list(once.glob(".features*"))

    for name in (lora.WEIGHTS, lora.CONFIG):
        whole = (once / "adapter" / name).read_bytes()
        damaged = bytearray(whole)
        damaged[len(whole) // 2] ^= 1
        (once / "adapter" / name).write_bytes(damaged)
        with pytest.raises(UserError, match=rf"{name} is not as the training wrote it; delete it"):
            evaluate(*arguments, once / "r.parquet", 0)
        (once / "adapter" / name).write_bytes(whole)


def test_a_subset_that_is_too_small_is_reported(small: tuple[Config, Path], tmp_path: Path) -> None:
    config, data = small
    manifest = read_manifest(data / "manifest.parquet")
    split, _ = read_table(data / "split.parquet")
    one = split["image_id"] == split.loc[split["percent"] > 0, "image_id"].iloc[0]
    split.loc[split["percent"] == 1, "percent"] = 10
    split.loc[one, "percent"] = 1
    from crsbench.core.files import write_table

    write_table(tmp_path / "split.parquet", split, {"floors": {"1": [], "10": [], "100": []}})
    files = replace(files_of(data, tmp_path / "out"), split=tmp_path / "split.parquet")
    assert read_split(files.split, manifest).labelled(1).sum() == 1
    reported = (
        r"vit_tiny_untrained × small, seed 0, 1 % of the labels: its 1 labelled images are too"
    )
    training = Training("vit_tiny_untrained", "small", 0, 1)
    with pytest.raises(UserError, match=reported + r" few.*leave 1 out of adaptation\.fractions"):
        adapt(settings_of(config), Recipe.from_settings(SECTION), None, training, files, 0)


def test_validation_images_are_whole_groups_within_the_labelled(
    small: tuple[Config, Path],
) -> None:
    manifest = read_manifest(small[1] / "manifest.parquet")
    groups = np.array([f"g{row // 2}" for row in range(24)])
    manifest = replace(manifest, groups=groups)
    among = np.arange(24) < 20
    held_out = hold_out(manifest, among, 0.3, "adaptation 0")
    assert 4 <= held_out.sum() <= 8
    assert not held_out[20:].any()
    assert not set(groups[held_out]) & set(groups[among & ~held_out])
    assert not hold_out(manifest, np.arange(24) < 2, 0.2, "adaptation 0").any()  # one group


@pytest.mark.parametrize(
    ("changes", "reported"),
    [
        ({"encoders": ["lite9_128px"]}, r"adaptation.encoders names 'lite9_128px' \(did you mean"),
        ({"seeds": [0, 7]}, r"adaptation.seeds has 7; allowed: 0, 1, 2"),
        ({"fractions": [30, 100]}, r"adaptation.fractions has 30; allowed: 1, 5"),
        ({"fractions": [25]}, r"adaptation.fractions"),
        ({"conditions": ["jpeg-4"]}, r"adaptation.conditions has 'jpeg-4' \(did you mean 'jpeg-3'"),
        ({"target_modules": {"lite0_128px": "a("}}, r"target_modules.lite0_128px is 'a\(', no reg"),
        ({"target_modules": {"lite0": "a"}}, r"adaptation.target_modules has 'lite0' \(did you"),
        ({"precision": "bfloat16"}, r"adaptation.precision is bfloat16 with .*cpu; allowed there"),
        ({"epoch": 8}, r"unknown key 'epoch' in adaptation \(did you mean 'epochs'"),
    ],
)
def test_a_wrong_section_is_reported(
    changes: dict[str, Any], reported: str, settings: Callable[[str], dict[str, Any]], home: Path
) -> None:
    content = settings("demo")
    content["adaptation"] = content["adaptation"] | changes
    with pytest.raises(UserError, match=reported):
        load_config(content, home)


# --- the studies --------------------------------------------------------------------------------

ENCODERS = ["dinov2", "medgemma", "medsiglip", "panderm", "rad_dino"]


@pytest.fixture(scope="module")
def inputs(published: Config) -> Inputs:
    """SYNTHETIC runs before and after; adapting helps the weak more than the strong."""
    world = World.of(published).only(ENCODERS, ["isic2019", "aptos2019"])
    frozen = world.runs[world.runs["seed"] < 3].reset_index(drop=True)
    level = frozen.groupby("encoder")["macro_auroc"].transform("mean")
    adapted = frozen.assign(macro_auroc=frozen["macro_auroc"] + 2.5 * (0.85 - level))
    recipe = {"rank": 8, "alpha": 16, "epochs": 8, "seeds": [0, 1, 2]}
    return Inputs(world.encoders, world.datasets, {}, {"adaptation": recipe}).having(
        frozen_runs=frozen,
        adapted_runs=adapted.sample(frac=1, random_state=0),
        scoring=world.scoring,
    )


def test_the_comparison_is_by_data_set(inputs: Inputs) -> None:
    study = adaptation(inputs)
    frozen, adapted = (
        runs[(runs["condition"] == "clean") & (runs["percent"] == 100)]
        for runs in states(inputs).values()
    )
    for dataset in ("isic2019", "aptos2019"):
        before, after = (
            runs[runs["dataset"] == dataset].pivot(
                index="seed", columns="encoder", values="macro_auroc"
            )
            for runs in (frozen, adapted)
        )
        assert study.findings[f"auroc_gain.{dataset}"] == pytest.approx(
            (after - before).mean().mean()
        )
        tau = scipy_stats.kendalltau(before.mean(), after.mean()).statistic
        found = study.findings[f"kendall_tau_frozen_vs_adapted.{dataset}"]
        assert found == pytest.approx(tau)
        assert study.findings[f"leader_frozen.{dataset}"] == before.mean().idxmax()
        assert study.findings[f"leader_adapted.{dataset}"] == after.mean().idxmax()
        row = study.table.set_index(["encoder", "dataset"]).loc[("dinov2", dataset)]
        gains = (after - before)["dinov2"]
        low, high = scipy_stats.t.interval(0.95, 2, gains.mean(), scipy_stats.sem(gains))
        assert (row["gain_low"], row["gain_high"]) == pytest.approx((low, high))
    assert study.findings["lora.rank"] == 8
    assert study.findings["lora.seeds"] == 3


def test_the_four_axes_are_those_of_the_score(inputs: Inputs, tmp_path: Path) -> None:
    from crsbench.score import axes_table, crs_table
    from crsbench.studies.base import write_study

    study = adaptation_axes(inputs)
    ranks = {}
    for state, runs in states(inputs).items():
        crs = crs_table(axes_table(runs, inputs.scoring, {}), inputs.scoring)
        ranks[state] = crs[crs["dataset"] == "aggregate"].set_index("encoder")
    tau = scipy_stats.kendalltau(ranks["frozen"]["crs"], ranks["adapted"]["crs"]).statistic
    assert study.findings["kendall_tau"] == pytest.approx(tau)
    shift = (ranks["frozen"]["crs_rank"] - ranks["adapted"]["crs_rank"]).abs().mean()
    assert study.findings["mean_rank_shift"] == pytest.approx(shift)
    rows = study.table[study.table["dataset"] == "aggregate"].set_index(["encoder", "state"])
    for name in ENCODERS:
        before, after = (int(ranks[s].loc[name, "crs_rank"]) for s in ("frozen", "adapted"))
        assert rows.loc[(name, "frozen"), "move"] == before - after
        assert study.findings[f"rank_adapted.{name}"] == after
    both = adaptation(inputs).findings
    assert both["four_axis.kendall_tau"] == study.findings["kendall_tau"]
    for name, one in (("a", study), ("b", adaptation(inputs))):
        write_study(tmp_path / f"{name}.parquet", tmp_path / f"{name}.svg", name, one)


def test_few_encoders_have_no_correlation_and_a_design_without_axes_says_so(
    inputs: Inputs,
) -> None:
    def only(runs: pd.DataFrame, names: list[str]) -> pd.DataFrame:
        return runs[runs["encoder"].isin(names)]

    two = inputs.having(**{f"{k}_runs": only(v, ENCODERS[:2]) for k, v in states(inputs).items()})
    assert not any("kendall_tau" in name for name in adaptation(two).findings)
    assert "leader_adapted.isic2019" in adaptation(two).findings
    clean = {
        f"{state}_runs": runs[(runs["condition"] == "clean") & (runs["percent"] == 100)]
        for state, runs in states(inputs).items()
    }
    assert adaptation_axes(inputs.having(**clean)).sentence.startswith("Not run: the runs do not")
    floors = {name: {**spec, "group": "floor"} for name, spec in inputs.encoders.items()}
    assert adaptation_axes(inputs.having(encoders=floors)).sentence.startswith("Not run")
    with pytest.raises(ValueError, match="frozen and adapted runs differ"):
        adaptation(inputs.having(adapted_runs=clean["adapted_runs"]))
