"""Hydra composition: configuration groups, one composed and typed configuration per combination, readable errors.

Hydra is imported when a Composer is made, never with this module.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from harness.config import CommandConfig
from harness.configs import available_files, folders
from harness.errors import FROM_COMMAND_LINE, ConfigError, Problem
from harness.hydra_errors import place, translated

CONFIG_MODULE = "sweeps"
CONFIG_NAME = "config"
PROTOCOL = "protocol"
GROUPS = ("sweep", "method", "env", "backbone", "scale", "analyzer", "launcher", "tracking")


def project_files(group: str) -> dict[str, str]:
    """Name -> text of the project's own files of a group, sorted; none if there is no such group."""
    folder = resources.files(CONFIG_MODULE) / group
    files = {e.name: e for e in folder.iterdir() if e.name.endswith(".yaml")} if folder.is_dir() else {}
    return {name.removesuffix(".yaml"): files[name].read_text(encoding="utf-8") for name in sorted(files)}


def named(group: str, file: str) -> str:
    """The file that `file` is only another name of: one whose content is a single default. Else `file` itself."""
    from omegaconf import OmegaConf

    text = project_files(group).get(file)
    content = OmegaConf.to_container(OmegaConf.create(text)) if text is not None else None
    match content:
        case {"defaults": [str(other)], **rest} if not rest:
            return other
    return file


def package_files(groups: Sequence[str] = GROUPS) -> dict[str, dict[str, str]]:
    """Group -> file -> its first comment line, of folders in the package, then of those that installed packages add
    (with the package's name). Needs no Hydra."""
    found: dict[str, dict[str, str]] = {}
    for group in groups:
        found[group] = {name: _first_comment(text) for name, text in project_files(group).items()}
        for added in folders():
            for name, path in added.files(group).items():
                comment = _first_comment(path.read_text(encoding="utf-8"))
                found[group].setdefault(name, f"{comment} [{added.offer.package}]".lstrip())
    return found


def _first_comment(text: str) -> str:
    lines = (line.lstrip("# ").strip() for line in text.splitlines() if line.startswith("#"))
    return next((line for line in lines if not line.startswith("@package")), "")


class Composer:
    """Composes configurations; equal requests are composed once. Made by `composer()`.

    config_name: the primary configuration, of an application of somebody's own.
    """

    def __init__(self, loader: Any, hydra_overrides: Sequence[str], config_name: str = CONFIG_NAME) -> None:
        self._loader = loader
        self._name = config_name
        self._hydra = list(hydra_overrides)
        self._composed: dict[tuple[str, ...], tuple[CommandConfig, dict[str, str]]] = {}
        self._plain: dict[tuple[str, ...], bool] = {}
        self._contents: dict[tuple[str, str], tuple[Mapping[str, Any], tuple[str, ...]]] = {}
        self._groups: dict[str, tuple[str, ...]] | None = None
        self.compositions = 0  # how often Hydra really composed

    def groups(self) -> dict[str, tuple[str, ...]]:
        """Group -> names of its files, those of the search path included. Raises ConfigError as `_files` does."""
        if self._groups is None:
            from hydra.core.object_type import ObjectType

            self._groups = {
                group: tuple(sorted(self._files.get_group_options(group, ObjectType.CONFIG))) for group in GROUPS
            }
        return self._groups

    def names(self, group: str) -> tuple[str, ...]:
        """Names of the files in folders of the search path that are called so; none if there is no such folder."""
        from hydra.core.object_type import ObjectType

        found: set[str] = set()
        for source in self._files.get_sources():
            # Our own plugin's sources hide the folder of protocols from Hydra, which would take it for a group.
            if source.is_group(group) or getattr(source, "hidden", None) == group:
                found.update(source.list(group, ObjectType.CONFIG))
        return tuple(sorted(found))

    def file(self, group: str, name: str) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        """What a file says itself, and which files of its group it inherits from, the one that counts most first.

        Raises ConfigError if the file cannot be read.
        """
        if (group, name) not in self._contents:
            from omegaconf import OmegaConf

            files = self._files
            with translated(files):
                found = files.load_config(f"{group}/{name}")
            if found is None:
                raise ConfigError(Problem(group, name, "", available_files(name, self.names(group))))
            listed = [str(getattr(entry, "path", "_self_")).removeprefix(f"/{group}/") for entry in found.defaults_list]
            parents = [path for path in listed if path != "_self_"]
            node = OmegaConf.to_container(found.config, resolve=False)
            content = {str(key): v for key, v in node.items()} if isinstance(node, dict) else {}
            self._contents[group, name] = (content, tuple(reversed(parents)))
        return self._contents[group, name]

    def where(self, group: str, name: str) -> str:
        """Where a file is, to be shown: `sweeps/method/grpo.yaml`, or its path if it is none of the project's."""
        return place(self._files, f"{group}/{name}")

    @property
    def primary(self) -> str:
        """Where the primary configuration is, to be shown."""
        return place(self._files, self._name)

    @cached_property
    def _files(self) -> Any:
        """Hydra's view of the search path. Raises ConfigError for one that cannot be read."""
        from hydra.errors import HydraException

        try:
            return self._loader._parse_overrides_and_create_caching_repo(self._name, self._hydra)[1]
        except HydraException as error:
            key, _, given = self._hydra[0].partition("=")
            fix = f"cannot be read ({str(error).splitlines()[0]}); it looks like {key}=[file://DIR]"
            raise ConfigError(Problem(key, given, FROM_COMMAND_LINE, fix)) from error

    def config(self, overrides: Sequence[str]) -> tuple[CommandConfig, dict[str, str]]:
        """The typed configuration and the chosen file of each group. Raises ConfigError."""
        key = tuple(overrides)
        if key not in self._composed:
            from omegaconf import OmegaConf, open_dict

            node = self.compose(overrides)
            known = node.hydra.runtime.choices
            choices = {g: c for g, c in known.items() if g in GROUPS and isinstance(c, str)}
            further = [g for g in known if g not in GROUPS and not g.startswith("hydra/")]
            with open_dict(node):  # the node `hydra` is Hydra's own; everything else is the schema's
                del node["hydra"]
            with translated(self._files, overrides):
                config = OmegaConf.to_object(node)
                text = str(OmegaConf.to_container(node, resolve=False))
            if not isinstance(config, CommandConfig):
                fix = "must begin with `command_schema`, or with sweeps/config.yaml, in its defaults list"
                raise ConfigError(Problem("", "", f"{self._name}.yaml", fix))
            self._plain[key] = "${" not in text and not further
            self._composed[key] = (config, choices)
        return self._composed[key]

    def text(self, overrides: Sequence[str], part: str, resolve: bool) -> str:
        """The composed configuration as YAML. part: job (without Hydra's own), hydra, or all. Raises ConfigError."""
        from omegaconf import OmegaConf

        node = self.compose(overrides)
        keep = {"job": [k for k in node if k != "hydra"], "hydra": ["hydra"], "all": list(node)}[part]
        shown: str = OmegaConf.to_yaml(OmegaConf.masked_copy(node, keep), resolve=resolve)
        return shown

    def is_plain(self, overrides: Sequence[str]) -> bool:
        """Whether a composition (asked of `config` before) has neither interpolations nor groups besides GROUPS."""
        return self._plain[tuple(overrides)]

    def compose(self, overrides: Sequence[str]) -> Any:
        """The composed OmegaConf node, with Hydra's own under `hydra`. Raises ConfigError."""
        from hydra.types import RunMode

        self.compositions += 1
        with translated(self._files, overrides):
            return self._loader.load_configuration(
                self._name, [*self._hydra, *overrides], run_mode=RunMode.RUN, from_shell=False
            )


def composer(config_dir: str | None = None, searchpath: Sequence[str] = ()) -> Composer:
    """A Composer over the package `sweeps` and one further place, if given.

    config_dir: a folder with the same groups. searchpath: overrides `hydra.searchpath=...` as typed.
    Raises ConfigError.
    """
    from hydra import initialize_config_module
    from hydra.core.global_hydra import GlobalHydra

    register_schema()
    overrides = list(searchpath)
    if len(overrides) + (config_dir is not None) > 1:
        fix = "give one search path only; several folders go into one hydra.searchpath=[file://A,file://B]"
        raise ConfigError(Problem("hydra.searchpath", "", FROM_COMMAND_LINE, fix))
    if config_dir is not None:
        folder = Path(config_dir).expanduser().absolute()
        if not folder.is_dir():
            raise ConfigError(Problem("--config-dir", str(config_dir), FROM_COMMAND_LINE, "is not a folder"))
        overrides = [f"hydra.searchpath=['file://{folder}']"]
    # Hydra's global state is needed to make its loader, and left as it was: composers do not know of each other.
    with initialize_config_module(config_module=CONFIG_MODULE, version_base="1.3"):
        loader = _with_packages(GlobalHydra.instance().config_loader())
    _read_files_once(loader)
    return Composer(loader, overrides)


def composer_over(loader: Any, config_name: str, searchpath: Sequence[str] = ()) -> Composer:
    """A Composer over the search path of an application's own loader, which is left alone. searchpath: its overrides of
    hydra.searchpath, as typed."""
    register_schema()
    ours = _with_packages(loader)
    _read_files_once(ours)
    return Composer(ours, list(searchpath), config_name)


def _with_packages(loader: Any) -> Any:
    """A loader that also sees the configuration folders of installed packages. Where Hydra finds our plugins it does
    already."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl

    path = copy.deepcopy(loader.get_search_path())
    known = {element.provider for element in path.get_path()}
    schema = path.get_path().pop()  # stays the last
    for folder in folders():
        if folder.path is not None and folder.provider not in known:
            path.append(folder.provider, f"file://{folder.path}")
    path.get_path().append(schema)
    return ConfigLoaderImpl(path)


def _read_files_once(loader: Any) -> None:
    """Let compositions of one loader share the files they read, which makes all but the first more than twice as fast.

    Hydra reads and parses every file anew for each composition. A Composer's search path does not change, so what was
    read once holds; a test compares the results with Hydra's own.
    """
    from hydra._internal.config_repository import CachingConfigRepository

    class Shared(CachingConfigRepository):  # type: ignore[misc]
        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            return self  # Hydra copies the repository before each composition

        def group_exists(self, config_path: str) -> bool:
            # A folder of files, but `protocol` is a value: what its files say depends on method and environment, and is
            # laid over a composed cell (harness.protocols).
            return config_path != PROTOCOL and bool(super().group_exists(config_path))

        def load_config(self, config_path: str) -> Any:
            return copy.deepcopy(super().load_config(config_path))  # compositions change what they are given

    loader.repository = Shared(loader.repository)


def register_schema() -> None:
    """Make `CommandConfig` known to Hydra as `command_schema`."""
    from hydra.core.config_store import ConfigStore

    ConfigStore.instance().store(name="command_schema", node=CommandConfig, provider="harness.config")


def render(value: Any) -> str:
    """A Python value as the value of a Hydra override."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{k}:{render(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(render(v) for v in value) + "]"
    text = str(value).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'"
