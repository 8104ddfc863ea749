"""Reading a Hugging Face config: every answer is a field that stands there, or a clear error.

The language model of a multimodal config is the table below it (`text_config` and the like). What
engines keep per token is bf16 unless the config says otherwise; quantised *weights* say nothing
about the cache, only a `kv_cache_scheme` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LARGEST = 10**9  # no size in a config comes near; more is a broken file, not a model

# Where wrappers keep the language model: transformers' name, InternVL's, DeepSeek-VL's.
_TEXT = ("text_config", "llm_config", "language_config")

# Bits of one value. fp8 as a dtype describes weights: no engine computes attention state in it.
_DTYPE_BITS = {"bfloat16": 16, "float16": 16, "half": 16, "float32": 32, "float": 32}
_WEIGHT_DTYPES = ("auto", "fp8", "float8_e4m3fn", "float8_e5m2")
_KV_SCHEMES = {"FP8": 8, "INT8": 8, "FP8_E4M3": 8, "FP8_E5M2": 8}


class KvSizeError(ValueError):
    """A config that cannot be sized. `field` is a dotted path, `value` what stood there."""

    def __init__(self, field: str, value: Any, message: str) -> None:
        super().__init__(f"{field} = {value!r}: {message}")
        self.field, self.value, self.message = field, value, message


class Config:
    """One table of a config, the defaults of its model class under it, and its dotted path."""

    def __init__(
        self, data: Any, path: str = "", defaults: Mapping[str, int] | None = None
    ) -> None:
        if not isinstance(data, Mapping):
            raise KvSizeError(path or "config", data, "must be an object")
        self.data, self.path, self.defaults = data, path, defaults or {}

    def at(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def error(self, key: str, message: str) -> KvSizeError:
        return KvSizeError(self.at(key), self.data.get(key), message)

    def has(self, key: str) -> bool:
        """Whether `key` stands there and is not null."""
        return self.data.get(key) is not None

    def under(self, defaults: Mapping[str, int]) -> Config:
        """The same table over the `defaults` of its model class."""
        return Config(self.data, self.path, defaults)

    def table(self, key: str) -> Config:
        return Config(self.data.get(key), self.at(key))

    def layer(self, index: int) -> Config:
        """The table as layer `index` sees it: `per_layer_config` overrides it."""
        if not self.has("per_layer_config"):
            return self
        table = self.table("per_layer_config")
        changed: dict[str, Any] = {}
        for key in table.data:
            if not str(key).isdecimal():
                raise table.error(key, "is not the number of a layer")
            if int(key) == index:  # written with leading zeros: "05"
                changed.update(table.table(key).data)
        return Config({**self.data, **changed}, self.path, self.defaults)

    def count(self, *keys: str) -> int:
        """The first of `keys` that stands there, a whole number above zero; else the class's."""
        for key in keys:
            if self.has(key):
                value = self.data[key]
                if isinstance(value, bool) or not isinstance(value, int):
                    raise self.error(key, "must be a whole number")
                if not 1 <= value <= LARGEST:
                    raise self.error(key, f"must be from 1 to {LARGEST}")
                return value
        for key in keys:
            if key in self.defaults:
                return self.defaults[key]
        raise self.error(keys[0], "is missing")

    def flag(self, key: str) -> bool:
        """Whether `key` is true; absent and null are false."""
        value = self.data.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.error(key, "must be true or false")
        return value is True

    def items(self, key: str) -> Sequence[Any]:
        value = self.data.get(key)
        if not isinstance(value, list):
            raise self.error(key, "is missing" if value is None else "must be a list")
        return value

    def indices(self, key: str, n_layers: int, *, first: int = 0) -> set[int]:
        """Layers that `key` lists, counted from 0; the list itself counts from `first`."""
        layers: set[int] = set()
        for i, value in enumerate(self.items(key)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise KvSizeError(f"{self.at(key)}[{i}]", value, "must be a whole number")
            if not 0 <= value - first < n_layers:
                message = f"is not a layer of {n_layers}, counted from {first}"
                raise KvSizeError(f"{self.at(key)}[{i}]", value, message)
            layers.add(value - first)
        return layers


def language_model(config: Mapping[str, Any]) -> tuple[Config, Config]:
    """The table that describes the language model, and the outermost table."""
    root = Config(config)
    inner = root
    if inner.has("thinker_config"):  # Qwen's omni models think in one part and talk in another
        inner = inner.table("thinker_config")
    for key in _TEXT:
        if inner.has(key):
            return inner.table(key), root
    return inner, root


def value_bits(text: Config, root: Config) -> int:
    """Bits of one cached activation, by the dtype of the model: 16 where none is given."""
    for table in (text, root):
        for key in ("dtype", "torch_dtype"):
            if table.has(key):
                return _dtype_bits(table, key)
    return 16


def kv_bits(text: Config, root: Config) -> int:
    """Bits of one value of K or V: the config's KV quantisation, else its dtype."""
    for table in (text, root):
        if table.has("quantization_config"):
            quantisation = table.table("quantization_config")
            for key in ("kv_cache_scheme", "kv_cache_quant_algo"):
                if quantisation.has(key):
                    return _scheme_bits(quantisation, key)
    return value_bits(text, root)


def state_bits(text: Config, default: int) -> int:
    """Bits of one value of a recurrent state; `default` where the config does not say."""
    for key in ("mamba_ssm_cache_dtype", "mamba_ssm_dtype"):
        if text.has(key) and text.data[key] != "auto":
            return _dtype_bits(text, key)
    return default


def _dtype_bits(table: Config, key: str) -> int:
    name = str(table.data[key]).removeprefix("torch.")
    if name in _WEIGHT_DTYPES:
        return 16
    if name not in _DTYPE_BITS:
        raise table.error(key, f"is not a known dtype (known: {', '.join(_DTYPE_BITS)})")
    return _DTYPE_BITS[name]


def _scheme_bits(quantisation: Config, key: str) -> int:
    scheme = quantisation.data[key]
    if isinstance(scheme, Mapping):
        return quantisation.table(key).count("num_bits")
    if not isinstance(scheme, str) or scheme not in _KV_SCHEMES:
        raise quantisation.error(key, f"is not a known scheme (known: {', '.join(_KV_SCHEMES)})")
    return _KV_SCHEMES[scheme]
