"""How fast a LoRA training is beside the bare loop: the same model, images and steps.

    python benchmarks/adaptation.py [--quick]

The bare loop has all images decoded in memory and does nothing but forward, backward and AdamW's
step. The training also decodes (once: the images fit into its cache), orders by hash, validates and
writes a checkpoint after each epoch. Both are in CPU time on a CPU, in wall time on a GPU. With a
GPU a ViT-B/16 is adapted on 2,000 drawn images for eight epochs in bfloat16; without one a ViT-Tiny
on a few images, and the last line says so. Weights are random: time does not depend on them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import timm
import torch
from PIL import Image

from crsbench.adaptation.lora import add_lora
from crsbench.adaptation.settings import Recipe
from crsbench.adaptation.training import Adapted, Labelled, train
from crsbench.core.threads import use_one_thread
from crsbench.encoders.base import LoadedEncoder
from crsbench.encoders.preprocessing import Preprocessing
from crsbench.encoders.timm_encoder import TimmEncoder
from crsbench.features.extraction import ImageViews

CLASSES = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few images, for a first look")
    quick = parser.parse_args().quick
    use_one_thread()
    gpu = torch.cuda.is_available()
    device = torch.device("cuda" if gpu else "cpu")
    name, size = ("vit_base_patch16_224", 224) if gpu else ("vit_tiny_patch16_224", 128)
    count = (200 if quick else 2000) if gpu else (64 if quick else 256)
    recipe = Recipe(
        rank=8,
        alpha=16,
        epochs=2 if quick else 8,
        batch_size=32,
        learning_rate_lora=5e-4,
        learning_rate_head=1e-3,
        weight_decay=0.01,
        warmup=0.1,
        validation=0.2,
        flip=False,
        precision="bfloat16" if gpu else "float32",
        checkpoint_activations=False,
    )
    with TemporaryDirectory() as folder:
        labelled = drawn(Path(folder), count, size)
        first = {}
        for way, run in (("bare", bare), ("training", whole)):
            model = adapted(name, size, recipe, device)
            first[way] = seconds(
                lambda run=run, model=model: run(model, labelled, recipe, folder), gpu
            )
    fitted = len(labelled.fit) * recipe.epochs
    result = {
        "device": torch.cuda.get_device_name() if gpu else "cpu, one thread: no GPU here",
        "model": name,
        "pixels": size,
        "images": count,
        "epochs": recipe.epochs,
        "clock": "wall" if gpu else "CPU time",
        "bare_images_per_second": round(fitted / first["bare"], 1),
        "training_images_per_second": round(fitted / first["training"], 1),
        "training_by_bare_time": round(first["training"] / first["bare"], 3),
        "validation_share_of_forwards": round(len(labelled.validation) / len(labelled.fit), 3),
    }
    if gpu:
        result["peak_memory_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    print(json.dumps(result))


def drawn(folder: Path, count: int, size: int) -> Labelled:
    """Noise images as PNG files; every fifth is for validation."""
    random = np.random.default_rng(0)
    files = [folder / f"{index:05d}.png" for index in range(count)]
    for file in files:
        Image.fromarray(random.integers(0, 256, (size, size, 3), dtype=np.uint8)).save(file)
    geometry = preprocessing(size).geometry
    ids, conditions = [file.stem for file in files], [("clean",)] * count
    views = ImageViews(files, ids, conditions, [geometry], {}, size, 10**8)
    truth = np.eye(CLASSES, dtype=np.int8)[np.arange(count) % CLASSES]
    rows = np.arange(count)
    fit, validation = rows[rows % 5 > 0], rows[rows % 5 == 0]
    names = tuple(map(str, range(CLASSES)))
    return Labelled("drawn", "multiclass", names, views, truth, fit, validation, ("drawn", 0, 100))


def preprocessing(size: int) -> Preprocessing:
    return Preprocessing("squash", size, size, "bicubic", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def adapted(name: str, size: int, recipe: Recipe, device: torch.device) -> Adapted:
    model = timm.create_model(name, img_size=size, num_classes=0)
    encode = TimmEncoder(model.requires_grad_(False).eval())
    add_lora(encode, name, rank=recipe.rank, alpha=recipe.alpha, targets=None, seed=0)
    width = model.num_features
    encoder = LoadedEncoder(name, encode, preprocessing(size), "0" * 64)
    return Adapted(encoder, np.zeros(width), np.ones(width), CLASSES).to(device)


def bare(model: Adapted, labelled: Labelled, recipe: Recipe, folder: str) -> None:
    del folder
    arrays = [labelled.images[int(row)].arrays[0][0] for row in labelled.fit]
    images = torch.from_numpy(np.stack(arrays))
    labels = torch.from_numpy(labelled.truth[labelled.fit].argmax(axis=1))
    optimizer = torch.optim.AdamW(model.trained().values(), lr=1e-3)
    device = model.mean.device
    for _ in range(recipe.epochs):
        for part in torch.arange(len(images)).split(recipe.batch_size):
            optimizer.zero_grad(set_to_none=True)
            logits = model(images[part].to(device), recipe.precision)
            torch.nn.functional.cross_entropy(logits, labels[part].to(device)).backward()
            optimizer.step()


def whole(model: Adapted, labelled: Labelled, recipe: Recipe, folder: str) -> None:
    how = {"checkpoint": Path(folder) / "checkpoint", "identity": "", "workers": 0}
    train(model, labelled, recipe, device=model.mean.device, **how)


def seconds(work: Callable[[], None], gpu: bool) -> float:
    clock = time.perf_counter if gpu else time.process_time
    start = clock()
    work()
    if gpu:
        torch.cuda.synchronize()
    return clock() - start


if __name__ == "__main__":
    main()
