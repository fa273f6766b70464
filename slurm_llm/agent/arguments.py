"""Reading an engine's own argument definitions as text: importing TensorRT-LLM would start MPI and want a GPU."""

import ast
from typing import Dict, Iterator, List, NamedTuple, Optional, Set, Tuple


class Arguments(NamedTuple):
    """Names of a class's arguments, sorted, and of the keys of those that are classes of the same file themselves."""

    names: Tuple[str, ...]
    sections: Dict[str, Tuple[str, ...]]


def read_argument_names(source: str, class_name: str = "TorchLlmArgs") -> Arguments:
    """Return the fields of the pydantic class `class_name` in the Python text `source`, inherited ones included.

    A field is an annotated name of the class's body; private names, class variables and private attributes are none.
    The aliases of a field are names too. An argument's keys are those of every class that its annotation names,
    also through a type alias of the file.

    Raises:
        ValueError: `source` is no Python that this interpreter reads, or has no such class.
    """
    try:
        module = ast.parse(source)
    except SyntaxError as error:
        raise ValueError("not readable as Python: line %s: %s" % (error.lineno, error.msg)) from None
    classes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
    aliases = _aliases(module)
    if class_name not in classes:
        raise ValueError("no class %s" % class_name)
    names, sections = set(), {}  # type: Set[str], Dict[str, Tuple[str, ...]]
    for field in _fields(class_name, classes, set()):
        own = _names_of(field)
        names |= own
        keys = _keys(field.annotation, classes, aliases)
        if keys:
            sections.update(dict.fromkeys(own, keys))
    return Arguments(tuple(sorted(names)), sections)


def _aliases(module: ast.Module) -> Dict[str, ast.expr]:
    """Return what each name at the module's top level stands for."""
    found = {}  # type: Dict[str, ast.expr]
    for node in module.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            found[node.target.id] = node.value
        elif isinstance(node, ast.Assign):
            found.update({target.id: node.value for target in node.targets if isinstance(target, ast.Name)})
    return found


def _fields(name: str, classes: Dict[str, ast.ClassDef], seen: Set[str]) -> Iterator[ast.AnnAssign]:
    if name not in classes or name in seen:
        return
    seen.add(name)
    for base in classes[name].bases:
        if isinstance(base, ast.Name):
            for field in _fields(base.id, classes, seen):
                yield field
    for node in classes[name].body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _is_field(node):
            yield node


def _is_field(node: ast.AnnAssign) -> bool:
    assert isinstance(node.target, ast.Name)
    private = _called(node.value) == "PrivateAttr"
    return not node.target.id.startswith("_") and not private and "ClassVar" not in _mentioned(node.annotation)


def _called(value: Optional[ast.expr]) -> str:
    """Return the last name of the function that `value` calls, or an empty text."""
    if not isinstance(value, ast.Call):
        return ""
    return getattr(value.func, "id", getattr(value.func, "attr", ""))


def _names_of(field: ast.AnnAssign) -> Set[str]:
    """Return the field's name and its aliases: `alias="x"`, `validation_alias=AliasChoices("x", "y")`."""
    assert isinstance(field.target, ast.Name)
    names = {field.target.id}
    if isinstance(field.value, ast.Call):
        for keyword in field.value.keywords:
            if keyword.arg in ("alias", "validation_alias"):
                names |= {text for text in _texts(keyword.value) if text.isidentifier()}
    return names


def _texts(node: ast.AST) -> List[str]:
    # Python before 3.8 has ast.Str with `s`, later ones ast.Constant with `value`.
    values = [getattr(each, "value", getattr(each, "s", None)) for each in ast.walk(node)]  # type: List[object]
    return [value for value in values if isinstance(value, str)]


def _mentioned(annotation: ast.expr) -> Set[str]:
    """Return every name in an annotation, those in quoted ones too."""
    names = {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}
    names |= {node.attr for node in ast.walk(annotation) if isinstance(node, ast.Attribute)}
    for text in _texts(annotation):
        try:
            quoted = ast.parse(text, mode="eval")
        except SyntaxError:
            continue
        names |= {node.id for node in ast.walk(quoted) if isinstance(node, ast.Name)}
    return names


def _keys(annotation: ast.expr, classes: Dict[str, ast.ClassDef], aliases: Dict[str, ast.expr]) -> Tuple[str, ...]:
    wanted, seen = set(_mentioned(annotation)), set()  # type: Set[str], Set[str]
    keys = set()  # type: Set[str]
    while wanted:
        name = wanted.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in classes:
            for field in _fields(name, classes, set()):
                keys |= _names_of(field)
        elif name in aliases:
            wanted |= _mentioned(aliases[name])
    return tuple(sorted(keys))
