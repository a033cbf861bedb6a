"""TorchRL 0.14 on the same transitions: where it is right we agree, and where it is not it is shown.

Its `PrioritizedSampler` needs an extension that is bound to one build of torch: weights are compared by its formula.
"""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_data import SELECTIONS, create, episode, varied

from rlds_cli.loader import Loader, Prioritized, ReturnToGo, Sequential, Transition

torch = pytest.importorskip("torch")

VARIED = varied()
OBSERVED = [k for k, e in enumerate(VARIED) if e.num_observed > e.length]  # TorchRL knows no others
SOME = st.lists(st.sampled_from(OBSERVED), min_size=1, max_size=7, unique=True)
MANY = settings(max_examples=20)


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    with pytest.MonkeyPatch.context() as env:
        env.setenv("RLDS_HOME", str(tmp_path_factory.mktemp("home")))
        return create(VARIED, ref="local/varied")


@pytest.fixture(scope="module")
def peers():
    """`MultiStep` and `Reward2GoTransform`; importing them warns of the extension, and takes seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("torchrl")
        from torchrl.data.postprocs import MultiStep
        from torchrl.envs.transforms import Reward2GoTransform
    return MultiStep, Reward2GoTransform


def everything(ds, **options):
    """All transitions as one batch, in the order of the dataset."""
    return next(iter(Loader(ds, len(ds), sampler=Sequential(), dtype=None, **options)))


@MANY
@given(SOME, st.integers(2, 9), st.sampled_from([0.5, 0.9, 1.0]))
def test_n_step_sums_discounts_and_observations_agree(ds, peers, chosen, n, gamma):
    view = ds.select(episodes=chosen)
    theirs = peers[0](gamma, n)(everything(view).tensordict()[None])[0]
    ours = everything(view, window=Transition(n, gamma))
    torch.testing.assert_close(ours["next", "reward"], theirs["next", "reward"])
    assert torch.equal(ours["next", "observation"], theirs["next", "observation"])
    torch.testing.assert_close(ours["next", "discount"].flatten(), theirs["gamma"].flatten().double())


def test_its_n_step_transitions_bootstrap_from_terminal_states(peers):
    """The flags stay those of the first step: a sum that ends in a terminal state is not marked as terminated."""
    ds = create([episode(0, 4)])
    theirs = peers[0](0.9, 3)(everything(ds).tensordict()[None])[0]
    ours = everything(ds, window=Transition(3, 0.9))
    final = torch.tensor([False, True, True, True])  # three steps on: the sums of the last three end at the end
    assert torch.equal((ours["next", "observation"][:, 1] == 4), final)
    assert torch.equal(ours["next", "terminated"][:, 0], final)
    assert theirs["next", "terminated"][:, 0].tolist() == [False, False, False, True]
    assert theirs["nonterminal"].flatten().tolist() == [True, True, True, False]


@MANY
@given(SOME, st.sampled_from([0.5, 1.0]))
def test_returns_to_go_agree(ds, peers, chosen, gamma):
    view = ds.select(episodes=chosen)
    theirs = peers[1](gamma, out_keys=["return_to_go"]).inv(everything(view).tensordict())
    ours = everything(view, extra=(ReturnToGo(gamma),))
    torch.testing.assert_close(ours["return_to_go"], theirs["return_to_go"])


def test_its_returns_to_go_have_a_discount_of_single_precision_and_end_early(peers):
    """Terms are left out from where the discount is below 1e-7, however large the rewards are."""
    one = episode(0, 40)
    one.reward[:] = 0
    one.reward[-1] = 1e9
    ds = create([one])
    theirs = peers[1](0.5, out_keys=["return_to_go"]).inv(everything(ds).tensordict())["return_to_go"][:, 0]
    ours = everything(ds, extra=(ReturnToGo(0.5),))["return_to_go"][:, 0]
    assert ours.tolist() == [1e9 * 0.5**k for k in range(39, -1, -1)]
    assert theirs[0] == 0 and ours[0] > 1e-3
    near = peers[1](0.9, out_keys=["return_to_go"]).inv(everything(ds).tensordict())["return_to_go"][-2, 0]
    assert abs(near / 0.9e9 - 1) > 1e-9


@MANY
@given(SELECTIONS, st.floats(0, 1), st.floats(0, 1), st.data())
def test_importance_weights_are_by_its_formula(ds, chosen, alpha, beta, data):
    """``(p / p_min) ** -beta`` with ``p = (priority + eps) ** alpha``: torchrl/data/replay_buffers/samplers."""
    view = ds.select(episodes=chosen)
    if not len(view):
        return
    priority = np.array(data.draw(st.lists(st.floats(0, 1e3), min_size=len(view), max_size=len(view))))
    loader = Loader(view, 16, sampler=Prioritized(alpha, beta, eps=1e-8), backend="numpy", dtype=None, extra="index")
    batches = iter(loader)
    batch = next(batches)
    batch["window"] = np.arange(len(view))
    loader.update_priorities(batch, priority)
    p = (priority + 1e-8) ** alpha
    drawn = next(batches)
    np.testing.assert_allclose(drawn["weight"][:, 0], (p[drawn["index"]] / p.min()) ** -beta, rtol=1e-6)
    np.testing.assert_allclose(drawn["probability"], p[drawn["index"]] / p.sum(), rtol=1e-9)
