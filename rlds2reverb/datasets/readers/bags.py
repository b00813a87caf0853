"""MCAP files and ROS 2 bags as episodes: fields of messages, resampled to steps at a constant rate."""

from __future__ import annotations

import base64
import contextlib
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from rlds2reverb.errors import ArgumentError, SourceError
from rlds2reverb.types import fields
from rlds2reverb.types.episodes import Episode

from ..formats import Format
from ..option_files import read_option_file
from ..source import Source, identify_files
from ..steps.image_files import decode_image
from .bag_messages import Bag, list_bags
from .columns import ColumnReader, Paths, describe_demonstrations, insert_column, make_demonstration
from .lerobot_meta import FEATURE_NAMES

_EXAMPLE = "{'rate': 20, 'fields': {'observation.state': '/joint_states.position', 'action': '/command.data'}}"
#: Maximum age of a message in seconds, unless `max_age` is set.
MAX_AGE_SECS = 0.5
#: Clocks of messages, the default first: that of the recorder, and that of `header.stamp`.
_TIMES = ("recording", "header")
#: Dtype and number of channels of each encoding of `sensor_msgs/Image`; a 'b' in front reverses the colours.
_ENCODINGS: dict[str, tuple[str, int]] = {
    **{"mono8": ("u1", 1), "8UC1": ("u1", 1), "8UC3": ("u1", 3), "rgb8": ("u1", 3), "bgr8": ("u1", 3)},
    **{"rgba8": ("u1", 4), "bgra8": ("u1", 4), "mono16": ("u2", 1), "16UC1": ("u2", 1), "32FC1": ("f4", 1)},
}


@dataclass(frozen=True)
class _Rule:
    """The origin of a field: `topic.path`, split at the first dot after the topic's name."""

    source: str
    max_age: float

    def split(self, bag: Bag) -> tuple[str, list[str]]:
        """Returns the topic and the path in its messages.

        Raises:
          SourceError: If the bag has no such topic.
        """
        found = [name for name in bag.topics if f"{self.source}.".startswith(f"{name}.")]
        if not found:
            raise SourceError(
                f"{bag.path.name} has no topic of '{self.source}'; its topics are {_describe_topics(bag)}"
            )
        topic = max(found, key=len)
        return topic, [part for part in self.source[len(topic) :].split(".") if part]


def open_bags(path: Path, *, topics: Mapping[str, Any] | str | Path | None = None) -> Source:
    """Opens a bag, or a folder of bags, each of one episode, in the order of the numbers in their names.

    Step `k` is at `k / rate` seconds after the first time at which all topics have a message, up to the last message of
    the action. A field has the value of the newest message at or before the step; its median and maximum age in seconds
    are metadata of the episode (`median_age`, `max_age`), as are the seconds before and after the steps
    (`left_out_secs`).

    The field `reward` has the newest message before the next step, because it follows the action. The episode is
    terminal if the last message of the field `is_terminal` is true, also after the last action; without messages, it is
    truncated. Without these fields, see `make_demonstration`. If fields are dropped (`DropFields`), the steps are those
    without them in `topics`.

    Args:
      path: an MCAP file, a `.db3` file, a folder with the `metadata.yaml` of rosbag2, or a folder of these.
      topics: the fields of steps, or a YAML or JSON file with them: `rate`, the number of steps per second; `fields`,
        by name such as 'observation.state' the topic and the path in its messages, such as '/joint_states.position', or
        a dict with `from` and `max_age`; `max_age`, the maximum age of a message in seconds, by default 0.5; and
        `time`, 'header' for the times in `header.stamp` of messages that have one, by default 'recording'. The path of
        an image is that of the message with its encoding.

    Raises:
      ArgumentError: If `topics` has an unknown name, or a value is invalid.
      SourceError: If a bag is damaged or has no such topic or field; while iterating, if a message is too old.
    """
    paths = list_bags(path)
    name = path.resolve().name
    bag = next(filter(_is_readable, map(Bag, paths)), Bag(paths[0]))
    if topics is None:
        known = f"the topics of {bag.path.name} are {_describe_topics(bag)}"
        raise ArgumentError(f"must say which topics become fields, such as {_EXAMPLE}; {known}", about="topics")
    rate, uses_header, rules = _parse_topics(topics)
    metadata: dict[str, Any] = {"fps": rate}
    used = {rule.split(bag)[0] for rule in rules.values()}
    names = {field: found for field, rule in rules.items() if (found := _read_names(map(Bag, paths), rule))}
    if names:
        metadata[FEATURE_NAMES] = json.dumps(names)

    def read(left_out: Paths, first: int, stop: int | None) -> Iterator[Episode]:
        kept = {field: rule for field, rule in rules.items() if tuple(field.split(".")) not in left_out}
        for index in range(len(paths))[first:stop]:
            yield _read_episode(Bag(paths[index]), index, rate, kept, names, uses_header=uses_header)

    reader = ColumnReader(read, lambda: [tuple(field.split(".")) for field in rules], above=())
    source = Source(
        *(name, "bag", reader.read, len(paths)),
        warnings=() if {fields.REWARD, fields.IS_TERMINAL} <= {*rules} else (describe_demonstrations(name),),
        metadata=metadata,
        unread=tuple(sorted(set(bag.topics) - used)),
        assumed_fields=() if fields.REWARD in rules else (fields.REWARD,),
        count=lambda: len(paths),
    )
    extra = [Path(topics)] if isinstance(topics, (str, Path)) else []
    return identify_files(source, lambda: [*extra, *(file for part in paths for file in Bag(part).files)])


def _is_readable(bag: Bag) -> bool:
    with contextlib.suppress(SourceError):
        return bool(bag.topics)
    return False


def _parse_topics(topics: Mapping[str, Any] | str | Path) -> tuple[float, bool, dict[str, _Rule]]:
    """Returns the rate, whether times are those of headers, and the rules of the fields."""
    if isinstance(topics, (str, Path)):
        try:
            topics = read_option_file(Path(topics).expanduser(), "topics")
        except OSError as error:
            raise ArgumentError(f"cannot be read ({error})", about="topics", value=str(topics)) from error
    given: dict[str, Any] = dict(topics) if isinstance(topics, Mapping) else {}
    rate, named = given.get("rate"), given.get("fields")
    if not _is_positive(rate) or not isinstance(named, Mapping):
        raise ArgumentError(f"must contain rate, a number > 0, and fields, such as {_EXAMPLE}", about="topics")
    time = given.get("time", _TIMES[0])
    if time not in _TIMES:
        raise ArgumentError(f"must have {' or '.join(_TIMES)} as time, got {time!r}", about="topics")
    rules: dict[str, _Rule] = {}
    for field, rule in named.items():
        stated = rule if isinstance(rule, Mapping) else {"from": rule}
        described: dict[str, Any] = {"max_age": given.get("max_age", MAX_AGE_SECS), **stated}
        unknown = {*given, *described} - {"rate", "time", "fields", "max_age", "from"}
        if unknown or not isinstance(described.get("from"), str) or not _is_positive(described["max_age"]):
            raise ArgumentError(
                f"must contain a topic for {field!r}, or a dict with 'from' and 'max_age' > 0, got {rule!r}, and only "
                "rate, time, fields and max_age besides",
                about="topics",
            )
        rules[str(field)] = _Rule(described["from"], described["max_age"])
    roles = {field.partition(".")[0] for field in rules}
    if missing := {fields.OBSERVATION, fields.ACTION} - roles:
        raise ArgumentError(f"must contain fields for {min(missing)}, got {', '.join(rules)}", about="topics")
    if derived := roles & {fields.DISCOUNT, fields.IS_FIRST, fields.IS_LAST}:
        raise ArgumentError(f"must not contain {min(derived)}, which follows from the ends of episodes", about="topics")
    return rate, time == _TIMES[1], rules


def _is_positive(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf


def _describe_topics(bag: Bag) -> str:
    return ", ".join(f"{name} ({topic.type_name})" for name, topic in sorted(bag.topics.items())) or "(none)"


def _read_names(bags: Iterable[Bag], rule: _Rule) -> list[str]:
    """Returns the joints of the first message that is not damaged; none unless it is a `sensor_msgs/JointState`."""
    for bag in bags:
        with contextlib.suppress(SourceError):  # The error of the episode is raised instead.
            topic, path = rule.split(bag)
            if bag.topics[topic].type_name != "sensor_msgs/msg/JointState" or len(path) != 1:
                return []
            decode = bag.make_decoder(topic)
            for _, _, content in bag.read([topic]):
                with contextlib.suppress(SourceError):
                    return list(_decode_message(decode, content, rule.source).name)
    return []


def _read_episode(
    bag: Bag, index: int, rate: float, rules: Mapping[str, _Rule], names: Mapping[str, Any], *, uses_header: bool
) -> Episode:
    """Reads the times of all messages first, and then decodes those that steps contain."""
    where = f"{bag.path.name}: episode {index}"
    places = {field: rule.split(bag) for field, rule in rules.items()}
    stamps = _read_times(bag, {topic for topic, _ in places.values()}, where, uses_header=uses_header)
    end = places.pop(fields.IS_TERMINAL, None)
    times = {field: stamps[topic] for field, (topic, _) in places.items()}
    for field, (topic, _) in places.items():
        if not len(times[field]):
            raise SourceError(f"{where} has no message on {topic}; leave out the bag, or the field", DropFields=...)
    start = max(of_field[0] for of_field in times.values())
    stop = min(of_field[-1] for field, of_field in times.items() if field.split(".")[0] == fields.ACTION)
    if stop < start:
        raise SourceError(f"{where}: the last action comes before the first message of a topic; leave out the bag")
    count = math.floor((stop - start) * rate / 1e9 + 1e-6) + 1
    steps = start + np.round(np.arange(count + 1) * 1e9 / rate).astype(np.int64)
    steps, following = steps[:-1], steps[1:] - 1
    rows = {
        field: np.searchsorted(of_field, following if field == fields.REWARD else steps, side="right") - 1
        for field, of_field in times.items()
    }
    ages = {field: np.maximum(steps - of_field[rows[field]], 0) / 1e9 for field, of_field in times.items()}
    for field, (topic, _) in places.items():
        step = int(np.argmax(ages[field]))
        if ages[field][step] > rules[field].max_age:
            raise SourceError(
                f"{where}, step {step}, field {field}: the last message on {topic} is {ages[field][step]:.3f} s old, "
                f"more than max_age, {rules[field].max_age:g} s; leave out the bag, or allow it",
                topics=...,
            )
    if end is not None:
        places[fields.IS_TERMINAL], rows[fields.IS_TERMINAL] = end, np.arange(len(stamps[end[0]]))[-1:]
    values = _decode(bag, places, rows, names, where)
    nest: dict[str, Any] = {}
    if end is not None:
        is_terminal = any(np.all(value) for value in values.pop(fields.IS_TERMINAL))
        nest[fields.IS_TERMINAL] = np.full(count, is_terminal)
    for field, found in values.items():
        _, inverse = np.unique(rows[field], return_inverse=True)
        insert_column(nest, field.split("."), _stack(found, f"{where}, field {field}")[inverse], where)
    episode = make_demonstration(where, index, nest, timestamps=(steps - start) / 1e9)
    bounds = min(of_field[0] for of_field in times.values()), max(of_field[-1] for of_field in times.values())
    computed: dict[str, Callable[[np.ndarray], Any]] = {"median_age": np.median, "max_age": np.max}
    described = {
        **{key: {field: np.array(compute(of_field)) for field, of_field in ages.items()}
           for key, compute in computed.items()},
        "left_out_secs": np.array([start - bounds[0], bounds[1] - steps[-1]]) / 1e9,
    }  # fmt: skip
    return replace(episode, metadata=described)


def _read_times(bag: Bag, topics: Collection[str], where: str, *, uses_header: bool) -> dict[str, np.ndarray]:
    """Returns the times of the messages of each topic in nanoseconds: of the recording, or of their headers."""
    listed: dict[str, list[int]] = {topic: [] for topic in topics}
    decoders = {topic: bag.make_decoder(topic) for topic in topics if uses_header}
    for topic, time, content in bag.read(listed):
        if uses_header:
            place = f"{where}, message {len(listed[topic])} on {topic}"
            message = _decode_message(decoders[topic], content, place)
            if "header" in _list_names(message):
                parts = [_find_value(message, ["header", "stamp", name], place) for name in ("sec", "nanosec")]
                time = int(parts[0]) * 10**9 + int(parts[1])
        listed[topic].append(time)
    for topic, times in listed.items():
        if (np.diff(times) < 0).any():
            advice = "use those of the recording" if uses_header else "reindex the bag"
            raise SourceError(f"{where}: the times of messages on {topic} must not decrease; {advice}")
    return {topic: np.array(times, np.int64) for topic, times in listed.items()}


def _decode_message(decode: Callable[[bytes], Any], content: bytes, place: str) -> Any:
    try:
        return decode(content)
    except Exception as error:  # Decoders let through any error.
        sentence = f"{place} cannot be decoded ({str(error)[:200]}); record it again, or leave out the field"
        raise SourceError(sentence, DropFields=...) from error


def _decode(
    bag: Bag, places: Mapping[str, Any], rows: Mapping[str, np.ndarray], names: Mapping[str, Any], where: str
) -> dict[str, list[Any]]:
    """Returns the values of each field in the messages that its steps contain, in the order of the messages."""
    values: dict[str, list[Any]] = {field: [] for field in places}
    counts = dict.fromkeys((topic for topic, _ in places.values()), 0)
    decoders = {topic: bag.make_decoder(topic) for topic in counts}
    needed = {field: set(used.tolist()) for field, used in rows.items()}
    for topic, _, content in bag.read(counts):
        count = counts[topic]
        counts[topic] += 1
        used_by = [field for field, (name, _) in places.items() if name == topic and count in needed[field]]
        if not used_by:
            continue
        place = f"{where}, message {count} on {topic}"
        message = _decode_message(decoders[topic], content, place)
        for field in used_by:
            if field in names and list(message.name) != names[field]:
                raise SourceError(
                    f"{place}: the joints are {list(message.name)}, but {names[field]} in the first message; "
                    "record them in one order"
                )
            values[field].append(_find_value(message, places[field][1], f"{place}, field {field}"))
    return values


def _stack(values: Sequence[Any], where: str) -> np.ndarray:
    try:
        return np.array(values, object) if isinstance(values[0], bytes) else np.stack(values)
    except ValueError as error:
        raise SourceError(f"{where}: messages differ in shape ({error}); record them with one size") from error


def _find_value(message: Any, path: Sequence[str], where: str) -> Any:
    """Returns the value at a path in a message: a number, an array, a string as bytes, or the pixels of an image."""
    value = message
    for part in path:
        known = _list_names(value)
        if part.isdecimal() and hasattr(value, "__getitem__") and not isinstance(value, (Mapping, str)):
            if int(part) >= len(value):
                raise SourceError(f"{where}: there is no element {part} of {len(value)}; fix the path")
            value = value[int(part)]
        elif part in known:
            value = value[part] if isinstance(value, Mapping) else getattr(value, part)
        else:
            raise SourceError(f"{where}: there is no '{part}'; use one of: {', '.join(known) or '(it has no fields)'}")
    known = _list_names(value)
    get = value.get if isinstance(value, Mapping) else lambda name: getattr(value, name)
    try:
        if "data" in known and {"encoding", "height", "width"} <= {*known}:
            return _read_pixels(get)
        if "data" in known and "format" in known:
            content = _to_bytes(get("data"))
            return decode_image(content[max(content.find(b"\x89PNG"), 0) :])  # After the header of `compressedDepth`.
    except (ValueError, TypeError) as error:
        raise SourceError(f"{where}: {error}; leave out the field, or record it again") from error
    if known:
        raise SourceError(f"{where} must be a number, array or image, got a message; use one of: {', '.join(known)}")
    if isinstance(value, str):
        return value.encode()
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise SourceError(f"{where} must be a number, array or image, got {str(value)[:50]!r}")
    return array


def _list_names(message: Any) -> list[str]:
    if isinstance(message, Mapping):
        return list(message)
    if hasattr(message, "DESCRIPTOR"):
        return [field.name for field in message.DESCRIPTOR.fields]
    return [name for name in getattr(message, "__dataclass_fields__", ()) if not name.startswith("_")]


def _to_bytes(data: Any) -> bytes:
    return base64.b64decode(data) if isinstance(data, str) else bytes(data)  # JSON has Base64.


def _read_pixels(get: Any) -> np.ndarray:
    """Returns the pixels of a `sensor_msgs/Image` or `foxglove.RawImage`, `[height, width, channels]`, in RGB order."""
    encoding, height, width = get("encoding"), int(get("height")), int(get("width"))
    if encoding not in _ENCODINGS:
        raise ValueError(f"the encoding must be one of {', '.join(_ENCODINGS)}, got {encoding!r}")
    kind, channels = _ENCODINGS[encoding]
    dtype = np.dtype(kind)
    try:
        is_big_endian = bool(get("is_bigendian"))
    except AttributeError:
        is_big_endian = False
    content, row_bytes = _to_bytes(get("data")), width * channels * dtype.itemsize
    step = int(get("step")) or row_bytes
    if step < row_bytes or len(content) < height * step:
        raise ValueError(f"{encoding} of {width}x{height} must have {height * row_bytes} bytes, got {len(content)}")
    rows = np.frombuffer(content, np.uint8, height * step).reshape(height, step)[:, :row_bytes]
    pixels = np.ascontiguousarray(rows).view(dtype.newbyteorder(">" if is_big_endian else "<"))
    pixels = pixels.astype(dtype).reshape(height, width, channels)
    return pixels[:, :, [2, 1, 0, 3][:channels]] if encoding.startswith("bgr") else pixels


def _is_bag(location: Any) -> bool:
    return isinstance(location, Path) and (location.is_dir() or location.is_file()) and bool(list_bags(location))


BAGS = Format("a bag of ROS 2 or an MCAP file", _is_bag, open_bags, ("topics",), "MCAP", (".mcap", ".db3"))
