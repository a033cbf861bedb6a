"""The data side of TD3+BC: normalised observations, rewards scaled by the range of returns, terminated as float.

python examples/td3_bc_data.py [ID] [--steps N] [--device cuda]
"""

import argparse

import rlds_cli
from rlds_cli.loader import Loader, Normalize, Reward


def batches(ref, *, steps, device="cpu"):
    """Batches as the trainer takes them: s, a, r, s', terminated."""
    ds = rlds_cli.download(ref)
    norm, ret = Normalize(ds, eps=1e-3), ds.select(where="end != 'cut'").episodes["total_reward"]
    scale = Reward(scale=1000 / (ret.max() - ret.min()))
    for batch in Loader(ds, 256, transform=[norm, scale], device=device, seed=0, steps=steps):
        yield batch.sarsd()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("id", nargs="?", default="sample/pendulum-d4rl")
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    for n, (s, a, r, s2, terminated) in enumerate(batches(args.id, steps=args.steps, device=args.device)):
        if n % 250 == 0:
            print(
                f"batch {n:6}  s {tuple(s.shape)}  a {tuple(a.shape)}  r {r.mean():8.3f}  s' {tuple(s2.shape)}  "
                f"terminated {terminated.mean():.3f}"
            )
