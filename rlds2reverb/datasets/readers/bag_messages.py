"""Messages of MCAP files and of ROS 2 bags, in the order of their times.

MCAP files contain messages of ROS 2 (CDR), JSON or Protobuf, with their definitions. Bags of SQLite (`.db3`) may lack
definitions; those of ROS 2's own messages are known.
"""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from rlds2reverb.errors import SourceError
from rlds2reverb.system.installation import install_command

from .json_files import as_dict

_METADATA, _INFORMATION, _SUFFIXES = "metadata.yaml", "rosbag2_bagfile_information", (".mcap", ".db3")
_Decoder = Callable[[bytes], Any]


class Topic(NamedTuple):
    """The type and the encoding of a topic's messages, the definition of the type or '', and the encoding of that."""

    type_name: str
    encoding: str
    definition: Any
    definition_encoding: str


def list_bags(path: Path) -> list[Path]:
    """Returns the bags of a location, of which each is an episode: files, and folders with `metadata.yaml`."""
    if path.is_file():
        return [path] if path.suffix in _SUFFIXES else []
    if _is_folder(path):
        return [path]
    entries = sorted(path.iterdir(), key=_natural_order)
    return [entry for entry in entries if entry.suffix in _SUFFIXES] or list(filter(_is_folder, entries))


def _is_folder(path: Path) -> bool:
    """Returns whether a path is a folder that rosbag2 has written."""
    file = path / _METADATA
    return file.is_file() and _INFORMATION.encode() in file.read_bytes()[:1000]


def _natural_order(path: Path) -> list[Any]:
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path.name)]


@dataclass(frozen=True)
class Bag:
    """A recording: one file, or a folder of files that continue each other; see `list_bags`."""

    path: Path

    @cached_property
    def files(self) -> list[Path]:
        """Its files, in the order in which they were recorded.

        Raises:
          SourceError: If one is missing or compressed, or `metadata.yaml` is damaged.
        """
        if not self.path.is_dir():
            return [self.path]
        # Old versions list paths that begin with the name of the folder.
        names = [Path(str(name)).name for name in self._described.get("relative_file_paths") or ()]
        for name in names:
            if not (self.path / name).is_file():
                raise SourceError(f"{self.path.name} is missing {name}, which {_METADATA} lists; copy the whole folder")
            if Path(name).suffix not in _SUFFIXES:
                raise SourceError(f"{self.path.name}: {name} is compressed; convert the bag with 'ros2 bag convert'")
        return [self.path / name for name in names]

    @cached_property
    def _described(self) -> dict[str, Any]:
        """The content of `metadata.yaml`."""
        import yaml

        try:
            return as_dict(as_dict(yaml.safe_load((self.path / _METADATA).read_bytes())).get(_INFORMATION))
        except yaml.YAMLError as error:
            reason = str(error).partition("\n")[0]
            raise SourceError(
                f"{self.path / _METADATA} is damaged ({reason}); write it again with 'ros2 bag reindex'"
            ) from error

    @cached_property
    def topics(self) -> dict[str, Topic]:
        """The topics by name."""
        topics: dict[str, Topic] = {}
        for path in self.files:
            with _name_damage(path):
                topics |= _list_mcap_topics(path) if path.suffix == ".mcap" else _list_sqlite_topics(path)
        return topics

    def read(self, topics: Collection[str]) -> Iterator[tuple[str, int, bytes]]:
        """Yields the topic, the time of recording in nanoseconds and the content of each message of some topics."""
        mode = self._described.get("compression_mode") if self.path.is_dir() else None
        if str(mode).lower() == "message":
            raise SourceError(f"{self.path.name}: its messages are compressed; convert the bag with 'ros2 bag convert'")
        for path in self.files:
            with _name_damage(path):
                yield from (_read_mcap if path.suffix == ".mcap" else _read_sqlite)(path, topics)

    def make_decoder(self, name: str) -> _Decoder:
        """Returns the function that decodes the messages of a topic.

        Raises:
          SourceError: If their encoding or their definition is not known.
        """
        topic = self.topics[name]
        try:
            if topic.encoding == "json":
                return lambda content: json.loads(content, parse_int=float)
            if topic.encoding == "protobuf":
                return _make_protobuf_decoder(topic)
            if topic.encoding == "cdr":
                return _make_cdr_decoder(topic)
        except Exception as error:  # Parsers of definitions let through any error.
            reason = str(error).partition("\n")[0]
            raise SourceError(
                f"{self.path.name}: the definition of {topic.type_name} on {name} cannot be used ({reason})"
            ) from error
        raise SourceError(
            f"{self.path.name}: messages on {name} must be encoded as cdr, json or protobuf, got {topic.encoding!r}"
        )


def import_mcap() -> Any:
    """Returns the module `mcap.reader`.

    Raises:
      SourceError: If a package of the extra is missing.
    """
    try:
        import mcap.reader
        import rosbags.typesys  # noqa: F401
    except ImportError as error:
        raise SourceError(f"bags require mcap and rosbags ({error}); run {install_command('mcap')}") from error
    return mcap.reader


@contextlib.contextmanager
def _name_damage(path: Path) -> Iterator[None]:
    import_mcap()
    try:
        yield
    except SourceError:
        raise
    except Exception as error:  # Readers of damaged files let through any error.
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise SourceError(f"{path.name} is damaged or was not closed ({reason}); repair it with 'mcap recover' or "
                          "'ros2 bag reindex', or record it again") from error  # fmt: skip


def _list_mcap_topics(path: Path) -> dict[str, Topic]:
    with path.open("rb") as stream:
        summary = import_mcap().make_reader(stream, validate_crcs=True).get_summary()
    if summary is None:
        raise ValueError("it has no summary")
    topics = {}
    for channel in summary.channels.values():
        schema = summary.schemas.get(channel.schema_id)
        described = ("", b"", "") if schema is None else (schema.name, schema.data, schema.encoding)
        topics[channel.topic] = Topic(described[0], channel.message_encoding, *described[1:])
    return topics


def _read_mcap(path: Path, topics: Collection[str]) -> Iterator[tuple[str, int, bytes]]:
    with path.open("rb") as stream:
        for _, channel, message in import_mcap().make_reader(stream, validate_crcs=True).iter_messages(list(topics)):
            yield channel.topic, message.log_time, message.data


def _connect(path: Path) -> contextlib.closing[sqlite3.Connection]:
    return contextlib.closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True))


def _list_sqlite_topics(path: Path) -> dict[str, Topic]:
    with _connect(path) as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        definitions: dict[str, tuple[str, str]] = {}
        if "message_definitions" in tables:  # Since ROS 2 Iron.
            rows = database.execute("SELECT topic_type, encoded_message_definition, encoding FROM message_definitions")
            definitions = {name: (text, encoding) for name, text, encoding in rows}
        found = database.execute("SELECT name, type, serialization_format FROM topics").fetchall()
    return {name: Topic(kind, encoding, *definitions.get(kind, ("", ""))) for name, kind, encoding in found}


def _read_sqlite(path: Path, topics: Collection[str]) -> Iterator[tuple[str, int, bytes]]:
    query = (
        "SELECT topics.name, messages.timestamp, messages.data "
        "FROM messages JOIN topics ON topics.id = messages.topic_id "
        f"WHERE topics.name IN ({', '.join('?' * len(topics))}) ORDER BY messages.timestamp, messages.id"
    )
    with _connect(path) as database:
        yield from database.execute(query, list(topics))


def _make_protobuf_decoder(topic: Topic) -> _Decoder:
    from mcap.records import Schema
    from mcap_protobuf.decoder import DecoderFactory

    schema = Schema(id=1, name=topic.type_name, encoding=topic.definition_encoding, data=topic.definition)
    decoder: Any = DecoderFactory().decoder_for("protobuf", schema)
    return lambda content: decoder(content)


def _make_cdr_decoder(topic: Topic) -> _Decoder:
    from rosbags.typesys import Stores, get_types_from_idl, get_types_from_msg, get_typestore

    store = get_typestore(Stores.EMPTY if topic.definition else Stores.LATEST)
    if topic.definition:
        text = topic.definition.decode() if isinstance(topic.definition, bytes) else topic.definition
        is_idl = topic.definition_encoding == "ros2idl"
        store.register(get_types_from_idl(text) if is_idl else get_types_from_msg(text, topic.type_name))
    if topic.type_name not in store.types:
        raise ValueError("the bag does not contain it; convert the bag to MCAP with 'ros2 bag convert'")
    return lambda content: store.deserialize_cdr(content, topic.type_name)
