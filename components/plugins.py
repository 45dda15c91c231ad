"""A plug-in is a file: its name is the YAML value, the test id and the heading in the docs.

Lookup is by file name, so adding a source, gate, launcher or criterion is adding one file and
nothing else. `OneOf` and `ManyOf` let a pydantic field hold the `Config` of plug-ins chosen by name:

    source: Annotated[Config, OneOf("components.data.sources")]     # {kind: jsonl, path: ...}
    gates: Annotated[dict[str, Config], ManyOf("components.gates")]  # {weights_are_finite: {}}
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from components.errors import ConfigError


class Config(BaseModel):
    """Base of every settings model: frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def names(package: str) -> list[str]:
    """The plug-ins of a package, sorted; files that start with an underscore are none."""
    folder = importlib.import_module(package)
    found = (module.name for module in pkgutil.iter_modules(folder.__path__) if not module.ispkg)
    return sorted(name for name in found if not name.startswith("_"))


def load(package: str, name: str) -> ModuleType:
    """The plug-in called `name`; a wrong name is answered with the right ones."""
    if name not in (known := names(package)):
        folder = package.replace(".", "/")
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise ConfigError(
            f"no '{name}' in {folder}/; {hint}choose one of {', '.join(known)}, or add {name}.py"
        )
    return importlib.import_module(f"{package}.{name}")


def name_of(config: Config) -> str:
    """The plug-in a `Config` belongs to: the name of the file that defines it."""
    return type(config).__module__.rpartition(".")[2]


@dataclass(frozen=True)
class OneOf:
    """A field that holds the `Config` of one plug-in, written as `{kind: <file name>, ...}`."""

    package: str

    def _validate(self, value: Any) -> Config:
        if isinstance(value, Config):
            return value
        if isinstance(value, str):
            value = {"kind": value}
        if not isinstance(value, dict) or "kind" not in value:
            known = ", ".join(names(self.package))
            raise ValueError(f"needs a 'kind', one of {known}; got {value!r}")
        settings = {key: item for key, item in value.items() if key != "kind"}
        config: Config = load(self.package, value["kind"]).Config.model_validate(settings)
        return config

    @staticmethod
    def _serialize(config: Config) -> dict[str, Any]:
        return {"kind": name_of(config), **config.model_dump(mode="json")}

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self._validate,
            serialization=core_schema.plain_serializer_function_ser_schema(self._serialize),
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        kind = {"type": "string", "enum": names(self.package)}
        return {"type": "object", "properties": {"kind": kind}, "required": ["kind"]}


@dataclass(frozen=True)
class ManyOf:
    """A field that holds the `Config` of several plug-ins, written as `{<file name>: {...}, ...}`."""

    package: str

    def _validate(self, value: Any) -> dict[str, Config]:
        if not isinstance(value, dict):
            raise ValueError(f"needs a mapping of plug-in name to settings; got {value!r}")
        return {
            name: settings
            if isinstance(settings, Config)
            else load(self.package, name).Config.model_validate(settings or {})
            for name, settings in value.items()
        }

    @staticmethod
    def _serialize(value: dict[str, Config]) -> dict[str, Any]:
        return {name: config.model_dump(mode="json") for name, config in value.items()}

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self._validate,
            serialization=core_schema.plain_serializer_function_ser_schema(self._serialize),
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        known = {name: {"type": "object"} for name in names(self.package)}
        return {"type": "object", "properties": known, "additionalProperties": False}
