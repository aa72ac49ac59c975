"""Declarations of a command's options: the signature of its Python function, read by both sides.

A parameter `width: Annotated[int | None, Option("Beam width.", show_default="5")] = None` is a
keyword of the function and `--width` of the command; one without `Option` is Python's alone. A
function whose options are passed on as a whole takes them as a frozen dataclass, by `takes`.

Importing this module imports neither torch nor the command line's parser.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from functools import wraps
from inspect import Parameter, Signature
from types import UnionType
from typing import (
    Annotated,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    overload,
)

from lmlab.core.notebook import Records
from lmlab.core.untrusted_input import check_texts

P = ParamSpec("P")
Subject = TypeVar("Subject")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
Options = TypeVar("Options")
Options_co = TypeVar("Options_co", covariant=True)
Result = TypeVar("Result")


@dataclass(frozen=True)
class Option:
    """What the command line says of a parameter, besides its name, type and default."""

    help: str
    """One line, imperative, without the default."""
    _: KW_ONLY
    flag: str | None = None
    """Its name on the command line where that is not the parameter's."""
    metavar: str | None = None
    show_default: str | None = None
    """The default in words where it depends on something (the parameter's is None)."""
    parse: Callable[[Any], Any] | None = None
    """Parses the string (the strings, where `repeats`) of the command line."""
    repeats: bool = False
    """Whether the option may be given several times; sequences do so by themselves."""
    minimum: float | None = None
    maximum: float | None = None
    panel: str | None = None
    """The heading under which the help lists it."""
    family: str | None = None
    """Options that replace each other: one given besides a file replaces all of the file."""


@dataclass(frozen=True)
class Argument(Option):
    """A positional argument of the command line."""


@dataclass(frozen=True)
class DeclaredOption:
    """One parameter of a verb that the command line has too."""

    name: str
    hint: Any
    """Its type, evaluated; types that only a checker imports are `CheckerType`."""
    default: Any
    """`Parameter.empty` for a required one."""
    option: Option

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return self.option.flag or "--" + self.name.replace("_", "-")

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed values of a `Literal`."""
        return tuple(
            str(value)
            for part in union_members(self.hint)
            if get_origin(part) is Literal
            for value in get_args(part)
        )


def declared_options(function: Callable[..., Any]) -> list[DeclaredOption]:
    """The parameters of a function or options record declared with an `Option`, in order."""
    namespace = getattr(inspect.unwrap(function), "__globals__", {})
    is_record = isinstance(function, type)
    parameters = inspect.signature(function).parameters.values()
    found = []
    for parameter in _field_parameters(function) if is_record else parameters:
        hint = evaluated(parameter.annotation, namespace)
        if get_origin(hint) is Annotated:
            plain, *metadata = get_args(hint)
            options = [item for item in metadata if isinstance(item, Option)]
            found += [
                DeclaredOption(parameter.name, plain, parameter.default, option)
                for option in options
            ]
    return found


class Taking(Protocol[P, Options_co]):
    """The decorator that `takes` gives: the record becomes keywords, subjects stay before it."""

    @overload
    def __call__(
        self, function: Callable[[A, Options_co], Result], /
    ) -> Callable[Concatenate[A, P], Result]: ...
    @overload
    def __call__(
        self, function: Callable[[A, B, Options_co], Result], /
    ) -> Callable[Concatenate[A, B, P], Result]: ...
    @overload
    def __call__(
        self, function: Callable[[A, B, C, Options_co], Result], /
    ) -> Callable[Concatenate[A, B, C, P], Result]: ...
    @overload
    def __call__(
        self, function: Callable[[A, B, C, D, Options_co], Result], /
    ) -> Callable[Concatenate[A, B, C, D, P], Result]: ...
    @overload
    def __call__(
        self, function: Callable[[A, B, C, D, E, Options_co], Result], /
    ) -> Callable[Concatenate[A, B, C, D, E, P], Result]: ...


def takes(options: Callable[P, Options]) -> Taking[P, Options]:
    """A function of subjects and an options record, as one that takes the fields as keywords.

    >>> @dataclass(frozen=True, kw_only=True)
    ... class Size:
    ...     width: int = 3
    >>> @takes(Size)
    ... def area(height: int, size: Size) -> int:
    ...     return height * size.width
    >>> area(2, width=5), [*inspect.signature(area).parameters]
    (10, ['height', 'width'])
    """

    def decorate(function: Callable[..., Result]) -> Callable[..., Result]:
        declared = inspect.signature(function)
        make: Callable[..., Options] = options
        *subjects, record = declared.parameters.values()
        own_parameters = _field_parameters(options)
        signature = declared.replace(parameters=[*subjects, *own_parameters])
        fits = _fitting_call(len(subjects), own_parameters)

        @wraps(function)
        def flat(*values: Any, **keywords: Any) -> Result:
            if fits(values, keywords):
                return function(*values, make(**keywords))
            try:
                chosen = signature.bind(*values, **keywords).arguments
            except TypeError as error:
                raise TypeError(_call_error(function, signature, keywords, error)) from None
            own = {each.name: chosen.pop(each.name) for each in subjects if each.name in chosen}
            return function(**own, **{record.name: make(**chosen)})

        vars(flat)["__signature__"] = signature
        return flat

    return cast("Taking[P, Options]", decorate)


def _fitting_call(
    subjects: int, parameters: Sequence[Parameter]
) -> Callable[[tuple[Any, ...], Mapping[str, Any]], bool]:
    """Whether a call has all subjects by position and known keywords, the required ones among them.

    The usual call: it needs no `Signature.bind`, which takes longer than scoring a short text.
    """
    names = frozenset(parameter.name for parameter in parameters)
    required = frozenset(
        parameter.name for parameter in parameters if parameter.default is Parameter.empty
    )

    def fits(values: tuple[Any, ...], keywords: Mapping[str, Any]) -> bool:
        return len(values) == subjects and required <= keywords.keys() <= names

    return fits


def _call_error(
    function: Callable[..., Any], signature: Signature, given: Iterable[str], error: TypeError
) -> str:
    """Why a call does not fit a signature, with all missing keywords as Python names them."""
    missing = [
        repr(parameter.name)
        for parameter in signature.parameters.values()
        if parameter.kind is Parameter.KEYWORD_ONLY
        and parameter.default is Parameter.empty
        and parameter.name not in given
    ]
    reason = f"missing required {' and '.join(missing)}" if missing else str(error)
    return f"{function.__name__}(): {reason}"


def as_keywords(options: Any, of: type | None = None) -> dict[str, Any]:
    """The fields of an options record, to be passed on to a function that `takes` them.

    `of` is the class that the function takes, if the record's class adds fields to it.
    """
    return {field.name: getattr(options, field.name) for field in fields(of or options)}


Named = Callable[[], None]
"""A function without a body, which gives a verb its name and docstring."""


def collects(
    stream: Callable[Concatenate[Subject, Iterable[str], P], Iterator[Result]],
) -> Callable[[Named], Callable[Concatenate[Subject, Sequence[str], P], Records[Result]]]:
    """The function that gives the results of a stream as a list, with the stream's options.

    It is declared by its name and docstring: `@collects(score_stream)` above `def score()`.
    """
    return lambda named: _collected(stream, named, lambda texts: texts)


def collects_chunks(
    stream: Callable[Concatenate[Subject, Iterable[Sequence[str]], P], Iterator[Result]],
) -> Callable[[Named], Callable[Concatenate[Subject, Sequence[str], P], Records[Result]]]:
    """The same for a stream whose texts arrive in chunks."""
    return lambda named: _collected(stream, named, lambda texts: [texts])


def _collected(stream: Callable[..., Any], named: Named, chunks: Callable[..., Any]) -> Any:
    of_stream = inspect.signature(stream)
    subject, texts, *others = of_stream.parameters.values()
    hint = str(of_stream.return_annotation).replace("Iterator[", "Records[", 1)
    texts = texts.replace(name="texts", annotation=Sequence[str])
    signature = of_stream.replace(parameters=[subject, texts, *others], return_annotation=hint)
    fits = _fitting_call(2, others)

    def collected(*values: Any, **keywords: Any) -> Records[Any]:
        if fits(values, keywords):
            (subject_value, given_texts), given = values, keywords
        else:
            try:
                given = signature.bind(*values, **keywords).arguments
            except TypeError as error:
                raise TypeError(_call_error(named, signature, keywords, error)) from None
            subject_value, given_texts = given.pop(subject.name), given.pop("texts")
        check_texts(given_texts, named.__name__)
        return Records(stream(subject_value, chunks(given_texts), **given))

    vars(collected)["__signature__"] = signature
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(collected, name, getattr(named, name))
    vars(collected)["__wrapped__"] = stream  # whose namespace is that of the annotations
    return collected


def _field_parameters(options: Any) -> list[Parameter]:
    """The parameters of a dataclass, with their annotations evaluated where each is declared."""
    namespaces = {
        name: vars(sys.modules[owner.__module__])
        for owner in reversed(options.__mro__)
        for name in vars(owner).get("__annotations__", {})
    }
    return [
        parameter.replace(annotation=evaluated(parameter.annotation, namespaces[name]))
        for name, parameter in inspect.signature(options).parameters.items()
    ]


def union_members(hint: Any) -> tuple[Any, ...]:
    """The members of a union without None; a tuple of the type itself if it is none."""
    if get_origin(hint) in (Union, UnionType):
        return tuple(member for member in get_args(hint) if member is not type(None))
    return (hint,)


class CheckerType:
    """Stands for a type that a module imports only for type checkers."""

    def __class_getitem__(cls, item: object) -> type[CheckerType]:
        return cls


class _Namespace(dict[str, Any]):
    """Names of a module, and `CheckerType` for others."""

    def __missing__(self, name: str) -> Any:
        return CheckerType


def evaluated(annotation: Any, namespace: Mapping[str, Any]) -> Any:
    """An annotation as an object, if it is a string (`from __future__ import annotations`)."""
    if not isinstance(annotation, str):
        return annotation
    builtins = vars(sys.modules["builtins"])
    return eval(annotation, {"__builtins__": {}}, _Namespace({**builtins, **namespace}))
