"""Complete the description of a network from its file's metadata and its tensors' shapes."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Mapping, NoReturn

from dla_perception.detection.coco import COCO_CLASS_NAMES
from dla_perception.detection.description import (
    DescriptionError,
    ModelDescription,
    check_labels,
    description_path,
    read_description,
    read_labels,
)
from dla_perception.detection.heads import FAMILIES, unsupported
from dla_perception.detection.heads.forms import (
    HEAD_KEYS,
    Form,
    Network,
    best,
    deciding,
    describe_outputs,
    list_forms,
)
from dla_perception.detection.heads.outputs import check_output
from dla_perception.engines.engine import Engine


def describe_model(
    engine: Engine,
    description_file: str | Path | None = None,
    labels: str | None = None,
) -> ModelDescription:
    """The description of the network that ``engine`` runs.

    What the description file states goes before what the engine's metadata says, and that before
    what the shapes of the outputs suggest; whatever contradicts something else is refused. A
    network whose outputs can be read in two ways is refused unless the file, the metadata, the
    number of class names or the outputs' names decide.

    Args:
        engine: a loaded engine.
        description_file: a YAML; by default the one beside the engine's file, if there is one.
        labels: a file with one class name a line, or ``coco`` for the built-in names.

    Raises:
        DescriptionError: a file is wrong, does not fit the network, or something is missing that
            cannot be inferred.
    """
    stated: dict[str, Any] = {}
    path = Path(description_file) if description_file else description_path(engine.info.path)
    if description_file or path.exists():
        stated = read_description(path)
    _check_task(engine)
    input_size = _input_size(engine, stated, path)
    names = _class_names(engine, stated, path, labels)
    known = {key: stated[key] for key in HEAD_KEYS if key in stated}
    if names is not None and known.setdefault("num_classes", names.count) != names.count:
        raise DescriptionError(
            f"{names.where}: {names.count} class names, but {path} states num_classes: "
            f"{known['num_classes']}; give one name for each class"
        )
    network = Network(_outputs(engine), input_size, known)
    form = _Recognition(engine, network, stated.get("family"), path, names).form()
    chosen = {**FAMILIES[form.family].DEFAULTS, **stated}
    chosen.update({key: value for key, value in form.settles.items() if value is not None})
    chosen.update(
        family=form.family,
        num_classes=form.num_classes or known["num_classes"],
        input_size=input_size,
        class_names=names.values if names else None,
    )
    return ModelDescription(**chosen)


@dataclass(frozen=True)
class _Names:
    """Class names and where they come from."""

    values: tuple[str, ...]
    where: str

    @property
    def count(self) -> int:
        return len(self.values)


class _Recognition:
    """The search for the one form that a network's outputs have."""

    def __init__(
        self,
        engine: Engine,
        network: Network,
        family: str | None,
        description: Path,
        names: _Names | None,
    ) -> None:
        self._path = engine.info.path
        self._metadata = engine.info.metadata
        self._network = network
        self._family = family
        self._description = description
        self._names = names
        self._found = f"{self._path}: outputs {describe_outputs(network.outputs)}"

    def form(self) -> Form:
        """The form, or an error that says what is wrong and how to mend it."""
        known, family = self._network.known, self._family
        if family is not None and family not in FAMILIES:
            raise DescriptionError(
                f"{self._description}: family: '{family}' is unknown; known families: "
                f"{_list_families()}"
            )
        forms = self._forms(self._network)
        fitting = best([form for form in forms if not form.contradictions(known)])
        if len(fitting) > 1:
            fitting = self._decided_by_exporter(fitting)
        if len(fitting) > 1:
            self._refuse_ambiguous(fitting, forms)
        if not fitting:
            self._refuse_unknown(forms)
        form = fitting[0]
        if form.family not in FAMILIES:
            raise DescriptionError(
                f"{self._found} are of {form.family}; only networks that find upright boxes can "
                "be decoded"
            )
        for spec in self._network.outputs:
            check_output(spec, self._path)
        self._check_strides(form)
        self._check_needs(form)
        return form

    def _forms(self, network: Network) -> list[Form]:
        if self._family is not None:
            return list(FAMILIES[self._family].forms(network))
        modules = [*FAMILIES.values(), unsupported]
        return list(chain.from_iterable(module.forms(network) for module in modules))

    def _decided_by_exporter(self, forms: list[Form]) -> list[Form]:
        """Ultralytics' names and metadata tell one-to-one heads, which need no suppression."""
        names = " ".join(spec.name for spec in self._network.outputs)
        description = self._metadata.get("description", "")
        if "one2one" in names or self._metadata.get("end2end") == "True":
            family = "yolov10"
        elif re.search(r"\bcv[23]\b", names) or self._metadata.get("end2end") == "False":
            family = "yolov8"
        elif re.search(r"\bYOLO(v10|26)", description):
            family = "yolov10"
        elif re.search(r"\bYOLO(v3|v5|v6|v8|v9|v?11|v?12)", description):
            family = "yolov8"
        else:
            return forms
        return [form for form in forms if form.family == family] or forms

    def _refuse_ambiguous(self, fitting: list[Form], forms: list[Form]) -> NoReturn:
        hint = ""
        if fitting[0].rank and "num_classes" in self._network.known:
            usual = [form for form in forms if form.rank == 0]
            others = [f for f in usual if f.contradictions(self._network.known) == ["num_classes"]]
            if others:
                hint = f", or correct the class names: as exported, it is {list_forms(others)}"
        raise DescriptionError(
            f"{self._found} can be {list_forms(fitting)}; state {deciding(fitting)} in "
            f"{self._description}{hint}"
        )

    def _refuse_unknown(self, forms: list[Form]) -> NoReturn:
        task = unsupported.other_task(self._network)
        if task is not None:
            raise DescriptionError(
                f"{self._found} are of a network for {task}; only networks that find upright boxes "
                "can be decoded"
            )
        near = [form for form in forms if len(form.contradictions(self._network.known)) == 1]
        if near:
            self._refuse_contradiction(best(near))
        self._refuse_extra_outputs()
        if self._family is not None:
            raise DescriptionError(
                f"{self._found} do not fit the head family '{self._family}' that "
                f"{self._description} states; {self._others()}"
            )
        raise DescriptionError(
            f"{self._found} are of no head family that is known here ({', '.join(FAMILIES)}); "
            "this network cannot be decoded"
        )

    def _others(self) -> str:
        """What a network is that is not of the family stated."""
        modules = FAMILIES.values()
        forms = chain.from_iterable(module.forms(self._network) for module in modules)
        fitting = [form for form in forms if not form.contradictions(self._network.known)]
        return f"they fit {list_forms(best(fitting))}" if fitting else "nor any other"

    def _refuse_contradiction(self, forms: list[Form]) -> NoReturn:
        known = self._network.known
        key = forms[0].contradictions(known)[0]
        forms = [form for form in forms if form.contradictions(known) == [key]]
        value = known[key]
        if key == "num_classes":
            counts = {form.num_classes for form in forms}
            if len(counts) == 1:
                fits = f"{self._path} tells {forms[0].num_classes} classes apart"
            else:
                fits = f"{self._found} fit {list_forms(forms)}"
            if self._names is not None:
                raise DescriptionError(
                    f"{self._names.where}: {value} class names, but {fits}; give one name for each"
                )
            raise DescriptionError(
                f"{self._description}: num_classes: {value}, but {fits}; correct it"
            )
        expected = forms[0].expects(key)
        if expected is None:
            remedy = f"which has no {key}: remove the key"
        else:
            remedy = f"for which {key} is {expected}: correct it"
        if key == "anchors":
            shown = f"{len(value)} levels of {', '.join(str(len(level)) for level in value)} pairs"
        else:
            shown = str(list(value)) if isinstance(value, tuple) else str(value).lower()
        raise DescriptionError(
            f"{self._description}: {key}: {shown}, but {self._found} fit {forms[0]}, {remedy}"
        )

    def _refuse_extra_outputs(self) -> None:
        outputs = self._network.outputs
        singles = [(output,) for output in outputs]
        all_but_one = [outputs[:index] + outputs[index + 1 :] for index in range(len(outputs))]
        for kept in [*singles, *all_but_one] if len(outputs) > 1 else []:
            network = Network(kept, self._network.input_size, self._network.known)
            forms = [f for f in self._forms(network) if not f.contradictions(network.known)]
            if forms:
                extra = [spec for spec in outputs if spec not in kept]
                raise DescriptionError(
                    f"{self._found}: {describe_outputs(extra)} is more than "
                    f"{list_forms(best(forms))} has; remove it from the network's outputs"
                )

    def _check_strides(self, form: Form) -> None:
        stride = _literal(self._metadata.get("stride"))
        strides = form.settles["strides"]
        if isinstance(stride, int) and strides and stride != strides[-1]:
            raise DescriptionError(
                f"{self._path}: metadata 'stride': {stride}, but the coarsest level of outputs "
                f"{describe_outputs(self._network.outputs)} has a stride of {strides[-1]}; "
                "export the network again"
            )

    def _check_needs(self, form: Form) -> None:
        known = self._network.known
        if "anchors" in form.needs and "anchors" not in known:
            names = "'anchors: yolov5' or 'anchors: yolov7' (the published ones) or "
            raise DescriptionError(
                f"{self._found} are of {form}, whose boxes need anchors: add "
                f"{names if form.family == 'yolov5' else ''}'anchors: [[[width, height], ...], "
                f"...]', in pixels, for each level, finest first, to {self._description}"
            )
        if form.num_classes is None and "num_classes" not in known:
            raise DescriptionError(
                f"{self._found} are of {form}, which does not say how many classes there are: give "
                f"the class names in a labels file, or num_classes in {self._description}"
            )


def _outputs(engine: Engine) -> tuple[Any, ...]:
    path = engine.info.path
    for spec in engine.outputs:
        if len(spec.shape) > 1 and spec.shape[0] != 1:
            raise DescriptionError(
                f"{path}: output {spec.name} {list(spec.shape)}: a batch of {spec.shape[0]}; "
                "export the network for one image (batch 1)"
            )
    return tuple(engine.outputs)


def _check_task(engine: Engine) -> None:
    task = engine.info.metadata.get("task", "detect")
    if task != "detect":
        raise DescriptionError(
            f"{engine.info.path}: metadata 'task': {task}: a network for "
            f"{unsupported.TASKS.get(task, task)}; only networks that find upright boxes "
            "('detect') can be decoded"
        )


def _input_size(engine: Engine, stated: Mapping[str, Any], where: Path) -> tuple[int, int]:
    path = engine.info.path
    if len(engine.inputs) != 1:
        raise DescriptionError(
            f"{path}: it has {len(engine.inputs)} inputs ({describe_outputs(engine.inputs)}); "
            "expected one image input"
        )
    spec = engine.inputs[0]
    if len(spec.shape) != 4 or spec.shape[:2] != (1, 3):
        raise DescriptionError(
            f"{path}: input {spec}: expected [1, 3, height, width]; "
            "export the network for one image (batch 1) in NCHW order"
        )
    height, width = spec.shape[2:]
    if stated.get("input_size", (width, height)) != (width, height):
        raise DescriptionError(
            f"{where}: input_size: {list(stated['input_size'])}, but the network's input is "
            f"[{width}, {height}]; correct it or leave the key out"
        )
    image_size = _literal(engine.info.metadata.get("imgsz"))
    if isinstance(image_size, int):
        image_size = [image_size, image_size]
    if isinstance(image_size, (list, tuple)) and list(image_size) != [height, width]:
        raise DescriptionError(
            f"{path}: metadata 'imgsz': {list(image_size)} (height, width), but the network's "
            f"input is [{height}, {width}]; export the network again"
        )
    return width, height


def _class_names(
    engine: Engine, stated: Mapping[str, Any], description: Path, labels: str | None
) -> _Names | None:
    """From the user, the description or the metadata."""
    if labels == "coco":
        return _Names(COCO_CLASS_NAMES, "labels 'coco'")
    if labels:
        return _Names(read_labels(labels), f"labels file {labels}")
    if "class_names" in stated:
        return _Names(stated["class_names"], f"{description}: class_names")
    metadata = engine.info.metadata.get("names")
    if not metadata:
        return None
    where = f"{engine.info.path}: metadata 'names'"
    value = _literal(metadata)  # Ultralytics writes {0: 'person', 1: 'bicycle'}
    try:
        names = [str(value[index]).strip() for index in range(len(value))]
    except (KeyError, TypeError):
        names = []
    if not names or isinstance(value, str):
        raise DescriptionError(
            f"{where}: not a list of class names; give the names with a labels file"
        )
    return _Names(check_labels(names, where), where)


def _literal(text: str | None) -> Any:
    """The value of a Python literal, ``None`` for any other text."""
    try:
        return ast.literal_eval(text or "None")
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def _list_families() -> str:
    return ", ".join(f"{name} ({module.MODELS})" for name, module in FAMILIES.items())
