"""YAML files closed by a JSON Schema of `workflow/schemas/`, and one sentence for each error."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator, ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import extend

from crsbench.core.errors import UserError
from crsbench.core.names import nearest

SCHEMAS = Path(__file__).resolve().parents[3] / "workflow" / "schemas"


def read_closed(file: Path | str, schema: str, text: str | None = None) -> Mapping[str, Any]:
    """Read a YAML file that one of our schemas closes; UserError names the file and the key.

    text: the file's content where it was read before.
    """
    entries = read_unique_keys(file, text)
    entries = {} if entries is None else entries  # an empty file
    validate(entries, schema, str(file))
    _check_names(entries, file)
    return entries


def read_unique_keys(file: Path | str, text: str | None = None) -> Any:
    """The content of a YAML file; UserError naming the file, and a key that stands there twice."""
    try:
        return yaml.load(read_text(file) if text is None else text, Loader=_LoaderOfUniqueKeys)
    except yaml.YAMLError as error:
        raise UserError(f"{file} is not valid YAML: {' '.join(str(error).split())}.") from error


def typed(value: Any) -> Any:
    """A value of the command line as a config file would have it.

    Snakemake leaves the numbers and truth values within lists and mappings as text.
    """
    if isinstance(value, Mapping):
        return {key: typed(part) for key, part in value.items()}
    if isinstance(value, list):
        return [typed(part) for part in value]
    if isinstance(value, str):
        try:
            meant = yaml.safe_load(value)
        except yaml.YAMLError:
            return value
        return meant if isinstance(meant, int | float | None) else value
    return value


def read_text(file: Path | str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 text: {error.reason}.") from error


class _LoaderOfUniqueKeys(yaml.SafeLoader):
    """PyYAML's safe loader keeps the last of equal keys; here they are an error."""

    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key '{key.value}' stands there twice", problem_mark=key.start_mark
                )
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else None)
        return node


def _check_names(names: Iterable[str], file: Path | str) -> None:
    """A name is a folder of the results: two that differ in case alone are one on some disks."""
    first: dict[str, str] = {}
    for name in names:
        other = first.setdefault(name.lower(), name)
        if other != name:
            raise UserError(
                f"{file}: the names '{other}' and '{name}' differ only in upper and lower case; "
                "rename one."
            )


def _check_finite(content: Any, source: str, place: str = "") -> None:
    """YAML can write `.nan` and `.inf`, which are no numbers to compute with or to compare."""
    if isinstance(content, Mapping):
        for key, value in content.items():
            _check_finite(value, source, f"{place}.{key}" if place else str(key))
    elif isinstance(content, list | tuple):
        for at, value in enumerate(content):
            _check_finite(value, source, f"{place}.{at}")
    elif isinstance(content, float) and not math.isfinite(content):
        raise UserError(f"{source}: {place} is {content}; allowed is a finite number.")


def _is_integer(_: Any, value: Any) -> bool:
    """JSON Schema calls 1.0 an integer too, but the names of files are made of integers."""
    return isinstance(value, int) and not isinstance(value, bool)


_Validator = extend(
    Draft202012Validator,
    type_checker=Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_integer),
)


@cache
def _validator(schema: str) -> Validator:
    return _Validator(yaml.safe_load(read_text(SCHEMAS / f"{schema}.schema.yaml")))


def validate(instance: Any, schema: str, source: str) -> None:
    """Raises UserError with the first violation; source: the file, named in the sentence."""
    _check_finite(instance, source)
    validator = _validator(schema)
    errors = sorted(validator.iter_errors(instance), key=lambda e: (len(e.path), str(e.path)))
    if errors:
        raise UserError(f"{source}: {_explain(errors[0])}")


RENAMED_KEYS = {
    "apart": "excluded_classes",
    "detect": "positive_classes",
    "general_twin": "base_model",
    "left_over": "ignored_tensors",
    "own_model": "external_predictions",
    "sentinel": "shift_detection",
}
"""Keys of version 0.1 by their names of today."""


def _hint(key: str, known: Mapping[str, Any]) -> str:
    renamed = RENAMED_KEYS.get(key)
    return f" (renamed: write '{renamed}')" if renamed in known else nearest(key, known)


def _explain(error: ValidationError) -> str:
    """One sentence for one schema violation: where, the value found, what is allowed."""
    place = ".".join(str(part) for part in error.path) or "the top level"
    if error.validator == "not":  # of names of keys: those without use beside the entry's others
        return f"the key '{error.instance}' of {place} has no meaning beside its other keys."
    if "propertyNames" in error.absolute_schema_path:
        return (
            f"the name {json.dumps(error.instance, ensure_ascii=False, default=str)} is not "
            "allowed; a name is text of letters (a-z), digits, '_', '.' and '-', begins with a "
            "letter or digit and has at most 100 characters."
        )
    if error.validator == "additionalProperties":
        known = error.schema["properties"]
        unknown = sorted(set(error.instance) - set(known), key=str)
        return "; ".join(
            f"unknown key '{key}' in {place}{_hint(str(key), known)}" for key in unknown
        ) + (f" (allowed: {', '.join(sorted(known))}).")
    if error.validator == "required":
        missing = sorted(set(error.validator_value) - set(error.instance))
        return f"{place} lacks the key {', '.join(repr(key) for key in missing)}."
    if error.validator == "dependentRequired":
        needed = [key for keys in error.validator_value.values() for key in keys]
        missing = [key for key in needed if key not in error.instance]
        keys = [key for key in error.validator_value if key in error.instance]
        return f"{place} has the key '{keys[0]}' and lacks the key {', '.join(map(repr, missing))}."
    if error.validator == "oneOf":
        allowed = "hub, untrained, {file: …}, {hub: …, file: …} or {package: …, file: …}"
        return f"{place} is {json.dumps(error.instance)}; allowed is {allowed}."
    if error.validator == "enum":
        hint = nearest(str(error.instance), error.validator_value)
        allowed = ", ".join(map(str, error.validator_value))
        return f"{place} is {json.dumps(error.instance)}{hint}; allowed: {allowed}."
    if error.validator == "type":
        return f"{place} is {json.dumps(error.instance, default=str)}{_type_hint(error)}."
    if error.validator in LISTS:
        wanted = LISTS[error.validator].format(_contained(error))
        return f"{place} is {json.dumps(error.instance, default=str)}; allowed is {wanted}."
    return f"{place} is {json.dumps(error.instance, default=str)}: {error.message}."


LISTS = {
    "contains": "a list that has {}",
    "minItems": "a list of {} or more values",
    "uniqueItems": "each value once",
}
"""What is asked of a list as a whole, in the words of the messages."""


def _contained(error: ValidationError) -> Any:
    value = error.validator_value
    return value["const"] if isinstance(value, Mapping) else value


TYPES = {
    **{"integer": "a whole number", "number": "a number", "string": "text", "array": "a list"},
    **{"object": "a mapping", "boolean": "true or false", "null": "null"},
}
"""JSON's types in the words of the messages."""


def _type_hint(error: ValidationError) -> str:
    """What is allowed instead of a value of another type, and how YAML came to read it so."""
    wanted = [error.validator_value] if isinstance(error.validator_value, str) else []
    wanted = wanted or list(error.validator_value)
    allowed = f"; allowed is {' or '.join(TYPES[name] for name in wanted)}"
    value = error.instance
    if isinstance(value, float) and value.is_integer() and "integer" in wanted:
        return f"{allowed}: write {int(value)}"
    if isinstance(value, str) and {"integer", "number"} & {*wanted}:
        power = re.fullmatch(r"([-+]?\d+)([.]?\d*)[eE]([-+]?)(\d+)", value)
        if power:
            digits, rest, sign, exponent = power.groups()
            number = f"{digits}{rest if len(rest) > 1 else '.0'}e{sign or '+'}{exponent}"
            return f"{allowed}, and YAML reads this as text: write {number}"
        return f"{allowed}, without quotation marks" if _is_number(value) else allowed
    if value is not None and not isinstance(value, str | list | dict) and "string" in wanted:
        return f'{allowed}: write "{value}"'
    return allowed


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True
