"""The configuration is closed: what it does not know, it refuses in one sentence."""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml

from crsbench.config.grid import Cell, Grid
from crsbench.config.load import load_config
from crsbench.config.schema import read_unique_keys, typed, validate
from crsbench.core.errors import UserError
from crsbench.operations.targets import check_targets

Settings = Callable[[str], dict[str, Any]]
Plain = Callable[[], dict[str, Any]]


@pytest.mark.parametrize("name", ["config", "demo", "samples"])
def test_the_shipped_configs_are_valid(name: str, settings: Settings, home: Path) -> None:
    config = load_config(settings(name), home)
    assert config.encoders
    assert config.datasets
    assert config.scoring_file.is_file()


def test_every_shipped_config_probes_and_perturbs_by_the_same_protocol(settings: Settings) -> None:
    published = settings("config")
    for name in ("demo", "samples"):
        other = settings(name)
        for key in ("fractions", "splits", "perturbations", "probe", "scoring"):
            assert other[key] == published[key], (name, key)


def test_the_panel_keeps_the_order_of_the_config(settings: Settings, home: Path) -> None:
    changed = settings("demo")
    changed["encoders"] = changed["encoders"][::-1]
    assert list(load_config(changed, home).encoders) == changed["encoders"]


def _set(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        for key in parents:
            content = content[key]
        content[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "reported"),
    [
        (_set("encoder", []), r"unknown key 'encoder' .*did you mean 'encoders'"),
        (_set("probe.c_grids", [1]), r"unknown key 'c_grids' in probe .*did you mean 'c_grid'"),
        (_set("perturbations.blur", [1]), r"unknown key 'blur'.*gaussian_blur"),
        (
            _set("encoders", ["lite0_128"]),
            r"Unknown encoder 'lite0_128'.*did you mean 'lite0_128px'",
        ),
        (_set("datasets", ["phantom_skins"]), r"Unknown data set 'phantom_skins'.*'phantom_skin'"),
        (_set("fractions", [1, 5]), r"fractions is \[1, 5\]; allowed is a list that has 100\."),
        (_set("fractions", [0, 100]), r"fractions.0 is 0"),
        (_set("seeds", [0, 0]), r"seeds is \[0, 0\]; allowed is each value once"),
        (_set("seeds", []), r"seeds is \[\]; allowed is a list of 1 or more values"),
        (_set("encoders", ["LITE0_128PX"]), r"did you mean 'lite0_128px'"),
        (_set("splits.test", 1.0), r"splits.test is 1.0"),
        (_set("extraction.device", "gpu"), r"extraction.device is \"gpu\".*allowed: cpu, cuda"),
        (_set("perturbations.jpeg", [0]), r"perturbations.jpeg.0 is 0"),
        (_set("results", "re{sults}"), r"results is"),
        (lambda c: c.pop("probe"), r"lacks the key 'probe'"),
        (_set("without", ["lite0_128px"]), r"without is"),
        (_set("without", {"lite0": "why"}), r"without names 'lite0'.*did you mean 'lite0_128px'"),
        (_set("without", {"lite0_128px/skin": "why"}), r"but 'skin' is not in the panel"),
        (_set("without", {"lite0_128px": ""}), r"without.lite0_128px is"),
        (_set("encoder_registry", "config/none.yaml"), r"none.yaml cannot be read"),
        (_set("seeds", [0.0]), r"seeds.0 is 0.0; allowed is a whole number: write 0"),
        (_set("fractions", [50, 100.0]), r"fractions.1 is 100.0; .*: write 100"),
        (_set("bootstrap.replicates", 2e3), r"replicates is 2000.0; .*: write 2000"),
        (_set("seeds", [True]), r"seeds.0 is true; allowed is a whole number"),
        (_set("probe.tolerance", "1e-5"), r'tolerance is "1e-5".*as text: write 1.0e-5'),
        (_set("probe.tolerance", "2.5e-3"), r'"2.5e-3".*write 2.5e-3'),
        (_set("probe.c_grid", ["1.e3"]), r"write 1.0e\+3"),
        (_set("splits.test", "0.2"), r"allowed is a number, without quotation marks"),
        (_set("encoders", [7]), r'encoders.0 is 7; allowed is text: write "7"'),
        (_set("seeds", "0"), r"seeds is \"0\"; allowed is a list"),
    ],
)
def test_a_wrong_config_is_reported(
    change: Callable[[dict[str, Any]], None], reported: str, settings: Settings, home: Path
) -> None:
    content = settings("demo")
    change(content)
    with pytest.raises(UserError, match=reported) as error:
        load_config(content, home)
    assert "\n" not in str(error.value)


def _numbers(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where numbers stand in nested mappings and lists."""
    if isinstance(content, dict | list):
        items = content.items() if isinstance(content, dict) else enumerate(content)
        for key, value in items:
            yield from _numbers(value, (*path, key))
    elif isinstance(content, int | float) and not isinstance(content, bool):
        yield path


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("file", "schema"),
    [
        ("config", "config"),
        ("demo", "config"),
        ("encoders", "encoders"),
        ("datasets", "datasets"),
        ("scoring", "scoring"),
        ("published", "published"),
        ("throughput", "throughput"),
    ],
)
def test_no_number_may_be_infinite_or_none_at_all(
    file: str, schema: str, value: float, settings: Settings
) -> None:
    """YAML writes them `.inf` and `.nan`."""
    content = settings(file)
    validate(content, schema, file)
    places = list(_numbers(content))
    assert places
    for *parents, last in places:
        holder = content
        for key in parents:
            holder = holder[key]
        before, holder[last] = holder[last], value
        with pytest.raises(UserError, match=rf"{last} is {value}; allowed is a finite number"):
            validate(content, schema, file)
        holder[last] = before


ENCODER = {"title": "X", "group": "general", "licence": "MIT"}
PREPROCESSING = {
    "resize": "squash",
    "size": 32,
    "interpolation": "bicubic",
    "mean": [0, 0, 0],
    "std": [1, 1, 1],
}
PHANTOM = {"kind": "skin", "site": "home", "count": 9, "size": 32}
DATASET = {
    "title": "X",
    "licence": "MIT",
    "task": "multilabel",
    "classes": ["a", "b"],
    "reader": "table",
    "root": "x",
    "table": "t.csv",
    "columns": {"id": "id", "path": "path", "label": "l"},
    "separator": "|",
}


@pytest.mark.parametrize(
    ("registry", "entry", "reported"),
    [
        ("encoder", {**ENCODER, "licnce": "MIT"}, r"unknown key 'licnce' in x.*'licence'"),
        (
            "encoder",
            {**ENCODER, "library": "tim", "model": "resnet18", "preprocessing": PREPROCESSING},
            r"x.library is \"tim\".*did you mean 'timm'",
        ),
        ("encoder", {**ENCODER, "weights": "hub"}, r"'weights' of x has no meaning"),
        (
            "encoder",
            {**ENCODER, "library": "timm", "model": "resnet18"},
            r"x has the key .library. and lacks the key 'preprocessing'",
        ),
        (
            "encoder",
            {
                **ENCODER,
                "library": "timm",
                "model": "resnet18",
                "preprocessing": PREPROCESSING,
                "weights": "hubb",
            },
            r"x.weights is \"hubb\"; allowed is hub, untrained",
        ),
        ("encoder", {**ENCODER, "without_datasets": ["aptos"]}, r"unknown data set 'aptos'"),
        ("dataset", {**DATASET, "clases": []}, r"unknown key 'clases' in x.*'classes'"),
        ("dataset", {**DATASET, "reader": "phantom"}, r"'phantom'"),
        (
            "dataset",
            {**DATASET, "reader": "phantom", "phantom": PHANTOM},
            r"'columns' of x has no meaning",
        ),
        ("dataset", {**DATASET, "separator": None}, r"x.separator is null"),
        (
            "dataset",
            {**DATASET, "task": "multiclass"},
            r"'x' is multiclass: it takes `label` and no",
        ),
        (
            "dataset",
            {
                **{key: value for key, value in DATASET.items() if key != "separator"},
                "columns": {"id": "id", "path": "p", "labels": {"a": "A"}},
            },
            r"`labels` must name each of its classes once; check \['b'\]",
        ),
        (
            "dataset",
            {**DATASET, "columns": {"id": "id", "path": "p"}},
            r"either `label`.*or `labels`",
        ),
        ("dataset", {**DATASET, "label_map": {"a": "b"}}, r"maps its class 'a' to 'b'"),
        ("dataset", {**DATASET, "label_map": {True: "a"}}, r"the key True, .* quotation marks"),
        ("dataset", {**DATASET, "label_map": {"A": "c"}}, r"names 'c', which is none of its"),
        ("dataset", {**DATASET, "shift": ["nowhere"]}, r"Unknown shift target 'nowhere'"),
        ("dataset", {**DATASET, "shift": ["jpeg-1"]}, r"Unknown shift target 'jpeg-1'"),
    ],
)
def test_a_wrong_registry_entry_is_reported(
    registry: str,
    entry: dict[str, Any],
    reported: str,
    settings: Settings,
    home: Path,
    tmp_path: Path,
) -> None:
    content = settings("demo")
    file = tmp_path / "registry.yaml"
    others = yaml.safe_load((home / content[f"{registry}_registry"]).read_text("utf-8"))
    file.write_text(yaml.safe_dump({**others, "x": copy.deepcopy(entry)}), "utf-8")
    content |= {f"{registry}_registry": str(file), f"{registry}s": ["x"]}
    with pytest.raises(UserError, match=reported):
        load_config(content, home)


@pytest.mark.parametrize(
    ("changes", "reported"),
    [
        (
            {"classes": ["a", "c"]},
            r"The shift target 'y' has the class 'c', which 'x' lacks; allowed: a, b",
        ),
        (
            {"classes": ["a", "bb"]},
            r"the class 'bb', which 'x' lacks \(did you mean 'b'\?\); allowed: a, b",
        ),
        (
            {"task": "multiclass", "separator": None},
            r"The shift target 'y' is multiclass; it must be multilabel, as 'x' is",
        ),
        ({"classes": ["b", "a"]}, None),
        ({"classes": ["b"]}, None),
    ],
)
def test_a_shift_target_has_classes_of_its_source_in_any_order(
    changes: dict[str, Any], reported: str | None, plain_demo: Plain, home: Path, tmp_path: Path
) -> None:
    content = plain_demo()
    other = {key: value for key, value in {**DATASET, **changes}.items() if value is not None}
    file = tmp_path / "registry.yaml"
    file.write_text(yaml.safe_dump({"x": {**DATASET, "shift": ["y"]}, "y": other}), "utf-8")
    content |= {"dataset_registry": str(file), "datasets": ["x"]}
    with nullcontext() if reported is None else pytest.raises(UserError, match=reported):
        config = load_config(content, home)
        assert list(config.targets) == ["y"]


@pytest.mark.parametrize(
    ("excluded_classes", "reported"),
    [
        (["c"], r"excluded_classes of data set 'x' names 'c', which is none of its classes"),
        (["a", "b"], r"excluded_classes of data set 'x' leaves none of its classes"),
        ([], r"x.excluded_classes is \[\]"),
    ],
)
def test_excluded_classes_are_some_of_the_classes(
    excluded_classes: list[str], reported: str, plain_demo: Plain, home: Path, tmp_path: Path
) -> None:
    content = plain_demo()
    file = tmp_path / "registry.yaml"
    file.write_text(
        yaml.safe_dump({"x": {**DATASET, "excluded_classes": excluded_classes}}), "utf-8"
    )
    content |= {"dataset_registry": str(file), "datasets": ["x"]}
    with pytest.raises(UserError, match=reported):
        load_config(content, home)


@pytest.mark.parametrize(
    ("task", "positive_classes", "reported"),
    [
        (
            "multiclass",
            {"ill": ["c"]},
            r"positive_classes of data set 'x' names 'c', which is none",
        ),
        ("multiclass", {"ill": ["a", "b"]}, None),
        ("multilabel", {"ill": ["a", "b"]}, r"makes 'ill' of 2 labels; allowed .* is one"),
        ("multiclass", {"ill": []}, r"x.positive_classes.ill is \[\]"),
    ],
)
def test_what_is_to_be_found_is_made_of_classes(
    task: str,
    positive_classes: dict[str, list[str]],
    reported: str | None,
    plain_demo: Plain,
    home: Path,
    tmp_path: Path,
) -> None:
    content = plain_demo()
    file = tmp_path / "registry.yaml"
    entry = {**DATASET, "task": task, "positive_classes": positive_classes}
    if task == "multiclass":
        del entry["separator"]
    file.write_text(yaml.safe_dump({"x": entry}), "utf-8")
    content |= {"dataset_registry": str(file), "datasets": ["x"]}
    with nullcontext() if reported is None else pytest.raises(UserError, match=reported):
        assert load_config(content, home).datasets["x"].positive_classes == {"ill": ("a", "b")}


@pytest.mark.parametrize(
    ("studies", "reported"),
    [
        ({"subgroups": {"columns": ["sex"], "min_images": 9}}, "'min_cases'"),
        ({"subgroups": {"colums": ["sex"]}}, r"unknown key 'colums'.*'columns'"),
        (
            {"shift_detection": {"images": 9, "neighbours": 1, "false_alarms": 0}},
            "false_alarms is 0",
        ),
        ({"operating_points": {"net_benefit": [0.1]}}, "either `sensitivity` or `specificity`"),
        (
            {"operating_points": {"sensitivity": 0.9, "specificity": 0.9}},
            "either `sensitivity` or `specificity`",
        ),
    ],
)
def test_what_is_wrong_with_studies_of_test_cases_is_reported(
    studies: dict[str, Any], reported: str, home: Path, settings: Callable[[str], dict[str, Any]]
) -> None:
    config = settings("config")
    config["studies"] |= {"replicates": 100} | studies
    with pytest.raises(UserError, match=reported):
        load_config(config, home)


def test_resamples_must_be_counted_for_the_studies_of_test_cases(
    home: Path, settings: Callable[[str], dict[str, Any]]
) -> None:
    config = settings("config")
    config["studies"]["operating_points"] = {"sensitivity": 0.9}
    with pytest.raises(UserError, match="key 'operating_points' and lacks the key 'replicates'"):
        load_config(config, home)
    config["studies"]["replicates"] = 100
    load_config(config, home)


def test_degradations_of_a_modality_are_off_unless_the_config_names_them(
    home: Path, settings: Settings
) -> None:
    config = settings("config")
    assert len(Grid(load_config(config, home)).degraded) == 15
    config["perturbations"] |= {"quantum_noise": [4000, 250], "vignetting": [0.3]}
    degraded = Grid(load_config(config, home)).degraded
    assert degraded[15:] == ["quantum_noise-1", "quantum_noise-2", "vignetting-1"]
    config["perturbations"]["collimation"] = [1.0]
    with pytest.raises(UserError, match=r"perturbations\.collimation"):
        load_config(config, home)
    del config["perturbations"]["collimation"]
    config["perturbations"]["colimation"] = [0.9]
    with pytest.raises(UserError, match=r"'colimation'.*did you mean 'collimation'"):
        load_config(config, home)


def test_cells_left_out_leave_the_grid_and_an_encoder_without_cells_leaves_the_panel(
    settings: Settings, home: Path
) -> None:
    content = settings("demo")
    whole = Grid(load_config(content, home))
    content["without"] = {"lite0_128px/phantom_skin": "a", "lite1_128px": "b"}
    config = load_config(content, home)
    grid = Grid(config)
    gone = set(whole.cells) - set(grid.cells)
    assert gone == {
        Cell("lite0_128px", "phantom_skin"),
        *(Cell("lite1_128px", dataset) for dataset in config.datasets),
    }
    assert list(config.encoders) == [n for n in content["encoders"] if n != "lite1_128px"]
    assert config.settings["adaptation"]["encoders"] == ["lite0_128px"]
    assert "depth_sweep" in config.settings
    content["without"]["lite0_128px"] = "c"
    assert not {"adaptation", "depth_sweep"} & set(load_config(content, home).settings)
    assert config.left_out[("lite0_128px", "phantom_skin")] == "a"
    assert config.left_out[("lite1_128px", "phantom_chest")] == "b"
    content["without"] = dict.fromkeys(content["encoders"], "all")
    with pytest.raises(UserError, match="leaves no encoder"):
        load_config(content, home)


@pytest.mark.parametrize(
    ("panel", "sections", "lacking"),
    [
        ({}, {"depth_sweep": 4, "adaptation": 15}, {}),
        (
            {"encoders": ["medsiglip", "clip", "dinov2"]},
            {"depth_sweep": 2, "adaptation": 3},
            {"depth_sweep": ["rad_dino", "biomedclip"]},
        ),
        # BioViL has no cell on APTOS, and none of the sweep's data sets is left.
        (
            {"encoders": ["dinov2", "biovil"], "datasets": ["aptos2019"]},
            {"adaptation": 1},
            {"depth_sweep": ["dinov2", "rad_dino", "medsiglip", "biomedclip", "isic2019"]},
        ),
        ({"encoders": ["medsiglip_padded"]}, {}, {}),
    ],
)
def test_sections_are_made_over_what_the_panel_has(
    panel: dict[str, Any],
    sections: dict[str, int],
    lacking: dict[str, list[str]],
    settings: Settings,
    home: Path,
) -> None:
    config = load_config(settings("config") | panel, home)
    found = {
        name: len(config.settings[name]["encoders"])
        for name in ("depth_sweep", "adaptation")
        if name in config.settings
    }
    assert found == sections
    for name, lost in lacking.items():
        assert config.lacking[name][: len(lost)] == lost
    reported = config.lacking_note
    assert reported.startswith("Left out, for the panel lacks them: ") == bool(panel)
    assert ("depth_sweep is not made, without" in reported) == bool(
        panel and "depth_sweep" not in sections
    )
    for section in ("depth_sweep", "adaptation"):
        chosen = config.settings.get(section, {"encoders": [], "datasets": []})
        assert set(chosen["encoders"]) <= set(config.encoders)
        assert set(chosen["datasets"]) <= set(config.datasets)


def test_what_depends_on_a_name_goes_with_it_and_an_unknown_name_stays_an_error(
    settings: Settings, home: Path
) -> None:
    content = settings("config") | {"encoders": ["dinov2"], "datasets": ["isic2019"]}
    content["depth_sweep"] |= {"without_norm": ["dinov2", "medsiglip"]}
    content["adaptation"] |= {"conditions": ["jpeg-1", "mimic"], "target_modules": {"mae": ".*"}}
    config = load_config(content, home)
    assert config.settings["depth_sweep"]["without_norm"] == ["dinov2"]
    assert config.settings["adaptation"]["conditions"] == ["jpeg-1"]
    assert config.settings["adaptation"]["target_modules"] == {}
    assert content["depth_sweep"]["without_norm"] == ["dinov2", "medsiglip"]  # as it was
    content["depth_sweep"] |= {"encoders": ["dinov2", "dinov3"]}
    with pytest.raises(UserError, match=r"depth_sweep.encoders names 'dinov3' \(did you mean"):
        load_config(content, home)


@pytest.mark.parametrize(
    "content",
    ["seeds: [0]\nseeds: [1]\n", "probe: {folds: 2, folds: 3}\n", "a:\n  - {b: 1, c: 2, b: 1}\n"],
)
def test_a_key_twice_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(content, "utf-8")
    with pytest.raises(UserError, match=r"config.yaml is not valid YAML: the key '\w+' .*twice"):
        read_unique_keys(tmp_path / "config.yaml")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["0", "1"], [0, 1]),
        ({"jpeg": ["25", "10"], "contrast": ["0.5"]}, {"jpeg": [25, 10], "contrast": [0.5]}),
        (["1.0e-5", "1e-5"], [1e-5, "1e-5"]),
        (
            ["true", "null", "clip", "a: b", "2024-01-01"],
            [True, None, "clip", "a: b", "2024-01-01"],
        ),
        (7, 7),
    ],
)
def test_a_value_of_the_command_line_is_what_a_file_would_have(given: Any, meant: Any) -> None:
    found = typed(given)
    assert found == meant
    assert repr(found) == repr(meant)  # True == 1 and 1 == 1.0


RULES, NAMES = ["all", "audits", "studies"], ["clip", "isic2019", "clean", "jpeg-1"]
MADE = {
    f"results/{encoder}/isic2019/{c}.json" for encoder in ("clip",) for c in ("clean", "jpeg-1")
}


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("studyes", r"No rule has the name 'studyes' \(did you mean 'studies'\?\)"),
        ("audit", r"did you mean 'audits'"),
        ("zzz", r"No rule has the name 'zzz'; allowed: all, audits, studies"),
        ("results/clipp/isic2019/clean.json", r"did you mean 'results/clip/isic2019/clean.json'"),
        ("results/clip/isic2091/clean.json", r"did you mean 'results/clip/isic2019/clean.json'"),
        ("results/clip/isic2019/jpg-1.json", r"did you mean 'results/clip/isic2019/jpeg-1.json'"),
        ("nothing/at/all", r"Nothing makes the file 'nothing/at/all'; .*clip, isic2019"),
    ],
)
def test_a_target_that_nothing_makes_names_the_nearest(target: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        check_targets(["all", *MADE, target], RULES, NAMES, MADE.__contains__)


def test_targets_that_are_made_or_there_pass() -> None:
    check_targets(["studies", *MADE], RULES, NAMES, MADE.__contains__)


@pytest.mark.parametrize("content", ["", "# nothing yet\n", "---\n"])
def test_an_empty_registry_has_no_names(
    content: str, settings: Settings, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "registry.yaml").write_text(content)
    wanted = settings("demo") | {"dataset_registry": str(tmp_path / "registry.yaml")}
    with pytest.raises(UserError, match="Unknown data set"):
        load_config(wanted, home)
