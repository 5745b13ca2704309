"""Edit an ONNX graph: look up which nodes compute and read a value, and replace nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

CONTRIB_DOMAIN = "com.microsoft"  # operators of onnxruntime


def read_names(node: Any) -> set[str]:
    """Return the values that a node reads, also those that the graphs in it (of a loop) take from outside."""
    bodies = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    return set(node.input).union(*(read_names(inner) for body in bodies for inner in body.node))


class GraphEditor:
    """The graph of an ONNX model, by the names of its values; `finish` writes the changes back."""

    def __init__(self, model: Any):
        self.model, self.graph = model, model.graph
        self.node_list = list(self.graph.node)
        self.constants = {tensor.name: tensor for tensor in self.graph.initializer}
        self.outputs = {value.name for value in self.graph.output}
        self._index()

    def _index(self) -> None:
        self.producers = {name: node for node in self.node_list for name in node.output}
        self.consumers: dict[str, list[Any]] = defaultdict(list)
        for node in self.node_list:
            for name in read_names(node):
                self.consumers[name].append(node)

    def nodes(self, *op_types: str) -> list[Any]:
        """Return the nodes of some types, in their order."""
        return [node for node in self.node_list if node.op_type in op_types]

    def producer(self, name: str, *op_types: str) -> Any:
        """Return the node that computes a value, if it has one of these types; None if not."""
        node = self.producers.get(name)
        return node if node is not None and node.op_type in op_types else None

    def only_consumer(self, name: str, *op_types: str) -> Any:
        """Return the one node that reads a value, if it has one of these types; None if not."""
        readers = self.consumers[name]
        is_single = len(readers) == 1 and name not in self.outputs
        return readers[0] if is_single and readers[0].op_type in op_types else None

    def array(self, name: str) -> np.ndarray | None:
        """Return a constant as an array; None if the value is computed."""
        from onnx import numpy_helper

        tensor = self.constants.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def matrix(self, node: Any) -> np.ndarray | None:
        """Return the constant matrix that a node multiplies with, [inputs, outputs]; None if it does something else."""
        matrix = self.array(node.input[1])
        if matrix is None or matrix.ndim != 2 or matrix.dtype != np.float32:
            return None
        attributes = {each.name: each.f if each.name in ("alpha", "beta") else each.i for each in node.attribute}
        if attributes.get("transA", 0) or attributes.get("alpha", 1) != 1 or attributes.get("beta", 1) != 1:
            return None
        return matrix.T if attributes.get("transB", 0) else matrix

    def scalar(self, name: str) -> float | None:
        """Return a constant of one number; None if it is another value."""
        array = self.array(name)
        return None if array is None or array.size != 1 else float(array.reshape(()))

    def other_scalar(self, node: Any, name: str) -> float | None:
        """Return the constant that a node of two inputs combines with a value; None if there is none."""
        others = [each for each in node.input if each != name]
        return self.scalar(others[0]) if len(others) == 1 and len(node.input) == 2 else None

    def add_constant(self, name: str, array: np.ndarray) -> str:
        """Add a constant and return its name."""
        from onnx import numpy_helper

        self.constants[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def node(self, op_type: str, inputs: Sequence[str], output: str, domain: str = "", **attributes: Any) -> Any:
        """Create a node with one output."""
        from onnx import helper

        return helper.make_node(op_type, list(inputs), [output], domain=domain, **attributes)

    def contrib_node(self, op_type: str, inputs: Sequence[str], output: str, **attributes: Any) -> Any:
        """Create a node of an operator that only onnxruntime has."""
        return self.node(op_type, inputs, output, CONTRIB_DOMAIN, **attributes)

    def replace(self, node: Any, new_nodes: Sequence[Any]) -> None:
        """Put new nodes in the place of one; `finish` removes those that nothing depends on anymore."""
        position = next(i for i, each in enumerate(self.node_list) if each is node)
        self.node_list[position : position + 1] = new_nodes
        self._index()

    def rename(self, name: str, new_name: str) -> None:
        """Let all nodes that read a value read another one."""
        for node in self.consumers[name]:
            for i, each in enumerate(node.input):
                if each == name:
                    node.input[i] = new_name
        self._index()

    def prepend(self, new_nodes: Sequence[Any]) -> None:
        """Put new nodes before all others."""
        self.node_list[:0] = new_nodes
        self._index()

    def finish(self) -> None:
        """Write the nodes and constants that the outputs depend on to the model."""
        from onnx import helper

        needed, used_nodes = set(self.outputs), []
        for node in reversed(self.node_list):
            if needed.intersection(node.output):
                used_nodes.append(node)
                needed.update(read_names(node))
        nodes = [type(node).FromString(node.SerializeToString()) for node in reversed(used_nodes)]
        constants = [tensor for name, tensor in self.constants.items() if name in needed]
        copies = [type(tensor).FromString(tensor.SerializeToString()) for tensor in constants]
        for field in (self.graph.node, self.graph.initializer, self.graph.value_info):
            del field[:]
        self.graph.node.extend(nodes)
        self.graph.initializer.extend(copies)
        if any(node.domain == CONTRIB_DOMAIN for node in nodes):
            self.model.opset_import.append(helper.make_opsetid(CONTRIB_DOMAIN, 1))
