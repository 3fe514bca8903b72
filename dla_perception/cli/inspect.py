"""What a file is: a network, an engine, a loadable or a calibration cache.

Told by the file's content, not by its name, and by the record beside an engine. Nothing is run,
so no GPU or DLA is needed. Exit code 1 when the file is of no use here.

  dla-perception inspect yolox_nano.onnx
  dla-perception inspect yolox_nano.dla0.engine --json
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dla_perception.engines.files import FileContent

NAME = "inspect"
HELP = "what a model, engine, loadable or cache is"

_SHOWN = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("--all", action="store_true", help="list every layer and tensor")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Recognise, describe and print."""
    from dla_perception.engines.files import FileKind, recognise

    content = recognise(arguments.file)
    document: dict[str, Any] = {
        "path": arguments.file,
        "kind": content.kind.value,
        "bytes": content.size,
    }
    if content.damage:
        document["damage"] = content.damage
    elif content.kind is FileKind.ONNX:
        document.update(_onnx(arguments.file))
    elif content.kind in (FileKind.PLAN, FileKind.LOADABLE):
        document.update(_engine(arguments.file, content))
    elif content.kind is FileKind.CALIBRATION_CACHE:
        document.update(_cache(arguments.file))
    if arguments.json:
        print(json.dumps(document, indent=1))
    else:
        _print(document, arguments.all)
    usable = content.kind in (
        FileKind.ONNX,
        FileKind.PLAN,
        FileKind.LOADABLE,
        FileKind.CALIBRATION_CACHE,
        FileKind.DARKNET_WEIGHTS,
        FileKind.DARKNET_CFG,
    )
    return 0 if usable and not content.damage else 1


def _onnx(path: str) -> dict[str, Any]:
    from collections import Counter

    from dla_perception.compiler.graph import read_model

    model = read_model(path)
    weights = {item.name for item in model.graph.initializer}
    operators = Counter(node.op_type for node in model.graph.node)
    return {
        "producer": f"{model.producer_name} {model.producer_version}".strip(),
        "opset": {item.domain or "ai.onnx": item.version for item in model.opset_import},
        "inputs": [_tensor(item) for item in model.graph.input if item.name not in weights],
        "outputs": [_tensor(item) for item in model.graph.output],
        "operators": dict(operators.most_common()),
        "metadata": {item.key: item.value for item in model.metadata_props},
    }


def _tensor(info: Any) -> dict[str, Any]:
    import onnx

    kind = info.type.tensor_type
    return {
        "name": info.name,
        "type": onnx.TensorProto.DataType.Name(kind.elem_type).lower(),
        "shape": [
            size.dim_value if size.HasField("dim_value") else size.dim_param or "?"
            for size in kind.shape.dim
        ],
    }


def _engine(path: str, content: FileContent) -> dict[str, Any]:
    from dla_perception.engines.engine import EngineError
    from dla_perception.engines.manifest import file_sha256, read_manifest

    document: dict[str, Any] = {"sha256": file_sha256(path)}
    if content.tensorrt_version:
        document["tensorrt"] = content.tensorrt_version
    if content.metadata:
        document["metadata"] = dict(content.metadata)
    try:
        manifest = read_manifest(path, document["sha256"])
    except EngineError as error:
        document["record"] = str(error)
        return document
    if manifest is None:
        document["record"] = "none beside it: where its layers run and its scales are not known"
        return document
    record = json.loads(manifest.to_json())
    if record["self_test"]:
        record["self_test"] = {"detections": record["self_test"]["detections"]}
    document["record"] = record
    return document


def _cache(path: str) -> dict[str, Any]:
    from dla_perception.compiler.quantization.cache import read_cache

    cache = read_cache(path)
    return {
        "algorithm": cache.algorithm,
        "version": cache.version,
        "scales": dict(cache.scales),
    }


def _print(document: dict[str, Any], everything: bool) -> None:
    print(f"{document['path']}: {document['kind']}, {document['bytes']} bytes")
    for key, value in document.items():
        if key in ("path", "kind", "bytes"):
            continue
        if key == "record" and isinstance(value, dict):
            _print_record(value, everything)
        elif isinstance(value, list):
            for item in value:
                print(f"  {key[:-1]}: {item['name']} {item['shape']} {item['type']}")
        elif isinstance(value, dict):
            shown = list(value.items())[: None if everything else _SHOWN]
            text = ", ".join(f"{name}: {item}" for name, item in shown)
            more = len(value) - len(shown)
            print(f"  {key}: {text or 'none'}" + (f" and {more} more" if more else ""))
        else:
            print(f"  {key}: {value}")


def _print_record(record: dict[str, Any], everything: bool) -> None:
    machine = record["machine"]
    where = f"DLA core {record['dla_core']}" if record["dla_core"] >= 0 else "the GPU"
    print(f"  built from {record['onnx_file']} ({record['onnx_sha256'][:12]})")
    print(
        f"  for {where} of {machine['gpu']} ({machine['compute_capability']}, "
        f"{machine['dla_cores']} DLA cores), {record['precision']}, TensorRT "
        f"{record['tensorrt_version']}, {record['built_at']}"
    )
    for kind in ("inputs", "outputs"):
        for spec in record[kind]:
            scale = "" if spec["scale"] is None else f", scale {spec['scale']:g}"
            print(
                f"  {kind[:-1]}: {spec['name']} {spec['shape']} {spec['dtype']} "
                f"{spec['layout']}{scale}"
            )
    layers = record["layers"]
    on_gpu = [layer for layer in layers if layer["device"] == "gpu"]
    on_dla = [layer for layer in layers if layer["device"] == "dla"]
    print(f"  {len(on_dla)} layers on the DLA, {len(on_gpu)} on the GPU")
    listed = layers if everything else on_gpu[:_SHOWN]
    for layer in listed:
        reason = f" ({layer['reason']})" if layer["reason"] else ""
        print(f"  {layer['device']}: {layer['name']}{reason}")
    if record["self_test"]:
        print(f"  self-test: {len(record['self_test']['detections'])} detections recorded")
