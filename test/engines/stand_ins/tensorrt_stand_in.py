"""A stand-in for the module ``tensorrt`` that computes with ONNX Runtime.

It has the names of the Python bindings of TensorRT 8.5, 10.3 or 11.4 as far as a user of DLA
needs them, and lacks what that version lacks; an unknown name, also one that is assigned to, is an
``AttributeError`` as with pybind. It refuses what the real library refuses, with its words where
they are public: plans of other versions and devices, DLA loadables, buffers that are too small,
work without addresses. What the real library takes without effect, such as a DLA core set after
deserialising, is an error here.

A plan of the stand-in is a real plan's first 28 bytes (tag, serialisation version, TensorRT
version), then JSON and the ONNX network. Layouts are packed and unpacked here by code of its own.
"""

from __future__ import annotations

import enum
import json
import struct
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cuda_stand_in import Machine

NUMPY = {"FLOAT": np.float32, "HALF": np.float16, "INT8": np.int8, "INT32": np.int32}
ON_DLA = {
    "Conv", "ConvTranspose", "BatchNormalization", "Relu", "LeakyRelu", "Clip", "Sigmoid", "Tanh",
    "MaxPool", "AveragePool", "Add", "Sub", "Mul", "Concat", "Resize", "Slice", "Split", "Max",
}  # fmt: skip
"""Operators that this DLA takes."""


@dataclass
class Board:
    """What the machine has, and faults to inject."""

    machine: Machine
    dla_cores: int = 2
    refuse_contexts: bool = False
    refuse_mapped: bool = False
    refuse_execution: bool = False
    refuse_builds: str = ""
    wrong_result: bool = False
    core_taken: int | None = None
    ignored_core: bool = False


# layouts ----------------------------------------------------------------------------------


def packed_shape(shape: list[int], dtype: str, layout: str, xavier: bool) -> list[int]:
    """Sizes of the buffer of a tensor, by the developer guide's table of DLA formats."""
    size = np.dtype(NUMPY[dtype]).itemsize
    if layout == "LINEAR":
        return list(shape)
    n, c, h, w = shape
    if layout == "DLA_LINEAR":
        per_row = 64 // size
        return [n, c, h, (w + per_row - 1) // per_row * per_row]
    if layout == "DLA_HWC4":
        lanes = 1 if c == 1 else 4
        per_row = (32 if xavier else 64) // (lanes * size)
        return [n, h, (w + per_row - 1) // per_row * per_row, lanes]
    lanes = {"CHW16": 16, "CHW32": 32}[layout]
    return [n, (c + lanes - 1) // lanes, h, w, lanes]


def pack(values: np.ndarray, dtype: str, layout: str, xavier: bool) -> np.ndarray:
    """The buffer of a tensor, element by element of its channels."""
    out = np.zeros(packed_shape(list(values.shape), dtype, layout, xavier), NUMPY[dtype])
    if layout == "LINEAR":
        out[...] = values
        return out
    for channel in range(values.shape[1]):
        plane = values[:, channel]
        width = plane.shape[2]
        if layout == "DLA_LINEAR":
            out[:, channel, :, :width] = plane
        elif layout == "DLA_HWC4":
            out[:, :, :width, channel] = plane
        else:
            lanes = out.shape[-1]
            out[:, channel // lanes, :, :, channel % lanes] = plane
    return out


def unpack(data: np.ndarray, shape: list[int], dtype: str, layout: str, xavier: bool) -> np.ndarray:
    """The tensor in a buffer."""
    buffer = data.view(NUMPY[dtype]).reshape(packed_shape(shape, dtype, layout, xavier))
    if layout == "LINEAR":
        return buffer.copy()
    out = np.empty(shape, NUMPY[dtype])
    for channel in range(shape[1]):
        if layout == "DLA_LINEAR":
            out[:, channel] = buffer[:, channel, :, : shape[3]]
        elif layout == "DLA_HWC4":
            out[:, channel] = buffer[:, :, : shape[3], channel]
        else:
            lanes = buffer.shape[-1]
            out[:, channel] = buffer[:, channel // lanes, :, :, channel % lanes]
    return out


class Program:
    """An ONNX network behind tensors of given types, layouts and scales."""

    def __init__(self, document: dict[str, Any], onnx_bytes: bytes) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(
            onnx_bytes, options, providers=["CPUExecutionProvider"]
        )
        self.tensors = document["tensors"]
        self.xavier = document["compute_capability"] == "7.2"

    def nbytes(self, tensor: dict[str, Any]) -> int:
        shape = packed_shape(tensor["shape"], tensor["dtype"], tensor["format"], self.xavier)
        return int(np.prod(shape)) * np.dtype(NUMPY[tensor["dtype"]]).itemsize

    def run(self, buffers: dict[str, np.ndarray]) -> None:
        """Compute from the input buffers into the output buffers, all ``uint8``."""
        kinds = {item.name: item.type for item in self.session.get_inputs()}
        feeds = {}
        for tensor in self.tensors:
            if tensor["mode"] == "INPUT":
                values = unpack(
                    buffers[tensor["name"]],
                    tensor["shape"], tensor["dtype"], tensor["format"], self.xavier,
                )  # fmt: skip
                real = values.astype(np.float32) * (tensor["scale"] or 1.0)
                half = kinds[tensor["name"]] == "tensor(float16)"
                feeds[tensor["name"]] = real.astype(np.float16 if half else np.float32)
        outputs = [tensor for tensor in self.tensors if tensor["mode"] == "OUTPUT"]
        results = self.session.run([tensor["name"] for tensor in outputs], feeds)
        for tensor, result in zip(outputs, results):
            values = result.astype(np.float32)
            if tensor["dtype"] == "INT8":
                values = np.clip(np.rint(values / tensor["scale"]), -128, 127)
            packed = pack(values, tensor["dtype"], tensor["format"], self.xavier)
            buffers[tensor["name"]][:] = packed.reshape(-1).view(np.uint8)


def plan_bytes(version: str, document: dict[str, Any], onnx_bytes: bytes) -> bytes:
    """A plan of the stand-in."""
    numbers = [int(part) for part in version.split(".")]
    head = b"ftrt" + bytes(20) + bytes((numbers + [0, 0])[:4])
    text = json.dumps(document).encode()
    return head + struct.pack("<II", len(text), len(onnx_bytes)) + text + onnx_bytes


def loadable_bytes(document: dict[str, Any], onnx_bytes: bytes) -> bytes:
    """A DLA loadable of the stand-in: the flatbuffer's identifier, then JSON and the network."""
    text = json.dumps(document).encode()
    head = struct.pack("<I", 24) + b"NVDA"
    return head + struct.pack("<II", len(text), len(onnx_bytes)) + text + onnx_bytes


def read_loadable(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Document and network of a loadable."""
    text_length, onnx_length = struct.unpack("<II", data[8:16])
    text = data[16 : 16 + text_length]
    onnx_bytes = data[16 + text_length :]
    if len(text) != text_length or len(onnx_bytes) != onnx_length:
        raise ValueError("a damaged loadable")
    return json.loads(text), onnx_bytes


# the module -------------------------------------------------------------------------------


class _Strict:
    """Like a pybind class: only the declared attributes can be assigned."""

    def __setattr__(self, name: str, value: Any) -> None:
        known = name.startswith("_") or any(name in vars(cls) for cls in type(self).__mro__)
        if not known:
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        object.__setattr__(self, name, value)


def _enumeration(name: str, *members: str, values: list[int] | None = None) -> Any:
    return enum.IntEnum(name, dict(zip(members, values or range(len(members)))))


def make_tensorrt(version: str, board: Board) -> types.ModuleType:
    """The module for ``sys.modules['tensorrt']``."""
    major = int(version.partition(".")[0])
    typed_only = major >= 11
    trt = types.ModuleType("tensorrt")
    trt.__version__ = version  # type: ignore[attr-defined]
    machine = board.machine
    capability = ".".join(str(part) for part in machine.compute_capability)

    def export(item: Any) -> Any:
        setattr(trt, item.__name__, item)
        item.__module__ = "tensorrt"
        return item

    severity = _enumeration("Severity", "INTERNAL_ERROR", "ERROR", "WARNING", "INFO", "VERBOSE")

    @export
    class ILogger(_Strict):
        Severity = severity

        def __init__(self) -> None:
            object.__setattr__(self, "_made", True)

        def __setattr__(self, name: str, value: Any) -> None:
            object.__setattr__(self, name, value)  # subclassed in Python: anything goes

        def log(self, severity: Any, msg: str) -> None:
            raise NotImplementedError

    for item in severity:
        setattr(ILogger, item.name, item)

    def check_logger(logger: Any) -> None:
        if not isinstance(logger, ILogger) or not getattr(logger, "_made", False):
            raise TypeError("__init__(): incompatible constructor arguments: expected an ILogger")

    export(_enumeration("DataType", "FLOAT", "HALF", "INT8", "INT32", "BOOL", "UINT8"))
    export(
        _enumeration(
            "TensorFormat",
            "LINEAR", "CHW2", "HWC8", "CHW4", "CHW16", "CHW32", "DHWC8", "CDHW32", "HWC",
            "DLA_LINEAR", "DLA_HWC4", "HWC16",
        )
    )  # fmt: skip
    export(_enumeration("TensorIOMode", "NONE", "INPUT", "OUTPUT"))
    export(_enumeration("DeviceType", "GPU", "DLA"))
    export(_enumeration("EngineCapability", "STANDARD", "SAFETY", "DLA_STANDALONE"))
    export(_enumeration("LayerInformationFormat", "ONELINE", "JSON"))
    export(_enumeration("ProfilingVerbosity", "LAYER_NAMES_ONLY", "NONE", "DETAILED"))
    export(
        _enumeration(
            "MemoryPoolType", "WORKSPACE", "DLA_MANAGED_SRAM", "DLA_LOCAL_DRAM", "DLA_GLOBAL_DRAM"
        )
    )
    flags = ["DEBUG", "GPU_FALLBACK", "REFIT", "DISABLE_TIMING_CACHE", "TF32", "DIRECT_IO"]
    if not typed_only:
        flags += ["FP16", "INT8", "OBEY_PRECISION_CONSTRAINTS", "PREFER_PRECISION_CONSTRAINTS"]
        flags += ["REJECT_EMPTY_ALGORITHMS"]
    if major == 8:
        flags += ["STRICT_TYPES"]
    export(_enumeration("BuilderFlag", *flags))
    creation = {8: ["EXPLICIT_BATCH"], 10: ["EXPLICIT_BATCH", "STRONGLY_TYPED"]}
    export(_enumeration("NetworkDefinitionCreationFlag", *creation.get(major, ["STRONGLY_TYPED"])))
    if typed_only:
        export(_enumeration("OnnxParserFlag", "NATIVE_INSTANCENORM", "ADJUST_FOR_DLA"))

    # runtime ------------------------------------------------------------------------------

    @export
    class EngineInspector(_Strict):
        def __init__(self, engine: Any) -> None:
            self._engine = engine

        def get_engine_information(self, layout: Any) -> str:
            document = self._engine._document
            layers = document["layers"]
            if document["verbosity"] != "DETAILED":
                return json.dumps({"Layers": [layer["name"] for layer in layers], "Bindings": []})
            kinds = {"dla": "DLA", "gpu": "CaskConvolution"}
            return json.dumps(
                {
                    "Layers": [
                        {"Name": layer["name"], "LayerType": kinds[layer["device"]]}
                        for layer in layers
                    ],
                    "Bindings": [],
                }
            )

    @export
    class IExecutionContext(_Strict):
        def __init__(self, engine: Any, thread_context: Any) -> None:
            self._engine = engine
            self._addresses: dict[str, int] = {}
            self._busy = False
            machine.alive["execution context"] += 1

        def __del__(self) -> None:
            if hasattr(self, "_addresses"):
                machine.alive["execution context"] -= 1
                if not machine.stack:
                    machine.faults.append("execution context destroyed without a CUDA context")

        def get_tensor_strides(self, name: str) -> tuple[int, ...]:
            tensor = self._engine._tensor(name)
            shape = packed_shape(
                tensor["shape"], tensor["dtype"], tensor["format"], self._engine._program.xavier
            )
            return tuple(int(np.prod(shape[index + 1 :])) for index in range(len(shape)))

        def set_tensor_address(self, name: str, memory: int) -> bool:
            engine = self._engine
            if name not in engine._names:
                engine._log(severity.ERROR, f"setTensorAddress: unknown tensor {name}")
                return False
            if memory not in machine.memory:
                engine._log(severity.ERROR, f"setTensorAddress: {memory:#x} is not device memory")
                return False
            if board.refuse_mapped and machine.is_mapped(memory):
                engine._log(severity.ERROR, "setTensorAddress: host memory cannot be used by DLA")
                return False
            needed = engine._program.nbytes(engine._tensor(name))
            if machine.memory[memory].nbytes != needed:
                raise AssertionError(
                    f"buffer of {name}: {machine.memory[memory].nbytes} bytes, expected {needed}"
                )
            self._addresses[name] = memory
            return True

        def execute_async_v3(self, stream_handle: int) -> bool:
            engine = self._engine
            machine.require_context("execute_async_v3")
            if board.refuse_execution:
                engine._log(severity.ERROR, "DLA Error in submit: 7 (Failure to submit program "
                            "to DLA engine.)")  # fmt: skip
                return False
            missing = set(engine._names) - set(self._addresses)
            if missing:
                engine._log(severity.ERROR, f"no address set for {sorted(missing)}")
                return False
            if stream_handle not in machine.streams:
                raise AssertionError(f"{stream_handle} is no stream")
            if self._busy:
                raise AssertionError("an execution context runs in two streams at a time")
            self._busy = True
            addresses = dict(self._addresses)
            program = engine._program

            def execute() -> None:
                machine.hang.wait()
                buffers = {name: machine.at(address) for name, address in addresses.items()}
                program.run(buffers)
                if board.wrong_result:
                    for tensor in program.tensors:
                        if tensor["mode"] == "OUTPUT":
                            buffers[tensor["name"]][:] = 0
                self._busy = False

            machine.streams[stream_handle].put(execute)
            return True

    @export
    class ICudaEngine(_Strict):
        def __init__(self, runtime: Any, document: dict[str, Any], onnx_bytes: bytes) -> None:
            self._runtime = runtime
            self._document = document
            self._program = Program(document, onnx_bytes)
            self._names = [tensor["name"] for tensor in document["tensors"]]
            self._core = runtime._core
            machine.alive["engine"] += 1

        def __del__(self) -> None:
            if hasattr(self, "_core"):
                machine.alive["engine"] -= 1

        def _tensor(self, name: str) -> dict[str, Any]:
            for tensor in self._document["tensors"]:
                if tensor["name"] == name:
                    return tensor
            raise AssertionError(f"no tensor is called {name}")

        def _log(self, level: Any, text: str) -> None:
            self._runtime.logger.log(level, text)

        @property
        def num_io_tensors(self) -> int:
            return len(self._names)

        @property
        def num_layers(self) -> int:
            return len(self._document["layers"])

        def get_tensor_name(self, index: int) -> str:
            return self._names[index]

        def get_tensor_mode(self, name: str) -> Any:
            return trt.TensorIOMode[self._tensor(name)["mode"]]

        def get_tensor_shape(self, name: str) -> tuple[int, ...]:
            return tuple(self._tensor(name)["shape"])

        def get_tensor_dtype(self, name: str) -> Any:
            return trt.DataType[self._tensor(name)["dtype"]]

        def get_tensor_format(self, name: str) -> Any:
            return trt.TensorFormat[self._tensor(name)["format"]]

        def create_execution_context(self) -> Any:
            context = machine.require_context("create_execution_context")
            if board.refuse_contexts:
                self._log(
                    severity.ERROR,
                    "Requested amount of GPU memory could not be allocated. There may not be "
                    "enough free memory for allocation to succeed.",
                )
                return None
            return IExecutionContext(self, context)

        def create_engine_inspector(self) -> Any:
            return EngineInspector(self)

    @export
    class Runtime(_Strict):
        def __init__(self, logger: Any) -> None:
            check_logger(logger)
            machine.require_context("createInferRuntime")
            self._logger = logger
            self._core = -1 if major >= 10 else 0
            self._deserialised = False
            machine.alive["runtime"] += 1

        def __del__(self) -> None:
            if hasattr(self, "_deserialised"):
                machine.alive["runtime"] -= 1

        @property
        def logger(self) -> Any:
            return self._logger

        @property
        def num_DLA_cores(self) -> int:
            return board.dla_cores

        @property
        def DLA_core(self) -> int:
            return self._core

        @DLA_core.setter
        def DLA_core(self, core: int) -> None:
            if self._deserialised:
                raise AssertionError("DLA_core set after deserialising: it would have no effect")
            if not 0 <= core < board.dla_cores or board.ignored_core:
                return  # the real setter does nothing either
            self._core = core

        def deserialize_cuda_engine(self, serialized_engine: Any) -> Any:
            self._deserialised = True
            found = self._read(bytes(serialized_engine))
            if isinstance(found, str):
                self._logger.log(severity.ERROR, found)
                self._logger.log(
                    severity.ERROR,
                    "[runtime.cpp::deserializeCudaEngine::65] Error Code 4: Internal Error "
                    "(Engine deserialization failed.)",
                )
                return None
            document, onnx_bytes = found
            on_dla = any(layer["device"] == "dla" for layer in document["layers"])
            board.core_taken = self._core if on_dla else None
            return ICudaEngine(self, document, onnx_bytes)

        def _read(self, data: bytes) -> Any:
            if data[4:8] == b"NVDA":
                return (
                    "Error[9]: Cannot deserialize serialized engine built with "
                    "EngineCapability::kDLA_STANDALONE, use cuDLA APIs instead."
                )
            if data[:4] != b"ftrt":
                return (
                    "Error Code 1: Serialization (Serialization assertion magicTagRead == "
                    "kMAGIC_TAG failed.Magic tag does not match)"
                )
            numbers = [int(part) for part in version.split(".")]
            if list(data[24:27]) != (numbers + [0])[:3]:
                return (
                    "Error Code 1: Serialization (Serialization assertion stdVersionRead == "
                    "kSERIALIZATION_VERSION failed.Version tag does not match. Note: Current "
                    "Version: 232, Serialized Engine Version: 205)"
                )
            if len(data) < 36:
                return "Error Code 1: Serialization (Serialization assertion size failed.)"
            text_length, onnx_length = struct.unpack("<II", data[28:36])
            text = data[36 : 36 + text_length]
            onnx_bytes = data[36 + text_length :]
            if len(text) != text_length or len(onnx_bytes) != onnx_length:
                return "Error Code 1: Serialization (Serialization assertion size failed.)"
            document = json.loads(text)
            if document["compute_capability"] != capability:
                return (
                    "Error Code 1: Internal Error (The engine plan file is generated on an "
                    f"incompatible device, expecting compute {capability} got compute "
                    f"{document['compute_capability']}, please rebuild.)"
                )
            return document, onnx_bytes

    # network and parser -------------------------------------------------------------------

    class _Tensor(_Strict):
        def __init__(self, name: str, shape: tuple[int, ...], dtype: Any) -> None:
            self._name = name
            self._shape = shape
            self._dtype = dtype
            self._formats = 0
            self._range: tuple[float, float] | None = None

        @property
        def name(self) -> str:
            return self._name

        @property
        def shape(self) -> tuple[int, ...]:
            return self._shape

        @property
        def dtype(self) -> Any:
            return self._dtype

        @property
        def allowed_formats(self) -> int:
            return self._formats

        @allowed_formats.setter
        def allowed_formats(self, formats: int) -> None:
            self._formats = formats

    if not typed_only:

        def set_dtype(self: Any, dtype: Any) -> None:
            if not isinstance(dtype, trt.DataType):
                raise TypeError("expected a DataType")
            self._dtype = dtype

        def set_dynamic_range(self: Any, low: float, high: float) -> bool:
            self._range = (low, high)
            return True

        _Tensor.dtype = _Tensor.dtype.setter(set_dtype)  # type: ignore[attr-defined]
        _Tensor.set_dynamic_range = set_dynamic_range  # type: ignore[attr-defined]
    _Tensor.__name__ = "ITensor"
    export(_Tensor)

    class _Layer(_Strict):
        def __init__(self, node: Any, index: int) -> None:
            self._node = node
            self._index = index
            self._outputs = [_Tensor(name, (), None) for name in node.output]
            self._precision: Any = None
            self._output_types: dict[int, Any] = {}

        @property
        def name(self) -> str:
            return self._node.name or f"(Unnamed Layer* {self._index}) [{self._node.op_type}]"

        @property
        def type(self) -> str:
            return str(self._node.op_type).upper()

        @property
        def num_outputs(self) -> int:
            return len(self._outputs)

        def get_output(self, index: int) -> Any:
            return self._outputs[index]

    if not typed_only:

        def set_precision(self: Any, precision: Any) -> None:
            self._precision = precision

        def set_output_type(self: Any, index: int, dtype: Any) -> None:
            self._output_types[index] = dtype

        _Layer.precision = property(lambda self: self._precision, set_precision)  # type: ignore[attr-defined]
        _Layer.set_output_type = set_output_type  # type: ignore[attr-defined]
    _Layer.__name__ = "ILayer"
    export(_Layer)

    @export
    class INetworkDefinition(_Strict):
        def __init__(self, creation_flags: int) -> None:
            self._flags = creation_flags
            self._inputs: list[Any] = []
            self._outputs: list[Any] = []
            self._layers: list[Any] = []
            self._onnx = b""

        @property
        def num_inputs(self) -> int:
            return len(self._inputs)

        @property
        def num_outputs(self) -> int:
            return len(self._outputs)

        @property
        def num_layers(self) -> int:
            return len(self._layers)

        def get_input(self, index: int) -> Any:
            return self._inputs[index]

        def get_output(self, index: int) -> Any:
            return self._outputs[index]

        def get_layer(self, index: int) -> Any:
            return self._layers[index]

    @export
    class OnnxParser(_Strict):
        def __init__(self, network: Any, logger: Any) -> None:
            check_logger(logger)
            self._network = network
            self._errors: list[str] = []
            self._parser_flags = 0

        @property
        def num_errors(self) -> int:
            return len(self._errors)

        def get_error(self, index: int) -> Any:
            return types.SimpleNamespace(desc=lambda: self._errors[index])

        def parse(self, model: bytes, path: str | None = None) -> bool:
            return self._parse(bytes(model))

        def parse_from_file(self, model: str) -> bool:
            return self._parse(Path(model).read_bytes())

        def _parse(self, data: bytes) -> bool:
            import onnx

            try:
                graph = onnx.load_model_from_string(data).graph
            except Exception:
                self._errors.append("Failed to parse ONNX model")
                return False
            if major == 8 and not self._network._flags & 1:
                self._errors.append(
                    "In this version of the ONNX parser, only explicit batch networks are supported"
                )
                return False
            names = {
                onnx.TensorProto.FLOAT: "FLOAT",
                onnx.TensorProto.FLOAT16: "HALF",
                onnx.TensorProto.INT32: "INT32",
            }
            weights = {item.name for item in graph.initializer}
            for target, infos in (
                (self._network._inputs, [i for i in graph.input if i.name not in weights]),
                (self._network._outputs, graph.output),
            ):
                for info in infos:
                    kind = info.type.tensor_type
                    if kind.elem_type not in names:
                        self._errors.append(f"unsupported type of {info.name}")
                        return False
                    shape = tuple(
                        size.dim_value if size.HasField("dim_value") else -1
                        for size in kind.shape.dim
                    )
                    target.append(_Tensor(info.name, shape, trt.DataType[names[kind.elem_type]]))
            for index, node in enumerate(graph.node):
                if node.domain not in ("", "ai.onnx"):
                    self._errors.append(f"No importer registered for op: {node.op_type}")
                    return False
                if node.op_type != "Constant":
                    self._network._layers.append(_Layer(node, index))
            self._network._onnx = data
            return True

    if typed_only:

        def set_parser_flag(self: Any, flag: Any) -> None:
            self._parser_flags |= 1 << int(flag)

        OnnxParser.set_flag = set_parser_flag  # type: ignore[attr-defined]

    # builder ------------------------------------------------------------------------------

    @export
    class ITimingCache(_Strict):
        def __init__(self, data: bytes) -> None:
            self._data = data

        def serialize(self) -> bytes:
            return self._data

    @export
    class IBuilderConfig(_Strict):
        def __init__(self, log: Any) -> None:
            self._log = log
            self._flags: set[Any] = set()
            self._core = -1
            self._default_device = trt.DeviceType.GPU
            self._devices: dict[int, Any] = {}
            self._capability = trt.EngineCapability.STANDARD
            self._verbosity = trt.ProfilingVerbosity.LAYER_NAMES_ONLY
            self._pools: dict[Any, int] = {}
            self._cache: Any = None
            self._calibrator: Any = None
            self._monitor: Any = None

        def set_flag(self, flag: Any) -> None:
            if not isinstance(flag, trt.BuilderFlag):
                raise TypeError("expected a BuilderFlag")
            self._flags.add(flag)

        def get_flag(self, flag: Any) -> bool:
            return flag in self._flags

        def clear_flag(self, flag: Any) -> None:
            self._flags.discard(flag)

        @property
        def DLA_core(self) -> int:
            return self._core

        @DLA_core.setter
        def DLA_core(self, core: int) -> None:
            if core < board.dla_cores:
                self._core = core

        @property
        def default_device_type(self) -> Any:
            return self._default_device

        @default_device_type.setter
        def default_device_type(self, device: Any) -> None:
            self._default_device = device

        def set_device_type(self, layer: Any, device: Any) -> None:
            self._devices[layer._index] = device

        def get_device_type(self, layer: Any) -> Any:
            return self._devices.get(layer._index, self._default_device)

        def can_run_on_DLA(self, layer: Any) -> bool:
            return board.dla_cores > 0 and layer._node.op_type in ON_DLA

        @property
        def engine_capability(self) -> Any:
            return self._capability

        @engine_capability.setter
        def engine_capability(self, capability: Any) -> None:
            self._capability = capability

        @property
        def profiling_verbosity(self) -> Any:
            return self._verbosity

        @profiling_verbosity.setter
        def profiling_verbosity(self, verbosity: Any) -> None:
            self._verbosity = verbosity

        def set_memory_pool_limit(self, pool: Any, pool_size: int) -> None:
            if not isinstance(pool, trt.MemoryPoolType):
                raise TypeError("expected a MemoryPoolType")
            self._pools[pool] = pool_size

        def create_timing_cache(self, serialized_timing_cache: bytes) -> Any:
            return ITimingCache(bytes(serialized_timing_cache) or b"new cache")

        def set_timing_cache(self, cache: Any, ignore_mismatch: bool) -> bool:
            if not cache._data.startswith(b"new cache"):
                return False
            self._cache = ITimingCache(b"new cache, used")
            return True

        def get_timing_cache(self) -> Any:
            return self._cache

    if not typed_only:
        IBuilderConfig.int8_calibrator = property(  # type: ignore[attr-defined]
            lambda self: self._calibrator,
            lambda self, value: object.__setattr__(self, "_calibrator", value),
        )
    if major >= 10:
        IBuilderConfig.progress_monitor = property(  # type: ignore[attr-defined]
            lambda self: self._monitor,
            lambda self, value: object.__setattr__(self, "_monitor", value),
        )

        @export
        class IProgressMonitor:
            def __init__(self) -> None:
                self._made = True

    if not typed_only:

        @export
        class IInt8EntropyCalibrator2:
            def __init__(self) -> None:
                self._made = True

    @export
    class Builder(_Strict):
        def __init__(self, logger: Any) -> None:
            check_logger(logger)
            self._logger = logger

        @property
        def num_DLA_cores(self) -> int:
            return board.dla_cores

        @property
        def max_DLA_batch_size(self) -> int:
            return 4096

        def create_network(self, flags: int = 0) -> Any:
            return INetworkDefinition(flags)

        def create_builder_config(self) -> Any:
            return IBuilderConfig(self._log)

        def _log(self, level: str, text: str) -> None:
            self._logger.log(severity[level], text)

        def build_serialized_network(self, network: Any, config: Any) -> Any:
            return _Build(self, network, config).run()

    class _Build:
        """One build."""

        def __init__(self, builder: Any, network: Any, config: Any) -> None:
            self.log = builder._log
            self.network = network
            self.config = config

        def flag(self, name: str) -> bool:
            return name in trt.BuilderFlag.__members__ and self.config.get_flag(
                trt.BuilderFlag[name]
            )

        def run(self) -> Any:
            self.progress()
            if board.refuse_builds:
                self.log("ERROR", board.refuse_builds)
                return None
            for pool, size in self.config._pools.items():
                if pool.name.startswith("DLA") and (size < 4096 or size & (size - 1)):
                    self.log("ERROR", f"{pool.name}: not a power of two of at least 4 KiB")
                    return None
            on_dla_by_default = self.config._default_device == trt.DeviceType.DLA
            if on_dla_by_default and self.config._core < 0:
                self.log("ERROR", "DLA is the default device, but no DLA core is set")
                return None
            if any(size < 0 for item in self.network._inputs for size in item.shape):
                self.log("ERROR", "Network has dynamic or shape inputs, but no optimization "
                         "profile has been defined.")  # fmt: skip
                return None
            scales = self.scales()
            if scales is None:
                return None
            layers = self.place()
            if layers is None:
                return None
            tensors = self.tensors(scales)
            if tensors is None:
                return None
            return self.serialise(layers, tensors)

        def progress(self) -> None:
            monitor = self.config._monitor
            if monitor is None:
                return
            monitor.phase_start("Building Engine", None, 2)
            for step in range(2):
                if not monitor.step_complete("Building Engine", step):
                    return
            monitor.phase_finish("Building Engine")

        def scales(self) -> dict[str, float] | None:
            if not self.flag("INT8"):
                return {}
            calibrator = self.config._calibrator
            if calibrator is None:
                self.log(
                    "ERROR",
                    "Error Code 4: Internal Error (Calibration failure occurred with no scaling "
                    "factors detected. This could be due to no int8 calibrator or insufficient "
                    "custom scales for network layers.)",
                )
                return None
            assert isinstance(calibrator, trt.IInt8EntropyCalibrator2)
            assert calibrator._made
            text = bytes(calibrator.read_calibration_cache()).decode()
            scales = {}
            for line in text.splitlines()[1:]:
                name, _, digits = line.rpartition(": ")
                scales[name] = struct.unpack(">f", bytes.fromhex(digits))[0]
            for layer in self.network._layers:
                for tensor in layer._outputs:
                    if tensor.name not in scales:
                        self.log(
                            "WARNING",
                            f"Missing scale and zero-point for tensor {tensor.name}, expect fall "
                            "back to non-int8 implementation for any layer consuming or producing "
                            "given tensor",
                        )
            return scales

        def place(self) -> list[dict[str, str]] | None:
            config = self.config
            fallback = self.flag("GPU_FALLBACK")
            halves = self.flag("FP16") or self.flag("INT8") or typed_only
            placed: list[dict[str, str]] = []
            run: list[str] = []

            def close_run() -> None:
                if run:
                    name = run[0] if len(run) == 1 else f"{run[0]}...{run[-1]}"
                    placed.append({"name": f"{{ForeignNode[{name}]}}", "device": "dla"})
                    run.clear()

            for layer in self.network._layers:
                wanted = config.get_device_type(layer) == trt.DeviceType.DLA
                if wanted and halves and config.can_run_on_DLA(layer):
                    run.append(layer.name)
                    continue
                if wanted and not fallback:
                    self.log(
                        "ERROR",
                        "Error Code 9: Internal Error (Default DLA is enabled but layer "
                        f"{layer.name} is not supported on DLA and falling back to GPU is not "
                        "enabled.)",
                    )
                    return None
                if wanted and not halves:
                    self.log("WARNING", "DLA only supports FP16 and Int8 precision type. "
                             f"Switching {layer.name} device type to GPU.")  # fmt: skip
                elif wanted:
                    self.log("WARNING", f"Layer '{layer.name}' ({layer.type}): Unsupported on "
                             "DLA. Switching this layer's device type to GPU.")  # fmt: skip
                close_run()
                placed.append({"name": layer.name, "device": "gpu"})
            close_run()
            standalone = config._capability == trt.EngineCapability.DLA_STANDALONE
            if standalone and len(placed) != 1:
                self.log("ERROR", "Safety certified DLA should only have one graph for the whole "
                         "network.")  # fmt: skip
                return None
            return self.reformats(placed)

        def reformats(self, placed: list[dict[str, str]]) -> list[dict[str, str]] | None:
            """Linear tensors at the border of a DLA need a copy by the GPU."""
            dla = [item for item in placed if item["device"] == "dla"]
            if not dla:
                return placed
            linear = 1 << int(trt.TensorFormat.LINEAR)
            border = []
            for index, tensor in enumerate(self.network._inputs):
                if tensor.allowed_formats in (0, linear) or tensor.dtype == trt.DataType.FLOAT:
                    border.append(f"Reformatting CopyNode for Input Tensor {index} to "
                                  f"{dla[0]['name']}")  # fmt: skip
            for index, tensor in enumerate(self.network._outputs):
                last_on_dla = placed[-1]["device"] == "dla"
                if last_on_dla and tensor.allowed_formats in (0, linear):
                    border.append(f"Reformatting CopyNode for Output Tensor {index} to "
                                  f"{dla[-1]['name']}")  # fmt: skip
            direct = self.flag("DIRECT_IO") or (
                self.config._capability == trt.EngineCapability.DLA_STANDALONE
            )
            if border and direct:
                self.log(
                    "ERROR",
                    "Error Code 2: Internal Error (BuilderFlag::kDIRECT_IO specified but no "
                    "conformant implementation exists)",
                )
                return None
            return [{"name": name, "device": "gpu"} for name in border] + placed

        def tensors(self, scales: dict[str, float]) -> list[dict[str, Any]] | None:
            found = []
            for mode, tensors in (
                ("INPUT", self.network._inputs), ("OUTPUT", self.network._outputs)
            ):  # fmt: skip
                for tensor in tensors:
                    formats = tensor.allowed_formats or 1
                    layout = trt.TensorFormat(formats.bit_length() - 1).name
                    scale = None
                    if tensor.dtype == trt.DataType.INT8:
                        if tensor._range is None:
                            self.log("ERROR", f"int8 I/O tensor {tensor.name} without a range")
                            return None
                        scale = tensor._range[1] / 127
                    found.append(
                        {
                            "name": tensor.name, "shape": list(tensor.shape), "mode": mode,
                            "dtype": tensor.dtype.name, "format": layout, "scale": scale,
                        }
                    )  # fmt: skip
            return found

        def serialise(self, layers: list[dict[str, str]], tensors: list[dict[str, Any]]) -> bytes:
            self.log("INFO", "---------- Layers Running on DLA ----------")
            for layer in layers:
                if layer["device"] == "dla":
                    self.log("INFO", f"[DlaLayer] {layer['name']}")
            self.log("INFO", "---------- Layers Running on GPU ----------")
            for layer in layers:
                if layer["device"] == "gpu":
                    self.log("INFO", f"[GpuLayer] CONVOLUTION: {layer['name']}")
            document = {
                "compute_capability": capability,
                "layers": layers,
                "tensors": tensors,
                "verbosity": self.config._verbosity.name,
            }
            if self.config._capability == trt.EngineCapability.DLA_STANDALONE:
                return loadable_bytes(document, self.network._onnx)
            return plan_bytes(version, document, self.network._onnx)

    return trt
