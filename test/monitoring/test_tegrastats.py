"""Lines of tegrastats: every generation's values, and any text without a complaint."""

from __future__ import annotations

import json
import re
from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tegrastats_lines import LINES, LOG, SAME_AS, VALUES

from dla_perception.monitoring.tegrastats import (
    Core,
    EngineState,
    Gpu,
    Rail,
    TegrastatsSample,
    Temperature,
    parse_tegrastats,
)


def sample(values):
    """The sample that values as in ``tegrastats_lines`` stand for."""
    given_values = dict(values)
    stamp = given_values.get("stamp")
    used, total = given_values.get("ram", (None, None))
    swap_used, swap_total, cached = given_values.get("swap", (None, None, None))
    emc_percent, emc_mhz = given_values.get("emc", (None, None))
    return TegrastatsSample(
        stamp=datetime.strptime(stamp, "%m-%d-%Y %H:%M:%S") if stamp else None,
        ram_used_mb=used,
        ram_total_mb=total,
        largest_free_blocks=given_values.get("blocks"),
        swap_used_mb=swap_used,
        swap_total_mb=swap_total,
        swap_cached_mb=cached,
        cores=tuple(
            None if percent is None else Core(percent, mhz)
            for percent, mhz in zip(given_values.get("percent", ()), given_values.get("mhz", ()))
        ),
        emc_percent=emc_percent,
        emc_clock_mhz=emc_mhz,
        gpus={
            name: Gpu(percent, tuple(clocks))
            for name, (percent, *clocks) in given_values.get("gpus", {}).items()
        },
        engines={name: engine(state) for name, state in given_values.get("engines", {}).items()},
        temperatures={
            name: Temperature(*(degrees if isinstance(degrees, tuple) else (degrees,)))
            for name, degrees in given_values.get("temperatures", {}).items()
        },
        rails={name: Rail(*power) for name, power in given_values.get("rails", {}).items()},
        mts_percent=given_values.get("mts"),
        unknown=tuple(given_values.get("unknown", ())),
    )


def engine(state):
    if state is None:
        return EngineState(on=False)
    return EngineState(True, *(state if isinstance(state, tuple) else (state,)))


@pytest.mark.parametrize("name", LINES)
def test_published_line(name):
    assert parse_tegrastats(LINES[name]) == sample(VALUES[name])


def test_recorded_lines(assets):
    text = (assets / "tegrastats/real_lines.jsonl").read_text()
    recorded = {entry["name"]: entry["line"] for entry in map(json.loads, text.splitlines())}
    assert len(recorded) == 8
    for name, line in recorded.items():
        assert parse_tegrastats(line) == sample(VALUES[SAME_AS.get(name, name)]), name


def test_recording_of_an_agx_orin(assets):
    lines = (assets / "tegrastats/orin_agx_jp6.log").read_text().splitlines()
    off = ["NVENC", "NVDEC", "NVJPG", "NVJPG1", "VIC", "OFA", "NVDLA0", "NVDLA1", "PVA0"]
    assert len(lines) == len(LOG) == 15
    for line, (time, ram, blocks, percent, mhz, emc, gpu, degrees, rails) in zip(lines, LOG):
        assert parse_tegrastats(line) == sample(
            {
                "stamp": f"07-21-2025 {time}",
                "ram": (ram, 62841),
                "blocks": (blocks, 4096),
                "swap": (0, 31420, 0),
                "percent": [*percent, None, None, None, None],
                "mhz": [*mhz, None, None, None, None],
                "emc": emc,
                "gpus": {"GR3D": (gpu, 305, 0)},
                "engines": {**dict.fromkeys(off), "APE": 174},
                "temperatures": dict(zip(["cpu", "soc2", "soc0", "gpu", "tj", "soc1"], degrees)),
                "rails": dict(zip(["VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"], rails)),
            }
        )


def test_who_is_not_root_sees_no_engines():
    assert not parse_tegrastats(LINES["agx_orin_r36_not_root"]).shows_engines
    assert not parse_tegrastats(LINES["agx_orin_r35_not_root"]).shows_engines
    assert parse_tegrastats(LINES["agx_orin_r35_idle"]).shows_engines


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NVDLA0 off", EngineState(on=False)),
        ("NVDLA0_FREQ off", EngineState(on=False)),
        ("NVDLA0_FREQ @1600", EngineState(True, 1600)),
        ("NVDLA0 @1600", EngineState(True, 1600)),
        ("NVDLA0 1369", EngineState(True, 1369)),
        ("NVDLA0 63%@1369", EngineState(True, 1369, 63)),
        ("NVDLA0_FREQ 63%@1369", EngineState(True, 1369, 63)),
        ("NVDLA0 63%", EngineState(True, None, 63)),
        ("NVDLA0_FREQ @0", EngineState(on=False)),
    ],
)
def test_every_form_of_an_engine(text, expected):
    found = parse_tegrastats(f"RAM 1/2MB {text} APE 174")
    assert found.engines == {"NVDLA0": expected, "APE": EngineState(True, 174)}
    assert found.unknown == ()


@pytest.mark.parametrize(
    "text",
    [
        "NVDLA0 offline",  # longer than what it begins with
        "NVDLA0_FREQ @1600x",
        "cpu@hotC",
        "CPU [7%@729,what]",
        "13-45-2026 09:08:28",
        "GR3D_FREQ",
        "VDD_IN 12mW",
        "RAM ten/20MB",
        "EMC_FREQ @\u0663",  # a digit, but not of tegrastats
        f"APE {'9' * 5000}",
    ],
)
def test_what_only_looks_like_a_field_is_unknown(text):
    found = parse_tegrastats(f"SWAP 0/5MB {text} VDD_SOC 1/2")
    assert found.unknown == tuple(text.split())
    assert found == sample(
        {"swap": (0, 5, None), "rails": {"VDD_SOC": (1, 2)}, "unknown": text.split()}
    )


def test_statistics_are_told_from_other_text():
    assert not parse_tegrastats("tegrastats: command failed").is_statistics
    assert parse_tegrastats(LINES["xavier_nx_r32"]).is_statistics


@settings(max_examples=150, deadline=None)
@given(st.text() | st.binary().map(lambda data: data.decode(errors="replace")))
def test_any_text_is_accepted(text):
    found = parse_tegrastats(text)
    assert set(found.unknown) <= set(text.split())


junk = st.text(alphabet="abxyz!?#~[]()%/", min_size=1, max_size=8)


@settings(max_examples=100, deadline=None)
@given(
    name=st.sampled_from(["agx_orin_r39", "orin_nx_8gb_r36", "agx_orin_r35_dla_running"]),
    words=st.lists(st.tuples(st.integers(0, 100), junk), max_size=4),
    blanks=st.sampled_from([" ", "   ", "\t", " \t \r"]),
)
def test_words_between_fields_change_nothing_but_are_kept(name, words, blanks):
    # Between fields: after a word that ends one, so that no field is torn apart.
    fields = re.sub(r" (?=CPU|VDD|APE)", "\n", LINES[name]).split("\n")
    kept = []
    for place, word in sorted(words, key=lambda item: item[0] % len(fields)):
        fields[place % len(fields)] += f" {word}"
        kept.append(word)
    line = blanks.join(" ".join(fields).split(" ")).replace(f"{blanks}(lfb", " (lfb")
    found = parse_tegrastats(line)
    assert found == sample({**VALUES[name], "unknown": kept})


@settings(max_examples=100, deadline=None)
@given(name=st.sampled_from(list(LINES)), share=st.floats(0, 1))
def test_a_line_that_breaks_off_keeps_what_was_whole(name, share):
    words = LINES[name].split()
    count = int(share * len(words))
    found, whole = parse_tegrastats(" ".join(words[:count])), sample(VALUES[name])
    for fields in ("gpus", "engines", "temperatures", "rails"):
        assert getattr(found, fields).items() <= getattr(whole, fields).items()
    if count > 4:
        assert found.stamp == whole.stamp
    sensors = [word.split("@")[0] for word in words[:count] if word.endswith("C") and "@" in word]
    assert list(found.temperatures) == sensors
