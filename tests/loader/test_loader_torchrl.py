"""TorchRL 0.14 on the same transitions: where it is right we agree, and where it is not it is shown.

Its `PrioritizedSampler` needs an extension that is bound to one build of torch: weights are compared by its formula.
"""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_data import SELECTIONS, create, episode, varied

from rlds_cli.errors import InvalidArgument
from rlds_cli.loader import Episode, Loader, Prioritized, ReturnToGo, Sequential, Shuffled, Slice, Transition, Uniform

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


def everything(ds, dtype=None, **options):
    """All transitions as one batch, in the order of the dataset."""
    return next(iter(Loader(ds, len(ds), sampler=Sequential(), dtype=dtype, **options)))


@pytest.mark.thorough
@MANY
@given(SOME, st.integers(2, 9), st.sampled_from([0.5, 0.9, 1.0]))
def test_n_step_sums_discounts_and_observations_agree(ds, peers, chosen, n, gamma):
    view = ds.select(episodes=chosen)
    theirs = peers[0](gamma, n)(everything(view).tensordict()[None])[0]
    ours = everything(view, window=Transition(n, gamma))
    torch.testing.assert_close(ours["next", "reward"], theirs["next", "reward"])
    assert torch.equal(ours["next", "observation"], theirs["next", "observation"])
    torch.testing.assert_close(ours["next", "discount"].flatten(), theirs["gamma"].flatten().double())
    td = ours.tensordict()
    assert torch.equal(td["steps_to_next_obs"].flatten(), theirs["steps_to_next_obs"].flatten())


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
    ours = everything(view, fields=[..., ReturnToGo(gamma)])
    torch.testing.assert_close(ours["return_to_go"], theirs["return_to_go"])


def test_its_returns_to_go_have_a_discount_of_single_precision_and_end_early(peers):
    """Terms are left out from where the discount is below 1e-7, however large the rewards are."""
    one = episode(0, 40)
    one.reward[:] = 0
    one.reward[-1] = 1e9
    ds = create([one])
    theirs = peers[1](0.5, out_keys=["return_to_go"]).inv(everything(ds).tensordict())["return_to_go"][:, 0]
    ours = everything(ds, fields=[..., ReturnToGo(0.5)])["return_to_go"][:, 0]
    assert ours.tolist() == [1e9 * 0.5**k for k in range(39, -1, -1)]
    assert theirs[0] == 0 and ours[0] > 1e-3
    near = peers[1](0.9, out_keys=["return_to_go"]).inv(everything(ds).tensordict())["return_to_go"][-2, 0]
    assert abs(near / 0.9e9 - 1) > 1e-9


@pytest.mark.thorough
@MANY
@given(SELECTIONS, st.floats(0, 1), st.floats(0, 1), st.data())
def test_importance_weights_are_by_its_formula(ds, chosen, alpha, beta, data):
    """``(p / p_min) ** -beta`` with ``p = (priority + eps) ** alpha``: torchrl/data/replay_buffers/samplers."""
    view = ds.select(episodes=chosen)
    if not len(view):
        return
    priority = np.array(data.draw(st.lists(st.floats(0, 1e3), min_size=len(view), max_size=len(view))))
    loader = Loader(
        view, 16, sampler=Prioritized(alpha, beta, eps=1e-8), backend="numpy", dtype=None, fields=[..., "index"]
    )
    batches = iter(loader)
    batch = next(batches)
    batch["window"] = np.arange(len(view))
    loader.update_priorities(batch, priority)
    p = (priority + 1e-8) ** alpha
    drawn = next(batches)
    np.testing.assert_allclose(drawn["weight"][:, 0], (p[drawn["index"]] / p.min()) ** -beta, rtol=1e-6)
    np.testing.assert_allclose(drawn["probability"], p[drawn["index"]] / p.sum(), rtol=1e-9)


# -- its losses


@pytest.fixture(scope="module")
def learners():
    """Makers of losses over observations [3] and actions [2], each with the discount 0.9."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("torchrl")
        from tensordict.nn import TensorDictModule
        from tensordict.nn.distributions import NormalParamExtractor
        from torchrl.data import Bounded
        from torchrl.modules import ProbabilisticActor, TanhNormal, ValueOperator
        from torchrl.objectives import CQLLoss, DDPGLoss, IQLLoss, SACLoss, TD3Loss

    class Sum(torch.nn.Module):
        """A value that a test can work out: a weight times the sum of what it is given."""

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor(0.5))

        def forward(self, *x):
            return self.weight * torch.cat(x, -1).sum(-1, keepdim=True)

    def stochastic():
        module = torch.nn.Sequential(torch.nn.Linear(3, 4), NormalParamExtractor())
        loc = TensorDictModule(module, in_keys=["observation"], out_keys=["loc", "scale"])
        return ProbabilisticActor(loc, in_keys=["loc", "scale"], distribution_class=TanhNormal)

    def deterministic():
        return TensorDictModule(torch.nn.Linear(3, 2), in_keys=["observation"], out_keys=["action"])

    def q():
        return ValueOperator(Sum(), in_keys=["observation", "action"])

    spec = Bounded(-1, 1, (2,))
    made = {
        "ddpg": lambda: DDPGLoss(deterministic(), q(), delay_value=False),
        "td3": lambda: TD3Loss(deterministic(), q(), action_spec=spec),
        "sac": lambda: SACLoss(stochastic(), q(), action_spec=spec),
        "cql": lambda: CQLLoss(stochastic(), q(), action_spec=spec),
        "iql": lambda: IQLLoss(stochastic(), q(), ValueOperator(Sum(), in_keys=["observation"])),
    }

    def make(name):
        loss = made[name]()
        loss.make_value_estimator(gamma=0.9)
        return loss

    return make


@pytest.mark.filterwarnings("ignore")  # of its own
@pytest.mark.parametrize("window", [Transition(), Transition(3, 0.9), Slice(4), Slice(4, after=3), Episode()])
@pytest.mark.parametrize("sampler", [Uniform(), Shuffled(), Prioritized(priority="length")])
@pytest.mark.parametrize("name", ["ddpg", "td3", "sac", "cql", "iql"])
def test_its_losses_take_every_batch(ds, learners, window, sampler, name):
    td = next(iter(Loader(ds, 8, window=window, sampler=sampler))).tensordict()
    found = learners(name)(td)
    losses = [x for key, x in found.items() if key.startswith("loss")]
    assert losses and all(torch.isfinite(x).all() for x in losses)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("n", [1, 3])
def test_its_targets_are_those_worked_out_by_hand(ds, learners, n):
    """IQL's target of Q: the sum of rewards + gamma^k (1 - terminated) V(s'), with V = 0.5 * the sum of s'."""
    view = ds.select(episodes=OBSERVED)
    td = everything(view, "float32", window=Transition(n, 0.9), fields=[..., "episode", "step"]).tensordict()
    loss = learners("iql")
    target = loss.value_estimator.value_estimate(td, target_params=loss.target_value_network_params)
    for i in range(len(td)):
        known, t = VARIED[OBSERVED[int(td["episode"][i])]], int(td["step"][i])
        total, k = known.n_step(t, n, 0.9)
        value = 0.5 * known.observation[t + k].sum()
        expected = total + 0.9**k * (not known.terminated[t + k - 1]) * value
        assert target[i].item() == pytest.approx(expected, rel=1e-5, abs=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_its_losses_are_weighed_and_its_errors_become_priorities(ds, learners):
    loader = Loader(ds, 8, sampler=Prioritized(beta=1.0, priority="length"))
    td = next(iter(loader)).tensordict()
    loss = learners("ddpg")
    found = loss(td)
    target = loss.value_estimator.value_estimate(td, target_params=loss._cached_target_params)
    q = 0.5 * (td["observation"].sum(-1, keepdim=True) + td["action"].sum(-1, keepdim=True))
    squared, weight = (q - target)[:, 0].square(), td["priority_weight"]
    torch.testing.assert_close(found["loss_value"], (squared * weight).sum() / weight.sum())
    assert len(set(weight.tolist())) > 1
    torch.testing.assert_close(td["td_error"].flatten(), squared)
    loader.update_priorities(td, td["td_error"])
    masses = loader.state_dict()["priorities"]["masses"]
    for window, error in zip(td["window"].tolist(), squared.tolist(), strict=True):
        if td["window"].tolist().count(window) == 1:
            assert masses[window].item() == pytest.approx((error + 1e-6) ** 0.6, rel=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_dqn_reads_the_steps(learners):
    from torchrl.data import OneHot
    from torchrl.modules import DistributionalQValueActor, QValueActor
    from torchrl.objectives import DistributionalDQNLoss, DQNLoss

    one = episode(0, 6)
    one.action[:] = np.eye(2)[np.arange(6) % 2]
    td = everything(create([one]), "float32", window=Transition(3, 0.9)).tensordict()
    net = torch.nn.Linear(3, 2, bias=False)
    loss = DQNLoss(QValueActor(net, in_keys=["observation"], spec=OneHot(2)), delay_value=False, action_space="one-hot")
    loss.make_value_estimator(gamma=0.9)
    loss(td)
    with torch.no_grad():
        best = net(td["next", "observation"]).max(-1).values
        expected = []
        for t in range(6):
            total, k = one.n_step(t, 3, 0.9)
            expected.append(total + 0.9**k * (not one.terminated[t + k - 1]) * best[t].item())
        q = net(td["observation"]).gather(-1, td["action"].argmax(-1, keepdim=True))[:, 0]
    error = (q - torch.tensor(expected)).square()
    torch.testing.assert_close(td["td_error"].flatten(), error, rtol=1e-4, atol=1e-5)

    class Atoms(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 10)

        def forward(self, x):
            return self.linear(x).reshape(*x.shape[:-1], 5, 2).log_softmax(-2)

    actor = DistributionalQValueActor(
        Atoms(), spec=OneHot(2), in_keys=["observation"], support=torch.linspace(-5, 5, 5), make_log_softmax=False
    )
    distributional = DistributionalDQNLoss(actor, gamma=0.9, delay_value=False)
    assert torch.isfinite(distributional(td.exclude("td_error"))["loss"])


# -- its transforms


@pytest.mark.filterwarnings("ignore")
def test_its_transforms_take_a_tensordict(ds):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("torchrl")
        from torchrl.envs import transforms as t
    batch = next(iter(Loader(ds, 8)))
    td = batch.tensordict()
    scaled = t.RewardScaling(loc=1.0, scale=2.0, in_keys=[("next", "reward")])(td.clone())
    torch.testing.assert_close(scaled["next", "reward"], batch["next/reward"] * 2 + 1)
    keys = ["observation", ("next", "observation")]
    normed = t.ObservationNorm(loc=1.0, scale=0.5, in_keys=keys, out_keys=keys)(td.clone())
    torch.testing.assert_close(normed["next", "observation"], batch["next/observation"] * 0.5 + 1)
    both = t.Compose(t.DoubleToFloat(), t.RewardClipping(-0.1, 0.1, in_keys=[("next", "reward")]))(td.clone())
    assert both["next", "reward"].abs().max() <= 0.1
    td["pixels"] = torch.randint(0, 255, (8, 4, 5, 3), dtype=torch.uint8)
    image = t.ToTensorImage(in_keys=["pixels"])(td.clone())["pixels"]
    torch.testing.assert_close(image, td["pixels"].permute(0, 3, 1, 2) / 255)


def test_its_transforms_in_place_of_ours_say_what_to_write(ds):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("torchrl")
        from torchrl.envs.transforms import Compose, RewardScaling
    for transform in (RewardScaling(0.0, 1.0), Compose(RewardScaling(0.0, 1.0))):
        with pytest.raises(InvalidArgument, match=r"transform\(batch.tensordict\(\)\)"):
            Loader(ds, 4, transform=transform)
