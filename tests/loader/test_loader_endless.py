"""A `for` loop over an endless loader that nothing leaves says so, once; loops with a way out say nothing."""

from __future__ import annotations

import itertools
import warnings
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

import rlds_cli
from rlds_cli.dataset import Dataset
from rlds_cli.errors import EndlessLoop
from rlds_cli.loader import Loader, Mixture, Shuffled


class Trained(Exception):
    pass


class Training:
    """Counts batches, and stops the test after some: no statement of a loop does."""

    def __init__(self, most: int) -> None:
        self.batches, self.most = 0, most

    def step(self, batch: Any) -> None:
        self.batches += 1
        if self.batches == self.most:
            raise Trained


@pytest.fixture
def ds(home: object) -> Dataset:
    one = {"observation": np.zeros((5, 1)), "action": np.zeros((4, 1))}
    return rlds_cli.create("local/short", [one, one])


def told(loop: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with suppress(Trained):
            loop()
    return [str(w.message) for w in said if issubclass(w.category, EndlessLoop)]


def test_epochs_of_an_endless_loader_are_said_once(ds: Dataset) -> None:
    loader, training = Loader(ds, 4), Training(60)  # eight windows: ten times the dataset are 20 batches

    def loop() -> None:
        for _epoch in range(10):
            for batch in loader:
                training.step(batch)

    (text,) = told(loop)
    assert text.startswith("this `for` loop never ends: 80 samples so far, 10 times the dataset, and Uniform(")
    assert "hint: sampler=Shuffled() ends a loop after each epoch, steps=100_000 after so many batches" in text
    training.batches = 0
    assert told(loop) == []  # once


def test_the_loop_may_be_in_a_function_counted_or_shown(ds: Dataset) -> None:
    def show(batches: Any) -> Any:
        yield from batches  # as tqdm does

    tqdm = show

    def count() -> None:
        loader, training = Loader(ds, 4), Training(60)
        for _number, batch in enumerate(tqdm(loader)):
            if _number % 10 == 0:
                continue
            for _ in range(3):
                break
            training.step(batch)

    assert len(told(count)) == 1


def test_a_data_loader_without_workers_is_told_as_well(ds: Dataset) -> None:
    torch = pytest.importorskip("torch")
    loaded, training = torch.utils.data.DataLoader(Loader(ds, 4).as_torch(), batch_size=None), Training(60)

    def loop() -> None:
        for batch in loaded:
            training.step(batch)

    assert len(told(loop)) == 1


def test_a_mixture_names_steps_alone(ds: Dataset) -> None:
    loader, training = Loader(Mixture({"a": ds, "b": ds}), 4, sampler=Shuffled()), Training(100)

    def loop() -> None:
        for batch in loader:
            training.step(batch)

    (text,) = told(loop)
    assert "and a mixture has no last batch.\n  hint: steps=100_000 after so many batches" in text


def test_loops_that_end_or_can_be_left_say_nothing(ds: Dataset) -> None:
    def leaves() -> None:
        loader = Loader(ds, 4)
        for _batch in loader:
            if loader.step == 60:
                break

    def returns() -> None:
        loader = Loader(ds, 4)
        for _batch in loader:
            if loader.step == 60:
                return

    def raises() -> None:
        loader = Loader(ds, 4)
        for _batch in loader:
            if loader.step == 60:
                raise Trained

    def takes() -> None:
        batches = iter(Loader(ds, 4))
        for _ in range(60):
            next(batches)

    def slices() -> None:
        for _batch in itertools.islice(Loader(ds, 4), 60):
            pass

    def counts() -> None:
        for _step, _batch in enumerate(itertools.islice(Loader(ds, 4), 60)):
            pass

    def names() -> None:
        some = itertools.islice(Loader(ds, 4), 60)
        for _batch in some:
            pass

    def zips() -> None:
        for _step, _batch in zip(range(60), Loader(ds, 4), strict=False):
            pass

    def steps() -> None:
        for _batch in Loader(ds, 4, steps=60):
            pass

    def epochs() -> None:
        loader = Loader(ds, 4, sampler=Shuffled())
        for _epoch in range(30):
            for _batch in loader:
                pass

    def gives() -> None:
        def batches() -> Any:
            for batch in Loader(ds, 4):
                yield batch["observation"]

        for _batch in itertools.islice(batches(), 60):
            pass

    for loop in (leaves, returns, raises, takes, slices, counts, names, zips, steps, epochs, gives):
        assert told(loop) == [], loop.__name__


def test_code_without_a_source_says_nothing(ds: Dataset) -> None:
    scope = {"loader": Loader(ds, 4), "training": Training(60)}
    assert told(lambda: exec("for batch in loader: training.step(batch)", scope)) == []
