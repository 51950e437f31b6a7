"""Objects named by text such as `package.module:Name`."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import Any

from rl_training.errors import ConfigError, did_you_mean


def import_object(path: str) -> Any:
    """The object at `package.module:Name` or `package.module:Name.attribute`.

    The current directory is importable, as with `python -m`. Whatever goes wrong is a ConfigError;
    an error raised inside the module is quoted in it.
    """
    module_name, colon, attributes = path.partition(":")
    if not (module_name and colon and attributes):
        raise ConfigError(f"expected package.module:Name, found {path!r}")
    target: object = import_module(module_name)
    where = module_name
    for name in attributes.split("."):
        if not hasattr(target, name):
            public = [known for known in dir(target) if not known.startswith("_")]
            raise ConfigError(f"{where} has no attribute {name!r}{did_you_mean(name, public)}")
        target = getattr(target, name)
        where = f"{where}:{name}" if where == module_name else f"{where}.{name}"
    return target


def import_module(name: str) -> ModuleType:
    """The module of that name, also from the current directory; ConfigError if it fails."""
    directory, package = os.getcwd(), __name__.partition(".")[0]
    if name.partition(".")[0] != package and not {"", directory} & set(sys.path):
        sys.path.insert(0, directory)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # `a.b.c` may lack `a`, `a.b` or itself; any other missing module is an import inside it.
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"there is no module {error.name!r} among the installed packages or in {directory}"
                + (f" (needed for {name!r})" if error.name != name else "")
            ) from error
        raise _broken(name, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(name, error) from error


def _broken(name: str, error: BaseException) -> ConfigError:
    return ConfigError(f"importing {name!r} failed with {type(error).__name__}: {error}")
