"""What a template does with one attribute of its messages, wherever it stores it: read from its syntax tree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from jinja2 import nodes

KEEPING = frozenset({"d", "default", "list", "reverse", "safe", "sort", "trim", "unique"})  # what it was, filtered
PICKING = frozenset({"groupby", "map", "reject", "rejectattr", "select", "selectattr"})  # filters for parts
TEXT_FILTERS = frozenset("capitalize e escape indent lower replace string title trim upper wordwrap".split())
TEXT_METHODS = frozenset("endswith find lstrip replace rstrip split splitlines startswith strip".split())
PART_FIELDS = frozenset({"text", "type"})
CALL_FIELDS = frozenset({"arguments", "function"})
MAPPING_FILTERS = frozenset({"dictsort", "items"})
MAPPING_METHODS = frozenset({"get", "items", "keys", "values"})
LONGEST_CHAIN = 6  # of variables that are set from each other


class Uses:
    """All uses of `x.NAME`, `x['NAME']`, `x.get('NAME')`, and of variables and macro arguments that hold it."""

    def __init__(self, template: nodes.Template, attribute: str) -> None:
        self._template = template
        self._attribute = attribute
        self._names: set[str] = {attribute} if attribute == "content" else set()  # macros are called with it
        pairs = [*_bindings(template)]
        for _ in range(LONGEST_CHAIN):
            self._names |= {name for name, value in pairs if name not in self._names and self._reads(value)}

    @property
    def loops(self) -> bool:
        return any(self._reads(loop.iter) for loop in self._template.find_all(nodes.For))

    @property
    def loops_over_parts(self) -> bool:
        """Not over calls: messages of a role of their own have these where others have a content (Mistral's)."""
        calls = Uses(self._template, "tool_calls")
        return any(
            self._reads(loop.iter) and not _is_of_calls(loop, calls._reads(loop.iter))
            for loop in self._template.find_all(nodes.For)
        )

    def loops_where_none(self, other: Uses) -> bool:
        """Does it loop over its items, and only in branches where another attribute is none?"""
        loops = self._loops(self._template)
        branches = [branch for branch in self._template.find_all(nodes.If) if other._is_none(branch.test)]
        there = [loop for branch in branches for node in branch.body for loop in self._loops(node)]
        return bool(loops) and all(any(loop is one for one in there) for loop in loops)

    def _loops(self, node: nodes.Node) -> list[nodes.For]:
        found = [*node.find_all(nodes.For), *([node] if isinstance(node, nodes.For) else [])]
        return [loop for loop in found if self._reads(loop.iter)]

    def _is_none(self, test: nodes.Node) -> bool:
        """Does the test hold only where it is none, or empty?"""
        if isinstance(test, nodes.And):
            return self._is_none(test.left) or self._is_none(test.right)
        if isinstance(test, nodes.Not):
            return self._reads(test.node)
        return isinstance(test, nodes.Test) and test.name == "none" and self._reads(test.node)

    @property
    def picks(self) -> bool:
        """Are some of its items chosen by a filter, or one by its number and then a field of it?"""
        fields: Iterator[nodes.Getattr | nodes.Getitem] = self._template.find_all((nodes.Getattr, nodes.Getitem))
        owners = [field.node for field in fields if _field(field) in PART_FIELDS]
        items = [owner.node for owner in owners if isinstance(owner, nodes.Getitem) and _is_number(owner.arg)]
        return self.is_filtered(*PICKING) or any(map(self._reads, items))

    @property
    def is_text(self) -> bool:
        """Is it put into a text as it is, straight from the message?"""
        return any(self._reads_attribute(use) for use in self._as_text())

    @property
    def is_text_by_name(self) -> bool:
        """The same for what a variable holds, which may hold something else by then."""
        return any(self._reads(use) for use in self._as_text())

    @property
    def is_mapping(self) -> bool:
        """Are its items or keys asked for?"""
        return self.is_filtered(*MAPPING_FILTERS) or any(self._reads(use) for use in self._methods(MAPPING_METHODS))

    def is_filtered(self, *names: str) -> bool:
        return any(self._reads(use) for use in self._filtered(frozenset(names)))

    def asks(self, *tests: str) -> bool:
        found = self._template.find_all(nodes.Test)
        return any(test.name in tests and self._reads(test.node) for test in found)

    def _as_text(self) -> Iterator[nodes.Node]:
        """Whatever becomes a piece of a text."""
        for output in self._template.find_all(nodes.Output):
            yield from output.nodes
        for concat in self._template.find_all(nodes.Concat):
            yield from concat.nodes
        for add in self._template.find_all(nodes.Add):
            yield from (add.left, add.right)
        yield from self._filtered(TEXT_FILTERS)
        yield from self._methods(TEXT_METHODS)

    def _filtered(self, names: frozenset[str]) -> Iterator[nodes.Node]:
        for use in self._template.find_all(nodes.Filter):
            if use.name in names and use.node is not None:
                yield use.node

    def _methods(self, names: frozenset[str]) -> Iterator[nodes.Node]:
        for call in self._template.find_all(nodes.Call):
            if isinstance(call.node, nodes.Getattr) and call.node.attr in names:
                yield call.node.node

    def _reads(self, node: nodes.Node) -> bool:
        """Is this the attribute, or a variable that holds it, as it is?"""
        if isinstance(node, nodes.Filter):
            return node.node is not None and node.name in KEEPING | PICKING and self._reads(node.node)
        if isinstance(node, nodes.CondExpr):
            return self._reads(node.expr1) or (node.expr2 is not None and self._reads(node.expr2))
        if isinstance(node, nodes.Or):
            return self._reads(node.left) or self._reads(node.right)
        return _stored_as(node) in self._names or self._reads_attribute(node)

    def _reads_attribute(self, node: nodes.Node) -> bool:
        if isinstance(node, nodes.Filter) and node.name in KEEPING and node.node is not None:
            return self._reads_attribute(node.node)
        if isinstance(node, nodes.Getattr):
            return node.attr == self._attribute
        if isinstance(node, nodes.Getitem):
            return _is_const(node.arg, self._attribute)
        if isinstance(node, nodes.Call) and isinstance(node.node, nodes.Getattr) and node.args:
            return node.node.attr == "get" and _is_const(node.args[0], self._attribute)
        return False


def _bindings(template: nodes.Template) -> Iterator[tuple[str, nodes.Node]]:
    """What names are given: by `set`, by `with`, and by calls of macros."""
    for assign in template.find_all(nodes.Assign):
        yield from _named([assign.target], [assign.node])
    for scope in template.find_all(nodes.With):
        yield from _named(scope.targets, scope.values)
    macros = {macro.name: macro for macro in template.find_all(nodes.Macro)}
    for call in template.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and (macro := macros.get(call.node.name)) is not None:
            yield from _named(macro.args, call.args)
            yield from ((keyword.key, keyword.value) for keyword in call.kwargs)


def _named(targets: Iterable[nodes.Node], values: Iterable[nodes.Node]) -> Iterator[tuple[str, nodes.Node]]:
    for target, value in zip(targets, values, strict=False):
        if name := _stored_as(target):
            yield name, value


def _is_of_calls(loop: nodes.For, perhaps: bool) -> bool:
    """Are its items calls, by the fields that it reads of them? `perhaps`: what it goes over may hold calls."""
    name = _stored_as(loop.target)
    taken: Iterator[nodes.Getattr | nodes.Getitem] = loop.find_all((nodes.Getattr, nodes.Getitem))
    fields = {_field(one) for one in taken if isinstance(one.node, nodes.Name) and one.node.name == name}
    return not fields & PART_FIELDS and (perhaps or bool(fields & CALL_FIELDS))


def _stored_as(node: nodes.Node) -> str | None:
    """A variable's name, or `NAMESPACE.NAME`."""
    if isinstance(node, nodes.Name):
        return node.name
    if isinstance(node, nodes.NSRef):
        return f"{node.name}.{node.attr}"
    if isinstance(node, nodes.Getattr) and isinstance(node.node, nodes.Name):
        return f"{node.node.name}.{node.attr}"
    return None


def _field(node: nodes.Node) -> str | None:
    """Which field is taken of something."""
    if isinstance(node, nodes.Getattr):
        return node.attr
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str):
        return node.arg.value
    return None


def _is_const(node: nodes.Node, value: str) -> bool:
    return isinstance(node, nodes.Const) and node.value == value


def _is_number(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Const) and isinstance(node.value, int)
