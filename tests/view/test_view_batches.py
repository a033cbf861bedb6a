"""What the viewer shows of a loader: the batches that training gets, and no step of it is taken."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from PIL import Image
from viewer import Viewer

import rlds_cli
from rlds_cli.loader import Episode, Loader, Offsets, Pairs, Shuffled, Slice, ToFloat, Transition
from rlds_cli.view.server import Server


def made() -> rlds_cli.Dataset:
    """Episodes whose values say which row they are; a picture is as bright as its step."""

    def one(number: int) -> dict[str, object]:
        length = 6 + number
        rows = 100 * number + np.arange(length + 1)
        return {
            "observation": {
                "state": np.stack([rows, -rows], 1).astype(np.float32),
                "camera": np.full((length + 1, 20, 30, 3), np.arange(length + 1)[:, None, None, None] * 20, np.uint8),
            },
            "action": rows[:-1, None].astype(np.float32),
            "next": {"reward": rows[:-1].astype(np.float32), "terminated": np.arange(length) == length - 1},
            "instruction": ["go <b>on</b>"] * length,
        }

    return rlds_cli.create("local/counted", [one(k) for k in range(4)], progress=False)


@contextmanager
def viewing(loader: Loader) -> Iterator[Viewer]:
    with Server(loader=loader) as server:
        yield Viewer(server)


def test_slices_with_padding_as_training_gets_them() -> None:
    fields = [..., "step", "instruction"]
    window = Slice(5, after=4)
    camera = "observation/camera"
    loader = Loader(made(), 8, window=window, fields=fields, sampler=Shuffled(), transform=[ToFloat(camera)], seed=3)
    again = Loader(made_again(), 8, window=window, fields=fields, sampler=Shuffled(), seed=3, dtype=None)
    batches = list(again)
    with viewing(loader) as viewer:
        for number in (2, 0):
            found = viewer.record("batch", n=number, count=3)
            expected = batches[number].numpy()
            assert (found["number"], found["size"], found["of"]) == (number, 8, len(loader))
            told = {f["name"]: f for f in found["fields"]}
            assert told["observation/state"]["shape"] == [8, 5, 2] and told["observation/state"]["kind"] == "curve"
            assert told[camera]["kind"] == "image" and told[camera]["dtype"] == "float32"
            assert told["mask"]["kind"] == "mask"
            assert told["step"]["high"] == expected["step"].max()
            for k, sample in enumerate(found["samples"]):
                assert sample["number"] == k
                np.testing.assert_array_equal(sample["values"]["observation/state"], expected["observation/state"][k])
                np.testing.assert_array_equal(sample["values"]["instruction"], expected["instruction"][k][:, None])
                mask = sample["mask"].get("action", [True] * 5)
                np.testing.assert_array_equal(mask, expected["mask"][k])
            picture = viewer.ask("media/batch", n=number, field=camera, sample=1, step=2)
            pixel = np.asarray(Image.open(io.BytesIO(picture.body)).convert("RGB"))[10, 15]
            np.testing.assert_allclose(pixel, expected[camera][1, 2, 10, 15], atol=2)
    assert loader.step == 0  # training begins where it would have begun


def made_again() -> rlds_cli.Dataset:
    return rlds_cli.open_dataset("local/counted")


def test_offsets_have_masks_of_their_own() -> None:
    window = Offsets({"observation/state": (-1, 0), "action": range(4)})
    loader = Loader(made(), 6, window=window, sampler=Shuffled(), fields=["observation/state", "action", "next/reward"])
    expected = next(iter(loader)).numpy()
    with viewing(loader) as viewer:
        found = viewer.record("batch", n=0)
    kinds = {f["name"]: (f["kind"], f["steps"]) for f in found["fields"]}
    assert kinds["action"] == ("curve", 4) and kinds["observation/state"] == ("curve", 2)
    assert kinds["next/reward"] == ("values", None)
    for k, sample in enumerate(found["samples"]):
        for name in ("action", "observation/state"):
            whole = [True] * len(sample["values"][name])
            np.testing.assert_array_equal(sample["mask"].get(name, whole), expected[f"mask/{name}"][k])
        np.testing.assert_array_equal(sample["values"]["next/reward"], expected["next/reward"][k])


@pytest.mark.parametrize("window", [Transition(), Episode()])
def test_it_begins_where_the_loader_is_and_leaves_it_there(window: Transition | Episode) -> None:
    loader = Loader(made(), 2, window=window, sampler=Shuffled(), seed=1)
    batches = iter(loader)
    next(batches)
    with viewing(loader) as viewer:
        shown = viewer.record("batch")
        viewer.record("batch", n=0)
        expected = next(batches).numpy()
    assert shown["number"] == 1
    for k, sample in enumerate(shown["samples"]):
        np.testing.assert_array_equal(sample["values"]["action"], expected["action"][k])


def test_pairs_are_shown_one_after_the_other() -> None:
    loader = Loader(made(), 3, window=Slice(4), sampler=Pairs(), seed=0)
    expected = next(iter(loader)).numpy()
    with viewing(loader) as viewer:
        found = viewer.record("batch", n=0)
    shown = [s["values"]["action"] for s in found["samples"]]
    np.testing.assert_array_equal(shown, expected["action"].reshape(6, 4, 1))


def test_what_cannot_be_shown_is_said() -> None:
    def breaks(batch: rlds_cli.batch.Batch) -> None:
        raise ValueError("no such gripper")

    ds = made()
    with viewing(Loader(ds, 2, transform=breaks, sampler=Shuffled(), steps=3)) as viewer:
        answer = viewer.ask("api/batch", n=0)
        assert answer.status == 500 and "no such gripper" in json.loads(answer.body)["error"]
    with viewing(Loader(ds, 2)) as viewer:
        assert viewer.ask("api/batch", n=-1).status == 422
        assert viewer.ask("api/batch", n=0, count=1000).status == 422
        assert viewer.ask("media/batch", n=0, field="action", sample=0).status == 404
        assert viewer.ask("media/batch", n=0, field="observation/camera", sample=5).status == 404
    with Server([ds]) as server:
        assert Viewer(server).ask("api/batch", n=0).status == 404


def test_in_a_notebook() -> None:
    ds = made()
    for shown, place in ((ds.view(), "#/d/~0"), (Loader(ds, 2).view(), "#/b/0")):
        try:
            assert shown.address.endswith(place)
            assert shown.address in shown._repr_html_() and "<iframe" in shown._repr_html_()
        finally:
            shown.close()
