"""For griffe: the API as a caller reads it. Nothing is imported; the sources are read.

``Given[X]`` says who checks an argument's type, and is ``X`` to a caller. Members and constructors that are "Not for users" are left out.
An enumeration names its values. A class that sends the reader to its module ("see the module") takes the module's text with it.
"""

import re
from typing import Any

import griffe

NOT_FOR_USERS = "Not for users"
SEE_MODULE = re.compile(r"\b(see|top of) the module\b")


def without_given(annotation: Any) -> Any:
    """The annotation with ``Given[X]`` replaced by ``X``."""
    if isinstance(annotation, griffe.ExprSubscript) and getattr(annotation.left, "name", "") == "Given":
        return annotation.slice
    return annotation


def is_enumeration(found: griffe.Class) -> bool:
    return any(str(base).endswith(("Enum", "Flag")) for base in found.bases)


def text_of(found: griffe.Object) -> str:
    return "" if found.docstring is None else found.docstring.value


class Signatures(griffe.Extension):
    """Applied to each function, attribute and class while the sources are read."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        for parameter in func.parameters:
            parameter.annotation = without_given(parameter.annotation)

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        attr.annotation = without_given(attr.annotation)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        members = [found for found in cls.members.values() if not found.is_alias]
        for member in members:
            if text_of(member).startswith(NOT_FOR_USERS):
                cls.del_member(member.name)
        added = []
        if is_enumeration(cls):
            values = [
                f"`{found.name}`" + (f" = `{found.value}`" if found.value is not None else "") for found in members if found.is_attribute
            ]
            added.append("Values: " + ", ".join(values) + ".")
        module = cls.parent
        if cls.docstring is not None and module is not None and module.is_module and module.docstring is not None:
            if any(SEE_MODULE.search(text_of(found)) for found in [cls, *members]):
                added.append(f"**The module:** {module.docstring.value}")
        if added:
            text = "\n\n".join([text_of(cls), *added]).strip()
            if cls.docstring is None:
                cls.docstring = griffe.Docstring(text, parent=cls)
            else:
                cls.docstring.value = text
