"""Objects named by text such as `package.module:Name`."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
import types
from collections.abc import Callable
from types import ModuleType
from typing import Any

from rl_training.errors import ConfigError, alternatives, did_you_mean


def import_object(path: str, *, local: bool = True) -> Any:
    """The object at `package.module:Name` or `package.module:Name.attribute`.

    The current directory is importable if `local`, as with `python -m`. Whatever goes wrong is a
    ConfigError; an error raised inside the module is quoted in it.
    """
    module_name, colon, attributes = path.partition(":")
    if not (module_name and colon and attributes):
        raise ConfigError(f"expected package.module:Name, found {path!r}")
    target: object = import_module(module_name, local=local)
    where = module_name
    for name in attributes.split("."):
        if not hasattr(target, name):
            public = [known for known in dir(target) if not known.startswith("_")]
            raise ConfigError(f"{where} has no attribute {name!r}{did_you_mean(name, public)}")
        target = getattr(target, name)
        where = f"{where}:{name}" if where == module_name else f"{where}.{name}"
    return target


def import_factory(key: str, path: str, *kinds: type) -> Callable[..., Any]:
    """The class or function at an import path, checked as far as it can be before it is called.

    A class must be one of `kinds`. A function may make one, unless it is of the standard library,
    is written in C, or says that it returns something else. `key` is the configuration's.
    """
    try:
        found = import_object(path)
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from error.__cause__
    if not callable(found) or not _may_make(found, kinds):
        names = alternatives(
            f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in kinds
        )
        raise ConfigError(
            f"{key}: {path} is {_kind(found)}; expected a class derived from {names}, or a "
            "function that makes one; it was not called"
        )
    make: Callable[..., Any] = found
    return make


def _kind(found: object) -> str:
    if isinstance(found, type | types.FunctionType | types.BuiltinFunctionType):
        return f"the {'class' if isinstance(found, type) else 'function'} {found.__name__}"
    return f"a {type(found).__name__}"


def _may_make(found: Callable[..., Any], kinds: tuple[type, ...]) -> bool:
    while isinstance(found, functools.partial):
        found = found.func
    if isinstance(found, type):
        return issubclass(found, kinds)
    package = str(getattr(found, "__module__", None) or "builtins").partition(".")[0]
    if package in sys.stdlib_module_names or isinstance(found, types.BuiltinFunctionType):
        return False
    try:
        returns = inspect.get_annotations(found, eval_str=True).get("return", object)
    except Exception:  # of a name that exists for type checkers alone, or of an odd callable
        return True
    if isinstance(returns, type):  # of a kind, or of a base of one
        return issubclass(returns, kinds) or any(returns in kind.__mro__ for kind in kinds)
    return returns is not None


def import_module(name: str, *, local: bool = True) -> ModuleType:
    """The module of that name; ConfigError if it fails.

    If `local`, the current directory is put on the path, for modules of the user's own.
    """
    directory, package = os.getcwd(), __name__.partition(".")[0]
    local = local and name.partition(".")[0] != package
    if local and not {"", directory} & set(sys.path):
        sys.path.insert(0, directory)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # `a.b.c` may lack `a`, `a.b` or itself; any other missing module is an import inside it.
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"there is no module {error.name!r} among the installed packages"
                + (f" or in {directory}" if local else "")
                + (f" (needed for {name!r})" if error.name != name else "")
            ) from error
        raise _broken(name, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(name, error) from error


def _broken(name: str, error: BaseException) -> ConfigError:
    return ConfigError(f"importing {name!r} failed with {type(error).__name__}: {error}")
