"""Extraction against the way that a user would otherwise go, on the same images in the same run.

    python benchmarks/extraction.py [--quick] [--images N] [--encoder NAME] [--device cuda]
    python benchmarks/extraction.py --scaling [--quick]

The user's way is a `DataLoader` over Pillow and timm's own transform, a pass a condition, with the
usual calls for the perturbations (Pillow's blur, NumPy's normal deviates). Each way has a process
of its own with one thread, and they take turns of 64 images; time is CPU time, that of the workers
included, so that a machine's other load counts little. Features are compared where the user's way
gives the same degraded image, and for blur and noise with our definition written plainly. Without
the IDRiD sample (environment variable CRSBENCH_SAMPLES, by default ../shared/data) the images are
phantoms.
`--scaling` gives cost and memory by the number of images. The last line is one JSON object.
"""

import argparse
import copy
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from PIL import Image, ImageFilter
from scipy.ndimage import correlate1d
from scipy.stats import norm
from timm.data import create_transform
from torch.utils.data import DataLoader, Dataset

from crsbench.config.model import EncoderEntry
from crsbench.core.hashing import sha256_number
from crsbench.core.memory import keep_freed_memory
from crsbench.core.progress import progress
from crsbench.core.threads import use_one_thread
from crsbench.encoders import load_encoder
from crsbench.encoders.base import LoadedEncoder
from crsbench.encoders.preprocessing import Preprocessing
from crsbench.features.extraction import ImageViews, extract, geometries_of
from crsbench.features.store import read_features
from crsbench.images.canonical import read_canonical
from crsbench.images.perturbations import VALUES_AT_ONCE, gaussian_weights, perturb
from crsbench.synthetic import write_phantoms

HOME = Path(__file__).resolve().parents[1]
LEVELS = yaml.safe_load((HOME / "config/config.yaml").read_text())["perturbations"]
DEGRADED = [f"{kind}-{level}" for kind, levels in LEVELS.items() for level in (1, 2, 3)]
SHORT_SIDE = 512
TOGETHER = ["lite0_128px", "lite1_128px", "lite2_128px"]
WORKERS = {"cpu": 0, "cuda": 15}  # of both ways; on a CPU only its time counts


def cpu_seconds() -> np.ndarray:
    """Of this process and of its children that have ended: the user's part and the system's."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return np.array([[usage.ru_utime, usage.ru_stime] for usage in usages]).sum(axis=0)


def cost(function: Callable[..., object], *arguments: Any) -> np.ndarray:
    """(2,) CPU seconds of a call, the user's and the system's."""
    start = cpu_seconds()
    function(*arguments)
    return cpu_seconds() - start


def start_ours() -> None:
    use_one_thread()
    keep_freed_memory()


@cache
def encoder_of(name: str, device: str) -> LoadedEncoder:
    registry: Mapping[str, Any] = yaml.safe_load((HOME / "config/encoders.yaml").read_text())
    spec = (
        registry[name]
        if name in registry
        else {
            "library": "timm",
            "model": name,
            "weights": "untrained",
            "preprocessing": registry["vit_b16"]["preprocessing"],
        }
    )
    entry = EncoderEntry(name, name, "general", spec)
    return load_encoder(entry, HOME, Path("weights"), torch.device(device))


# --- The user's way ---


def users(image: Image.Image, condition: str, name: str) -> Image.Image:
    """The perturbation by the calls that come to mind."""
    kind, severity = condition.rsplit("-", 1)
    level = LEVELS[kind][int(severity) - 1]
    if kind == "gaussian_blur":
        return image.filter(ImageFilter.GaussianBlur(level * min(image.size) / 512))
    if kind == "jpeg":
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=level, subsampling="4:2:0")
        return Image.open(buffer).convert("RGB")
    if kind == "contrast":
        values = np.asarray(image).astype(np.float32)
        mean = values.mean(dtype=np.float64)
        return Image.fromarray(np.rint(mean + level * (values - mean)).astype(np.uint8))
    if kind == "rician_noise":
        values, random = np.asarray(image).astype(np.float32), np.random.default_rng(len(name))
        real, imaginary = (
            255 * level * random.standard_normal(values.shape, dtype=np.float32) for _ in range(2)
        )
        noisy = np.sqrt((values + real) ** 2 + imaginary**2)
        return Image.fromarray(np.clip(np.rint(noisy), 0, 255).astype(np.uint8))
    random = np.random.Generator(np.random.SFC64(sha256_number(name, kind, severity)))
    width, height = (round(side * level) for side in image.size)
    left = int(random.integers(image.width - width + 1))  # at our offset, so that features compare
    top = int(random.integers(image.height - height + 1))
    box = (left, top, left + width, top + height)
    return image.resize(image.size, Image.Resampling.BICUBIC, box=box)


def plain(image: Image.Image, condition: str, name: str) -> Image.Image:
    """Our blur and noise by their definition, in floating point and in one go.

    The noise is rounded as ours is: a level more or less in one pixel of a million would show in
    the features by more than 1e-5.
    """
    kind, severity = condition.rsplit("-", 1)
    level = LEVELS[kind][int(severity) - 1]
    values = np.asarray(image).astype(float)
    if kind == "gaussian_blur":
        weights = gaussian_weights(level * min(image.size) / 512).astype(float) / 256
        for axis in (0, 1):
            taps = np.concatenate([weights[:0:-1], weights])
            values = np.floor(correlate1d(values, taps, axis, mode="nearest") + 0.5 + 1e-9)
        return Image.fromarray(values.astype(np.uint8))
    if kind == "rician_noise":
        generator = np.random.SFC64(sha256_number(name, kind, severity))
        draws = generator.random_raw(-(-values.size // 2)).astype("<u8").view("<u2")
        cuts = range(2 * VALUES_AT_ONCE, 2 * values.size, 2 * VALUES_AT_ONCE)
        blocks = np.split(draws[: 2 * values.size], cuts)
        halves = [(block[: len(block) // 2], block[len(block) // 2 :]) for block in blocks]
        real, imaginary = (
            np.float32(255 * level)
            * norm.ppf((np.concatenate(half) + 0.5) / 65536).astype(np.float32)
            for half in zip(*halves, strict=True)
        )
        real = values.ravel().astype(np.float32) + real
        noisy = np.sqrt(real * real + imaginary * imaginary).reshape(values.shape)
        return Image.fromarray((noisy + np.float32(0.5)).clip(0, 255).astype(np.uint8))
    return users(image, condition, name)


@dataclass(frozen=True)
class UsersDataset(Dataset[torch.Tensor]):
    files: list[Path]
    condition: str
    transform: Callable[[Image.Image], torch.Tensor]
    degrade: Callable[[Image.Image, str, str], Image.Image] = users

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> torch.Tensor:
        image = Image.open(self.files[index]).convert("RGB")
        scale = SHORT_SIDE / min(image.size)
        size = (round(image.width * scale), round(image.height * scale))
        image = image.resize(size, Image.Resampling.BICUBIC)
        if self.condition != "clean":
            image = self.degrade(image, self.condition, self.files[index].name)
        return self.transform(image)


def timm_transform(preprocessing: Preprocessing) -> Callable[[Image.Image], torch.Tensor]:
    return create_transform(
        input_size=preprocessing.size,
        interpolation=preprocessing.interpolation,
        crop_pct=preprocessing.size / preprocessing.resize_to,
        mean=preprocessing.mean,
        std=preprocessing.std,
    )


@cache
def users_model(name: str, device: str) -> torch.nn.Module:
    """The same weights in the usual memory layout."""
    model = copy.deepcopy(encoder_of(name, device).encode)
    return model.to(memory_format=torch.contiguous_format)


@torch.no_grad()
def users_pass(dataset: UsersDataset, model: torch.nn.Module, device: str) -> np.ndarray:
    loader = DataLoader(dataset, batch_size=64, num_workers=WORKERS[device])
    return np.concatenate([model(batch.to(device)).cpu().numpy() for batch in loader])


def users_sets(files: list[Path], name: str) -> list[UsersDataset]:
    transform = timm_transform(encoder_of(name, "cpu").preprocessing)
    return [UsersDataset(files, condition, transform) for condition in ("clean", *DEGRADED)]


def users_data(files: list[Path], name: str, device: str) -> None:
    for dataset in users_sets(files, name):
        for _ in DataLoader(dataset, batch_size=64, num_workers=WORKERS[device]):
            pass


def users_run(files: list[Path], name: str, device: str) -> None:
    for dataset in users_sets(files, name):
        users_pass(dataset, users_model(name, device), device)


# --- Ours, beside it ---


def our_views(files: list[Path], encoders: list[LoadedEncoder]) -> ImageViews:
    return ImageViews(
        files,
        [file.name for file in files],
        [("clean", *DEGRADED)] * len(files),
        geometries_of(encoders),
        LEVELS,
        SHORT_SIDE,
        10**9,
    )


def our_data(files: list[Path], name: str) -> None:
    """All but the forward: every view as the tensor that the encoder would get."""
    encoder = encoder_of(name, "cpu")
    views = our_views(files, [encoder])
    for index in range(len(views)):
        encoder.preprocessing.normalise(torch.from_numpy(views[index].arrays[0]))


def our_run(files: list[Path], names: list[str], device: str, folder: Path, workers: int) -> None:
    """The features of one encoder, or of several with one decode."""
    encoders = [encoder_of(name, device) for name in names]
    views = our_views(files, encoders)
    outputs = {
        name: {condition: folder / name / f"{condition}.arrow" for condition in views.conditions[0]}
        for name in names
    }
    for name in names:
        (folder / name).mkdir(exist_ok=True)
    extract(
        encoders,
        views,
        outputs,
        device=torch.device(device),
        batch_size=64,
        workers=workers,
        metadata={"dataset": "benchmark"},
    )


# --- What is measured ---


def our_stages(files: list[Path], preprocessing: Preprocessing) -> dict[str, float]:
    """CPU milliseconds a view by stage."""
    images = [read_canonical(file, SHORT_SIDE, 10**9) for file in files]
    return stage_costs(
        files,
        {
            "decode and resize": lambda i: read_canonical(files[i], SHORT_SIDE, 10**9),
            "preprocess": lambda i: preprocessing(images[i]),
        },
        lambda i, condition: perturb(images[i], condition, files[i].name, LEVELS),
    )


def users_stages(files: list[Path], preprocessing: Preprocessing) -> dict[str, float]:
    transform = timm_transform(preprocessing)
    clean = UsersDataset(files, "clean", lambda image: image)
    images = [clean[i] for i in range(len(files))]
    return stage_costs(
        files,
        {
            "decode and resize": lambda i: clean[i],
            "preprocess": lambda i: transform(images[i]),
        },
        lambda i, condition: users(images[i], condition, files[i].name),
    )


def stage_costs(
    files: list[Path],
    once: Mapping[str, Callable[[int], object]],
    degrade: Callable[[int, str], object],
) -> dict[str, float]:
    def three(index: int, kind: str) -> None:
        for severity in (1, 2, 3):
            degrade(index, f"{kind}-{severity}")

    stages = {**once, **{kind: partial(three, kind=kind) for kind in LEVELS}}
    costs = {}
    for name, stage in stages.items():
        stage(0)  # to warm up
        spent = sum(cost(stage, index).sum() for index in range(len(files)))
        costs[name] = float(1000 * spent / len(files) / (3 if name in LEVELS else 1))
    return costs | {"five kinds": float(np.mean([costs[kind] for kind in LEVELS]))}


class Ways:
    """Both ways, each in a process of its own: the settings of one are not the other's."""

    def __init__(self) -> None:
        spawned = get_context("spawn")
        self.ours = ProcessPoolExecutor(1, spawned, start_ours)
        self.users = ProcessPoolExecutor(1, spawned, use_one_thread)

    def stages(self, files: list[Path], preprocessing: Preprocessing) -> dict[str, dict]:
        """Milliseconds of a core a view, by stage: ours, the user's, how many times as fast."""
        ours = self.ours.submit(our_stages, files, preprocessing).result()
        users = self.users.submit(users_stages, files, preprocessing).result()
        return {
            stage: {
                "ms": round(ours[stage], 2),
                "users_ms": round(users[stage], 2),
                "ratio": round(users[stage] / ours[stage], 2),
            }
            for stage in ours
        }

    def compared(self, files: list[Path], name: str, device: str, folder: Path) -> dict[str, Any]:
        """CPU milliseconds a view of both ways, with and without the forward, by turns.

        In the second of the two numbers of `..._user_system_ms` is what the system took, chiefly
        to clear memory; `forward_...` is what is left beside the data path.
        """
        spent = np.zeros((4, 2))
        self.ours.submit(our_run, files[:4], [name], device, folder, 0).result()  # to warm up
        self.users.submit(users_run, files[:4], name, device).result()
        starts = range(0, len(files), 64)
        for start in progress(starts, "turns", len(starts), "turn"):
            part = files[start : start + 64]
            spent += [
                self.ours.submit(cost, our_data, part, name).result(),
                self.users.submit(cost, users_data, part, name, device).result(),
                self.ours.submit(
                    cost, our_run, part, [name], device, folder, WORKERS[device]
                ).result(),
                self.users.submit(cost, users_run, part, name, device).result(),
            ]
        ms = 1000 * spent / (16 * len(files))
        data, users_data_, whole, users_whole = ms.sum(axis=1)
        names = ("data", "users_data", "all", "users_all")
        return {
            f"{name}_user_system_ms": np.round(row, 2).tolist()
            for name, row in zip(names, ms, strict=True)
        } | {
            "data_ratio": round(users_data_ / data, 2),
            "end_to_end_ratio": round(users_whole / whole, 2),
            "end_to_end_ratio_without_system": round(ms[3, 0] / ms[2, 0], 2),
        }


def largest_difference(files: list[Path], name: str, device: str, folder: Path) -> float:
    """Of our features from those of the plain way, relative to the latter's norm."""
    our_run(files, [name], device, folder, 0)
    worst = 0.0
    for condition in ("clean", *DEGRADED):
        transform = timm_transform(encoder_of(name, device).preprocessing)
        dataset = UsersDataset(files, condition, transform, plain)
        wanted = users_pass(dataset, users_model(name, device), device)
        found = read_features(folder / name / f"{condition}.arrow").matrix
        distance = np.linalg.norm(found - wanted, axis=1) / np.linalg.norm(wanted, axis=1)
        worst = max(worst, float(distance.max()))
    return worst


def together_ratio(files: list[Path], device: str, folder: Path) -> float:
    """CPU seconds of small encoders of one geometry, each in a job of its own, over together."""
    workers = WORKERS[device]
    alone = [cost(our_run, files, [name], device, folder, workers) for name in TOGETHER]
    together = cost(our_run, files, TOGETHER, device, folder, workers)
    return round(float(np.sum(alone) / together.sum()), 2)


def bare_rate(encoder: LoadedEncoder, device: torch.device, batch: int) -> float:
    """Images per second of the forward alone, the best of three."""
    size = encoder.preprocessing.size
    images = torch.rand(batch, 3, size, size, device=device).to(memory_format=torch.channels_last)
    best = float("inf")
    with torch.inference_mode():
        for _ in range(4):
            start = time.perf_counter()
            encoder.encode(images).cpu()
            best = min(best, time.perf_counter() - start)
    return batch / best


def scaling(count: int) -> dict[str, float]:
    """A whole extraction of `count` images, clean and 15 degraded views of a fifth, in this one.

    The images are 40 phantoms under as many names as are wanted; the encoder takes means.
    """
    start_ours()
    size = Preprocessing("squash", 32, 32, "bicubic", (0.5,) * 3, (0.5,) * 3)
    encoder = LoadedEncoder("means", lambda x: x.flatten(2).mean(dim=2), size, "0" * 64)
    with tempfile.TemporaryDirectory() as folder:
        write_phantoms(Path(folder) / "p", "skin", "home", 40, 64)
        files = sorted((Path(folder) / "p" / "images").glob("*.png"))
        all_files = [files[index % 40] for index in range(count)]
        every = ("clean", *DEGRADED)
        views = ImageViews(
            all_files,
            [f"{index:06d}" for index in range(count)],
            [every if index % 5 == 0 else ("clean",) for index in range(count)],
            [size.geometry],
            LEVELS,
            64,
            10**9,
        )
        before = cpu_seconds()
        outputs = {name: Path(folder) / f"{name}.arrow" for name in every}
        extract(
            [encoder],
            views,
            {"means": outputs},
            device=torch.device("cpu"),
            batch_size=64,
            workers=0,
            metadata={"dataset": "benchmark"},
        )
    spent = float((cpu_seconds() - before).sum())
    return {
        "images": count,
        "ms_an_image": round(1000 * spent / count, 3),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def scaled(counts: list[int]) -> dict[str, Any]:
    """Each in a process of its own, so that the peak is its own."""
    rows = []
    for count in counts:
        command = [sys.executable, __file__, "--count", str(count)]
        ended = subprocess.run(command, check=True, capture_output=True, text=True)
        rows.append(json.loads(ended.stdout.splitlines()[-1]))
        print(rows[-1], flush=True)
    return {"scaling": rows}


def images_available(count: int, folder: Path) -> tuple[list[Path], str]:
    sample = Path(os.environ.get("CRSBENCH_SAMPLES", HOME.parent / "shared" / "data")) / "idrid"
    files = sorted(sample.rglob("*.jpg"))[:count]
    if files:
        return files, "IDRiD sample"
    write_phantoms(folder / "p", "fundus", "home", count, 256)
    return sorted((folder / "p" / "images").glob("*.png")), "phantoms"


def measured(name: str, count: int, device: str, folder: Path) -> dict[str, Any]:
    start_ours()
    files, source = images_available(count, folder)
    result: dict[str, Any] = {"encoder": name, "images": len(files), "source": source}
    result["device"] = (
        torch.cuda.get_device_name() if device == "cuda" else "CPU (not run on a GPU)"
    )
    result["largest_difference"] = largest_difference(files[:8], name, device, folder)
    ways = Ways()
    result["stages"] = ways.stages(files[:32], encoder_of(name, device).preprocessing)
    result |= ways.compared(files, name, device, folder)
    some = files[:64]
    result["three_encoders_together_ratio"] = together_ratio(files[:16], device, folder)
    bare = bare_rate(encoder_of(name, device), torch.device(device), 64)
    start = time.perf_counter()
    our_run(some, [name], device, folder, WORKERS[device])
    rate = 16 * len(some) / (time.perf_counter() - start)
    result |= {"views_a_second": round(rate, 1), "share_of_bare_forward": round(rate / bare, 3)}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return result | {"peak_mb": round(peak / 1024)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few images")
    parser.add_argument("--images", type=int, default=516)
    parser.add_argument(
        "--encoder", default="efficientnet_lite0", help="registered, or timm's name"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--scaling", action="store_true", help="500, 5,000 and 20,000 images")
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.count:
        result = scaling(arguments.count)
    elif arguments.scaling:
        result = scaled([100, 400] if arguments.quick else [500, 5000, 20000])
    else:
        count = 2 if arguments.quick else arguments.images
        with tempfile.TemporaryDirectory() as folder:
            result = measured(arguments.encoder, count, arguments.device, Path(folder))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
