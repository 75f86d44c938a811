"""State is never made into objects: a class may be gone; what is unreadable stays whole."""

from __future__ import annotations

import ormsgpack
import pytest
from langgraph.checkpoint.serde import types as serde_types
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from langgraph_ephemeral_checkpointer.decisions.survivors import LeaveWholeError
from langgraph_ephemeral_checkpointer.strategies import raw
from tests.strategies.test_prune_cases import execute, turn
from tests.support.backends import PRUNED_KINDS, open_place
from tests.support.features import HAS_DELTA
from tests.support.prune_graphs import Driver, new_thread


class Cipher:
    """Not a good one, but nobody can read it without."""

    def encrypt(self, plaintext):
        return "xor", bytes(byte ^ 0x5A for byte in plaintext)

    def decrypt(self, ciphername, ciphertext):
        return bytes(byte ^ 0x5A for byte in ciphertext)


class Gone(dict):
    """Stands for a class of the application."""

    def model_dump(self):
        return dict(self)


@pytest.mark.parametrize("kind", PRUNED_KINDS)
async def test_state_of_classes_that_are_gone_is_pruned(kind, locate, monkeypatch):
    async with open_place(kind, locate(kind)[0]) as place:
        driver = Driver(place, new_thread(), 2)
        for _ in range(3):
            await driver.invoke({"cmd": "plain", "plain": [Gone(a=1)], "delta": [Gone(b=2)]})
        monkeypatch.delattr(f"{__name__}.Gone")
        outcome = await place.prune(driver.config["configurable"]["thread_id"], 2)
        assert outcome.removed_checkpoints > 0
        assert outcome.left_whole is None


@pytest.mark.parametrize("kind", PRUNED_KINDS)
async def test_encrypted_threads_are_pruned_on_postgres_and_left_whole_elsewhere(kind, locate):
    async with open_place(kind, locate(kind)[0]) as place:
        place.saver.serde = EncryptedSerializer(Cipher())
        driver = Driver(place, new_thread(), 2)
        for _ in range(3):
            await driver.perform(turn())
        thread_id = driver.config["configurable"]["thread_id"]
        before = place.rows(thread_id)
        outcome = await place.prune(thread_id, 2)
        if "postgres" in kind:
            assert outcome.removed_checkpoints > 0
        else:
            assert "'msgpack+xor' cannot be read without its serializer" in outcome.left_whole
            assert place.rows(thread_id) == before


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE checkpoints SET checkpoint = x'ff00' WHERE thread_id = ?",
        "UPDATE checkpoints SET checkpoint = x'90' WHERE thread_id = ?",
        "UPDATE checkpoints SET checkpoint = NULL WHERE thread_id = ?",
        "UPDATE checkpoints SET type = 'pickle' WHERE thread_id = ?",
        "UPDATE checkpoints SET type = NULL WHERE thread_id = ?",
        "UPDATE checkpoints SET metadata = 'no json' WHERE thread_id = ?",
        "UPDATE checkpoints SET metadata = x'ff' WHERE thread_id = ?",
        "UPDATE checkpoints SET metadata = '[]' WHERE thread_id = ?",
    ],
)
async def test_a_damaged_thread_is_left_whole(damage, locate):
    async with open_place("sqlite", locate("sqlite")[0]) as place:
        driver, other = (Driver(place, new_thread(), 2) for _ in range(2))
        for side in (driver, other):
            await side.perform(turn())
        thread_id = driver.config["configurable"]["thread_id"]
        execute(place, damage, thread_id)
        before = place.rows(thread_id)
        outcome = await place.prune(thread_id, 1)
        assert outcome.left_whole
        assert place.rows(thread_id) == before
        assert (await place.prune(other.config["configurable"]["thread_id"], 1)).left_whole is None


if HAS_DELTA:

    @pytest.mark.parametrize("size", [0, 1, 2, 4, 8, 15, 16, 300, 70_000])
    def test_a_snapshot_is_recognised_by_its_first_bytes(size):
        serde = JsonPlusSerializer()
        for value, is_one in ((serde_types._DeltaSnapshot("x" * size), True), ("x" * size, False)):
            kind, data = serde.dumps_typed(value)
            assert raw.holds_snapshot(kind, data) is is_one
            assert raw.is_snapshot(raw.unpack(kind, data)) is is_one


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 3, 300, 70_000])
@pytest.mark.parametrize("code", [0, 5, 7, 8])
def test_no_other_extension_is_taken_for_a_snapshot(code, size):
    data = ormsgpack.packb(ormsgpack.Ext(code, b"x" * size))
    assert raw.holds_snapshot("msgpack", data) is (code == 7)
    assert raw.is_snapshot(raw.unpack("msgpack", data)) is (code == 7)


@pytest.mark.parametrize("data", [b"", b"\xc7", b"\xc7\x01", b"\xc9\x00\x00", b"\xd4", b"\x07"])
def test_damaged_bytes_are_no_snapshot(data):
    assert not raw.holds_snapshot("msgpack", data)
    with pytest.raises(LeaveWholeError):
        raw.mapping(raw.unpack("msgpack", data), "it")
