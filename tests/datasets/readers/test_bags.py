"""Tests of MCAP files and ROS 2 bags; the expectations come from rosbags' own reader."""

import base64
import json
import shutil

import numpy as np
import pytest
from reference_impls import assert_equal_nests
from robot_files import TOPICS, encode_image, make_images, write_bag, write_split_bag

from rlds2reverb import load, write_dataset
from rlds2reverb.datasets.readers import bag_messages
from rlds2reverb.datasets.transforms import DropFields, apply_transforms
from rlds2reverb.errors import ArgumentError, SourceError

pytest.importorskip("rosbags")
mcap_writer = pytest.importorskip("mcap.writer")


def with_fields(**fields):
    return {**TOPICS, "fields": {**TOPICS["fields"], **fields}}


def find_newest(path, topic, times):
    """Returns the newest message of a topic at or before each time in nanoseconds."""
    from rosbags.highlevel import AnyReader

    with AnyReader([path]) as reader:
        connections = [connection for connection in reader.connections if connection.topic == topic]
        messages = [
            (time, reader.deserialize(content, connection.msgtype))
            for connection, time, content in reader.messages(connections)
        ]
    return [[message for time, message in messages if time <= step][-1] for step in times]


@pytest.mark.parametrize("kind", ["mcap", "sqlite3"])
@pytest.mark.parametrize("rate", [10, 7, 35.5])
def test_steps_have_the_newest_messages_before_them(tmp_path, kind, rate):
    path = write_bag(tmp_path / "bag", kind=kind)
    (episode,) = load(path, topics={**TOPICS, "rate": rate})
    times = 30_000_000 + np.round(episode.timestamps * 1e9)
    assert len(times) == int(0.5 * rate + 1e-6) + 1 and np.allclose(np.diff(times), 1e9 / rate)
    states, commands = (find_newest(path, topic, times) for topic in ("/joint_states", "/command"))
    assert (episode.steps["observation"]["state"] == [message.position for message in states]).all()
    assert (episode.steps["action"] == [message.data for message in commands]).all()
    images = make_images(6)[[int(message.data[0]) for message in commands]]
    pixels = episode.steps["observation"]["images"]
    if rate == 10:
        assert (pixels["front"] == images).all()  # Without padding, and with red and blue exchanged.
    assert (pixels["front"] == pixels["wrist"]).all()


def test_rate_joints_ages_and_unread_topics_are_described(tmp_path):
    source = load(write_bag(tmp_path / "bag"), topics=TOPICS)
    assert source.metadata == {"fps": 10, "feature_names": '{"observation.state": ["a", "b"]}'}
    assert source.unread == ("/label",)
    metadata = source.first_episode.metadata
    assert float(metadata["median_age"]["observation.state"]) == float(metadata["max_age"]["observation.state"]) == 0.03
    assert metadata["left_out_secs"].tolist() == [0.03, 0.02]


@pytest.mark.parametrize("kind", ["mcap", "sqlite3"])
def test_folder_of_bags_is_in_the_order_of_numbers(tmp_path, kind):
    for number in (0, 2, 10):
        write_bag(tmp_path / f"x/bag_{number}", kind=kind, first=number)
    source = load(tmp_path / "x", topics=TOPICS)
    assert [episode.steps["action"][0, 0] for episode in source] == [0, 2, 10]
    assert [episode.index for episode in source.read(1, 3)] == [1, 2]


def test_other_bags_are_read_when_the_first_one_is_damaged(tmp_path):
    paths = [next(write_bag(tmp_path / f"x/bag_{number}", first=number).glob("*.mcap")) for number in range(3)]
    paths[0].write_bytes(b"")
    source = load(tmp_path / "x", topics=TOPICS, on_invalid="skip_episode")
    assert [episode.steps["action"][0, 0] for episode in source] == [1, 2] and list(source.skipped) == [0]


@pytest.mark.parametrize("kind", ["mcap", "sqlite3"])
def test_files_of_a_split_bag_are_one_episode(tmp_path, kind):
    bag = write_split_bag(tmp_path / "bag", kind=kind)
    files = sorted(path for path in bag.iterdir() if path.name != "metadata.yaml")
    assert len(files) == 3
    (whole,) = load(write_bag(tmp_path / "whole", kind=kind), topics=TOPICS)
    (episode,) = load(bag, topics=TOPICS)
    assert_equal_nests(episode.steps, whole.steps)
    described = bag / "metadata.yaml"
    described.write_text(described.read_text().replace("compression_mode: ''", "compression_mode: MESSAGE"))
    with pytest.raises(SourceError, match="bag: its messages are compressed; convert the bag with 'ros2 bag convert'"):
        list(load(bag, topics=TOPICS))
    files[1].unlink()
    with pytest.raises(SourceError, match=f"bag is missing {files[1].name}, which metadata.yaml lists; copy the whole"):
        load(bag, topics=TOPICS)


def test_bag_of_compressed_files_or_damaged_metadata_raises(tmp_path):
    bag = write_bag(tmp_path / "bag")
    described = bag / "metadata.yaml"
    (bag / "bag.mcap").rename(bag / "bag.mcap.zstd")
    described.write_text(described.read_text().replace("bag.mcap", "bag.mcap.zstd"))
    with pytest.raises(SourceError, match=r"bag: bag.mcap.zstd is compressed; convert the bag"):
        load(bag, topics=TOPICS)
    described.write_text(described.read_text() + "]")
    with pytest.raises(SourceError, match=r"metadata.yaml is damaged .* 'ros2 bag reindex'"):
        load(bag, topics=TOPICS)


def make_message_class(class_name, **kinds):
    """Returns a class of Protobuf messages whose fields have these kinds; one that ends in '[]' is repeated.

    The kind "Point" is a nested message of x, y and z.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    types = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name=f"{class_name}.proto", package="robot", syntax="proto3")
    message = file.message_type.add(name=class_name)
    for number, (field, kind) in enumerate(kinds.items(), 1):
        label = types.LABEL_REPEATED if kind.endswith("[]") else types.LABEL_OPTIONAL
        kind = kind.removesuffix("[]")
        added = message.field.add(name=field, number=number, label=label)
        added.type = getattr(types, f"TYPE_{kind.upper()}", types.TYPE_MESSAGE)
        if added.type == types.TYPE_MESSAGE:
            added.type_name = f".robot.{class_name}.{kind}"
    point = message.nested_type.add(name="Point")
    for place, axis in enumerate("xyz", 1):
        point.field.add(name=axis, number=place, label=types.LABEL_OPTIONAL, type=types.TYPE_DOUBLE)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"robot.{class_name}"))


def test_messages_of_protobuf_are_read(tmp_path):
    from mcap_protobuf.writer import Writer

    state_class = make_message_class("State", joints="float[]", pose="Point", poses="Point[]", name="string")
    image_class = make_message_class("Image", data="bytes", format="string")
    command_class = make_message_class("Command", values="double[]", close="bool")
    images, path = make_images(4), tmp_path / "x.mcap"
    with path.open("wb") as stream, Writer(stream) as writer:
        for row in range(4):
            state = state_class(joints=[row, 0.5], pose={"x": row, "z": 2}, poses=[{"y": 1}, {"y": row}], name=f"{row}")
            image = image_class(data=encode_image(images[row], "PNG"), format="png")
            command = command_class(values=[row, 1], close=row > 1)
            for topic, message in {"/state": state, "/image": image, "/command": command}.items():
                writer.write_message(topic, message, 100_000_000 * row, 0)
    paths = {
        **{"observation.q": "/state.joints", "observation.x": "/state.pose.x", "observation.y": "/state.poses.1.y"},
        **{
            "observation.image": "/image",
            "task": "/state.name",
            "action": "/command.values",
            "closed": "/command.close",
        },
    }
    steps = load(path, topics={"rate": 10, "fields": paths}).first_episode.steps
    observation = steps["observation"]
    assert observation["q"].tolist() == [[row, 0.5] for row in range(4)]
    assert observation["x"].tolist() == observation["y"].tolist() == [0, 1, 2, 3]
    assert (observation["image"] == images).all()
    assert steps["action"].tolist() == [[row, 1] for row in range(4)]
    assert steps["closed"].tolist() == [False, False, True, True] and steps["task"][3] == b"3"
    with pytest.raises(SourceError, match="there is no 'q'; use one of: joints, pose, poses, name"):
        list(load(path, topics={"rate": 10, "fields": {**paths, "observation.q": "/state.q"}}))


def test_folder_of_files_is_read_as_episodes(tmp_path):
    for number in range(2):
        shutil.copy(next(write_bag(tmp_path / f"{number}").glob("*.mcap")), tmp_path / f"{number}.mcap")
        shutil.rmtree(tmp_path / f"{number}")
    assert load(tmp_path, topics=TOPICS).count() == 2
    assert load(tmp_path / "1.mcap", topics=TOPICS).count() == 1


def test_topics_are_read_from_a_file(tmp_path):
    path = tmp_path / "topics.yaml"
    path.write_text("rate: 10\nfields:\n  observation.x: /joint_states.position.1\n  action: {from: /command.data}\n")
    (episode,) = load(write_bag(tmp_path / "bag", first=4), topics=path)
    assert episode.steps["observation"]["x"].tolist() == [4] * 6


def test_strings_and_numbers_of_messages_become_step_fields(tmp_path):
    topics = with_fields(label="/label.data", height="/camera/image.height")
    steps = load(write_bag(tmp_path / "bag"), topics=topics).first_episode.steps
    assert steps["label"].tolist() == [f"row {row}".encode() for row in range(6)]
    assert steps["height"].tolist() == [12] * 6


def test_bag_converts_to_lerobot_with_its_rate_and_joints(tmp_path):
    write_dataset(load(write_bag(tmp_path / "bag"), topics=TOPICS), tmp_path / "out", format="lerobot")
    written = load(tmp_path / "out")
    assert written.first_episode.num_steps == 6
    info = json.loads((tmp_path / "out/meta/info.json").read_text())
    assert info["fps"] == 10 and info["features"]["observation.state"]["names"] == ["a", "b"]


def test_missing_topics_raise_with_a_list_of_the_topics(tmp_path):
    path = write_bag(tmp_path / "bag")
    with pytest.raises(ArgumentError, match=r"topics must say.*/joint_states \(sensor_msgs/msg/JointState\), /label"):
        load(path)
    with pytest.raises(SourceError, match=r"bag has no topic of '/joints.position'; its topics are /camera/image \("):
        load(path, topics=with_fields(**{"observation.state": "/joints.position"}))


@pytest.mark.parametrize(
    ("topics", "message"),
    [
        ({"fields": {}}, "must contain rate, a number > 0, and fields"),
        ({"rate": 0, "fields": {}}, "must contain rate, a number > 0"),
        ({"rate": True, "fields": {}}, "must contain rate, a number > 0"),
        ({**TOPICS, "rate": float("inf")}, "must contain rate, a number > 0"),
        (with_fields(is_last="/command.data"), "must not contain is_last, which follows from the ends"),
        ({"rate": 5, "fields": {"action": "/command.data"}}, "must contain fields for observation, got action"),
        ({"rate": 5, "fields": {"action": 5}}, "must contain a topic for 'action'"),
        ({"rate": 5, "fields": {"action": {"from": "/x", "max_age": -1}}}, "must contain a topic for 'action'"),
        ({**TOPICS, "rates": 5}, "and only rate, time, fields and max_age besides"),
        ({**TOPICS, "time": "stamp"}, "must have recording or header as time, got 'stamp'"),
        ("missing.yaml", "cannot be read .*missing.yaml"),
    ],
)
def test_invalid_topics_raise(tmp_path, topics, message):
    with pytest.raises(ArgumentError, match=message):
        load(write_bag(tmp_path / "bag"), topics=topics)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("/joint_states.positions", "message 0 on /joint_states, field observation.state: there is no 'positions'; use one"),
        ("/joint_states", "must be a number, array or image, got a message; use one of: header, name, position"),
        ("/joint_states.position.5", "there is no element 5 of 2; fix the path"),
        ("/joint_states.name", "must be a number, array or image"),
        ({"from": "/joint_states.position", "max_age": 0.01}, "step 0, field observation.state: the last message on "
         "/joint_states is 0.030 s old, more than max_age, 0.01 s"),
    ],
)  # fmt: skip
def test_field_that_a_message_does_not_have_raises(tmp_path, source, message):
    with pytest.raises(SourceError, match=message):
        list(load(write_bag(tmp_path / "bag"), topics=with_fields(**{"observation.state": source})))


def test_joints_in_a_different_order_raise(tmp_path):
    with pytest.raises(SourceError, match=r"the joints are \['b', 'a'\], but \['a', 'b'\] in the first message"):
        list(load(write_bag(tmp_path / "bag", changes=(4,)), topics=TOPICS))


@pytest.mark.parametrize("stop", [0, 5, -300])
def test_truncated_file_raises(tmp_path, stop):
    path = next(write_bag(tmp_path / "bag").glob("*.mcap"))
    path.write_bytes(path.read_bytes()[:stop])
    with pytest.raises(SourceError, match="bag.mcap is damaged or was not closed .* repair it with 'mcap recover'"):
        list(load(path, topics=TOPICS))


def write_json(path, messages):
    """Writes messages of JSON: (topic, milliseconds, content)."""
    with path.open("wb") as stream:
        writer = mcap_writer.Writer(stream)
        writer.start()
        schema = writer.register_schema("State", "jsonschema", b"{}")
        channels = {topic: writer.register_channel(topic, "json", schema) for topic, _, _ in messages}
        for topic, milliseconds, content in messages:
            time = milliseconds * 1_000_000
            writer.add_message(channels[topic], time, json.dumps(content).encode(), time)
        writer.finish()
    return path


@pytest.mark.parametrize("ends", [(), (False,), (False, True)])
def test_rewards_follow_their_actions_and_the_last_flag_decides(tmp_path, ends):
    messages = [("/done", 0, {"data": False})] if ends else []
    for row in range(4):
        messages += [("/state", 100 * row, {"q": [row, 0.5]}), ("/command", 100 * row, {"x": row + 0.25})]
        messages += [("/reward", 100 * row + 70, {"data": 0.5 * row})]
    messages += [("/done", 2000 + place, {"data": end}) for place, end in enumerate(ends)]
    paths = {"observation.q": "/state.q", "action": "/command.x", "reward": "/reward.data"}
    paths |= {"is_terminal": "/done.data"} if ends else {}
    source = load(write_json(tmp_path / "x.mcap", messages), topics={"rate": 10, "fields": paths})
    (episode,) = source
    # Step 0 is at the first reward, 70 ms later than the first action.
    assert episode.steps["reward"][:3].tolist() == [0, 0.5, 1] and episode.steps["action"][:3].tolist() == [
        0.25,
        1.25,
        2.25,
    ]
    assert (episode.is_terminal, episode.unterminated) == (ends[-1:] == (True,), not ends)
    assert source.assumed_fields == () and bool(source.warnings) == (not ends)


def test_header_times_take_precedence(tmp_path):
    messages = []
    for row, delay in enumerate((5, 80, 40, 90)):
        stamp = {"header": {"stamp": {"sec": 0, "nanosec": row * 100_000_000}}}
        messages += [
            ("/state", 100 * row + delay, {"q": row, **stamp}),
            ("/command", 100 * row + delay, {"x": row, **stamp}),
        ]
    path = write_json(tmp_path / "x.mcap", messages)
    topics = {"rate": 10, "time": "header", "fields": {"observation.q": "/state.q", "action": "/command.x"}}
    (episode,) = load(path, topics=topics)
    assert episode.steps["observation"]["q"].tolist() == episode.steps["action"].tolist() == [0, 1, 2, 3]
    (recorded,) = load(path, topics={**topics, "time": "recording"})
    assert recorded.steps["action"].tolist() == [0, 0, 1, 2]
    late = {"header": {"stamp": {"sec": 0, "nanosec": 0}}}
    write_json(path, [*messages, ("/state", 500, {"q": 5, **late})])
    with pytest.raises(
        SourceError, match="the times of messages on /state must not decrease; use those of the recording"
    ):
        list(load(path, topics=topics))


def test_damaged_topics_that_are_dropped_do_not_block_the_others(tmp_path):
    """Episodes have damaged images, no images, and images that start late; times of the last one go back."""
    folder = tmp_path / "x"
    folder.mkdir()
    for number in range(4):
        messages = []
        for row in range(4):
            secs = 9 if number == 3 and row == 2 else 0
            header = {"header": {"stamp": {"sec": secs, "nanosec": row * 10**8}}}
            messages += [("/state", 100 * row, {"q": row}), ("/command", 100 * row, {"x": row})]
            late = number == 2 and row == 0
            messages += [("/image", 100 * row, {"data": "?", "format": "png", **header})] * (number != 1 and not late)
        write_json(folder / f"{number}.mcap", messages)
    fields = {"observation.q": "/state.q", "observation.images.front": "/image", "action": "/command.x"}
    for time in ("recording", "header"):
        source = load(folder, topics={"rate": 10, "fields": fields, "time": time})
        with pytest.raises(
            SourceError, match=r"message 0 on /image, field observation\.images\.front: .*leave out the"
        ):
            list(source)
        for path in ("observation/images/front", "observation/images"):
            dropped, described = apply_transforms(source, [DropFields((path,))])
            assert described["dropped_fields"] == [path]
            assert [episode.steps["observation"]["q"].tolist() for episode in dropped] == [[0, 1, 2, 3]] * 4
            assert all(episode.steps["observation"].keys() == {"q"} for episode in dropped)
    only = load(folder, topics={"rate": 10, "fields": {**fields, "observation.q": "/state.q"}})
    with pytest.raises(SourceError):
        list(apply_transforms(only, [DropFields(("observation/q", "observation/images"))])[0])


def test_joints_are_named_by_the_first_message_that_is_not_damaged(tmp_path, monkeypatch):
    path = write_bag(tmp_path / "bag")
    expected = load(path, topics=TOPICS).metadata["feature_names"]
    make_decoder, decoded = bag_messages.Bag.make_decoder, []

    def decode(content):
        decoded.append(content)
        if len(decoded) == 1:
            raise IndexError("the message ends")
        return make_decoder(bag_messages.Bag(path), "/joint_states")(content)

    monkeypatch.setattr(bag_messages.Bag, "make_decoder", lambda bag, topic: decode)
    assert load(path, topics=TOPICS).metadata["feature_names"] == expected and len(decoded) == 2


def test_messages_of_json_are_read(tmp_path):
    images, messages = make_images(4), []
    for row in range(4):
        image = {"format": "png", "data": base64.b64encode(encode_image(images[row], "PNG")).decode()}
        state = {"joints": [row, 0.5] if row % 2 else [row, 1], "command": {"x": row}}
        messages += [("/state", 100 * row, state), ("/image", 100 * row, image)]
    path = write_json(tmp_path / "x.mcap", messages)
    fields = {"observation.q": "/state.joints", "observation.image": "/image", "action": "/state.command.x"}
    (episode,) = load(path, topics={"rate": 10, "fields": fields})
    assert episode.steps["observation"]["q"].tolist() == [[0, 1], [1, 0.5], [2, 1], [3, 0.5]]
    assert (episode.steps["observation"]["image"] == images).all()
    assert episode.steps["action"].tolist() == [0, 1, 2, 3]
