"""Plays NVIDIA's `ncu_report`: the part of its interface that is used, over a JSON file. Addresses start at 4096."""

import json
from pathlib import Path

BASE = 4096


class Values:
    def __init__(self, values):
        self._values = values

    def value(self, index=0):
        return int(self._values[index])


class Metric(Values):
    def __init__(self, total, unit="", values=(), addresses=None):
        super().__init__(values)
        self._total, self._unit, self._addresses = total, unit, addresses

    def unit(self):
        return self._unit

    def value(self, index=None):
        return self._total if index is None else super().value(index)

    def has_correlation_ids(self):
        return self._addresses is not None

    def correlation_ids(self):
        return Values(self._addresses)

    def num_instances(self):
        return len(self._values)


class Action:
    NameBase_MANGLED = 2

    def __init__(self, data):
        self._data = data
        addresses = [BASE + offset for offset in data["offsets"]]
        self._places = dict(zip(addresses, range(len(addresses)), strict=True))
        self._metrics = {name: Metric(value) for name, value in data["values"].items()}
        duration = data["values"].get("gpu__time_duration.sum")
        if duration is not None:
            self._metrics["gpu__time_duration.sum"] = Metric(duration * 1000, "ns")
        self._metrics["launch__function_pcs"] = Metric(1, "", data.get("entries", [BASE]), [0])
        for name, values in data["instances"].items():
            self._metrics[name] = Metric(sum(values), "", list(reversed(values)), list(reversed(addresses)))

    def name(self, base=0):
        return self._data["kernel"] if base == self.NameBase_MANGLED else "readable"

    def metric_names(self):
        return tuple(self._metrics)

    def metric_by_name(self, name):
        return self._metrics[name]

    def sass_by_pc(self, address):
        return "      " + self._data["sass"][self._places[address]]


class Range:
    def __init__(self, actions):
        self._actions = actions

    def num_actions(self):
        return len(self._actions)

    def action_by_idx(self, index):
        return self._actions[index]


class Report:
    def __init__(self, ranges):
        self._ranges = ranges

    def num_ranges(self):
        return len(self._ranges)

    def range_by_idx(self, index):
        return self._ranges[index]


def load_report(path):
    if not Path(path).is_file():
        raise FileNotFoundError(f"Could not load report file: {path} does not exist.")
    return Report([Range([Action(data)]) for data in json.loads(Path(path).read_text())])
