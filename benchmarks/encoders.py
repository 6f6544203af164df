"""Throughput of a loaded encoder against the bare model of its library, in the same process.

    python benchmarks/encoders.py [--quick] [--device cuda] [--precision bfloat16]

Random weights, the extraction's memory format. In a reduced precision ours runs under autocast, as
the extraction does, and the bare model's own weights are of that type. The last line is one JSON
object: the GPU, or that there was none, the sizes, and for each model its images per second over
the bare model's.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import timm
import torch

from crsbench.config.model import EncoderEntry
from crsbench.encoders import load_encoder

PREPROCESSING = {
    "resize": "shortest",
    "size": 224,
    "interpolation": "bicubic",
    "mean": [0.5, 0.5, 0.5],
    "std": [0.5, 0.5, 0.5],
}


def seconds(model: torch.nn.Module, images: torch.Tensor, dtype: torch.dtype) -> float:
    """A forward, under autocast where the images are of another type than `dtype`."""
    start = time.perf_counter()
    with torch.autocast(images.device.type, dtype, enabled=images.dtype != dtype):
        model(images)
    if images.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


@torch.inference_mode()
def measure(
    name: str, device: torch.device, dtype: torch.dtype, batch: int, repeats: int
) -> dict[str, float]:
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
    bare = timm.create_model(name, num_classes=0).to(device, dtype).eval()
    images = torch.randn(batch, 3, 224, 224, device=device)
    images = images.to(memory_format=torch.channels_last)
    own = images.to(dtype)
    turns = [(seconds(ours, images, dtype), seconds(bare, own, dtype)) for _ in range(repeats + 1)]
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
    parser.add_argument(
        "--precision", default="float32", choices=["float32", "bfloat16", "float16"]
    )
    arguments = parser.parse_args()
    names = ["vit_base_patch16_224", "vit_large_patch16_224"]
    batch, repeats = (2, 4) if arguments.quick else (64, 20)
    device = torch.device(arguments.device)
    results = {
        name: measure(name, device, getattr(torch, arguments.precision), batch, repeats)
        for name in (names[:1] if arguments.quick else names)
    }
    gpu = torch.cuda.get_device_name() if device.type == "cuda" else "not run on a GPU"
    about = {"gpu": gpu, "device": device.type, "batch": batch, "dtype": arguments.precision}
    print(json.dumps({**about, **results}))


if __name__ == "__main__":
    main()
