"""Vision models of the transformers library, also out of larger models that hold one."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
import transformers

from crsbench.config.model import EncoderEntry
from crsbench.core.errors import UserError
from crsbench.core.names import nearest
from crsbench.encoders.base import block_numbers, without
from crsbench.weights.files import beside, fetch
from crsbench.weights.tensors import (
    faults_of_weights,
    fetch_tensors,
    freeze,
    read_json,
    sha256_of_tensors,
)

Feature = Literal["pooled", "class_token", "mean_patches"]

_BLOCK_LISTS = ("layers", "layer", "stages")
_FINAL_NORMS = ("post_layernorm", "layernorm", "layer_norm", "norm", "rms_norm")

# The rest of the library's own models of two towers (CLIP, SigLIP).
_TEXT_AND_LOSS = (
    *("text_model.", "text_projection.", "visual_projection.", "logit_scale", "logit_bias"),
)

# The numbers 0, 1, 2 … of the positions, which the library saved until 4.31 and derives since.
_DERIVED = {"embeddings.position_ids"}


class TransformersEncoder(torch.nn.Module):
    """A vision model and its pooling.

    feature: `pooled` is the library's own `pooler_output`; `class_token` the first token and
    `mean_patches` the mean of the patch tokens, or of the map, of its `last_hidden_state`; name: of
    the encoder, for messages.
    """

    def __init__(self, tower: torch.nn.Module, feature: Feature, name: str) -> None:
        super().__init__()
        self.name = name
        self.tower = tower
        self.feature = feature
        self.cut_off = 0

    @property
    def width(self) -> int:
        config = self.tower.config
        return getattr(config, "hidden_size", None) or config.hidden_sizes[-1]

    @property
    def block_count(self) -> int:
        """Blocks or stages of the whole model, those that `cut` took off counted in."""
        owner, name = _block_list(self.tower)
        return len(getattr(owner, name)) + self.cut_off

    def cut(self, kept: int) -> None:
        """Drop the blocks behind the one whose output is the feature.

        Raises UserError for a model that has not as many, or whose stages can't be cut.
        """
        said = f"Encoder '{self.name}': cut_to_blocks is {kept}"
        if _has_stages(self.tower):
            raise UserError(
                f"{said}, but {type(self.tower).__name__} has stages of different widths, which "
                "can't be cut."
            )
        owner, name = _block_list(self.tower)
        layers = getattr(owner, name)
        if kept > len(layers):
            raise UserError(f"{said}, the tower has {len(layers)} blocks.")
        self.cut_off = len(layers) - kept
        setattr(owner, name, layers[:kept])

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(n, width) features. Raises UserError where the model has no such feature."""
        output = self.tower(pixel_values=images)
        if self.feature == "pooled":
            pooled = getattr(output, "pooler_output", None)
            if pooled is None:
                raise self._lacks("pooled output")
            return pooled.flatten(1)
        states = output.last_hidden_state
        if states.ndim == 4:
            if self.feature == "class_token":
                raise self._lacks("class token")
            return states.mean(dim=(2, 3))
        before = self._tokens_before_patches(images, states)
        if self.feature == "mean_patches":
            return states[:, before:].mean(dim=1)
        if before == 0:
            raise self._lacks("class token")
        return states[:, 0]

    def _tokens_before_patches(self, images: torch.Tensor, states: torch.Tensor) -> int:
        """How many tokens (class, distillation, registers) stand before those of the patches.

        What is over when the patches are counted off; a model whose tokens are not those of the
        patches, because they were merged or masked, has no tokens to distinguish.
        """
        config = self.tower.config
        patch = getattr(config, "patch_size", None)
        height, width = patch if isinstance(patch, list | tuple) else (patch, patch)
        most = 2 + (getattr(config, "num_register_tokens", None) or 0)
        over = -1
        if isinstance(height, int):
            over = states.shape[1] - (images.shape[2] // height) * (images.shape[3] // width)
        if not 0 <= over <= most:
            raise self._lacks("token for each patch")
        return over

    def _lacks(self, what: str) -> UserError:
        return UserError(
            f"Encoder '{self.name}': this {type(self.tower).__name__} has no {what}, so feature "
            f"can't be '{self.feature}'; allowed: those of pooled, class_token and mean_patches "
            "that it has."
        )

    @property
    def has_final_norm(self) -> bool:
        """Whether a norm stands between the last block and the feature.

        CLIP's towers, which alone have a norm before their blocks too, norm the class token only
        on its way to the pooled output; of networks in stages the features are means of maps.
        """
        normed = self.feature == "pooled" or not hasattr(self.tower, "pre_layrnorm")
        named = any(
            not isinstance(getattr(self.tower, name, torch.nn.Identity()), torch.nn.Identity)
            for name in _FINAL_NORMS
        )
        return normed and named and not _has_stages(self.tower)

    def blocks(
        self, images: torch.Tensor, depths: Sequence[float], *, final_norm: bool = True
    ) -> list[torch.Tensor]:
        """The norm and the pooling applied after shares of the blocks, or the means of stages.

        One pass through the blocks gives what each asked one hands on; the model's own head then
        runs on it in the place of the last block's. Raises ValueError for depths as
        `block_numbers` and for stages whose output is no map.
        """
        owner, name = _block_list(self.tower)
        layers = getattr(owner, name)
        numbers = block_numbers(depths, len(layers))
        handed_on: dict[int, Any] = {}
        hooks = [
            layers[number - 1].register_forward_hook(
                lambda *passed, number=number: handed_on.update({number: passed[-1]})
            )
            for number in numbers
        ]
        try:
            own = self(images)
        finally:
            for hook in hooks:
                hook.remove()
        features = []
        for number in numbers:
            if number == len(layers):
                features.append(own)
            elif _has_stages(self.tower):
                features.append(self._mean_of_map(handed_on[number]))
            else:
                setattr(owner, name, torch.nn.ModuleList([_HandsOn(handed_on[number])]))
                try:
                    with without(self.tower, *(() if final_norm else _FINAL_NORMS)):
                        features.append(self(images))
                finally:
                    setattr(owner, name, layers)
        return features

    def _mean_of_map(self, stage: Any) -> torch.Tensor:
        if not isinstance(stage, torch.Tensor) or stage.ndim != 4:
            raise ValueError(f"{type(self.tower).__name__} has neither blocks nor stages of maps.")
        return stage.mean(dim=(2, 3))


class _HandsOn(torch.nn.Module):
    """Stands in for the blocks: whatever it is given, it returns what one of them had returned."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output

    def forward(self, *_: Any, **__: Any) -> Any:
        return self.output


def _has_stages(tower: torch.nn.Module) -> bool:
    """Whether widths and grids change on the way, as in Swin, ConvNeXt and ResNet."""
    return hasattr(tower.config, "depths")


def _block_list(tower: torch.nn.Module) -> tuple[torch.nn.Module, str]:
    """The module that holds the list of blocks or stages, and the list's name in it."""
    for path, module in tower.named_modules():
        owner, _, name = path.rpartition(".")
        if isinstance(module, torch.nn.ModuleList) and name in _BLOCK_LISTS:
            return tower.get_submodule(owner), name
    raise ValueError(f"{type(tower).__name__} has neither blocks nor stages.")


def load(
    entry: EncoderEntry, home: Path, weights_root: Path, device: torch.device
) -> tuple[TransformersEncoder, str]:
    """Build the model and load it, in float32 whatever the checkpoint's type.

    Its configuration is `architecture` or the `config.json` beside the weights, of which a model
    with several towers holds the image tower's below `vision_config`. The library itself translates
    the checkpoint's tensor names, which are often not those of its modules (DINOv2).
    """
    del home
    model_class = _model_class(entry)
    config = _config(entry, weights_root, model_class.config_class)
    beside = _TEXT_AND_LOSS if "prefix" in entry.spec else ()
    tensors = fetch_tensors(entry, weights_root, prefixes=entry.prefixes, ignored_tensors=beside)
    for name in _DERIVED & tensors.keys():
        del tensors[name]
    tower = _loaded(entry, model_class, config, tensors)
    digest = sha256_of_tensors(tower.state_dict())
    return freeze(_encoder(entry, tower), device), digest


def build(entry: EncoderEntry, weights_root: Path) -> TransformersEncoder:
    """The entry's encoder with random weights."""
    model_class = _model_class(entry)
    config = _config(entry, weights_root, model_class.config_class)
    return _encoder(entry, model_class(config, **_arguments(entry, model_class)))


def _encoder(entry: EncoderEntry, tower: transformers.PreTrainedModel) -> TransformersEncoder:
    encoder = TransformersEncoder(tower, entry.spec["feature"], entry.name)
    if "cut_to_blocks" in entry.spec:
        encoder.cut(entry.spec["cut_to_blocks"])
    return encoder


def _model_class(entry: EncoderEntry) -> type[transformers.PreTrainedModel]:
    """The class that the entry names, which must encode images and need nothing beside them."""
    name = entry.spec["model"]
    found = getattr(transformers, name, None)
    known = isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)
    if (
        not known
        or not name.endswith("Model")
        or name.endswith("PreTrainedModel")
        or found.config_class is None
        or found.main_input_name != "pixel_values"
    ):
        raise UserError(
            f"Encoder '{entry.name}': the model '{name}' of transformers is no vision model; "
            "allowed: its classes that encode images, such as CLIPVisionModel, "
            "SiglipVisionModel, Dinov2Model, ViTModel, BeitModel, SwinModel, ConvNextModel."
        )
    needed = [
        parameter.name
        for parameter in inspect.signature(found.forward).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        and parameter.name not in ("self", "pixel_values")
    ]
    if needed:
        raise UserError(
            f"Encoder '{entry.name}': {name} takes {', '.join(needed)} beside the images; allowed "
            "are models that take images alone."
        )
    return found


def _config(
    entry: EncoderEntry, weights_root: Path, config_class: type
) -> transformers.PreTrainedConfig:
    settings = _settings(entry, weights_root, config_class)
    try:
        return config_class.from_dict({**settings, "dtype": "float32"})
    except Exception as error:  # any setting may be wrong in any way
        raise _not_built(entry, error) from error


def _not_built(entry: EncoderEntry, error: Exception) -> UserError:
    reason = " ".join(str(error).split())
    return UserError(f"Encoder '{entry.name}': {entry.spec['model']} can't be built: {reason}")


def _loaded(
    entry: EncoderEntry,
    model_class: type[transformers.PreTrainedModel],
    config: transformers.PreTrainedConfig,
    tensors: dict[str, torch.Tensor],
) -> transformers.PreTrainedModel:
    """The model with exactly these tensors; a UserError names those that lack, are over, misfit."""
    arguments = _arguments(entry, model_class)
    if arguments.get("add_pooling_layer") is False:
        tensors = {n: t for n, t in tensors.items() if not n.startswith("pooler.")}
    with _quiet():
        try:
            tower, loading = model_class.from_pretrained(
                None,
                config=config,
                state_dict=tensors,
                dtype=torch.float32,
                ignore_mismatched_sizes=True,  # listed, and refused below with all the others
                output_loading_info=True,
                **arguments,
            )
        except Exception as error:
            raise _not_built(entry, error) from error
    unlike = {name: (theirs, own) for name, theirs, own in loading["mismatched_keys"]}
    faults = faults_of_weights(loading["missing_keys"], loading["unexpected_keys"], unlike)
    faults += loading["error_msgs"]
    if faults:
        raise UserError(f"Encoder '{entry.name}': its weights {'; they '.join(faults)}.")
    return tower


def _arguments(
    entry: EncoderEntry, model_class: type[transformers.PreTrainedModel]
) -> dict[str, bool]:
    """A pooler that the feature has no use for is not built."""
    if "add_pooling_layer" not in inspect.signature(model_class.__init__).parameters:
        return {}
    return {"add_pooling_layer": entry.spec["feature"] == "pooled"}


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's bar and report: what is wrong is reported once, by us."""
    logging = transformers.utils.logging
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        logging.enable_progress_bar()


def _settings(entry: EncoderEntry, weights_root: Path, config_class: type) -> Mapping[str, Any]:
    settings = entry.spec.get("architecture")
    if settings is None:
        file = fetch(entry, weights_root, beside(entry, "config.json"))
        settings = read_json(file, entry.name)
        return settings.get("vision_config", settings)
    known = config_class().to_dict()
    for key in settings:  # the library itself takes any key and ignores it
        if key not in known:
            raise UserError(
                f"Encoder '{entry.name}': unknown key '{key}' in architecture{nearest(key, known)}."
            )
    return settings
