"""A function written for TorchRL: TensorDict in, TensorDict out.

python examples/obs_norm.py [ID]
"""

import sys

import rlds_cli
from rlds_cli import preprocess


def obs_norm(td):
    """Add the Euclidean length of every observation."""
    return td.set("obs_norm", td["observation"].norm(dim=-1))


if __name__ == "__main__":
    source = rlds_cli.download(sys.argv[1] if len(sys.argv) > 1 else "sample/pendulum-d4rl")
    ds = preprocess.run(source, obs_norm, arrays="tensordict")
    print(ds.id, ds.schema["obs_norm"])
    print(ds.episode(0)["obs_norm"][:5])
