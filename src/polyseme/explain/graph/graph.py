"""A computation graph over numbers and arrays: forward in topological order, backward by the chain rule.

    x, y = Node.variable("x", 1.0), Node.variable("y", 2.0)
    graph = Graph((x + y) * x * y**2)
    graph.forward(), graph.backward()
    x.grad                                # 16.0

A node knows its parents, its value, and the gradient of the output with respect to it. Constants are part of an
operation, not nodes. Values are float64.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Self

import numpy as np

from polyseme.errors import ConfigError, DataError
from polyseme.explain.graph.operations import OPERATIONS, Array, Operation, slice_operation

MAX_ORDERS = 10_000


@dataclass(eq=False)
class Node:
    """An input, or the result of an operation on its parents; `operands` are parents and constants in order."""

    label: str
    operation: Operation | None = None
    operands: tuple["Node | Array", ...] = ()
    value: Array | None = None
    grad: Array | None = None

    @classmethod
    def variable(cls, label: str, value: Any = None) -> Self:
        """Return an input node."""
        return cls(label, value=None if value is None else np.asarray(value, dtype=np.float64))

    @property
    def parents(self) -> list["Node"]:
        """The nodes that this one is computed from; one that is used twice is listed twice."""
        return [operand for operand in self.operands if isinstance(operand, Node)]

    def inputs(self) -> list[Array]:
        """The values of the operands."""
        return [_value(operand) if isinstance(operand, Node) else operand for operand in self.operands]

    def forward(self) -> None:
        """Compute the value from those of the parents; an overflow or a value outside the domain names this node."""
        if self.operation is None:
            _value(self)
            return
        inputs, operation = self.inputs(), self.operation
        shown = ", ".join(_show(x) for x in inputs)
        if operation.domain is not None and not operation.domain(*inputs):
            raise DataError(f"{self.label}: {operation.name} needs {operation.domain_text}, got {shown}")
        with np.errstate(all="ignore"):
            self.value = np.asarray(operation.forward(*inputs), dtype=np.float64)
        if not np.isfinite(self.value).all():
            raise DataError(f"{self.label}: {operation.name} overflows at {shown}")

    def backward(self) -> None:
        """Add the gradient of each parent that flows through this node, by its local Jacobian."""
        for parent, grad in self.contributions():
            parent.grad = grad if parent.grad is None else parent.grad + grad

    def contributions(self) -> list[tuple["Node", Array]]:
        """Return each parent with the gradient that this node passes back to it."""
        assert self.grad is not None
        return self._multiply_jacobians(self.grad)

    def local_derivatives(self) -> list[tuple["Node", Array]]:
        """Return each parent with the derivative of this node, a number, with respect to it."""
        return self._multiply_jacobians(np.ones(()))

    def _multiply_jacobians(self, grad: Array) -> list[tuple["Node", Array]]:
        if self.operation is None:
            return []
        inputs = self.inputs()
        with np.errstate(all="ignore"):
            grads = self.operation.backward(grad, _value(self), *inputs)
        if not all(np.isfinite(each).all() for each in grads):
            shown = ", ".join(map(_show, inputs))
            raise DataError(f"{self.label}: the gradient of {self.operation.name} overflows at {shown}")
        pairs = zip(self.operands, grads, strict=True)
        return [(operand, grad) for operand, grad in pairs if isinstance(operand, Node)]

    def __add__(self, other: Any) -> "Node":
        return apply("add", self, other)

    def __radd__(self, other: Any) -> "Node":
        return apply("add", other, self)

    def __sub__(self, other: Any) -> "Node":
        return apply("subtract", self, other)

    def __rsub__(self, other: Any) -> "Node":
        return apply("subtract", other, self)

    def __mul__(self, other: Any) -> "Node":
        return apply("multiply", self, other)

    def __rmul__(self, other: Any) -> "Node":
        return apply("multiply", other, self)

    def __truediv__(self, other: Any) -> "Node":
        return apply("divide", self, other)

    def __rtruediv__(self, other: Any) -> "Node":
        return apply("divide", other, self)

    def __pow__(self, other: Any) -> "Node":
        return apply("power", self, other)

    def __rpow__(self, other: Any) -> "Node":
        return apply("power", other, self)

    def __matmul__(self, other: Any) -> "Node":
        return apply("matmul", self, other)

    def __neg__(self) -> "Node":
        return apply("negate", self)

    def __getitem__(self, part: slice) -> "Node":
        """Return a range of the last axis."""
        return Node(f"{self.label}[{part.start}:{part.stop}]", slice_operation(part.start, part.stop), (self,))


def apply(name: str, *operands: Any) -> Node:
    """Return the node of an operation on nodes and constants; log(exp(u)) is u, which cannot overflow."""
    first = operands[0]
    if name == "log" and isinstance(first, Node) and first.operation is OPERATIONS["exp"]:
        return first.parents[0]
    operation = OPERATIONS[name]
    arrays = tuple(o if isinstance(o, Node) else np.asarray(o, dtype=np.float64) for o in operands)
    return Node(_format(operation, arrays), operation, arrays)


PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "@": 2, "**": 3}


def _format(operation: Operation, operands: Sequence[Node | Array]) -> str:
    """Write an operation on its operands, with parentheses where they are needed."""
    texts = [operand.label if isinstance(operand, Node) else _show(operand) for operand in operands]
    strengths = [_precedence(operand) for operand in operands]
    if operation.name == "negate":
        return f"-({texts[0]})" if strengths[0] <= 2 else f"-{texts[0]}"
    if not operation.infix:
        return f"{operation.name}({', '.join(texts)})"
    strength, is_power = PRECEDENCE[operation.infix], operation.infix == "**"
    needs_left, needs_right = strengths[0] < strength + is_power, strengths[1] <= strength - is_power
    left = f"({texts[0]})" if needs_left else texts[0]
    right = f"({texts[1]})" if needs_right else texts[1]
    return f"{left}{operation.infix}{right}" if is_power else f"{left} {operation.infix} {right}"


def _precedence(operand: Node | Array) -> int:
    """Return how strongly the parts of an operand are bound: 4 for a name, a positive number or a function."""
    if not isinstance(operand, Node):
        return 1 if operand.ndim == 0 and operand < 0 else 4
    if operand.operation is None:
        return 4
    return 1 if operand.operation.name == "negate" else PRECEDENCE.get(operand.operation.infix, 4)


def _show(value: Array) -> str:
    """Format a number, or the shape of an array."""
    return f"{float(value):.6g}" if value.ndim == 0 else f"an array of {'×'.join(map(str, value.shape))}"


def _value(node: Node) -> Array:
    if node.value is None:
        raise ConfigError(f"{node.label} has no value")
    return node.value


@dataclass
class Graph:
    """The nodes that an output depends on, in a topological order: parents come before their children."""

    output: Node
    nodes: list[Node] = field(init=False)

    def __post_init__(self) -> None:
        self.nodes = _topological_order(self.output)

    @classmethod
    def from_expression(cls, expression: str, **values: float) -> "Graph":
        """Return the graph of an expression such as `(x + y) * x * y**2` over named values."""
        from polyseme.explain.graph.expression import parse_expression

        return cls(parse_expression(expression, values))

    @classmethod
    def from_arcs(cls, arcs: Iterable[tuple[Any, Any]]) -> "Graph":
        """Return a graph without values from its arcs (parent, child); it needs a single output."""
        names: dict[str, list[str]] = {}
        for parent, child in arcs:
            names.setdefault(str(parent), [])
            names.setdefault(str(child), []).append(str(parent))
        nodes = {name: Node(name) for name in names}
        for name, parents in names.items():
            nodes[name].operands = tuple(nodes[parent] for parent in parents)
        outputs = set(names) - {parent for parents in names.values() for parent in parents}
        if len(outputs) != 1:
            raise ConfigError(
                f"the graph has {len(outputs)} outputs, expected one: {', '.join(sorted(outputs)) or 'none'}"
            )
        graph = cls(nodes[outputs.pop()])
        if len(graph.nodes) < len(nodes):
            unused = sorted(set(nodes) - {node.label for node in graph.nodes})
            raise ConfigError(f"the output does not depend on {', '.join(unused)}")
        return graph

    @property
    def inputs(self) -> dict[str, Node]:
        """The nodes without parents, by name."""
        return {node.label: node for node in self.nodes if not node.operands}

    def forward(self) -> Array:
        """Compute every value in topological order; return that of the output."""
        for node in self.nodes:
            node.forward()
        return _value(self.output)

    def backward(self) -> dict[str, Array]:
        """Compute every gradient in reverse topological order; return those of the inputs."""
        if (value := _value(self.output)).ndim:
            raise ConfigError(f"the output {self.output.label} is {_show(value)}: only a number has a gradient")
        for node in self.nodes:
            node.grad = None
        self.output.grad = np.ones(())
        for node in reversed(self.nodes):
            node.backward()
        return {name: node.grad for name, node in self.inputs.items() if node.grad is not None}

    def orders(self) -> Iterator[list[Node]]:
        """Yield every topological order."""
        num_missing = {id(node): len({id(p) for p in node.parents}) for node in self.nodes}
        children: dict[int, list[Node]] = {id(node): [] for node in self.nodes}
        for node in self.nodes:
            for parent in {id(p) for p in node.parents}:
                children[parent].append(node)
        ready = [node for node in self.nodes if not num_missing[id(node)]]
        order: list[Node] = []

        def extend() -> Iterator[list[Node]]:
            if not ready:
                yield list(order)
            for i in range(len(ready)):
                node = ready.pop(i)
                order.append(node)
                added = []
                for child in children[id(node)]:
                    num_missing[id(child)] -= 1
                    if not num_missing[id(child)]:
                        added.append(child)
                ready.extend(added)
                yield from extend()
                del ready[len(ready) - len(added) :]
                for child in children[id(node)]:
                    num_missing[id(child)] += 1
                order.pop()
                ready.insert(i, node)

        return extend()

    def count_orders(self, limit: int = MAX_ORDERS) -> int:
        """Return the number of topological orders, at most `limit`."""
        return sum(1 for _ in islice(self.orders(), limit))


def _topological_order(output: Node) -> list[Node]:
    """Return the nodes that the output depends on, parents first, by depth-first search without recursion."""
    order: list[Node] = []
    state: dict[int, bool] = {}  # whether a node is finished; it is absent if it has not been reached
    stack: list[tuple[Node, Sequence[Node]]] = [(output, output.parents)]
    state[id(output)] = False
    while stack:
        node, parents = stack.pop()
        for i, parent in enumerate(parents):
            if state.get(id(parent)) is False:
                raise ConfigError(f"the graph has a cycle through {parent.label}")
            if id(parent) not in state:
                state[id(parent)] = False
                stack += [(node, parents[i + 1 :]), (parent, parent.parents)]
                break
        else:
            state[id(node)] = True
            order.append(node)
    return order
