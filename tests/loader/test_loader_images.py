"""Image transforms: values worked out by hand, and a slow filter that both torch and Pillow must agree with."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import rlds_cli
from rlds_cli.dataset.transforms import Elementwise
from rlds_cli.errors import InvalidArgument, UnknownField
from rlds_cli.loader import Batch, Loader, Resize, Sequential, Slice, ToFloat

torch = pytest.importorskip("torch")

KINDS = {"numpy": np.asarray, "torch": torch.from_numpy}


def as_kind(kind: str, x: np.ndarray) -> object:
    return KINDS[kind](x)


def check_kind(kind: str, y: object) -> np.ndarray:
    assert isinstance(y, torch.Tensor) == (kind == "torch")
    assert y.is_contiguous() if kind == "torch" else y.flags.c_contiguous
    return np.asarray(y)


def row_of(values: list[int], height: int, dtype: type = np.uint8) -> np.ndarray:
    """A frame [height, W, 1] with the same row everywhere."""
    return np.tile(np.array(values, dtype)[None, :, None], (height, 1, 1))


def slow_weights(size: int, wanted: int) -> np.ndarray:
    """Weights [wanted, size] of a triangle about each new pixel's centre, as wide as two pixels of the coarser grid."""
    step = size / wanted
    width = max(step, 1.0)
    weights = np.zeros((wanted, size))
    for i in range(wanted):
        for j in range(size):
            weights[i, j] = max(0.0, 1.0 - abs(j + 0.5 - (i + 0.5) * step) / width)
    return weights / weights.sum(axis=1, keepdims=True)


def slow_resize(x: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """[..., H, W, C] -> [..., height, width, C] in float64."""
    down, across = slow_weights(x.shape[-3], size[0]), slow_weights(x.shape[-2], size[1])
    return np.einsum("ih,jw,...hwc->...ijc", down, across, x.astype(np.float64))


# -- by hand


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_halving_weighs_three_pixels(kind: str, dtype: type) -> None:
    """New pixel 0 lies at 1.0, so pixels 0 1 2 weigh 3 3 1 sevenths."""
    x = as_kind(kind, row_of([0, 70, 140, 210], 4, dtype))
    y = check_kind(kind, Resize("observation", (2, 2)).apply("observation", x))
    assert y.dtype == dtype and y.shape == (2, 2, 1)
    assert np.allclose(y[..., 0], [[50, 160], [50, 160]], atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_doubling_is_linear_between_the_centres(kind: str) -> None:
    x = as_kind(kind, row_of([0, 100], 1))
    y = check_kind(kind, Resize("observation", (1, 4)).apply("observation", x))
    assert y[..., 0].tolist() == [[0, 25, 75, 100]]


@pytest.mark.parametrize("kind", KINDS)
def test_to_float_by_hand(kind: str) -> None:
    x = np.array([[[0, 51, 102], [153, 204, 255]]], np.uint8)  # [1, 2, 3]: one row, two pixels of three channels
    y = check_kind(kind, ToFloat("observation").apply("observation", as_kind(kind, x)))
    assert y.shape == (3, 1, 2) and y.dtype == np.float32
    assert np.allclose(y, [[[0.0, 0.6]], [[0.2, 0.8]], [[0.4, 1.0]]])
    last = check_kind(kind, ToFloat("observation", layout="hwc").apply("observation", as_kind(kind, x)))
    assert last.shape == (1, 2, 3) and np.allclose(last, [[[0.0, 0.2, 0.4], [0.6, 0.8, 1.0]]])


# -- against the slow filter


@settings(max_examples=20)
@given(
    lead=st.lists(st.integers(1, 3), max_size=2),
    shape=st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 5)),
    size=st.tuples(st.integers(1, 50), st.integers(1, 50)),
    seed=st.integers(0, 1000),
)
@example(lead=[], shape=(1, 2, 1), size=(1, 1), seed=0)  # torch 2.13 reads beyond tiny frames of bytes
@example(lead=[], shape=(2, 1, 2), size=(7, 1), seed=0)
def test_torch_and_pillow_agree_with_the_slow_filter(
    lead: list[int], shape: tuple[int, int, int], size: tuple[int, int], seed: int
) -> None:
    x = np.random.default_rng(seed).integers(0, 256, (*lead, *shape), np.uint8)
    expected = slow_resize(x, size)
    resize = Resize("observation", size)
    for kind in KINDS:
        whole = check_kind(kind, resize.apply("observation", as_kind(kind, x)))
        assert whole.dtype == np.uint8 and whole.shape == expected.shape
        assert np.abs(whole - expected).max() <= 1.01  # rounded after each of two passes
        floats = check_kind(kind, resize.apply("observation", as_kind(kind, x.astype(np.float32))))
        assert floats.dtype == np.float32 and np.allclose(floats, expected, atol=1e-3)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_floats_keep_their_dtype(kind: str, dtype: type) -> None:
    x = np.random.default_rng(0).random((2, 20, 30, 3)).astype(dtype)
    y = check_kind(kind, Resize("observation", (10, 12)).apply("observation", as_kind(kind, x)))
    assert y.dtype == dtype and np.allclose(y, slow_resize(x, (10, 12)), atol=2e-3 if dtype == np.float16 else 1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
def test_frames_without_channels_and_with_channels_first(kind: str, lead: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).integers(0, 256, (*lead, 30, 40), np.uint8)
    expected = slow_resize(x[..., None], (20, 18))[..., 0]
    y = check_kind(kind, Resize("observation", (20, 18)).apply("observation", as_kind(kind, x)))
    assert y.shape == (*lead, 20, 18) and np.abs(y - expected).max() <= 1.01
    z = check_kind(kind, ToFloat("observation").apply("observation", as_kind(kind, x)))
    assert z.shape == x.shape and np.allclose(z, x / 255)
    first = check_kind(kind, ToFloat("observation").apply("observation", as_kind(kind, x[None].repeat(3, 0))))
    assert first.shape == (3, *x.shape)


@pytest.mark.parametrize("kind", KINDS)
def test_resizing_after_to_float_is_the_same_but_for_rounding(kind: str) -> None:
    x = as_kind(kind, np.random.default_rng(0).integers(0, 256, (2, 40, 48, 3), np.uint8))
    resize, to_float = Resize("observation", (20, 24)), ToFloat("observation")
    before = check_kind(kind, to_float.apply("observation", resize.apply("observation", x)))
    after = check_kind(kind, resize.apply("observation", to_float.apply("observation", x)))
    assert before.shape == after.shape == (2, 3, 20, 24) and np.abs(before - after).max() <= 1.01 / 255


@pytest.mark.parametrize("kind", KINDS)
def test_the_size_that_it_has_and_no_frames_at_all(kind: str) -> None:
    x = as_kind(kind, np.zeros((2, 20, 24, 3), np.uint8))
    assert Resize("observation", (20, 24)).apply("observation", x) is x
    none = as_kind(kind, np.zeros((0, 20, 24, 3), np.uint8))
    assert tuple(Resize("observation", (10, 12)).apply("observation", none).shape) == (0, 10, 12, 3)
    assert tuple(ToFloat("observation").apply("observation", none).shape) == (0, 3, 20, 24)


# -- in a loader


@pytest.fixture
def frames() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (9, 20, 24, 3), np.uint8)


@pytest.fixture
def ds(frames: np.ndarray) -> rlds_cli.Dataset:
    episode = {
        "observation": {"camera": frames, "gray": frames[..., 0], "position": np.zeros((9, 18))},
        "action": np.zeros((8, 2)),
        "next": {"reward": np.zeros(8), "terminated": True},
    }
    return rlds_cli.create("local/frames", [episode])


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_root_and_next_in_a_batch(ds: rlds_cli.Dataset, frames: np.ndarray, backend: str) -> None:
    transform = [Resize("observation/camera", (10, 12)), ToFloat("observation/camera"), ToFloat("observation/gray")]
    loader = Loader(ds, 4, sampler=Sequential(), backend=backend, transform=transform)
    small = slow_resize(frames, (10, 12)).transpose(0, 3, 1, 2) / 255
    for k, batch in enumerate(loader):
        at = np.arange(4 * k, 4 * k + 4)
        assert isinstance(batch["observation", "camera"], torch.Tensor) == (backend == "torch")
        b = batch.numpy()
        for key, rows in ((("observation",), at), (("next", "observation"), at + 1)):
            camera, gray = b[(*key, "camera")], b[(*key, "gray")]
            assert camera.dtype == gray.dtype == np.float32 and camera.shape == (4, 3, 10, 12)
            assert np.abs(camera - small[rows]).max() <= 1.01 / 255
            assert np.allclose(gray, frames[rows, ..., 0] / 255)
        assert b["observation", "position"].dtype == np.float32


@pytest.mark.thorough
def test_slices_and_zeros_outside_an_episode(ds: rlds_cli.Dataset, frames: np.ndarray) -> None:
    window = Slice(5, after=4, fill="zero")
    fields = ("observation/camera",)
    loader = Loader(ds, 8, window=window, sampler=Sequential(), fields=fields, transform=ToFloat("observation"))
    b = next(iter(loader)).numpy()
    assert b["observation", "camera"].shape == (8, 5, 3, 20, 24)
    assert not b["observation", "camera"][~b["mask"]].any() and (~b["mask"]).any()
    assert np.allclose(b["observation", "camera"][1, 2], frames[3].transpose(2, 0, 1) / 255)


def test_one_observation_at_evaluation(frames: np.ndarray) -> None:
    resize, to_float = Resize("observation", (10, 12)), ToFloat("observation")
    for key in ("observation", "next/observation", ("next", "observation"), ("observation", "camera")):
        one = to_float.apply(key, resize.apply(key, frames[0]))
        assert one.shape == (3, 10, 12)
    tensor = to_float.apply("observation", resize.apply("observation", torch.from_numpy(frames[0])))
    assert np.abs(tensor.numpy() - one).max() <= 1.01 / 255


def test_a_batch_of_ones_own_and_everything_below_a_field(frames: np.ndarray) -> None:
    made = {"observation/left": frames, "observation/right": frames, "next/observation/left": frames, "pixels": frames}
    batch = ToFloat("observation")(Batch.nest(made))
    assert batch["observation", "left"].dtype == batch["observation", "right"].dtype == np.float32
    assert batch["next", "observation", "left"].dtype == np.float32 and batch["pixels"].dtype == np.uint8


def test_both_work_on_many_batches_at_once() -> None:
    assert issubclass(Resize, Elementwise) and issubclass(ToFloat, Elementwise)
    assert ToFloat(("observation", "camera")).touches("next/observation/camera/0")
    assert not Resize("observation", (4, 4)).touches("observations") and not ToFloat("observation").touches("action")


def test_the_frames_given_are_left_alone(frames: np.ndarray) -> None:
    before = frames.copy()
    for kind in KINDS:
        y = ToFloat("observation", layout="hwc").apply("observation", as_kind(kind, frames))
        y *= 2
        Resize("observation", (10, 10)).apply("observation", as_kind(kind, frames))
    assert np.array_equal(frames, before)


def test_arrays_are_resized_without_torch() -> None:
    code = """
import sys, numpy as np
from rlds_cli.dataset.transforms import Resize, ToFloat
x = Resize("observation", (8, 8)).apply("observation", np.zeros((2, 20, 24, 3), np.uint8))
assert ToFloat("observation").apply("observation", x).shape == (2, 3, 8, 8)
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# -- what is no image


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("make", "x"),
    [
        (ToFloat, np.zeros((4, 20, 24, 3), np.float32)),
        (ToFloat, np.zeros((4, 20, 24, 3), np.int64)),
        (ToFloat, np.zeros((4, 3), np.uint8)),
        (ToFloat, np.zeros(4, np.uint8)),
        (ToFloat, np.zeros((4, 0, 24, 3), np.uint8)),
        (Resize, np.zeros((256, 17), np.float32)),
        (Resize, np.zeros((256, 3), np.float64)),
        (Resize, np.zeros((4, 20, 24, 3), np.int64)),
        (Resize, np.zeros((4, 20, 24, 3), bool)),
        (Resize, np.zeros((), np.uint8)),
    ],
)
def test_what_is_no_image_is_refused(kind: str, make: type, x: np.ndarray) -> None:
    transform = ToFloat("observation") if make is ToFloat else Resize("observation", (8, 8))
    with pytest.raises(InvalidArgument, match=r"next/observation is \w+ \[.*\]; frames are uint8"):
        transform.apply("next/observation", as_kind(kind, x))


@pytest.mark.thorough
def test_a_field_of_other_values_beside_the_images(ds: rlds_cli.Dataset) -> None:
    with pytest.raises(InvalidArgument, match="observation/position is float32"):
        next(iter(Loader(ds, 4, transform=ToFloat("observation"))))
    with pytest.raises(UnknownField, match="touches none"):
        Loader(ds, 4, transform=ToFloat("observation/camara"))


def test_arguments_that_cannot_be() -> None:
    for size in (64, (64,), (64, 64, 3), (0, 64), (64.0, 64.0), "64x64", (-1, 4)):
        with pytest.raises(InvalidArgument, match="height, width"):
            Resize("observation", size)
    assert Resize("observation", [np.int64(4), 5]).size == (4, 5)
    with pytest.raises(InvalidArgument, match='"chw" or "hwc"'):
        ToFloat("observation", layout="nchw")
    with pytest.raises(InvalidArgument, match="taken for frames with 16 channels"):
        Resize("observation", (16, 16)).apply("observation", np.zeros((4, 84, 84), np.uint8))
