"""Expressions such as `(x + y) * x * y**2` as computation graphs."""

import ast
from collections.abc import Mapping

import numpy as np

from polyseme.errors import ConfigError, suggest
from polyseme.explain.graph.graph import Node, apply
from polyseme.explain.graph.operations import OPERATIONS

MAX_CHARACTERS = 2000
MAX_DEPTH = 100
FUNCTIONS = ("exp", "log", "sin", "cos", "tanh", "sigmoid", "relu")
CONSTANTS = {"pi": np.pi, "e": np.e}
_BINARY = {
    ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide", ast.Pow: "power",
}  # fmt: skip


def parse_expression(expression: str, values: Mapping[str, float]) -> Node:
    """Return the output node of an expression; each name is one input node with its value.

    Operations on constants alone are computed at once. Anything but numbers, names, + - * / ** and the functions of
    `FUNCTIONS` is an error.
    """
    for name, value in values.items():
        if not np.isfinite(value):
            raise ConfigError(f"{name} is {value:g}, expected a finite number")
    if len(expression) > MAX_CHARACTERS:
        raise ConfigError(f"the expression has {len(expression):,} characters, more than {MAX_CHARACTERS:,}")
    try:
        tree = ast.parse(expression.strip().replace("^", "**"), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else "it is nested too deeply"
        raise ConfigError(f"{_shorten(expression)} is not an expression: {reason}") from None
    builder = _Builder(_shorten(expression), values)
    output = builder.build(tree.body)
    if unused := sorted(set(values) - set(builder.variables)):
        raise ConfigError(f"{', '.join(unused)} has a value, but {_shorten(expression)} does not use it")
    return output if isinstance(output, Node) else apply("add", Node.variable("0", 0.0), output)


def _shorten(expression: str) -> str:
    """Quote an expression for a message, without the end of a long one."""
    return repr(expression if len(expression) <= 80 else f"{expression[:77]}...")


class _Builder:
    """Builds the nodes of one expression."""

    def __init__(self, expression: str, values: Mapping[str, float]) -> None:
        self.expression, self.values = expression, values
        self.variables: dict[str, Node] = {}

    def build(self, tree: ast.expr, depth: int = 0) -> Node | float:
        """Return the node of a part of the expression, or its value if it is constant."""
        if depth > MAX_DEPTH:
            raise ConfigError(f"the expression is nested more than {MAX_DEPTH} times")
        match tree:
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
                return self._check(float(value))
            case ast.Name(id=name):
                return self._variable(name)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._apply("negate", self.build(operand, depth + 1))
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self.build(operand, depth + 1)
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _BINARY:
                return self._apply(_BINARY[type(operator)], self.build(left, depth + 1), self.build(right, depth + 1))
            case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in FUNCTIONS:
                return self._apply(name, self.build(argument, depth + 1))
            case ast.Call(func=ast.Name(id=name)):
                problem = "takes one argument" if name in FUNCTIONS else f"is no function; {suggest(name, FUNCTIONS)}"
                raise ConfigError(f"{name} {problem}")
        raise ConfigError(f"{ast.unparse(tree)!r} is not supported: use numbers, names, + - * / ** and functions")

    def _variable(self, name: str) -> Node | float:
        if name in self.values:
            return self.variables.setdefault(name, Node.variable(name, self.values[name]))
        if name in CONSTANTS:
            return CONSTANTS[name]
        raise ConfigError(f"{name} has no value: pass one, such as {name}=1")

    def _apply(self, name: str, *operands: Node | float) -> Node | float:
        if any(isinstance(operand, Node) for operand in operands):
            return apply(name, *operands)
        arrays = [np.asarray(operand, dtype=np.float64) for operand in operands]
        operation = OPERATIONS[name]
        if operation.domain is not None and not operation.domain(*arrays):
            raise ConfigError(f"{self.expression}: {name} needs {operation.domain_text}")
        with np.errstate(all="ignore"):
            return self._check(float(operation.forward(*arrays)))

    def _check(self, value: float) -> float:
        if not np.isfinite(value):
            raise ConfigError(f"{self.expression} has a constant that is not a finite number")
        return value
