"""Throughput of a loaded encoder against the bare model of its library, in the same process.

    python benchmarks/encoders.py [--quick] [--device cuda]

Random weights, float32, the extraction's memory format. The last line is one JSON object: the sizes
and, for each model, its images per second over the bare model's.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import timm
import torch

from crsbench.config import EncoderEntry
from crsbench.encoders import load_encoder

PREPROCESSING = {
    "resize": "shortest",
    "size": 224,
    "interpolation": "bicubic",
    "mean": [0.5, 0.5, 0.5],
    "std": [0.5, 0.5, 0.5],
}


def seconds(model: torch.nn.Module, images: torch.Tensor) -> float:
    start = time.perf_counter()
    model(images)
    if images.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


@torch.inference_mode()
def measure(name: str, device: torch.device, batch: int, repeats: int) -> dict[str, float]:
    """Best of several forwards of each; taking turns, both see the same load."""
    spec = {
        "library": "timm",
        "model": name,
        "weights": "untrained",
        "preprocessing": PREPROCESSING,
    }
    entry = EncoderEntry(name, name, "general", spec)
    folder = Path(tempfile.gettempdir())
    ours = load_encoder(entry, folder, folder, device).encode
    bare = timm.create_model(name, num_classes=0).to(device).eval()
    images = torch.randn(batch, 3, 224, 224, device=device)
    images = images.to(memory_format=torch.channels_last)
    turns = [(seconds(ours, images), seconds(bare, images)) for _ in range(repeats + 1)]
    our_best, bare_best = (min(times) for times in zip(*turns[1:], strict=True))
    return {
        "images_per_second": batch / our_best,
        "bare_images_per_second": batch / bare_best,
        "ratio": bare_best / our_best,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="ViT-B alone, small batches")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    names = ["vit_base_patch16_224", "vit_large_patch16_224"]
    batch, repeats = (2, 4) if arguments.quick else (64, 20)
    device = torch.device(arguments.device)
    results = {
        name: measure(name, device, batch, repeats)
        for name in (names[:1] if arguments.quick else names)
    }
    hardware = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(json.dumps({"device": hardware, "batch": batch, "dtype": "float32", **results}))


if __name__ == "__main__":
    main()
