"""The fields of a `config.json`, read with errors that name the family of models, the layer and the field."""

from collections.abc import Sequence
from typing import Any, Final, final


_MAX_COUNT: Final = 1 << 40


class ModelConfigError(ValueError):
    """A model's configuration that cannot be placed; the text names the file or family, the layer and the field."""


@final
class ModelFields:
    """The fields of one model. ``family``: its `model_type`."""

    __slots__ = ("family", "values")

    def __init__(self, family: str, values: dict[str, Any]) -> None:
        self.family: Final = family
        self.values: Final = values

    def fail(self, text: str, layer_id: int | None = None) -> ModelConfigError:
        """The error to raise."""
        place = "" if layer_id is None else f"layer {layer_id}: "
        return ModelConfigError(f"{self.family}: {place}{text}")

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self.values.get(name) is not None

    def optional_count(self, *names: str) -> int | None:
        """A whole number from 0 on, under the first of these names that is there; None without one."""
        for name in names:
            value = self.values.get(name)
            if value is not None:
                return self.to_count(value, name)
        return None

    def count(self, *names: str) -> int:
        """A whole number from 1 on."""
        value = self.optional_count(*names)
        if value is None:
            raise self.fail(f"there is no field {' or '.join(names)}")
        if value == 0:
            raise self.fail(f"{self._present(names)} is 0; at least 1")
        return value

    def count_or(self, default: int, *names: str) -> int:
        """A whole number from 1 on, or the default where the field is missing."""
        return default if self.optional_count(*names) is None else self.count(*names)

    def flag(self, name: str, default: bool) -> bool:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fail(f"{name} is {shown(value)}, not true or false")
        return value

    def text(self, name: str) -> str | None:
        value = self.values.get(name)
        if value is not None and not isinstance(value, str):
            raise self.fail(f"{name} is {shown(value)}, not a string")
        return value

    def items(self, name: str, num_layers: int | None = None) -> list[Any] | None:
        """A list, or None where the field is missing; with ``num_layers`` one item for each layer."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self.fail(f"{name} is {shown(value)}, not a list")
        if num_layers is not None and len(value) != num_layers:
            raise self.fail(f"{name} has {len(value)} items for {num_layers} layers")
        return value

    def inner(self, name: str) -> "ModelFields | None":
        """The fields of an object inside this one."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.fail(f"{name} is {shown(value)}, not an object")
        return ModelFields(f"{self.family}: {name}", value)

    def of_layer(self, layer_id: int) -> "ModelFields":
        """With what `per_layer_config`, as transformers from 5.24 on writes it, says of one layer; by its number, "05" as well as "5"."""
        layers = self.inner("per_layer_config")
        for number, own in () if layers is None else layers.values.items():
            if not (isinstance(own, dict) and number.isdecimal()):
                raise self.fail(f"per_layer_config has {shown(number)}: {shown(own)}, where a layer's number and an object were expected")
            if int(number) == layer_id:
                return ModelFields(self.family, {**self.values, **own})
        return self

    def to_count(self, value: Any, name: str, layer_id: int | None = None) -> int:
        if type(value) is not int or not 0 <= value <= _MAX_COUNT:
            raise self.fail(f"{name} is {shown(value)}, not a whole number from 0 on", layer_id)
        return int(value)

    def indices(self, name: str, num_layers: int) -> list[int] | None:
        """A list of layer numbers."""
        values = self.items(name)
        if values is None:
            return None
        found: list[int] = []
        for value in values:
            index = self.to_count(value, name)
            if index >= num_layers:
                raise self.fail(f"{name} names layer {index}; there are {num_layers}")
            found.append(index)
        return found

    def _present(self, names: Sequence[str]) -> str:
        return [name for name in names if self.has(name)][0]


def shown(value: object) -> str:
    """The value's text, cut to 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
