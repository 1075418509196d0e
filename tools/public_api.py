"""Write down the public API, names and signatures, in tests/public_api.txt: `python tools/public_api.py`."""

import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

FILE = Path(__file__).resolve().parents[1] / "tests" / "public_api.txt"
MODULES = ("penstock", "penstock.errors", "penstock.selector", "penstock.spark", "penstock.testing")
#: classes that programs do not make themselves
MADE = ("Client", "Feed", "LocalNetwork", "Subscription")
#: forms of values on the way, and what the parts of a client need of each other
INTERNAL = (
    *("to_sexp", "to_sexps", "for_arrivals", "for_rows"),
    *("drop", "end", "post_rows", "publish_rows", "reconnected", "request", "send", "send_rows", "take"),
)


def public_api() -> str:
    """Return one line for each public name, and for each public method, property and member of a class."""
    lines: list[str] = []
    seen: dict[object, str] = {}
    for module in map(importlib.import_module, MODULES):
        lines.append(module.__name__)
        for name in sorted(module.__all__):
            value = getattr(module, name)
            if value in seen:
                lines.append(f"    {name}: as in {seen[value]}")
                continue
            seen[value] = module.__name__
            lines += [f"    {line}" for line in _described(name, value)]
    return "\n".join([*lines, ""])


def _described(name: str, value: object) -> Iterator[str]:
    if not inspect.isclass(value):
        yield f"{name}{_signature(value)}" if callable(value) else f"{name}: {type(value).__name__}"
        return
    if issubclass(value, enum.Enum):
        yield f"enum {name}: {', '.join(f'{one.name}={one.value!r}' for one in value)}"
        return
    base = value.__mro__[1]
    of = f" of {base.__name__}" if base.__module__.startswith("penstock") and not base.__name__.startswith("_") else ""
    yield f"class {name}{'' if name in MADE else _signature(value).removesuffix(' -> None')}{of}"
    for member in sorted(dir(value)):
        home = next(one for one in value.__mro__ if member in vars(one))
        found = vars(home)[member]
        if member.startswith("_") or member in INTERNAL or not home.__module__.startswith("penstock"):
            continue
        if isinstance(found, property):
            yield f"    {member} -> {_Text(inspect.signature(found.fget).return_annotation)}" if found.fget else member
        elif isinstance(found, classmethod | staticmethod):
            yield f"    {type(found).__name__} {member}{_signature(getattr(value, member))}"
        elif inspect.isfunction(found):
            yield f"    {'async ' if inspect.iscoroutinefunction(found) else ''}{member}{_signature(found)}"


def _signature(value: object) -> str:
    found = inspect.signature(value)  # type: ignore[arg-type]  # whatever comes here can be called
    parameters = [
        one.replace(
            annotation=one.annotation if one.annotation is one.empty else _Text(one.annotation),
            default=one.default if one.default is one.empty else _Default(one.default),
        )
        for one in found.parameters.values()
    ]
    back = found.return_annotation
    return str(found.replace(parameters=parameters, return_annotation=back if back is found.empty else _Text(back)))


class _Text:
    """An annotation without the modules that its names are from: where they are defined is internal."""

    def __init__(self, annotation: object) -> None:
        written = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
        self._text = re.sub(r"\b(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])", "", re.sub(r"ForwardRef\('(.*?)'\)", r"\1", written))

    def __repr__(self) -> str:
        return self._text


class _Default:
    """A default; of what is not a plain value only that there is one."""

    def __init__(self, default: object) -> None:
        self._text = repr(default) if default is None or isinstance(default, str | int | float | tuple) else "..."

    def __repr__(self) -> str:
        return self._text


if __name__ == "__main__":
    FILE.write_text(public_api(), encoding="utf-8")
