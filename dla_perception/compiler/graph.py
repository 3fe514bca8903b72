"""An ONNX network that can be read and edited: checked, its shapes known, its constants folded."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterable, Mapping, Sequence

import numpy as np

from dla_perception.errors import DlaPerceptionError, MissingPackageError

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

GIBIBYTE = 1 << 30

LARGEST_MODEL = 2 * GIBIBYTE
"""Bytes that a protobuf message, and so an ONNX file, can hold (protobuf documentation)."""

_SMALL = 1024
"""Constants of up to this many elements may be shapes, axes or sizes: shape inference sees them."""

_RANDOM = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial"}


class GraphError(DlaPerceptionError):
    """A network file that cannot be used, with the node or tensor that is at fault."""


@dataclass(frozen=True)
class TensorType:
    """Element type and shape of a tensor.

    Attributes:
        elem_type: a value of ``onnx.TensorProto.DataType``; 0 when unknown.
        shape: sizes, ``None`` for one that is not fixed; ``None`` as a whole when even the number
            of dimensions is unknown.
    """

    elem_type: int
    shape: tuple[int | None, ...] | None

    @property
    def static_shape(self) -> tuple[int, ...] | None:
        """The shape if every size of it is fixed."""
        if self.shape is None or any(size is None for size in self.shape):
            return None
        return tuple(int(size) for size in self.shape if size is not None)

    @property
    def type_name(self) -> str:
        """``FLOAT``, ``INT64`` and so on, as ONNX calls it."""
        from onnx import TensorProto

        return str(TensorProto.DataType.Name(self.elem_type))


@dataclass(frozen=True)
class Folded:
    """A node of the file that no device has to run, and why."""

    name: str
    op: str
    reason: str


class Graph:
    """One network while it is examined or rewritten.

    Nodes are ``onnx.NodeProto`` in an order in which they can run. Weights and all that follows
    from them are in ``constants``, as arrays; nodes that only computed constants are gone and are
    listed in ``folded``. After editing, :meth:`refresh` brings everything up to date.

    Attributes:
        where: the file, for messages.
        constants: tensors whose values are known.
        inputs: name and type of what the network is given.
        outputs: names of what it returns.
        types: element type and shape of every tensor that has been inferred.
        folded: nodes that were removed.
        notices: one line each about what was odd in the file and put right here.
        file_order: where each node stood in the file.
        opset: version of the ONNX operators.
        ir_version: version of the file format.
        metadata: key-value pairs that the exporter stored.
    """

    def __init__(self, model: ModelProto, where: str) -> None:
        """Take over ``model``.

        Raises:
            GraphError: its structure is broken.
        """
        self.where = where
        self._made_by: dict[str, NodeProto] | None = None
        self._read_by: dict[str, list[NodeProto]] | None = None
        self._new_names = 0
        self.notices: list[str] = []
        self.folded: list[Folded] = []
        self.types: dict[str, TensorType] = {}
        self.ir_version = max(model.ir_version, 4)  # before 4, weights had to be inputs too
        self.metadata = {item.key: item.value for item in model.metadata_props}
        self._name = model.graph.name or "network"
        self.opset = _opset(model, where)
        self._domains = {item.domain: item.version for item in model.opset_import}
        self.nodes = list(model.graph.node)
        if not self.nodes:
            raise GraphError(
                f"{where}: the network has no nodes; expected an exported ONNX network"
            )
        self._name_nodes()
        self.file_order = {node.name: index for index, node in enumerate(self.nodes)}
        self.constants = self._initializers(model)
        self.inputs = self._inputs(model)
        self.outputs = [value.name for value in model.graph.output]
        if not self.outputs:
            raise GraphError(f"{where}: the network has no outputs; export it again")
        self._check_names()
        self._sort(first_time=True)
        self._drop_unused("its result is not used")
        used = {name for node in self.nodes for name in node.input} | set(self.outputs)
        for name in self.inputs:
            if name not in used:
                self.notices.append(f"input '{name}' is not used by any node")

    # --- looking ---------------------------------------------------------------------------------

    @property
    def nodes(self) -> list[NodeProto]:
        """What is left to run; assign a new list to change it."""
        return self._nodes

    @nodes.setter
    def nodes(self, nodes: list[NodeProto]) -> None:
        self._nodes = nodes
        self._forget()

    def producers(self) -> Mapping[str, NodeProto]:
        """Which node makes each tensor."""
        if self._made_by is None:
            self._made_by = {name: node for node in self.nodes for name in node.output if name}
        return self._made_by

    def consumers(self) -> Mapping[str, Sequence[NodeProto]]:
        """Which nodes read each tensor, once per node; without those that nobody reads."""
        if self._read_by is None:
            self._read_by = {}
            for node in self.nodes:
                for name in dict.fromkeys(node.input):
                    if name:
                        self._read_by.setdefault(name, []).append(node)
        return self._read_by

    def shape(self, tensor: str) -> tuple[int, ...] | None:
        """The shape of a tensor if all its sizes are fixed."""
        if tensor in self.constants:
            return tuple(self.constants[tensor].shape)
        known = self.types.get(tensor)
        return known.static_shape if known else None

    def dtype(self, tensor: str) -> np.dtype:
        """The numpy type of a tensor's elements; float32 where it is unknown."""
        from onnx import helper

        if tensor in self.constants:
            return self.constants[tensor].dtype
        known = self.types.get(tensor)
        if known is None or known.elem_type == 0:
            return np.dtype(np.float32)
        return np.dtype(helper.tensor_dtype_to_np_dtype(known.elem_type))

    def node(self, name: str) -> NodeProto:
        """The node with this name."""
        return next(node for node in self.nodes if node.name == name)

    # --- editing ---------------------------------------------------------------------------------

    def fresh(self, wanted: str) -> str:
        """A tensor name that is not taken: ``wanted`` or ``wanted`` with a number."""
        taken = set(self.constants) | set(self.inputs) | set(self.outputs)
        for node in self.nodes:
            taken.update(node.output)
        return _free(wanted, taken)

    def fresh_node_name(self, wanted: str) -> str:
        """A node name that is not taken."""
        return _free(wanted, {node.name for node in self.nodes})

    def add_constant(self, wanted: str, value: np.ndarray) -> str:
        """Add a constant tensor and return its name."""
        name = self.fresh(wanted)
        self.constants[name] = np.ascontiguousarray(value)
        return name

    def new_node(
        self, op: str, inputs: Sequence[str], output: str, like: str, **attributes: Any
    ) -> NodeProto:
        """A node that is not part of the graph yet.

        Args:
            op: its operator.
            inputs: tensors it reads.
            output: the tensor it makes.
            like: a node name to make its own from.
            attributes: of the operator.
        """
        from onnx import helper

        self._new_names += 1
        name = self.fresh_node_name(f"{like}/{op.lower()}_{self._new_names}")
        return helper.make_node(op, inputs, [output], name=name, **attributes)

    def replace(self, old: Sequence[NodeProto], new: Sequence[NodeProto]) -> None:
        """Put ``new`` nodes where the last of ``old`` was and take all of ``old`` away."""
        gone = {id(node) for node in old}
        place = max(index for index, node in enumerate(self.nodes) if id(node) in gone)
        before = [node for node in self.nodes[:place] if id(node) not in gone]
        self.nodes = [*before, *new, *self.nodes[place + 1 :]]

    def remove(self, node: NodeProto) -> None:
        """Take one node away."""
        self.nodes = [other for other in self.nodes if other is not node]

    def prune(self) -> None:
        """Take away nodes whose results nobody reads, as editing leaves them."""
        wanted = set(self.outputs)
        kept = []
        for node in reversed(self.nodes):
            if wanted.intersection(node.output):
                wanted.update(node.input)
                kept.append(node)
        self.nodes = kept[::-1]

    def rename_uses(self, old: str, new: str) -> None:
        """Let every node that reads ``old`` read ``new``; the network's outputs keep theirs."""
        for node in self.consumers().get(old, ()):
            for index, name in enumerate(node.input):
                if name == old:
                    node.input[index] = new
        self._forget()

    def set_input(self, node: NodeProto, index: int, tensor: str) -> None:
        """Let one input of a node be another tensor, or a new input be added at its end."""
        if index == len(node.input):
            node.input.append(tensor)
        else:
            node.input[index] = tensor
        self._forget()

    def rename_output(self, node: NodeProto, old: str, new: str) -> None:
        """Let a node call one of its outputs ``new``; who reads ``old`` is not changed."""
        node.output[list(node.output).index(old)] = new
        self._forget()

    def bypass(self, node: NodeProto) -> bool:
        """Take away a node whose first output equals its first input.

        Returns:
            Whether it could be: a node between an input or a constant of the network and an output
            has to stay, since both keep their names.
        """
        source, result = node.input[0], node.output[0]
        if result not in self.outputs:
            self.rename_uses(result, source)
            self.remove(node)
            return True
        if source in self.inputs or source in self.constants or source in self.outputs:
            return False
        self.rename_output(self.producers()[source], source, result)
        self.remove(node)
        self.rename_uses(source, result)
        return True

    # --- keeping up to date ----------------------------------------------------------------------

    def fix_input_shapes(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Give inputs fixed shapes; the key ``""`` stands for the only input.

        Raises:
            GraphError: no such input, or a size that contradicts the network.
        """
        for name, shape in shapes.items():
            if not name:
                if len(self.inputs) != 1:
                    raise GraphError(
                        f"{self.where}: it has {len(self.inputs)} inputs "
                        f"({', '.join(self.inputs)}): say which one, as in "
                        f"'{next(iter(self.inputs), 'images')}:{'x'.join(map(str, shape))}'"
                    )
                name = next(iter(self.inputs))
            if name not in self.inputs:
                raise GraphError(
                    f"{self.where}: it has no input '{name}'; its inputs: {', '.join(self.inputs)}"
                )
            known = self.inputs[name]
            if known.shape is not None and (
                len(known.shape) != len(shape)
                or any(size not in (None, wanted) for size, wanted in zip(known.shape, shape))
            ):
                raise GraphError(
                    f"{self.where}: input '{name}' is {_show(known.shape)}, which "
                    f"{'x'.join(map(str, shape))} does not fit; only dynamic sizes can be set"
                )
            self.inputs[name] = TensorType(known.elem_type, tuple(shape))

    def require_static_inputs(self) -> None:
        """Refuse inputs with dynamic sizes.

        Raises:
            GraphError: names the input, its dynamic dimensions and how to fix them.
        """
        for name, known in self.inputs.items():
            if known.static_shape is not None and 0 not in known.static_shape:
                continue
            if known.shape is None:
                raise GraphError(
                    f"{self.where}: input '{name}' has no shape, a DLA needs a fixed one: "
                    f"give it with --shape {name}:1x3x640x640"
                )
            places = [str(index) for index, size in enumerate(known.shape) if not size]
            example = [size or (1 if index == 0 else 640) for index, size in enumerate(known.shape)]
            raise GraphError(
                f"{self.where}: input '{name}' is {_show(known.shape)}: "
                f"dimension{'s' if len(places) > 1 else ''} {' and '.join(places)} dynamic, a DLA "
                f"needs fixed sizes: give them with --shape {name}:{'x'.join(map(str, example))} "
                "or export with dynamic=False"
            )

    def refresh(self) -> None:
        """Sort the nodes, infer all shapes, fold what is constant, drop what nobody reads."""
        self._sort()
        while True:
            self._infer()
            folded = self._fold_shapes()
            folded += self._fold_constants()
            if not folded:
                break
        self._drop_unused("only constants or folded nodes needed it")

    def require_known_operators(self, opsets: tuple[int, int], reader: str) -> None:
        """Refuse what no ONNX parser for this target reads.

        Args:
            opsets: oldest and newest operator version that ``reader`` takes.
            reader: who reads the file next, for the message.

        Raises:
            GraphError: a custom operator, a subgraph, an opset out of range, a malformed node or
                shapes that contradict each other.
        """
        from onnx import AttributeProto, checker, defs, shape_inference

        oldest, newest = opsets
        if not oldest <= self.opset <= newest:
            remedy = (
                f"export with opset_version={newest}"
                if self.opset > newest
                else f"export again with opset_version={max(oldest, 11)} or newer"
            )
            raise GraphError(
                f"{self.where}: opset {self.opset} is too {'new' if self.opset > newest else 'old'}"
                f" (first node: '{self.nodes[0].name}'): {reader} reads {oldest} to {newest}; "
                f"{remedy}"
            )
        for node in self.nodes:
            known = node.domain in ("", "ai.onnx") and defs.has(node.op_type, self.opset)
            if not known:
                origin = f" of domain '{node.domain}'" if node.domain else ""
                raise GraphError(
                    f"{self.where}: node '{node.name}': {node.op_type}{origin} is no ONNX operator "
                    f"of opset {self.opset}: a DLA has no plugins; cut the network before it or "
                    "export without it"
                )
            for item in node.attribute:
                if item.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
                    raise GraphError(
                        f"{self.where}: node '{node.name}': {node.op_type} holds a subgraph, which "
                        "a DLA cannot run: cut the network before it or export it with fixed "
                        "shapes, so that no branch or loop is left"
                    )
        context = checker.C.CheckerContext()
        context.ir_version = self.ir_version
        context.opset_imports = {"": self.opset}
        for node in self.nodes:
            try:
                checker.check_node(node, context)
            except checker.ValidationError as error:
                raise GraphError(
                    f"{self.where}: node '{node.name}' is not valid ONNX: {_one_line(error)}"
                ) from None
        try:
            shape_inference.infer_shapes(
                self.to_model(stub_weights=True), strict_mode=True, data_prop=True
            )
        except shape_inference.InferenceError as error:
            raise GraphError(
                f"{self.where}: the shapes contradict each other: {_one_line(error)}"
            ) from None

    def to_model(self, stub_weights: bool = False, extra_outputs: Iterable[str] = ()) -> ModelProto:
        """The network as an ONNX model.

        Args:
            stub_weights: declare large constants as inputs instead of storing them, for uses that
                need only their shapes.
            extra_outputs: tensors to return besides the outputs.
        """
        from onnx import helper, numpy_helper

        used = {name for node in self.nodes for name in node.input if name}
        used.update(self.outputs)
        stored, declared = [], []
        for name in sorted(used & set(self.constants)):
            value = self.constants[name]
            if stub_weights and value.size > _SMALL:
                elem_type = helper.np_dtype_to_tensor_dtype(value.dtype)
                declared.append(helper.make_tensor_value_info(name, elem_type, value.shape))
            else:
                stored.append(numpy_helper.from_array(value, name))
        outputs = [*self.outputs, *(name for name in extra_outputs if name not in self.outputs)]
        inner = {name for node in self.nodes for name in node.output} - set(outputs)
        graph = helper.make_graph(
            self.nodes,
            self._name,
            [*(_value_info(name, known) for name, known in self.inputs.items()), *declared],
            [_value_info(name, self._output_type(name)) for name in outputs],
            initializer=stored,
            value_info=[
                _value_info(name, self.types[name])
                for name in sorted(inner & set(self.types))
                if self.types[name].elem_type
            ],
        )
        domains = {node.domain for node in self.nodes} - {"", "ai.onnx"}
        imports = [helper.make_opsetid("", self.opset)]
        imports += [helper.make_opsetid(name, self._domains.get(name, 1)) for name in domains]
        model = helper.make_model(
            graph, opset_imports=imports, ir_version=self.ir_version, producer_name="dla_perception"
        )
        helper.set_model_props(model, dict(self.metadata))
        return model

    def copy(self) -> Graph:
        """An independent graph with the same content."""
        twin: Graph = object.__new__(Graph)
        twin.__dict__.update(self.__dict__)
        twin.nodes = []
        for node in self.nodes:
            cloned = type(node)()
            cloned.CopyFrom(node)
            twin.nodes.append(cloned)
        for key in ("notices", "folded", "outputs"):
            setattr(twin, key, list(getattr(self, key)))
        for key in ("types", "constants", "inputs", "metadata"):
            setattr(twin, key, dict(getattr(self, key)))
        return twin

    # --- inside ----------------------------------------------------------------------------------

    def _forget(self) -> None:
        """The indices of who makes and who reads what are made anew when next asked for."""
        self._made_by = None
        self._read_by = None

    def _output_type(self, name: str) -> TensorType:
        if name in self.constants:
            from onnx import helper

            value = self.constants[name]
            return TensorType(helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        return self.types.get(name) or self.inputs.get(name) or TensorType(0, None)

    def _name_nodes(self) -> None:
        """Give every node a name of its own; messages and verdicts are by name."""
        taken = Counter(node.name for node in self.nodes if node.name)
        seen: set[str] = set(taken)
        met: set[str] = set()
        for index, node in enumerate(self.nodes):
            if not node.name:
                node.name = _free(f"{node.op_type}_{index}", seen)
                seen.add(node.name)
            elif node.name in met:
                new = _free(node.name, seen)
                self.notices.append(
                    f"node name '{node.name}' is used by {taken[node.name]} nodes: "
                    f"one {node.op_type} is called '{new}' here"
                )
                node.name = new
                seen.add(new)
            met.add(node.name)

    def _initializers(self, model: ModelProto) -> dict[str, np.ndarray]:
        from onnx import numpy_helper

        if model.graph.sparse_initializer:
            name = model.graph.sparse_initializer[0].values.name
            raise GraphError(
                f"{self.where}: weights '{name}' are stored sparse, which TensorRT does not read; "
                "store them dense"
            )
        used = {name for node in self.nodes for name in node.input}
        used.update(value.name for value in model.graph.output)
        used.update(_subgraph_reads(self.nodes))
        constants: dict[str, np.ndarray] = {}
        for tensor in model.graph.initializer:
            if tensor.name in constants:
                raise GraphError(
                    f"{self.where}: two weights are called '{tensor.name}' "
                    f"(read by {self._reader(tensor.name)}); every tensor needs its own name"
                )
            if tensor.name not in used:
                self.notices.append(f"weights '{tensor.name}' are not used by any node")
                continue
            try:
                constants[tensor.name] = numpy_helper.to_array(tensor)
            except (ValueError, TypeError) as error:
                raise GraphError(
                    f"{self.where}: weights '{tensor.name}' (read by {self._reader(tensor.name)}) "
                    f"are damaged: {_one_line(error)}"
                ) from None
        return constants

    def _inputs(self, model: ModelProto) -> dict[str, TensorType]:
        inputs: dict[str, TensorType] = {}
        both = []
        for value in model.graph.input:
            if value.name in self.constants:
                both.append(value.name)
            elif any(value.name == tensor.name for tensor in model.graph.initializer):
                continue  # listed as an input and used by nobody
            elif value.name in inputs:
                raise GraphError(
                    f"{self.where}: two inputs are called '{value.name}'; "
                    "every tensor needs its own name"
                )
            else:
                inputs[value.name] = _type_of(value)
        if both:
            some = ", ".join(f"'{name}'" for name in both[:3]) + (", ..." if both[3:] else "")
            self.notices.append(
                f"{len(both)} weights are listed as inputs too ({some}, read by "
                f"{self._reader(both[0])}): they are taken as constants"
            )
        return inputs

    def _reader(self, tensor: str) -> str:
        for node in self.nodes:
            if tensor in node.input:
                return f"node '{node.name}'"
        return "no node"

    def _check_names(self) -> None:
        """Every tensor is made once, and every tensor that is read is made."""
        made: dict[str, str] = {name: "the inputs" for name in self.inputs}
        made.update((name, "the weights") for name in self.constants)
        for node in self.nodes:
            for name in node.output:
                if name and name in made:
                    raise GraphError(
                        f"{self.where}: tensor '{name}' is made by node '{node.name}' and by "
                        f"{made[name]}; every tensor needs its own name"
                    )
                if name:
                    made[name] = f"node '{node.name}'"
        for node in self.nodes:
            for name in [*node.input, *_subgraph_reads([node])]:
                if name and name not in made:
                    raise GraphError(
                        f"{self.where}: node '{node.name}' reads '{name}', which no node makes; "
                        "the file is incomplete, export it again"
                    )
        for name in self.outputs:
            if name not in made:
                raise GraphError(f"{self.where}: output '{name}' is made by no node")

    def _sort(self, first_time: bool = False) -> None:
        """Order the nodes so that each comes after those it reads, else as they were."""
        maker = {name: i for i, node in enumerate(self.nodes) for name in node.output if name}
        waits: list[set[int]] = []
        followers: dict[int, list[int]] = {}
        for index, node in enumerate(self.nodes):
            needs = {
                maker[name] for name in [*node.input, *_subgraph_reads([node])] if name in maker
            }
            waits.append(needs)
            for need in needs:
                followers.setdefault(need, []).append(index)
        ready = [index for index, needs in enumerate(waits) if not needs]
        heapq.heapify(ready)
        order = []
        while ready:
            index = heapq.heappop(ready)
            order.append(index)
            for follower in followers.get(index, ()):
                waits[follower].discard(index)
                if not waits[follower]:
                    heapq.heappush(ready, follower)
        if len(order) < len(self.nodes):
            raise GraphError(self._cycle_message(waits))
        if first_time and order != sorted(order):
            late = next(index for place, index in enumerate(order) if index != place)
            self.notices.append(
                f"the nodes are not in running order (first: '{self.nodes[late].name}'): sorted"
            )
        self.nodes = [self.nodes[index] for index in order]

    def _cycle_message(self, waits: list[set[int]]) -> str:
        # every node that still waits has a predecessor that waits: going back ends in the cycle
        index = next(i for i, needs in enumerate(waits) if needs)
        path: list[int] = []
        while index not in path:
            path.append(index)
            index = min(waits[index])
        loop = path[path.index(index) :][::-1]
        first = loop.index(min(loop))
        cycle = [self.nodes[i].name for i in [*loop[first:], *loop[:first]]]
        shown = " -> ".join(f"'{name}'" for name in [*cycle[:4], *(["..."] if cycle[4:] else [])])
        return (
            f"{self.where}: {len(cycle)} nodes wait for each other in a cycle: {shown} -> "
            f"'{cycle[0]}'; a network must not feed back into itself"
        )

    def _drop_unused(self, reason: str) -> None:
        wanted = set(self.outputs)
        kept = []
        for node in reversed(self.nodes):
            if wanted.intersection(node.output):
                wanted.update(node.input)
                wanted.update(_subgraph_reads([node]))
                kept.append(node)
            else:
                self.folded.append(Folded(node.name, node.op_type, reason))
        self.nodes = kept[::-1]

    def _infer(self) -> None:
        from onnx import shape_inference

        self.types = dict(self.inputs)  # what the file claims about inner tensors may be stale
        model = self.to_model(stub_weights=True)
        try:
            inferred = shape_inference.infer_shapes(model, data_prop=True)
        except Exception as error:  # a class of its own in each onnx release
            raise GraphError(
                f"{self.where}: the shapes contradict each other: {_one_line(error)}"
            ) from None
        for value in [*inferred.graph.value_info, *inferred.graph.output]:
            self.types[value.name] = _type_of(value)

    def _fold_shapes(self) -> int:
        """Shape and Size of tensors with fixed shapes are constants."""
        kept = []
        for node in self.nodes:
            value = self._shape_value(node)
            if value is None:
                kept.append(node)
            else:
                self.constants[node.output[0]] = value
                self.folded.append(Folded(node.name, node.op_type, "a constant: shapes are fixed"))
        folded = len(self.nodes) - len(kept)
        self.nodes = kept
        return folded

    def _shape_value(self, node: NodeProto) -> np.ndarray | None:
        if node.op_type not in ("Shape", "Size") or node.output[0] in self.outputs:
            return None
        shape = self.shape(node.input[0])
        if shape is None:
            return None
        if node.op_type == "Size":
            return np.array(int(np.prod(shape)), np.int64)
        bounds = {item.name: item.i for item in node.attribute}
        return np.array(shape[bounds.get("start", 0) : bounds.get("end")], np.int64)

    def _fold_constants(self) -> int:
        """Replace every node that depends on constants alone by its result."""
        from onnx import AttributeProto

        known = set(self.constants)
        constant_nodes = []
        for node in self.nodes:
            if (
                node.op_type in _RANDOM
                or node.domain not in ("", "ai.onnx")
                or any(item.type == AttributeProto.GRAPH for item in node.attribute)
                or set(node.output) & set(self.outputs)
                or not all(name in known for name in node.input if name)
            ):
                continue
            constant_nodes.append(node)
            known.update(node.output)
        values = self._evaluate(constant_nodes)
        done = [n for n in constant_nodes if all(o in values for o in n.output if o)]
        self.constants.update(values)
        gone = {id(node) for node in done}
        self.nodes = [node for node in self.nodes if id(node) not in gone]
        self.folded += [
            Folded(n.name, n.op_type, "a constant, computed at build time") for n in done
        ]
        return len(done)

    def _evaluate(self, nodes: Sequence[NodeProto]) -> dict[str, np.ndarray]:
        """Results of nodes that depend on constants alone; without those that cannot be run."""
        if not nodes:
            return {}
        try:
            return self._run(nodes)
        except Exception:  # ONNX Runtime raises a class of its own per status code
            if len(nodes) == 1:
                return {}
        values: dict[str, np.ndarray] = {}
        for node in nodes:  # one of them cannot be run: find out which can
            if all(name in self.constants for name in node.input if name):
                found = self._evaluate([node])
                values.update(found)
                self.constants.update(found)
        return values

    def _run(self, nodes: Sequence[NodeProto]) -> dict[str, np.ndarray]:
        from onnx import helper, numpy_helper

        made = [name for node in nodes for name in node.output if name]
        read = dict.fromkeys(name for node in nodes for name in node.input if name)
        graph = helper.make_graph(
            nodes,
            "constants",
            [],
            [helper.make_empty_tensor_value_info(name) for name in made],
            initializer=[
                numpy_helper.from_array(self.constants[name], name)
                for name in read
                if name in self.constants
            ],
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", self.opset)],
            ir_version=self.ir_version,
        )
        return dict(zip(made, open_session(model).run(made, {})))


def load_graph(path: str | Path, shapes: Mapping[str, Sequence[int]] | None = None) -> Graph:
    """Read an ONNX file.

    Args:
        path: the file; weights may lie in files beside it.
        shapes: fixed sizes for dynamic inputs, by name; ``""`` is the only input.

    Raises:
        GraphError: it is no usable network; the message names what is at fault.
        MissingPackageError: ``onnx`` or ``onnxruntime`` is not installed.
    """
    graph = Graph(read_model(path), str(path))
    graph.fix_input_shapes(shapes or {})
    graph.require_static_inputs()
    graph.refresh()
    return graph


def read_model(path: str | Path) -> ModelProto:
    """Read and unpack an ONNX file: weights loaded, local functions inlined.

    Raises:
        GraphError: missing, too large, damaged, or its external data is not there.
    """
    try:
        import onnx
        from google.protobuf.message import DecodeError
    except ImportError:
        raise MissingPackageError("onnx", "reading an ONNX model", "pip install onnx") from None
    file = Path(path)
    try:
        size = file.stat().st_size
        if size >= LARGEST_MODEL:
            raise GraphError(_too_large(path, size))
        content = file.read_bytes()
    except OSError as error:
        raise GraphError(f"{path}: cannot read it: {error.strerror}") from None
    try:
        model = onnx.load_model_from_string(content)
    except DecodeError:
        raise GraphError(
            f"{path}: not an ONNX file or cut short; expected a network exported as .onnx"
        ) from None
    if not model.HasField("graph"):
        raise GraphError(f"{path}: not an ONNX file: there is no graph in it")
    _load_external_data(model, file, size)
    if model.functions:
        from onnx import inliner

        model = inliner.inline_local_functions(model)
    return model


def open_session(model: ModelProto, optimise: bool = False) -> Any:
    """An ONNX Runtime session on the CPU, by default without its own fusions."""
    try:
        import onnxruntime
    except ImportError:
        raise MissingPackageError(
            "onnxruntime", "evaluating a network", "pip install onnxruntime"
        ) from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if not optimise:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _opset(model: ModelProto, where: str) -> int:
    versions = [item.version for item in model.opset_import if item.domain in ("", "ai.onnx")]
    if not versions:
        raise GraphError(f"{where}: it names no ONNX opset; export it again")
    return int(versions[0])


def _load_external_data(model: ModelProto, file: Path, size: int) -> None:
    """Load weights that lie in files beside the model, after a look at what is there."""
    from onnx import TensorProto, external_data_helper

    readers = {name: node.name for node in model.graph.node for name in node.input}
    for tensor, owner in _tensors(model):
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        location = {item.key: item.value for item in tensor.external_data}.get("location", "")
        data = file.parent / location
        reader = owner or readers.get(tensor.name, "no node")
        if not location or not data.is_file():
            raise GraphError(
                f"{file}: weights '{tensor.name}' of node '{reader}' are kept in '{location}', "
                f"which is not in {file.parent}: copy it there too"
            )
    parts = {
        item.value
        for tensor, _ in _tensors(model)
        if tensor.data_location == TensorProto.EXTERNAL
        for item in tensor.external_data
        if item.key == "location"
    }
    if not parts:
        return
    total = size + sum((file.parent / part).stat().st_size for part in parts)
    if total >= LARGEST_MODEL:
        raise GraphError(_too_large(file, total))
    try:
        external_data_helper.load_external_data_for_model(model, str(file.parent))
    except Exception as error:  # checks of onnx's own, differing by release
        raise GraphError(f"{file}: its external data is unusable: {_one_line(error)}") from None


def _tensors(model: ModelProto) -> Iterable[tuple[TensorProto, str]]:
    """Every stored tensor, with the name of the node that holds it, if one does."""
    for tensor in model.graph.initializer:
        yield tensor, ""
    for node in model.graph.node:
        for item in node.attribute:
            if item.HasField("t"):
                yield item.t, node.name


def _too_large(path: str | Path, size: int) -> str:
    return (
        f"{path}: {size / GIBIBYTE:.1f} GiB: ONNX files end at 2 GiB, and a DLA network's weights "
        "at 512 MiB; use a smaller network or store the weights as float16"
    )


def _subgraph_reads(nodes: Iterable[NodeProto]) -> list[str]:
    """Names that the subgraphs of If, Loop and Scan take from outside."""
    from onnx import AttributeProto

    names = []
    for node in nodes:
        for item in node.attribute:
            graphs = [item.g] if item.type == AttributeProto.GRAPH else list(item.graphs)
            for graph in graphs:
                inner = {value.name for value in graph.input}
                inner.update(tensor.name for tensor in graph.initializer)
                inner.update(name for child in graph.node for name in child.output)
                reads = [name for child in graph.node for name in child.input]
                reads += [value.name for value in graph.output] + _subgraph_reads(graph.node)
                names += [name for name in reads if name and name not in inner]
    return names


def _type_of(value: ValueInfoProto) -> TensorType:
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return TensorType(tensor.elem_type, None)
    sizes = [dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim]
    # some exporters write -1 for a dynamic size
    return TensorType(
        tensor.elem_type, tuple(None if s is not None and s < 0 else s for s in sizes)
    )


def _value_info(name: str, known: TensorType) -> ValueInfoProto:
    from onnx import helper

    if not known.elem_type:
        return helper.make_empty_tensor_value_info(name)
    return helper.make_tensor_value_info(name, known.elem_type, known.shape)


def _free(wanted: str, taken: Iterable[str]) -> str:
    names = set(taken)
    if wanted not in names:
        return wanted
    number = 2
    while f"{wanted}_{number}" in names:
        number += 1
    return f"{wanted}_{number}"


def _show(shape: Sequence[int | None]) -> str:
    return "x".join("?" if size is None else str(size) for size in shape)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
